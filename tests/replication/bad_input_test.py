"""What cannot be replicated with equal results is refused in one sentence that names the op."""

import pytest

from placeto_tf.errors import GraphError
from placeto_tf.graphs import load_graph
from placeto_tf.replication import replicate


@pytest.fixture
def training():
  """(build) -> ComputationGraph of the training graph; `build(x)` gives the loss of x [4, 5]."""
  import tensorflow as tf

  v1 = tf.compat.v1

  def make(build, fetches=("train",), shape=(4, 5)):
    graph = tf.Graph()
    with graph.as_default():
      x = v1.placeholder(tf.float32, shape, name="x")
      loss = build(x)
      v1.train.GradientDescentOptimizer(0.1).minimize(loss, name="train")
    return load_graph(graph.as_graph_def(), fetches=list(fetches))

  return make


def linear(x):
  import tensorflow as tf

  w = tf.compat.v1.get_variable("w", [5, 3], use_resource=True)
  return x @ w


def refused(graph, *words, replicas=2):
  with pytest.raises(GraphError) as caught:
    replicate(graph, replicas)
  message = str(caught.value)
  assert all(word in message for word in words), message
  assert "\n" not in message


@pytest.mark.parametrize("replicas", (0, -1, 1.5, True, "two", None))
def test_a_number_of_replicas_that_is_none(training, replicas):
  import tensorflow as tf

  refused(training(lambda x: tf.reduce_mean(linear(x))), "replicas", replicas=replicas)


def test_an_inference_graph(training):
  import tensorflow as tf

  graph = tf.Graph()
  with graph.as_default():
    tf.identity(linear(tf.compat.v1.placeholder(tf.float32, [4, 5])), name="y")
  refused(load_graph(graph.as_graph_def(), fetches=["y"]), "no variable is updated")


def test_feeds_of_two_batches(training):
  import tensorflow as tf

  other = "other"
  refused(training(lambda x: tf.reduce_mean(linear(x)) * tf.reduce_mean(
      tf.compat.v1.placeholder(tf.float32, [3, 2], name=other))), "'other:0'", "no batch of 4")


def test_a_queue_gives_another_batch_than_the_feed(training):
  import tensorflow as tf

  v1 = tf.compat.v1
  refused(training(lambda x: tf.reduce_mean(linear(x)) * tf.reduce_mean(
      v1.FIFOQueue(10, tf.float32, [[2]], name="queue").dequeue_many(3, name="taken"))),
          "'taken'", "no batch of 4")


def test_state_that_is_no_variable_is_changed_once_with_what_all_have_found(training):
  import tensorflow as tf

  def build(x):
    queue = tf.compat.v1.FIFOQueue(10, tf.float32, name="queue")
    with tf.control_dependencies([queue.enqueue(tf.reduce_sum(x), name="enqueue")]):
      return tf.reduce_mean(linear(x))

  nodes = {node.name: node for node in replicate(training(build), 2).graph.source.graph_def.node}
  assert [node.name for node in nodes.values() if "Enqueue" in node.op] == ["enqueue"]
  assert nodes["enqueue"].input[1].startswith("all_reduce/")


def test_gradients_that_several_workers_collect_and_the_optimizer_inside():
  import tensorflow as tf

  v1 = tf.compat.v1

  def train(wrap):
    graph = tf.Graph()
    with graph.as_default():
      loss = tf.reduce_mean(linear(v1.placeholder(tf.float32, [None, 5], name="x")))
      optimizer = v1.train.GradientDescentOptimizer(0.1)
      optimizer = v1.train.SyncReplicasOptimizer(optimizer, 2, 2) if wrap else optimizer
      name = optimizer.minimize(loss, v1.train.get_or_create_global_step()).name
    return load_graph(graph.as_graph_def(), fetches=[name], batch_size=4)

  refused(train(True), "SyncReplicasOptimizer", "optimizer inside")
  assert replicate(train(False), 2).replicas == 2  # the remedy


def test_examples_that_change_places(training):
  import tensorflow as tf

  refused(training(lambda x: tf.reduce_mean(linear(tf.random.shuffle(x, name="mixed")) * x[:, :3])),
          "'mixed'", "shuffles the examples")


def test_a_variable_that_keeps_examples(training):
  import tensorflow as tf

  def build(x):
    last = tf.compat.v1.get_variable("last", [4, 3], use_resource=True, trainable=False)
    y = linear(x)
    with tf.control_dependencies([last.assign(y, read_value=False)]):
      return tf.reduce_mean(y - last, name="loss")

  refused(training(build, fetches=("train", "loss")), "'last' keeps examples", "one replica")


def test_a_graph_of_costs_alone():
  from tensorflow.core.framework import cost_graph_pb2

  costs = cost_graph_pb2.CostGraphDef()
  costs.node.add(name="a", id=0, compute_cost=1)
  refused(load_graph(costs), "TensorFlow nodes")
