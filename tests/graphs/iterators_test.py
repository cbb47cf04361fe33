"""Graphs that take their batches from a tf.data iterator inside."""

import numpy as np
import pytest
import tensorflow as tf

import graph_files
import placeto_tf as placeto
from placeto_tf.graphs import load_graph


@pytest.fixture(scope="module", name="meta_graph")
def meta_graph_fixture():
  """A step on batches of which the first dimension is not known."""
  with tf.Graph().as_default() as graph:
    x, y = np.zeros([32, 64], np.float32), np.zeros([32, 8], np.float32)
    data = tf.compat.v1.data.make_one_shot_iterator(
        tf.data.Dataset.from_tensor_slices((x, y)).batch(16))
    features, targets = data.get_next()
    weights = tf.compat.v1.get_variable("weights", [64, 8], use_resource=False)
    loss = tf.reduce_mean((tf.matmul(features, weights, name="product") - targets)**2, name="loss")
    del loss
    return tf.compat.v1.train.export_meta_graph(graph=graph)


def _costs(graph):
  costs = placeto.estimate_costs(graph, placeto.Cluster.parse("k80:1"), cache=False)
  return costs.compute_us[graph.op_index["product"], 0], (*costs.notes, costs.unknown)


def test_the_batch_size_counts_for_what_an_iterator_gives(meta_graph):
  small, large = (_costs(load_graph(meta_graph, fetches=["loss"], batch_size=size))
                  for size in (1 << 16, 1 << 20))
  assert large[0] > 8 * small[0]
  assert not any("unknown" in note or "not used" in note for note in large[1])


def test_all_outputs_of_an_iterator_can_be_fed_instead(meta_graph):
  graph = load_graph(
      meta_graph, fetches=["loss"], feeds=["IteratorGetNext:0", "IteratorGetNext:1"],
      batch_size=4096)
  assert set(graph.feeds) == {"IteratorGetNext:0", "IteratorGetNext:1"}
  found, notes = _costs(graph)
  iterated, _ = _costs(load_graph(meta_graph, fetches=["loss"], batch_size=4096))
  assert found == iterated
  assert not any("unknown" in note for note in notes)
  assert "OneShotIterator" not in graph.op_types


@pytest.mark.parametrize("by_handle", [False, True])
def test_a_dataset_is_where_its_iterator_is_and_iterators_of_handles_together(by_handle):
  v1 = tf.compat.v1
  with tf.Graph().as_default() as graph:
    data = tf.data.Dataset.from_tensor_slices(np.ones([4, 3], np.float32)).map(
        lambda x: x * 2).batch(2).repeat()
    iterator = v1.data.make_initializable_iterator(data)
    tf.group(iterator.initializer, name="begin")
    if by_handle:
      handle = iterator.string_handle(name="handle")
      iterator = v1.data.Iterator.from_string_handle(handle, tf.float32, [2, 3])
    tf.reduce_sum(iterator.get_next(), name="sum")
  pinned = "IteratorFromStringHandleV2" if by_handle else "IteratorV2"
  result = placeto.place(graph, "cpu:2", "single", fetches=["sum:0"], batch_size=2,
                         max_evaluations=5, pins=((pinned, "/CPU:1"),))
  placed = result.apply(graph.as_graph_def())
  assert {node.device for node in placed.node if "Dataset" in node.op} == {"/device:CPU:1"}
  config = v1.ConfigProto(device_count={"CPU": 2}, allow_soft_placement=False)
  with v1.Session(graph=graph_files.imported(placed), config=config) as session:
    session.run("begin")
    assert session.run("sum:0") == 12.0
