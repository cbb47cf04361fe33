import ctypes

import numpy as np
import pytest

from placeto_tf.environments import made_problems
from placeto_tf.grouping.contraction import contract
from placeto_tf.problem.budget import Budget
from placeto_tf.search.metis import partition_ops, partitions


def _two_cliques():
  """Two rings of six ops with heavy edges, joined by one light edge."""
  edges = [(i, i + 1) for i in range(5)] + [(0, 5)]
  edges += [(i + 6, j + 6) for i, j in edges]
  sizes = [100_000] * 12
  sizes[5] = 10
  return edges + [(5, 6)], sizes


def _printed(capfd):
  """The output of the process so far, with what METIS printed."""
  ctypes.CDLL(None).fflush(None)  # C's own buffer, which would be written at the end of the process
  return capfd.readouterr().out


def test_it_cuts_where_least_flows(make_problem):
  edges, sizes = _two_cliques()
  placement = partition_ops(make_problem([10.0] * 12, edges, sizes))
  assert len(set(placement[:6])) == 1 and len(set(placement[6:])) == 1
  assert placement[0] != placement[6]


def test_groups_are_kept_by_the_form_for_groups(make_problem):
  edges, sizes = _two_cliques()
  problem = make_problem([10.0] * 12, edges, sizes, max_groups=4, method="heavy_edge")
  placement = partition_ops(problem, Budget(max_evaluations=5), groups=True)
  group = problem.grouping.group_of_op
  assert all(len(set(placement[group == g])) == 1 for g in range(problem.num_groups))


def test_unequal_devices_get_work_by_their_speed(make_problem, make_cluster):
  problem = make_problem(
      np.tile([1.0, 3.0], (80, 1)), [(i, i + 1) for i in range(79)],
      cluster=make_cluster(2, speeds=[0, 1]))
  contraction = contract(problem.graph, problem.costs, problem.allowed_ops, np.arange(80))
  assert 52 <= (next(partitions(problem, contraction, [0, 1], 0)) == 0).sum() <= 68


def test_the_host_gets_only_what_cannot_go_elsewhere(make_problem, make_cluster):
  edges, sizes = _two_cliques()
  problem = make_problem(
      [10.0] * 12, edges, sizes, cluster=make_cluster(2, host=True), host_ops=[3])
  assert np.flatnonzero(partition_ops(problem) == 2).tolist() == [3]


@pytest.mark.parametrize("seed", range(4))
def test_metis_is_asked_for_no_part_that_would_have_no_nodes(
    seed, make_problem, make_cluster, capfd):
  rng = np.random.default_rng(seed)
  edges = [(i, i + 1) for i in range(19)] + [(0, 7), (3, 12)]
  weights = np.where(rng.random(20) < 0.2, 100.0, 0.01)  # pinned ops and a few dear ones
  partition_ops(make_problem(weights, edges, cluster=make_cluster(8)), seed=seed)
  assert _printed(capfd) == ""


@pytest.mark.parametrize("spec, groups", [
    ("pipelines[0]", True), ("pipelines[7]", False), ("pipelines[9]", True), ("tasks[1]", False)])
def test_nothing_is_printed_where_some_devices_are_too_slow_for_a_node(spec, groups, capfd):
  problem = made_problems.make(f"made:{spec}")
  contraction = contract(
      problem.graph, problem.costs, problem.allowed_ops,
      problem.grouping.group_of_op if groups else problem.graph.colocation)
  devices = list(range(problem.num_devices))
  print("before")
  found = np.stack(list(partitions(problem, contraction, devices, 0)))
  assert _printed(capfd) == "before\n"  # what others print is kept
  assert found.min() >= 0 and found.max() < len(devices) and len(np.unique(found)) > 1
