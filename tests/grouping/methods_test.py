import sys

import numpy as np
import pymetis
import pytest

from placeto_tf.costs.op_costs import OpCosts
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.grouping import group_ops
from placeto_tf.grouping.contraction import contract
from placeto_tf.search.metis_graph import MetisGraph
from random_problem import random_problem


def _graph(n, edges, compute_us=1.0, sizes=1e5, **fields):
  graph = ComputationGraph.from_edges(
      [f"op{i}" for i in range(n)], ["Op"] * n, [1] * n, [(u, 0, v) for u, v in edges], **fields)
  compute_us, sizes = (np.broadcast_to(np.asarray(each, float), n) for each in (compute_us, sizes))
  return graph, OpCosts(compute_us[:, None], sizes, np.zeros(n), np.zeros(n))


def _groups(graph, costs, max_groups, method, allowed=None):
  allowed = np.ones((graph.num_ops, 2), bool) if allowed is None else allowed
  group = group_ops(graph, costs, allowed, max_groups=max_groups, method=method).group_of_op
  return [np.flatnonzero(group == g).tolist() for g in range(group.max() + 1)]


def test_none_keeps_only_colocated_ops_together():
  graph, costs = _graph(3, [(0, 1), (1, 2)], colocation=np.array([0, 1, 0], np.int32))
  assert _groups(graph, costs, 1, "none") == [[0, 2], [1]]


def test_single_consumers_join_however_heavy():
  # 0 feeds 1 and 2, which feed nothing but 3 and 4.
  graph, costs = _graph(5, [(0, 1), (0, 2), (1, 3), (2, 4)], [100] * 5)
  assert _groups(graph, costs, 3, "single_consumer") == [[0], [1, 3], [2, 4]]


def test_single_consumers_join_again_once_their_consumers_are_one():
  # 1 and 2 both feed 3 only; then 0 has the one consumer {1, 2, 3}. 4 keeps them from being all.
  graph, costs = _graph(6, [(0, 1), (0, 2), (1, 3), (2, 3), (4, 5)])
  assert _groups(graph, costs, 2, "single_consumer") == [[0, 1, 2, 3], [4, 5]]


def test_the_lightest_edges_stay_cut():
  graph, costs = _graph(6, [(i, i + 1) for i in range(5)], 10, [1e6, 1e6, 0, 1e6, 1e6, 0])
  assert _groups(graph, costs, 2, "heavy_edge") == [[0, 1, 2], [3, 4, 5]]


def test_cheap_ops_join_the_neighbour_they_exchange_most_with():
  # Op 2 costs nothing and reads little from 0 and much from 1.
  graph, costs = _graph(3, [(0, 2), (1, 2)], [100, 100, 0], [10, 1e6, 0])
  assert _groups(graph, costs, 2, "heavy_edge") == [[0], [1, 2]]


def test_no_group_is_far_heavier_than_the_mean_where_it_can_be_helped():
  rng = np.random.default_rng(0)
  n = 600
  edges = [(int(rng.integers(max(0, v - 20), v)), v) for v in range(1, n) for _ in range(2)]
  compute_us = rng.exponential(10, n)
  graph, costs = _graph(n, edges, compute_us, rng.exponential(1e6, n))
  weight = [compute_us[ops].sum() for ops in _groups(graph, costs, 20, "heavy_edge")]
  assert len(weight) == 20
  assert max(weight) < 4.6 * np.mean(weight)  # the cap of 2 may be raised twice


def test_ops_for_the_host_are_one_group():
  allowed = np.tile([True, True, False], (6, 1))
  allowed[[0, 3]] = [False, False, True]
  graph, costs = _graph(6, [(i, i + 1) for i in range(5)], 10, 1e6)
  assert [0, 3] in _groups(graph, costs, 3, "heavy_edge", allowed)


SHARES = np.full(2, 0.5)


@pytest.fixture(name="graph")
def graph_fixture():
  problem = random_problem(num_ops=40, devices="k80:2")
  contraction = contract(
      problem.graph, problem.costs, problem.allowed_ops, problem.graph.colocation)
  return MetisGraph(contraction, np.ones(contraction.num_nodes, dtype=bool))


def disturb(monkeypatch, numbers):
  """Has partitions of these numbers, from 0, come out differently; returns the list of all made."""
  made, part_graph = [], pymetis.part_graph

  def disturbed(*args, **kwargs):
    cut, found = part_graph(*args, **kwargs)
    made.append(cut)
    if len(made) - 1 in numbers:
      found = [*found[:-1], 1 - found[-1]]
    return cut, found

  monkeypatch.setattr(pymetis, "part_graph", disturbed)
  return made


@pytest.mark.parametrize("numbers, count", [((), 2), ((0,), 3), ((1,), 4), ((0, 2), 5)])
def test_beside_ray_a_partition_is_one_that_came_out_twice(graph, monkeypatch, numbers, count):
  monkeypatch.delitem(sys.modules, "ray", raising=False)
  expected = graph.partition(SHARES, 0.05, False, 7)
  made = disturb(monkeypatch, numbers)
  monkeypatch.setitem(sys.modules, "ray", object())
  np.testing.assert_array_equal(graph.partition(SHARES, 0.05, False, 7), expected)
  assert len(made) == count


def test_tries_end_and_without_ray_there_is_one(graph, monkeypatch):
  made = disturb(monkeypatch, range(1, 100, 2))
  monkeypatch.setitem(sys.modules, "ray", object())
  graph.partition(SHARES, 0.05, False, 7)
  assert len(made) == 6
  monkeypatch.delitem(sys.modules, "ray")
  graph.partition(SHARES, 0.05, False, 7)
  assert len(made) == 7
