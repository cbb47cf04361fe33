
import numpy as np

from placeto_tf.costs.op_costs import OpCosts
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.grouping import group_ops


def _graph(n, edges, sizes, compute_us, **fields):
  graph = ComputationGraph.from_edges(
      [f"op{i}" for i in range(n)], ["Op"] * n, [1] * n, [(u, 0, v) for u, v in edges], **fields)
  costs = OpCosts(
      np.asarray(compute_us, float)[:, None], np.asarray(sizes, float), np.zeros(n), np.zeros(n))
  return graph, costs


def test_the_lightest_edges_stay_cut():
  sizes = [1e6, 1e6, 0, 1e6, 1e6, 0]
  graph, costs = _graph(6, [(i, i + 1) for i in range(5)], sizes, [10] * 6)
  group = group_ops(graph, costs, np.ones((6, 2), bool), max_groups=2).group_of_op
  assert group.tolist() == [0, 0, 0, 1, 1, 1]


def test_cheap_ops_join_the_neighbour_they_exchange_most_with():
  # Op 2 costs nothing and reads little from 0 and much from 1.
  graph, costs = _graph(3, [(0, 2), (1, 2)], [10, 1e6, 0], [100, 100, 0])
  group = group_ops(graph, costs, np.ones((3, 2), bool), max_groups=2).group_of_op
  assert group.tolist() == [0, 1, 1]


def test_no_group_is_far_heavier_than_the_mean_where_it_can_be_helped():
  rng = np.random.default_rng(0)
  n = 600
  edges = [(int(rng.integers(max(0, v - 20), v)), v) for v in range(1, n) for _ in range(2)]
  compute_us = rng.exponential(10, n)
  graph, costs = _graph(n, edges, rng.exponential(1e6, n), compute_us)
  group = group_ops(graph, costs, np.ones((n, 4), bool), max_groups=20).group_of_op
  weight = np.bincount(group, compute_us)
  assert len(weight) == 20
  assert weight.max() < 4.6 * weight.mean()  # the cap of 2 may be raised twice


def test_ops_for_the_host_are_one_group():
  allowed = np.tile([True, True, False], (6, 1))
  allowed[[0, 3]] = [False, False, True]
  graph, costs = _graph(6, [(i, i + 1) for i in range(5)], [1e6] * 6, [10] * 6)
  group = group_ops(graph, costs, allowed, max_groups=3).group_of_op
  assert group[0] == group[3]
  assert not {group[0]} & set(group[[1, 2, 4, 5]])
