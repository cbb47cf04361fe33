"""What cannot be replicated with equal results is refused in one sentence that names the op."""

import pytest
import tensorflow as tf

from placeto_tf.errors import GraphError
from placeto_tf.graphs import load_graph
from placeto_tf.replication import replicate

v1 = tf.compat.v1


@pytest.fixture
def training():
  """(build) -> ComputationGraph of the training graph; `build(x)` gives the loss of x [4, 5]."""

  def make(build, fetches=("train",), shape=(4, 5)):
    with tf.Graph().as_default() as graph:
      x = v1.placeholder(tf.float32, shape, name="x")
      loss = build(x)
      v1.train.GradientDescentOptimizer(0.1).minimize(loss, name="train")
    return load_graph(graph.as_graph_def(), fetches=list(fetches))

  return make


def linear(x):
  return x @ tf.compat.v1.get_variable("w", [5, 3], use_resource=True)


def refused(graph, *words, replicas=2):
  with pytest.raises(GraphError) as caught:
    replicate(graph, replicas)
  message = str(caught.value)
  assert all(word in message for word in words), message
  assert "\n" not in message


@pytest.mark.parametrize("replicas", (0, -1, 1.5, True, "two", None))
def test_a_number_of_replicas_that_is_none(training, replicas):
  refused(training(lambda x: tf.reduce_mean(linear(x))), "replicas", replicas=replicas)


def test_a_queue_gives_another_batch_than_the_feed(training):
  refused(training(lambda x: tf.reduce_mean(linear(x)) * tf.reduce_mean(
      v1.FIFOQueue(10, tf.float32, [[2]], name="queue").dequeue_many(3, name="taken"))),
          "'taken' has 3 rows", "'x:0' has 4")


def test_state_that_is_no_variable_is_changed_once_with_what_all_have_found(training):
  def build(x):
    queue = tf.compat.v1.FIFOQueue(10, tf.float32, name="queue")
    with tf.control_dependencies([queue.enqueue(tf.reduce_sum(x), name="enqueue")]):
      return tf.reduce_mean(linear(x))

  nodes = {node.name: node for node in replicate(training(build), 2).graph.source.graph_def.node}
  assert [node.name for node in nodes.values() if "Enqueue" in node.op] == ["enqueue"]
  assert nodes["enqueue"].input[1].startswith("all_reduce/")


def test_a_variable_that_keeps_examples(training):
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
