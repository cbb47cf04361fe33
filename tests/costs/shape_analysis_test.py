"""Tests for placeto_tf.costs.shape_analysis."""

import pytest
import tensorflow as tf

from placeto_tf import graphs
from placeto_tf.costs.estimate import work_of
from placeto_tf.costs.shape_analysis import analyse
from placeto_tf.errors import CostError
from placeto_tf.graphs import load_graph


@pytest.fixture(name="loop")
def loop_fixture(load):
  """h = tanh(h w), five times, and the gradient with respect to w: a loop of its own."""

  def build(v1, tf):
    w = v1.get_variable("w", [32, 32], use_resource=True)
    x = v1.placeholder(tf.float32, [8, 32])

    def body(i, h):
      return i + 1, tf.tanh(tf.matmul(h, w))

    _, h = v1.while_loop(lambda i, h: i < 5, body, [0, x])
    v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(h), name="fetch")

  used_v2 = tf.compat.v1.control_flow_v2_enabled()
  tf.compat.v1.disable_control_flow_v2()
  try:
    return load(build)
  finally:
    if used_v2:
      tf.compat.v1.enable_control_flow_v2()


def test_ops_of_a_loop_and_of_its_gradient_are_counted_in_full(loop):
  graph_def = graphs.analysis_graph_def(loop)
  found = analyse(graph_def)
  products = [node.name for node in graph_def.node if node.op == "MatMul"]
  assert len(products) == 3
  for name in products:
    assert found.estimates[name].flops == 2 * 8 * 32 * 32
  pops = [node.name for node in graph_def.node if node.op == "StackPopV2"]
  assert pops and not found.guessed  # what is popped has the shape of what was pushed


def test_what_is_fed_has_the_shape_it_was_bound_to(load):
  def build(v1, tf):
    tf.identity(v1.placeholder(tf.float32, [None, 3], name="x"), name="fetch")

  outputs = analyse(graphs.analysis_graph_def(load(build, batch_size=7))).outputs
  assert [dim.size for dim in outputs["fetch"][0].shape.dim] == [7, 3]


def test_shape_computed_from_another_is_evaluated(load):
  def build(v1, tf):
    x = v1.placeholder(tf.float32, [8, 20], name="x")
    start = tf.zeros([tf.shape(tf.transpose(x))[1], 64])
    tf.matmul(start, v1.placeholder(tf.float32, [64, 16]), name="fetch")

  found = analyse(graphs.analysis_graph_def(load(build)))
  assert [dim.size for dim in found.outputs["fetch"][0].shape.dim] == [8, 16]
  assert found.estimates["fetch"].flops == 2 * 8 * 64 * 16
  assert found.guessed == ()  # evaluated, not assumed


@pytest.mark.parametrize("fed", [False, True])
def test_lengths_of_values_that_are_known_before_a_run_are_known(load, fed):
  def build(v1, tf):
    x = v1.placeholder(tf.float32, [None, 20], name="x")
    shapes = (tf.shape(x), tf.shape(x)[1:]) if fed else (tf.constant([8, 20]), tf.constant([20]))
    _, rows = tf.raw_ops.BroadcastGradientArgs(s0=shapes[0], s1=shapes[1])
    chosen = tf.where(tf.constant([True, False, True]))[:, 0]
    tf.gather(tf.reduce_sum(x, rows), chosen, name="fetch")

  work = work_of(load(build, batch_size=8), cache=False)
  assert not work.unknown and not work.unsure


def test_shapes_computed_from_what_a_table_answers_are_evaluated():
  table = tf.lookup.StaticHashTable(
      tf.lookup.KeyValueTensorInitializer(["a", "b"], tf.constant([1, 2])), 0)
  rows, weights = tf.Variable(tf.ones([3, 8])), tf.Variable(tf.ones([8, 5]))

  def step(words):  # as a dense layer does on three dimensions
    x = tf.gather(rows, table.lookup(words))
    shape = tf.shape(x)
    return tf.reshape(
        tf.reshape(x, [shape[0] * shape[1], 8]) @ weights, [shape[0], shape[1], 5])

  function = tf.function(step).get_concrete_function(tf.TensorSpec([None, 7], tf.string))
  graph = graphs.load_graph(function, batch_size=4)
  found = analyse(graphs.analysis_graph_def(graph))
  products = [op for op, kind in zip(graph.op_names, graph.op_types) if kind == "MatMul"]
  assert [found.estimates[op].flops for op in products] == [2 * 28 * 8 * 5]


def test_shapes_that_contradict_the_graph_are_an_error_with_tensorflows_sentence():
  with tf.Graph().as_default() as tf_graph:
    x = tf.compat.v1.placeholder(tf.float32, [None, 64, 64, 32], name="x")
    kernel = tf.compat.v1.placeholder(tf.float32, [3, 3, 16, 32], name="k")
    tf.nn.conv2d_transpose(x, kernel, [32, 128, 128, 16], 2, name="up")  # for batches of 32
  with pytest.raises(CostError, match=r"'\{\{node up\}\}.*\[8,64,64,32\].*correct batch_size"):
    work_of(load_graph(tf_graph.as_graph_def(), fetches=["up"], batch_size=8), cache=False)
  assert work_of(load_graph(tf_graph.as_graph_def(), fetches=["up"], batch_size=32), cache=False)


def test_what_tensorflow_infers_comes_before_a_guess():
  with tf.Graph().as_default() as tf_graph:
    image = tf.compat.v1.placeholder(tf.float32, [4, 32, 32, 2], name="image")
    big = tf.compat.v1.image.resize_bilinear(image[:, ::2, ::2], tf.shape(image)[1:3])
    last = tf.slice(tf.shape(big), [tf.rank(big) - 1], [1])
    tf.identity(tf.reshape(big, tf.concat([[-1], last], 0)), name="flat")
  graph = load_graph(tf_graph.as_graph_def(), fetches=["flat"])
  work = work_of(graph, cache=False)
  assert not work.unknown and not work.unsure
  assert work.output_bytes[graph.output_offsets[graph.op_index["flat"]]] == 4 * 32 * 32 * 2 * 4
