"""Random feeds are valid where they are used; given ones are checked."""

import numpy as np
import pytest
import tensorflow as tf

from placeto_tf.errors import MeasurementError
from placeto_tf.graphs import load_graph
from placeto_tf.graphs.feeds import index_range, make_feeds

v1 = tf.compat.v1


def _placeholder(dtype=tf.int32, shape=(4,)):
  return v1.placeholder(dtype, shape, name="ids")


def _range(use):
  with tf.Graph().as_default():
    ids = _placeholder()
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
