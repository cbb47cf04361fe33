import hypothesis
import hypothesis.strategies as st
import numpy as np

import plain_grouping
from placeto_tf.costs.op_costs import OpCosts
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.grouping import group_ops
from placeto_tf.grouping.critical_path import critical_path, earliest_slots


def _fork(length):
  """A source, two chains of ops of 10 us that can overlap, and a sink; the chains talk a lot."""
  edges = [(0, 0, 1), (0, 0, 2)]
  for i in range(length - 1):
    edges += [(1 + 2 * i, 0, 3 + 2 * i), (2 + 2 * i, 0, 4 + 2 * i)]
    edges += [(1 + 2 * i, 1, 4 + 2 * i)]
  n = 2 * length + 2
  edges += [(n - 3, 0, n - 1), (n - 2, 0, n - 1)]
  graph = ComputationGraph.from_edges(
      [f"op{i}" for i in range(n)], ["Op"] * n, [2] * n, edges)
  sizes = np.zeros(2 * n)
  sizes[1::2] = 1e6  # the tensors from one chain to the other are heavier than those along them
  return graph, OpCosts(np.full((n, 1), 10.0), sizes, np.zeros(n), np.zeros(n))


def test_branches_that_can_overlap_stay_apart():
  graph, costs = _fork(8)
  allowed = np.ones((graph.num_ops, 2), bool)
  start, end = earliest_slots(graph, costs)
  for method, overlapping in (("critical_path", False), ("heavy_edge", True)):
    group = group_ops(graph, costs, allowed, max_groups=8, method=method).group_of_op
    found = any(
        group[a] == group[b] and start[a] < end[b] and start[b] < end[a]
        for a in range(graph.num_ops) for b in range(a))
    assert found == overlapping


def test_slots_by_hand():
  graph = ComputationGraph.from_edges(
      ["a", "b", "c"], ["Op"] * 3, [1] * 3, [(0, 0, 2), (1, 0, 2)])
  costs = OpCosts(np.array([[3.0], [5.0], [2.0]]), np.zeros(3), np.zeros(3), np.zeros(3))
  start, end = earliest_slots(graph, costs)
  assert start.tolist() == [0, 0, 5] and end.tolist() == [3, 5, 7]


@hypothesis.given(st.integers(0, 2**32 - 1), st.integers(1, 80), st.integers(1, 12))
@hypothesis.settings(deadline=None, derandomize=True, max_examples=100)
def test_compiled_groups_are_those_of_plain_intervals(seed, n, count):
  rng = np.random.default_rng(seed)
  edges = [(u, 0, v) for v in range(1, n) for u in set(rng.integers(max(0, v - 9), v, 2).tolist())]
  graph = ComputationGraph.from_edges([f"op{i}" for i in range(n)], ["Op"] * n, [1] * n, edges)
  few = seed % 2
  compute_us = rng.integers(0, 3, n).astype(float) if few else rng.exponential(10, n)
  costs = OpCosts(compute_us[:, None], rng.exponential(1e6, n), np.zeros(n), np.zeros(n))
  allowed = np.ones((n, 2), bool)
  expected = plain_grouping.critical_path(graph, costs, allowed, count)
  assert critical_path(graph, costs, allowed, count).tolist() == expected.tolist()
