"""Loops whose bounds are computed from shapes: what is inferred is what TensorFlow computes."""

import numpy as np
import pytest
import tensorflow as tf

from placeto_tf.costs.estimate import work_of
from placeto_tf.graphs import load_graph
from placeto_tf.graphs.feeds import make_feeds

v1 = tf.compat.v1


def _list_length(x):
  stacked = tf.raw_ops.TensorListFromTensor(tensor=x, element_shape=[12, 8])
  return tf.raw_ops.TensorListLength(input_handle=stacked)


def _stacked_list(x):
  handle = tf.raw_ops.TensorListReserve(
      element_shape=[-1, 2], num_elements=tf.shape(x)[1], element_dtype=tf.float32)
  return tf.shape(tf.raw_ops.TensorListStack(
      input_handle=handle, element_shape=[3, 2], element_dtype=tf.float32))[0]


# Each gives a number from x, which is fed as [3, 12, 8] and known to be [?, 12, 8].
_BOUNDS = {
    "a dimension": lambda x: tf.shape(x)[1],
    "the batch": lambda x: tf.shape(x)[0],
    "from the end": lambda x: tf.shape(x)[-2],
    "size and rank": lambda x: tf.size(x) // 7 + tf.rank(x),
    "arithmetic": lambda x: tf.maximum(tf.minimum(tf.shape(x)[1] * 2 - 5, 99) % 11, 2),
    "product": lambda x: tf.reduce_prod(tf.shape(x)[:-1]),
    "transposed": lambda x: tf.shape(tf.transpose(x, [1, 0, 2]))[0],
    "reshaped": lambda x: tf.shape(tf.reshape(x, [tf.shape(x)[0], -1, 4]))[1],
    "concatenated": lambda x: tf.shape(tf.concat([x, x[:, 2:]], 1))[1],
    "stacked": lambda x: tf.shape(tf.stack([x, x], axis=-1))[-1],
    "unstacked": lambda x: tf.shape(tf.unstack(x, axis=1)[0])[1],
    "sliced": lambda x: tf.shape(x[:, 1:-2:2, tf.newaxis])[1],
    "with an ellipsis": lambda x: tf.shape(x[..., :5])[2],
    "slice op": lambda x: tf.shape(tf.slice(x, [0, 3, 1], [2, -1, 4]))[1],
    "multiplied": lambda x: tf.shape(tf.matmul(x, x, transpose_b=True))[2],
    "broadcast": lambda x: tf.shape(x[:, :1] * tf.ones([1, 9, 1]) + 1.0)[1],
    "reduced": lambda x: tf.shape(tf.reduce_sum(x, [0]))[0],
    "looked up": lambda x: tf.shape(tf.gather(tf.zeros([5, 6]), tf.cast(x, tf.int32) * 0))[3],
    "convolved": lambda x: tf.shape(tf.nn.conv1d(x, tf.zeros([3, 8, 2]), 2, "VALID"))[1],
    "filled": lambda x: tf.shape(tf.fill([tf.shape(x)[2], 2], 1.0))[0],
    "a choice": lambda x: tf.where(tf.shape(x)[1] > 3, tf.shape(x)[2], 5),
    "gathered": lambda x: tf.gather(tf.shape(x), 1),
    "counted": lambda x: tf.reduce_max(tf.range(0, tf.shape(x)[1], 3)),
    "length of a list": _list_length,
    "a stacked list": _stacked_list,
}


def _counted(graph):
  """How often the ops of a type run, and the notes on it."""
  work = work_of(graph, cache=False)

  def executions(op_type):
    return {work.executions[i] for i, found in enumerate(graph.op_types) if found == op_type}

  return executions, " ".join(work.notes)


@pytest.mark.parametrize("bound", _BOUNDS.values(), ids=_BOUNDS)
def test_a_bound_from_a_shape_is_what_tensorflow_computes(bound):
  with tf.Graph().as_default() as tf_graph:
    x = v1.placeholder(tf.float32, [None, 12, 8], name="x")
    count = tf.identity(bound(x), name="count")
    _, out = tf.while_loop(
        lambda i, _: i < tf.cast(count, tf.int32), lambda i, h: (i + 1, tf.tanh(h)), (0, x[0]))
    tf.identity(out, name="out")
    with v1.Session() as session:
      expected = int(session.run("count:0", {"x:0": np.zeros([3, 12, 8])}))
  executions, _ = _counted(load_graph(tf_graph.as_graph_def(), fetches=["out"], batch_size=3))
  assert executions("Tanh") == {expected} and expected > 1


def test_a_bound_that_is_fed_or_changes_is_not_inferred():
  with tf.Graph().as_default() as tf_graph:
    x = v1.placeholder(tf.float32, [2], name="x")
    n = v1.placeholder(tf.int32, [], name="n")
    _, out = tf.while_loop(lambda i, _: i < n, lambda i, h: (i + 1, tf.tanh(h)), (0, x))
    _, _, out = tf.while_loop(
        lambda i, m, _: i < m, lambda i, m, h: (i + 2, m + 1, tf.sin(h)), (0, 5, out))
    tf.identity(out, name="out")
  _, notes = _counted(load_graph(tf_graph.as_graph_def(), fetches=["out"]))
  assert notes.count("assumed to run 10 times") == 2


def test_a_constant_that_is_fed_is_no_bound():
  with tf.Graph().as_default() as tf_graph:
    count = tf.constant(7, name="count")
    tf.while_loop(lambda i: i < count, lambda i: i + 1, (0,), name="loop")
  graph_def = tf_graph.as_graph_def()
  assert "runs 7 times" in _counted(load_graph(graph_def))[1]
  assert "assumed to run" in _counted(load_graph(graph_def, feeds=["count:0"]))[1]


@pytest.mark.parametrize("shape, lengths, rounds", [
    ([32, 40, 4], [32], 40), ([40, 32, 4], [32], 40), ([6, 40, 4], [], 40), ([5, 5, 4], [5], 5),
    ([6, 9], [], 9)])
@pytest.mark.parametrize("bound", [
    lambda lengths, x: tf.reduce_max(lengths),
    lambda lengths, x: tf.minimum(99, tf.maximum(1, tf.reduce_max(lengths)))])
def test_lengths_that_are_fed_are_as_long_as_the_shapes_allow(shape, lengths, rounds, bound):
  with tf.Graph().as_default() as tf_graph:
    x = v1.placeholder(tf.float32, shape, name="x")
    most = bound(v1.placeholder(tf.int32, lengths, name="lengths"), x)
    tf.identity(tf.while_loop(
        lambda t, _: t < most, lambda t, h: (t + 1, tf.tanh(h)), [0, x[0]])[1], name="y")
  graph = load_graph(tf_graph.as_graph_def(), fetches=["y"])
  work = work_of(graph, cache=False)
  assert work.executions[graph.op_types.index("Tanh")] == rounds and not work.unsure
  assert graph.notes[-1].startswith(f"assumed: lengths {rounds}, as long as shapes allow")
  assert (make_feeds(graph, tf_graph)["lengths:0"] == rounds).all()  # and a step runs so
