"""Building problems, budgets, and what is better."""

import numpy as np
import pytest

import graph_files
from placeto_tf.clusters.cluster import Cluster
from placeto_tf.costs import OpCosts, estimate_costs
from placeto_tf.graphs import load_graph
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.problem import Budget, Evaluation, PlacementProblem


def test_the_best_lacks_least_memory_then_has_the_lowest_objective_then_comes_first():
  def best(objective_us, excess_bytes):
    objective_us, excess = (np.array(each, dtype=float) for each in (objective_us, excess_bytes))
    return Evaluation(
        objective_us, np.zeros((len(excess), 1)), objective_us, excess, np.zeros((3, 1)),
        objective_us).best()

  assert best([3, 1, 2], [0, 5, 0]) == 2
  assert best([3, 1, 2], [5, 5, 5]) == 1
  assert best([1, 2, 2], [9, 5, 5]) == 1
  assert best([2, 2, 2], [5, 0, 0]) == 1


def test_build_estimates_costs_and_groups_ops():
  graph, cluster = load_graph(graph_files.meta_graph_def()), Cluster.parse("k80:2")
  costs = estimate_costs(graph, cluster)
  built = PlacementProblem.build(graph, cluster, max_groups=6)
  given = PlacementProblem.build(graph, cluster, costs=costs, max_groups=6)
  np.testing.assert_array_equal(built.costs.compute_us, costs.compute_us)
  np.testing.assert_array_equal(built.grouping.group_of_op, given.grouping.group_of_op)
  assert given.costs is costs and built.num_groups <= 8
  pinned = built.allowed_ops.copy()
  pinned[:, 1:] = False
  kept = PlacementProblem.build(graph, cluster, costs=costs, allowed_ops=pinned | (
      ~pinned.any(axis=1, keepdims=True) & built.allowed_ops))
  assert not kept.allowed[:, 1].any()
  singles = PlacementProblem.build(graph, cluster, costs=costs, grouping="none")
  assert singles.num_groups == len(np.unique(graph.colocation))


def test_a_renewed_problem_has_seen_nothing(random_problem):
  problem = random_problem(1)
  problem.evaluate_ops(problem.allowed_ops.argmax(axis=1))
  again = problem.renewed()
  log = again.search_log
  assert log.evaluations == 0 and log.best_placement is None and log.history == []
  assert problem.search_log.evaluations == 1 and again.simulator is problem.simulator


def test_a_share_of_a_budget_is_of_what_is_left_and_keeps_the_target(random_problem):
  problem = random_problem(2)
  problem.evaluate_ops(np.repeat(problem.allowed_ops.argmax(axis=1)[None], 10, axis=0))
  part = Budget(max_evaluations=31, target_us=5.0).share(problem.search_log, 0.5)
  assert part == Budget(max_evaluations=10 + 11, target_us=5.0)
  # Nothing is left.
  assert Budget(max_evaluations=5).share(problem.search_log, 0.5).max_evaluations == 10


@pytest.mark.parametrize("edges, expected", [
    ([(0, 0, 2), (1, 0, 2)], [10.0, 20.0]), ([(0, -1, 1), (1, 0, 2)], [0.0, 20.0])])
def test_edges_carry_the_bytes_of_their_tensors_and_control_edges_none(edges, expected):
  graph = ComputationGraph.from_edges(["a", "b", "c"], ["Op"] * 3, [1] * 3, edges)
  costs = OpCosts(np.ones((3, 1)), np.array([10.0, 20.0, 30.0]), np.zeros(3), np.zeros(3))
  np.testing.assert_array_equal(costs.edge_bytes(graph), expected)
