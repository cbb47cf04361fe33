"""Small random placement problems, for tests, benchmarks and a first try of a policy."""

from __future__ import annotations

from typing import List, Optional, Sequence

import numpy as np

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.costs.op_costs import OpCosts
from placeto_tf.encoding.grouped_graph import GroupedGraph
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.grouping.grouping import Grouping
from placeto_tf.problem.placement_problem import PlacementProblem


def random_problem(
    num_ops: int = 60, num_groups: int = 12, devices: str = "k80:3", seed: int = 0, *,
    renamed: Optional[Sequence[int]] = None) -> PlacementProblem:
  """A random graph in which each op reads up to two of the twelve ops before it.

  Args:
    num_ops: N.
    num_groups: G; groups are runs of ops.
    devices: a cluster in words, see `Cluster.parse`.
    seed: of edges and costs.
    renamed: [G] new number of each group; None leaves them in topological order.
  """
  rng = np.random.default_rng(seed)
  edges = [
      (producer, 0, i) for i in range(1, num_ops)
      for producer in set(rng.integers(max(0, i - 12), i, size=2).tolist())]
  graph = ComputationGraph.from_edges(
      [f"op{i}" for i in range(num_ops)], ["Op"] * num_ops, [1] * num_ops, edges)
  cluster = Cluster.parse(devices)
  compute_us = rng.exponential(500.0, (num_ops, 1)) * np.ones((1, len(cluster.kind_devices)))
  costs = OpCosts(
      compute_us, rng.exponential(3e5, num_ops), rng.exponential(1e6, num_ops), np.zeros(num_ops))
  group_of_op = np.arange(num_ops) * num_groups // num_ops
  if renamed is not None:
    group_of_op = np.asarray(renamed)[group_of_op]
  return PlacementProblem(graph, costs, cluster, Grouping(group_of_op))


def grouped_graph(problem: PlacementProblem) -> GroupedGraph:
  """The problem as the policies see it."""
  return GroupedGraph.of(problem)


def means_of_samples(problem: PlacementProblem) -> List[float]:
  """The mean step time of each batch of placements that is simulated from now on, as they come."""
  means: List[float] = []
  simulate = problem.simulator.simulate_many

  def watched(placements, **options):
    found = simulate(placements, **options)
    means.append(found[0].mean())
    return found

  problem.simulator.simulate_many = watched
  return means
