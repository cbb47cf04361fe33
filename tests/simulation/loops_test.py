"""Loops that are split: what crosses is sent in every round, and so is whether the loop goes on."""

import numpy as np
import pytest
import tensorflow as tf

from placeto_tf.clusters import Cluster
from placeto_tf.costs import OpCosts
from placeto_tf.graphs import CONTROL, ComputationGraph, load_graph
from placeto_tf.simulation import Simulator

ROUNDS, BYTES = 5.0, 76_000.0  # of its 7,600 bytes a us: 10 us, and then a gap of 25 us


def chain(executions):
  """before -> first -> second -> after."""
  graph = ComputationGraph.from_edges(
      ["before", "first", "second", "after"], ["Op"] * 4, [1] * 4,
      [(0, 0, 1), (1, 0, 2), (2, 0, 3)], executions=np.array(executions))
  costs = OpCosts(np.full((4, 2), 100.0), np.full(4, BYTES), np.zeros(4), np.zeros(4))
  return Simulator(graph, costs, Cluster.parse("k80_placeto:2"))


def test_a_tensor_inside_of_a_loop_is_sent_once_a_round():
  place = np.array([0, 0, 1, 1], np.int32)
  once = chain([1.0] * 4).simulate(place).step_time_us
  often = chain([1.0, ROUNDS, ROUNDS, 1.0]).simulate(place).step_time_us
  # The last gap is the bus's alone, as after any transfer.
  assert often - once == pytest.approx((ROUNDS - 1) * (10 + 25))


def test_also_what_is_read_at_the_border_but_not_what_is_outside():
  for place, rounds in (([0, 1, 1, 1], ROUNDS), ([0, 0, 0, 1], ROUNDS)):
    place = np.array(place, np.int32)
    once = chain([1.0] * 4).simulate(place).step_time_us
    often = chain([1.0, ROUNDS, ROUNDS, 1.0]).simulate(place).step_time_us
    assert often - once == pytest.approx((rounds - 1) * 35)
  place = np.array([0, 0, 1, 1], np.int32)
  assert chain([ROUNDS, 1.0, 1.0, 1.0]).simulate(place).step_time_us == (
      chain([1.0] * 4).simulate(place).step_time_us)


def test_every_op_on_another_device_waits_for_the_signal_that_the_loop_goes_on():
  with tf.Graph().as_default() as tf_graph:
    x = tf.compat.v1.placeholder(tf.float32, [2], name="x")
    _, first, second = tf.while_loop(
        lambda i, *_: i < 7, lambda i, a, b: (i + 1, tf.tanh(a), tf.sin(b)), (0, x, x))
    tf.add(first, second, name="out")
  graph_def = tf_graph.as_graph_def()
  whole = load_graph(graph_def, fetches=["out"])
  assert len(set(whole.colocation[whole.executions > 1].tolist())) == 1
  split = load_graph(graph_def, fetches=["out"], split_loops=True)
  assert len(set(split.colocation[split.executions > 1].tolist())) > 5
  signal = split.op_types.index("LoopCond")
  told = set(split.edge_consumers[
      (split.edge_producers == signal) & (split.edge_ports == CONTROL)].tolist())
  types = {split.op_types[i] for i in told}
  assert {"Tanh", "Sin", "NextIteration", "Exit"} <= types
  assert not types & {"Enter", "Merge", "Less", "LoopCond", "Placeholder", "Add"}
  # One device more costs a gap a round.
  n = split.num_ops
  costs = OpCosts(np.full((n, 2), 1.0), np.zeros(split.num_outputs), np.zeros(n), np.zeros(n))
  simulator = Simulator(split, costs, Cluster.parse("k80_placeto:2"))
  place = np.zeros(n, np.int32)
  alone = simulator.simulate(place).step_time_us
  place[split.colocation == split.colocation[split.op_types.index("Sin")]] = 1
  assert simulator.simulate(place).step_time_us > alone + 6 * 25
