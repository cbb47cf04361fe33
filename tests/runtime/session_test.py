import tensorflow as tf

import graph_files
from placeto_tf.runtime import session as session_lib

v1 = tf.compat.v1


def _run(graph_def, fetch, feeds=None, **config):
  metadata = v1.RunMetadata()
  with v1.Session(graph=graph_files.imported(graph_def),
                  config=session_lib.session_config(**config)) as session:
    session.run(fetch, feeds, options=session_lib.trace_options(), run_metadata=metadata)
  return metadata


def _chain():
  with tf.Graph().as_default() as tf_graph:
    with v1.device("/CPU:1"):
      first = tf.constant([1.0, 2.0], name="first")
    with v1.device("/CPU:0"):
      second = tf.identity(first, name="second")
    with v1.device("/CPU:1"):
      tf.add(second, tf.constant([1.0, 1.0], name="one"), name="third")
  return tf_graph.as_graph_def()


def test_traces_and_partitions_say_where_each_node_ran():
  metadata = _run(_chain(), "third:0", num_cpus=2)
  for found in (
      session_lib.executed_devices(metadata), session_lib.partitioned_devices(metadata)):
    assert found["second"] == {"/device:CPU:0"}
    assert found["third"] == {"/device:CPU:1"}


def test_ops_that_could_be_folded_or_merged_are_run_as_they_are():
  with tf.Graph().as_default() as tf_graph:
    with v1.device("/CPU:0"):
      folds = tf.add(tf.constant(1.0), tf.constant(2.0), name="folds")
      twins = [tf.square(folds, name=f"twin_{i}") for i in range(2)]
      tf.add_n([tf.identity(twin, name="passes") for twin in twins], name="sum")
  names = {node.name for node in tf_graph.as_graph_def().node}
  assert names <= set(session_lib.executed_devices(_run(tf_graph.as_graph_def(), "sum:0")))


def test_kernels_are_not_swapped_in_these_tests():
  assert session_lib.swaps_kernels() is False
