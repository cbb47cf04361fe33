"""Every variable gets a value, in whatever form the graph came."""

import pytest
import tensorflow as tf

import graph_files
from placeto_tf.graphs import load_graph, variables

v1 = tf.compat.v1


def _runs(graph, tf_graph):
  """The initialisers, after which the fetches ran."""
  ops, fed = variables.initializers(graph, tf_graph)
  feeds = {"features:0": [[0.5] * 64] * 8, "labels:0": [[1.0] * 64] * 8}
  with v1.Session(graph=tf_graph) as session:
    session.run(ops, fed)
    session.run([tf_graph.as_graph_element(name) for name in graph.fetches], feeds)
  return ops, fed


def test_collections_name_the_initializers():
  graph = load_graph(graph_files.meta_graph_def())
  ops, fed = _runs(graph, graph_files.imported(graph.source.graph_def))
  assert not fed and all(op.type == "AssignVariableOp" for op in ops)


def test_a_graph_def_is_initialised_by_its_own_op():
  with graph_files.training_graph().as_default() as live:
    graph_def = live.as_graph_def()
  tf_graph = graph_files.imported(graph_def)
  with tf_graph.as_default(), tf.control_dependencies(
      [op for op in tf_graph.get_operations() if op.name.endswith("/Assign")]):
    tf.no_op(name="init")
  graph = load_graph(tf_graph, fetches=["train"])
  ops, fed = _runs(graph, tf_graph)
  assert [op.name for op in ops] == ["init"] and not fed


def test_what_has_no_initializer_gets_random_values():
  graph_def = graph_files.graph_def()
  graph = load_graph(graph_def, fetches=["train"])
  ops, fed = _runs(graph, graph_files.imported(graph_def))
  assert len(ops) == len(fed) == graph.op_types.count("VarHandleOp")
  assert all(value.min() >= 0 for value in fed.values())


@pytest.mark.parametrize("dtype", [tf.float32, tf.int64])
def test_reference_variables_are_assigned_too(dtype):
  with tf.Graph().as_default() as tf_graph:
    v1.disable_resource_variables()
    try:
      value = v1.get_variable("value", [2], dtype, initializer=v1.zeros_initializer(),
                              use_resource=False)
    finally:
      v1.enable_resource_variables()
    tf.identity(value, name="read")
  graph = load_graph(tf_graph.as_graph_def(), fetches=["read"])
  imported = graph_files.imported(tf_graph.as_graph_def())
  ops, fed = variables.initializers(graph, imported)
  with v1.Session(graph=imported) as session:
    session.run(ops, fed)
    assert session.run("read:0").shape == (2,)


def test_initializers_of_mirrored_variables_serve_all_replicas():
  from placeto_tf.replication import replicate

  graph = replicate(load_graph(graph_files.meta_graph_def()), 2, mirrored=True).graph
  tf_graph = graph_files.imported(graph.source.graph_def)
  ops, fed = variables.initializers(graph, tf_graph)
  handles = [tf_graph.get_tensor_by_name(f"{name}:0") for name, kind in zip(
      graph.op_names, graph.op_types) if kind == "VarHandleOp"]
  assert not fed and any(handle.name.startswith("replica_1/") for handle in handles)
  with tf_graph.as_default():
    set_up = [tf.raw_ops.VarIsInitializedOp(resource=handle) for handle in handles]
  with v1.Session(graph=tf_graph) as session:
    session.run(ops)
    assert all(session.run(set_up))
