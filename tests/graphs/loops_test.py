import numpy as np
import pytest
import tensorflow as tf

from placeto_tf.clusters import Cluster
from placeto_tf.costs import estimate_costs
from placeto_tf.costs.estimate import work_of
from placeto_tf.errors import GraphError
from placeto_tf.graphs import load_graph, traversal
from placeto_tf.replication import replicate
from placeto_tf.simulation import Simulator


@pytest.fixture
def v1():
  control_flow = tf.compat.v1.control_flow_v2_enabled()
  tf.compat.v1.disable_control_flow_v2()
  yield tf.compat.v1
  if control_flow:
    tf.compat.v1.enable_control_flow_v2()


def executions(graph, op_type):
  runs = work_of(graph, cache=False).executions
  return {runs[i] for i, found in enumerate(graph.op_types) if found == op_type}


def loops(graph):
  return {label for label in graph.colocation.tolist() if (graph.colocation == label).sum() > 3}


def test_a_loop_runs_as_often_as_its_constant_bound_says_and_stays_together(v1):
  with tf.Graph().as_default() as tf_graph:
    x = v1.placeholder(tf.float32, [2, 2], name="x")
    _, y = v1.while_loop(lambda i, _: i < 13, lambda i, h: (i + 3, tf.tanh(h)), [1, x])
    tf.square(y, name="out")
  graph = load_graph(tf_graph, fetches=["out:0"])
  assert executions(graph, "Tanh") == {4.0}
  assert executions(graph, "Enter") == executions(graph, "Exit") == {1.0}
  assert executions(graph, "Square") == {1.0}
  types = {
      graph.op_types[i] for i in range(graph.num_ops)
      if graph.colocation[i] == graph.colocation[graph.op_types.index("Tanh")]}
  assert types >= {"Enter", "Merge", "Switch", "Exit", "NextIteration", "LoopCond", "Less", "Tanh"}
  assert "Square" not in types and "Placeholder" not in types
  assert any("runs 4 times" in note for note in work_of(graph, cache=False).notes)


def test_back_edges_are_left_out_and_exits_wait_for_the_last_round(v1):
  with tf.Graph().as_default() as tf_graph:
    x = v1.placeholder(tf.float32, [2, 2], name="x")
    # One value depends on the other of the round before, by a back edge alone.
    _, _, y = v1.while_loop(lambda i, *_: i < 3, lambda i, g, h: (i + 1, tf.tanh(g), g), [0, x, x])
    tf.square(y, name="out")
  graph = load_graph(tf_graph, fetches=["out:0"])
  following = {
      graph.op_types[consumer] for producer, _, consumer in graph.edges
      if graph.op_types[producer] == "NextIteration"}
  assert following == {"Exit"}
  before = traversal.ancestors(
      graph.num_ops, graph.edge_producers, graph.edge_consumers, [graph.op_index["out"]])
  assert before[graph.op_types.index("Tanh")]


def test_what_enters_a_loop_may_come_from_what_left_it(v1):
  """The counts of rounds for gradients wait for a sum of losses."""
  def body(i, h):
    return i + 1, v1.while_loop(lambda j, _: j < 2, lambda j, h: (j + 1, tf.tanh(h @ w)), [0, h])[1]

  with tf.Graph().as_default() as tf_graph:
    w = v1.get_variable("w", [2, 2], use_resource=True)
    x = v1.placeholder(tf.float32, [None, 2], name="x")
    loss = tf.reduce_mean(v1.while_loop(lambda i, _: i < 4, body, [0, x])[1])
    with tf.control_dependencies([
        v1.assign_add(v1.get_variable("losses", [], use_resource=True), loss)]):
      v1.train.GradientDescentOptimizer(0.1).minimize(loss, name="train")
  graph = load_graph(tf_graph, fetches=["train"], batch_size=4)
  assert executions(graph, "TanhGrad") == {8.0}
  assert executions(replicate(graph, 2).graph, "TanhGrad") == {8.0}


def test_loops_that_need_one_another_gain_nothing_from_a_second_device(v1):
  with tf.Graph().as_default() as tf_graph:
    y = v1.placeholder(tf.float32, [256, 256], name="x")
    weights = tf.constant(1.0, shape=[256, 256])
    for _ in range(2):
      _, y = v1.while_loop(lambda i, _: i < 50, lambda i, h: (i + 1, h @ weights), [0, y])
    tf.square(y, name="out")
  graph, cluster = load_graph(tf_graph, fetches=["out:0"]), Cluster.parse("k80:2")
  simulator = Simulator(graph, estimate_costs(graph, cluster), cluster)
  apart = np.zeros(graph.num_ops, np.int32)
  apart[graph.colocation == graph.colocation[np.flatnonzero(graph.executions > 1)[-1]]] = 1
  assert 0 < apart.sum() < graph.num_ops and set(apart[graph.executions > 1]) == {0, 1}
  one = simulator.simulate(np.zeros(graph.num_ops, np.int32)).step_time_us
  assert simulator.simulate(apart).step_time_us >= one


def test_a_loop_without_a_bound_runs_a_stated_number_of_times(v1):
  with tf.Graph().as_default() as tf_graph:
    x = v1.placeholder(tf.float32, [2], name="x")
    y = v1.while_loop(lambda h: tf.reduce_sum(h) < 9.0, lambda h: tf.tanh(h), [x])
    tf.identity(y, name="out")
  graph = load_graph(tf_graph, fetches=["out:0"])
  assert executions(graph, "Tanh") == {10.0}
  assert any("assumed to run 10 times" in note for note in work_of(graph, cache=False).notes)
  assert executions(load_graph(tf_graph, fetches=["out:0"], trip_count=7), "Tanh") == {7.0}


def test_nested_loops_multiply_and_gradient_loops_follow_the_forward_ones(v1):
  def body(i, h):
    _, h = v1.while_loop(lambda j, _: j < 3, lambda j, h: (j + 1, tf.tanh(h)), [0, h])
    return i + 1, h

  with tf.Graph().as_default() as tf_graph:
    x = v1.placeholder(tf.float32, [2, 2], name="x")
    _, y = v1.while_loop(lambda i, _: i < 5, body, [0, x])
    (gradient,) = v1.gradients(tf.reduce_sum(y), [x])
    tf.identity(gradient, name="out")
  graph = load_graph(tf_graph, fetches=["out:0"])
  assert executions(graph, "Tanh") == {15.0}
  assert executions(graph, "TanhGrad") == {15.0}
  # The stacks that carry values to the gradients keep both loops on one device.
  assert len(loops(graph)) == 1


def test_an_op_between_two_loops_is_refused(v1):
  with tf.Graph().as_default() as tf_graph:
    for name in "ab":
      v1.while_loop(lambda i: i < 3, lambda i: i + 1, [0], name=name)
  graph_def = tf_graph.as_graph_def()
  for node in graph_def.node:
    if node.name == "b/add":
      node.input[0] = "a/Identity"
  with pytest.raises(GraphError, match="'b/add'.*different loops"):
    load_graph(graph_def)
