"""What transfers cost in a graph's own steps: fitted to placements made for it.

A transfer between two idle workers (`microbenchmarks`) is quicker than one in the midst of a step,
where threads take turns on a core and its caches. So the parts of a hop are scaled until simulated
step times agree with those of a few placements: first random ones, then, as these cut many edges
and good placements few, some that a search finds with what the random ones have taught.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, List, Sequence, Tuple

import numpy as np

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.clusters.constraints import allowed_devices
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.grouping import group_ops
from placeto_tf.search import METHODS
from placeto_tf.search.problem import Budget, PlacementProblem
from placeto_tf.simulation import Simulator

# Fields that are scaled together.
_PARTS = (
    ("sender_us_per_transfer", "receiver_us_per_transfer"),
    ("delivery_us",),
    ("sender_us_per_byte", "receiver_us_per_byte"),
)
_RANDOM_BLOCKS = (3, 6, 12, 24)
_SEARCH_GROUPS, _SEARCH_EVALUATIONS = (24, 48, 72, 96), 2000
# Of a factor of e, against a squared error of the logarithm: few placements do not say everything.
_RELUCTANCE = 0.005
_MOST_EVALUATIONS = 200

# Placement [N] -> measured us, inf where it failed.
Measure = Callable[[np.ndarray], float]


def fit_transfers(
    graph: ComputationGraph, cluster: Cluster, costs: Any, measure: Measure,
    count: int, seed: int = 0,
) -> Tuple[Cluster, List[Tuple[np.ndarray, float]]]:
  """Scales what transfers cost to the step times of placements that it measures.

  Args:
    graph: that is placed.
    cluster: calibrated by microbenchmarks.
    costs: of the graph's ops.
    measure: step time of a placement.
    count: of placements, about half of them random.
    seed: of the placements.

  Returns:
    The cluster, and the placements with their measured step times.
  """
  rng = np.random.default_rng([seed, 0xCA1])
  seen: List[Tuple[np.ndarray, float]] = []

  def add(placements: Sequence[np.ndarray]) -> Cluster:
    for placement in placements:
      measured_us = measure(placement)
      if np.isfinite(measured_us):
        seen.append((placement, measured_us))
    return _fitted(graph, cluster, costs, seen) if seen else cluster

  few = count - count // 2
  fitted = add([_random(graph, cluster, _RANDOM_BLOCKS[k % len(_RANDOM_BLOCKS)], rng)
                for k in range(few)])
  found = [_searched(graph, fitted, costs, _SEARCH_GROUPS[k % len(_SEARCH_GROUPS)],
                     seed + 1000 + k) for k in range(count - few)]
  return add(found) if found else fitted, seen


def _random(
    graph: ComputationGraph, cluster: Cluster, blocks: int, rng: np.random.Generator
) -> np.ndarray:
  """[N] stretches of the topological order, each on any device."""
  block_of = np.empty(graph.num_ops, dtype=np.int64)
  block_of[graph.topological_order] = np.arange(graph.num_ops) * blocks // graph.num_ops
  wanted = rng.integers(0, cluster.num_devices, blocks)[block_of][graph.colocation]
  allowed = allowed_devices(graph, cluster)
  return np.where(
      allowed[np.arange(graph.num_ops), wanted], wanted, allowed.argmax(axis=1)).astype(np.int32)


def _searched(
    graph: ComputationGraph, cluster: Cluster, costs: Any, max_groups: int, seed: int
) -> np.ndarray:
  """[N] what a short search finds."""
  grouping = group_ops(graph, costs, allowed_devices(graph, cluster), max_groups=max_groups)
  problem = PlacementProblem(graph, costs, cluster, grouping)
  return METHODS["annealing"](problem, Budget(max_evaluations=_SEARCH_EVALUATIONS), seed)


def _fitted(
    graph: ComputationGraph, cluster: Cluster, costs: Any,
    seen: Sequence[Tuple[np.ndarray, float]]) -> Cluster:
  """The cluster with its transfers scaled to what was measured."""
  from scipy import optimize

  placements = np.stack([placement for placement, _ in seen])
  measured = np.log([measured_us for _, measured_us in seen])

  def loss(x: np.ndarray) -> float:
    simulator = Simulator(graph, costs, _scaled(cluster, x))
    predicted = np.log(simulator.simulate_many(placements)[0])
    return float(np.mean((predicted - measured) ** 2) + _RELUCTANCE * np.sum(x**2) / len(seen))

  size = len(_PARTS)
  start = np.vstack([np.zeros(size), 0.7 * np.eye(size)])
  found = optimize.minimize(loss, np.zeros(size), method="Nelder-Mead", options={
      "maxfev": _MOST_EVALUATIONS, "initial_simplex": start})
  return _scaled(cluster, found.x)


def _scaled(cluster: Cluster, logarithms: np.ndarray) -> Cluster:
  changes = {name: getattr(cluster, name) * float(np.exp(x))
             for names, x in zip(_PARTS, logarithms) for name in names}
  return dataclasses.replace(cluster, **changes)
