"""Shapes of feeds that are assumed fit the graph: a step runs with them."""

import pytest
import tensorflow as tf

import placeto_tf as placeto
from placeto_tf.costs import assumed_shapes
from placeto_tf.errors import GraphError
from placeto_tf.graphs.feeds import make_feeds
from placeto_tf.placing import tables

v1 = tf.compat.v1


def _network(images, labels=64):
  """An image network of TensorFlow 1: images of any rank, a keep probability of unknown rank."""
  x, keep = v1.placeholder(tf.float32, images, name="x"), v1.placeholder(tf.float32, name="keep")
  y = v1.placeholder(tf.float32, [labels, 10], name="y")
  pixels = tf.nn.conv2d(tf.reshape(x, [-1, 28, 28, 1]), tf.ones([5, 5, 1, 8]), 1, "SAME")
  scores = tf.nn.dropout(tf.reshape(pixels, [-1, 6272]) @ tf.ones([6272, 10]), rate=1 - keep)
  return tf.nn.softmax_cross_entropy_with_logits(labels=y, logits=scores)


def _baked():
  x = v1.placeholder(tf.float32, [None, 784], name="x")
  return tf.nn.conv2d(tf.reshape(x, [50, 28, 28, 1]), tf.ones([5, 5, 1, 8]), 1, "SAME")


def _product():
  return v1.placeholder(tf.float32, name="x") @ tf.ones([5, 10]) + tf.zeros([50, 10])


def _tokens():
  """Two inputs of one length, which nothing but their number of elements says."""
  x, y = (v1.placeholder(tf.int32, [None, None], name=name) for name in "xy")
  scores = tf.reshape(tf.gather(tf.ones([100, 7]), x), [-1, 7]) @ tf.ones([7, 100])
  return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.reshape(y, [-1]), logits=scores)


def _iterator():
  dataset = tf.data.Dataset.from_tensor_slices(tf.ones([100, 8])).batch(10)
  return v1.data.make_one_shot_iterator(dataset).get_next() + tf.zeros([10, 8])


def _size():
  """The batch is fed as a number."""
  state = tf.zeros([v1.placeholder(tf.int32, [], name="size"), 3])
  return tf.concat([v1.placeholder(tf.float32, [None, 5], name="x"), state], 1)


def _labels():
  """The loss flattens its labels by their rank, which is unknown."""
  x, y = v1.placeholder(tf.float32, [None, 2], name="x"), v1.placeholder(tf.float32, name="y")
  return v1.nn.softmax_cross_entropy_with_logits_v2(
      labels=y, logits=x @ tf.ones([2, 7]) + tf.zeros([7]))


def _load(build, *arguments, **options):
  with tf.Graph().as_default() as graph:
    fetch = tf.identity(build(*arguments), name="fetch").name
  return graph, assumed_shapes.load(graph.as_graph_def(), fetches=[fetch], **options)


@pytest.mark.parametrize("build, arguments, shapes, said", [
    (_network, ([None, 784],), {"x:0": (64, 784), "keep:0": (), "y:0": (64, 10)},
     "batch 64, keep a scalar"),
    (_network, (None,), {"x:0": (64, 784), "keep:0": (), "y:0": (64, 10)}, "x [64, 784]"),
    (_network, ([None, None], None), {"x:0": (32, 784), "keep:0": (), "y:0": (32, 10)},
     "batch 32, x [32, 784], keep a scalar"),
    (_baked, (), {"x:0": (50, 784)}, "batch 50"), (_product, (), {"x:0": (50, 5)}, "x [50, 5]"),
    (_tokens, (), {"x:0": (32, 32), "y:0": (32, 32)}, "batch 32, x [32, 32], y [32, 32]"),
    (_size, (), {"x:0": (32, 5), "size:0": ()}, "batch 32; feed_shapes=..."),
    (_iterator, (), {}, "batch 10"),
    (_labels, (), {"x:0": (32, 2), "y:0": (32, 7)}, "batch 32, y [32, 7]")])
def test_a_step_runs_with_the_shapes_that_are_assumed(build, arguments, shapes, said):
  tf_graph, graph = _load(build, *arguments)
  assert graph.source.feed_shapes == shapes and graph.notes[-1].startswith(f"assumed: {said}")
  assert "size:0" not in shapes or graph.notes[-2].startswith("assumed: size 32; numbers that")
  with v1.Session(graph=tf_graph) as session:
    assert session.run("fetch:0", make_feeds(graph, tf_graph)).size


def test_what_is_given_is_kept_and_the_first_line_says_what_was_assumed():
  _, graph = _load(_network, [None, 784], None, batch_size=8)
  assert graph.source.feed_shapes["x:0"] == (8, 784)
  result = placeto.place(graph, "k80:2", "single")
  assert tables.table(result).startswith("Assumed: keep a scalar; feed_shapes=... changes them.\n")


def test_where_no_shapes_fit_the_message_names_the_ops_that_contradict_each_other():
  def build():
    x = v1.placeholder(tf.float32, [None, 10], name="x")
    return [tf.reduce_sum(tf.concat([x, tf.zeros([size, 3], name=name)], 1, name=f"with_{name}"))
            for size, name in ((50, "fifty"), (40, "forty"))]

  with pytest.raises(GraphError, match=(
      r"op 'with_forty' refuses 'x' \[50,10\] with 'forty' \[40,3\].*, and for other shapes op "
      r"'with_fifty' refuses 'x' \[32,10\] with 'fifty' \[50,3\]")):
    _load(build)
