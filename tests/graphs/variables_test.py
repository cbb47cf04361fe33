"""Every variable gets a value, in whatever form the graph came; feeds are valid and checked."""

import numpy as np
import pytest
import tensorflow as tf

import graph_files
from placeto_tf.errors import MeasurementError
from placeto_tf.graphs import load_graph, variables
from placeto_tf.graphs.feeds import index_range, make_feeds

v1 = tf.compat.v1

_FEEDS = {"features:0": [[0.5] * 64] * 8, "labels:0": [[1.0] * 64] * 8}


def _runs(graph, tf_graph, feeds=_FEEDS):
  """The initialisers and their feeds, and what the fetches gave after them."""
  ops, fed = variables.initializers(graph, tf_graph)
  with v1.Session(graph=tf_graph) as session:
    session.run(ops, fed)
    return ops, fed, session.run(
        [tf_graph.as_graph_element(name) for name in graph.fetches], feeds)


def test_collections_name_the_initializers():
  graph = load_graph(graph_files.meta_graph_def())
  ops, fed, _ = _runs(graph, graph_files.imported(graph.source.graph_def))
  assert not fed and all(op.type == "AssignVariableOp" for op in ops)


def test_a_graph_def_is_initialised_by_its_own_op():
  tf_graph = graph_files.imported(graph_files.graph_def())
  with tf_graph.as_default(), tf.control_dependencies(
      [op for op in tf_graph.get_operations() if op.name.endswith("/Assign")]):
    tf.no_op(name="init")
  ops, fed, _ = _runs(load_graph(tf_graph, fetches=["train"]), tf_graph)
  assert [op.name for op in ops] == ["init"] and not fed


def test_what_has_no_initializer_gets_random_values():
  graph_def = graph_files.graph_def()
  graph = load_graph(graph_def, fetches=["train"])
  ops, fed, _ = _runs(graph, graph_files.imported(graph_def))
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
  graph = load_graph(tf_graph.as_graph_def(), fetches=["read:0"])
  *_, (read,) = _runs(graph, graph_files.imported(tf_graph.as_graph_def()), {})
  assert read.shape == (2,)


def test_tables_are_filled_and_iterators_started_and_no_saver_restores():
  with tf.Graph().as_default() as tf_graph:
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([7], [2.0]), 0.0)
    batches = v1.data.make_initializable_iterator(tf.data.Dataset.from_tensors(7))
    _ = tf.lookup.experimental.MutableHashTable(tf.int32, tf.int32, 0), v1.train.Saver()
    found = table.lookup(batches.get_next())
  assert _runs(load_graph(tf_graph, fetches=[found.name]), tf_graph, {})[-1] == [2.0]


def test_tables_of_a_saved_model_are_filled_from_its_assets(tmp_path):
  (tmp_path / "words").write_text("a\nb\n")
  module = tf.Module()
  module.table = tf.lookup.StaticHashTable(  # a word to its line
      tf.lookup.TextFileInitializer(str(tmp_path / "words"), tf.string, -2, tf.int64, -1), -1)
  looked_up = tf.function(lambda: {"line": module.table.lookup(tf.constant("b"))}, [])
  tf.saved_model.save(module, str(tmp_path / "model"), looked_up.get_concrete_function())
  graph = load_graph(str(tmp_path / "model"))
  assert _runs(graph, graph_files.imported(graph.origin.graph_def), {})[-1] == [1]


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


def _range(use):
  with tf.Graph().as_default():
    ids = v1.placeholder(tf.int32, [4], name="ids")
    use(ids)
    return index_range(ids)


@pytest.mark.parametrize("use, expected", [
    (lambda ids: tf.gather(tf.zeros([7, 3]), ids), 7),
    (lambda ids: tf.gather(tf.zeros([7, 3]), tf.reshape(ids, [2, 2]), axis=1), 3),
    (lambda ids: tf.nn.embedding_lookup(
        v1.get_variable("table", [9, 2], use_resource=True), tf.transpose(ids[None])), 9),
    (lambda ids: tf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=ids, logits=tf.zeros([4, 5])), 5),
    (lambda ids: tf.one_hot(tf.cast(ids, tf.int64), 6), 6),
    (lambda ids: (tf.gather(tf.zeros([7]), ids), tf.gather(tf.zeros([4]), ids)), 4),
    (lambda ids: ids + 1, 2),
])
def test_ids_are_below_what_they_index(use, expected):
  assert _range(use) == expected


def _graph_and_tf_graph(dtype):
  with tf.Graph().as_default() as tf_graph:
    tf.identity(v1.placeholder(dtype, [2, 3], name="x"), name="y")
  return load_graph(tf_graph, fetches=["y"]), tf_graph


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64, tf.bfloat16, tf.bool, tf.string,
                                   tf.int64, tf.uint8, tf.complex64])
def test_random_feeds_can_be_fed(dtype):
  graph, tf_graph = _graph_and_tf_graph(dtype)
  feeds = make_feeds(graph, tf_graph)
  with v1.Session(graph=tf_graph) as session:
    assert session.run("y:0", feeds).shape == (2, 3)


def test_feeds_come_from_files_functions_and_mappings(tmp_path):
  graph, tf_graph = _graph_and_tf_graph(tf.float32)
  value = np.ones([2, 3], np.float32)
  path = str(tmp_path / "feeds.npz")
  np.savez(path, x=value)
  for feeds in (path, {"x:0": value}, lambda: {"x": value}):
    np.testing.assert_array_equal(make_feeds(graph, tf_graph, feeds)["x:0"], value)


def test_given_feeds_are_checked(tmp_path):
  graph, tf_graph = _graph_and_tf_graph(tf.float32)
  with pytest.raises(MeasurementError, match="lack x:0"):
    make_feeds(graph, tf_graph, {"z": np.ones(1)})
  with pytest.raises(MeasurementError, match=r"'x:0' has shape \(3,\)"):
    make_feeds(graph, tf_graph, {"x": np.ones(3)})
  with pytest.raises(MeasurementError, match="cannot read the feeds file"):
    make_feeds(graph, tf_graph, str(tmp_path / "missing.npz"))
