"""Fits the cost of transfers in a graph's own steps to placements that are measured for the fit.

A transfer between two idle workers (`microbenchmarks`) differs from a transfer during a step. It is
slower, because threads take turns on a core and its caches; and it is cheaper, because a running
thread takes many messages at once. Also, steps that keep both workers busy take longer than the sum
of their ops and transfers predicts. So the fit scales the parts of a transfer and all kernel times,
and chooses a slowdown for a worker next to a busy one, such that simulated step times agree with
measured ones for a few placements: each device alone, random placements with few and with many
edges between devices, and placements that a search finds with the first fit.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Dict, Sequence, Tuple

import numpy as np

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.clusters.constraints import allowed_devices
from placeto_tf.costs.op_costs import OpCosts
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.grouping import group_ops
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.search import PLACERS
from placeto_tf.simulation import Simulator

# Fields that are scaled together.
_PARTS = (
    ("sender_us_per_transfer", "receiver_us_per_transfer"),
    ("latency_us",),
    ("sender_us_per_byte", "receiver_us_per_byte"),
)
# Kinds of random placements: a number of stretches of the graph, or a share of single ops moved.
_RANDOM_KINDS = (6, 0.1, 24, 0.4, 3)
_SEARCH_GROUPS, _SEARCH_EVALUATIONS = (24, 48, 72, 96), 2000
# Penalty of a factor of e, against a squared error of the logarithm: there are few placements.
_RELUCTANCE = 0.005
_MOST_EVALUATIONS = 300

# Placement [N] -> measured us, inf where it failed.
Measure = Callable[[np.ndarray], float]


@dataclasses.dataclass(frozen=True, eq=False)
class Fit:
  """The result of a fit.

  Attributes:
    cluster: with its transfers scaled.
    compute_scale: the factor for kernels' times.
    seen: the placements [N], and their measured step times in us.
  """

  cluster: Cluster
  compute_scale: float = 1.0
  seen: Tuple[Tuple[np.ndarray, float], ...] = ()


def fit_transfers(
    graph: ComputationGraph, cluster: Cluster, costs: OpCosts, measure: Measure, count: int,
    seed: int = 0) -> Fit:
  """Scales transfers and kernels to the step times of placements that it measures.

  Args:
    graph: that is placed.
    cluster: calibrated by microbenchmarks.
    costs: of the graph's ops.
    measure: step time of a placement.
    count: number of placements besides placements on one device; a search finds half of them.
    seed: of the placements.

  Returns:
    The cluster with scaled transfers, the scale of kernels, and the measured placements.
  """
  rng = np.random.default_rng([seed, 0xCA1])
  allowed = allowed_devices(graph, cluster)
  # Devices that all ops may use.
  alone = [np.full(graph.num_ops, d, dtype=np.int32)
           for d in range(cluster.num_devices) if allowed[:, d].all()]
  # Random placements first; a search with their fit finds the rest.
  few = count - count // 2
  seen = [(placement, measure(placement)) for placement in alone + [
      _random(graph, allowed, _RANDOM_KINDS[k % len(_RANDOM_KINDS)], rng) for k in range(few)]]
  fit = _fitted(graph, cluster, costs, seen)
  found = [_searched(graph, fit.cluster, _times(costs, fit.compute_scale), allowed,
                     _SEARCH_GROUPS[k % len(_SEARCH_GROUPS)], seed + 1000 + k)
           for k in range(count - few)]
  return _fitted(graph, cluster, costs, seen + [
      (placement, measure(placement)) for placement in found])


def stretch_of_op(graph: ComputationGraph, count: int) -> np.ndarray:
  """Divides the topological order into equal stretches.

  Args:
    graph: N ops.
    count: of stretches.

  Returns:
    [N] int64 number of each op's stretch.
  """
  found = np.empty(graph.num_ops, dtype=np.int64)
  found[graph.topological_order] = np.arange(graph.num_ops) * count // graph.num_ops
  return found


def _random(
    graph: ComputationGraph, allowed: np.ndarray, kind: float, rng: np.random.Generator
) -> np.ndarray:
  """Places each of some stretches of the topological order, or a share of ops, anywhere."""
  num_devices = allowed.shape[1]
  if kind < 1:
    wanted = np.where(
        rng.random(graph.num_ops) < kind, rng.integers(0, num_devices, graph.num_ops), 0)
  else:
    wanted = rng.integers(0, num_devices, int(kind))[stretch_of_op(graph, int(kind))]
  # The ops of a colocation group go to one device.
  wanted = wanted[graph.colocation]
  return np.where(
      allowed[np.arange(graph.num_ops), wanted], wanted, allowed.argmax(axis=1)).astype(np.int32)


def _searched(
    graph: ComputationGraph, cluster: Cluster, costs: OpCosts, allowed: np.ndarray,
    max_groups: int, seed: int) -> np.ndarray:
  """Returns the placement that a short search finds, [N]."""
  grouping = group_ops(graph, costs, allowed, max_groups=max_groups)
  problem = PlacementProblem(graph, costs, cluster, grouping)
  return PLACERS["annealing"](problem, Budget(max_evaluations=_SEARCH_EVALUATIONS), seed)


def _fitted(
    graph: ComputationGraph, cluster: Cluster, costs: OpCosts,
    measurements: Sequence[Tuple[np.ndarray, float]]) -> Fit:
  """Fits scales and the slowdown to measured placements; failed placements are left out."""
  from scipy import optimize

  seen = tuple(each for each in measurements if np.isfinite(each[1]))
  if not seen:
    return Fit(cluster)
  # [K, N]; measured: [K] logarithms of us.
  placements = np.stack([placement for placement, _ in seen])
  measured = np.log([measured_us for _, measured_us in seen])

  def loss(x: np.ndarray) -> float:
    simulator = Simulator(graph, _times(costs, float(np.exp(x[0]))), _scaled(cluster, x))
    # Squared errors of logarithms: relative errors count alike for fast and slow placements.
    predicted = np.log(simulator.simulate_many(placements)[0])
    return float(np.mean((predicted - measured) ** 2) + _RELUCTANCE * np.sum(x**2) / len(seen))

  size = 2 + len(_PARTS)
  # Simplex: the origin (scales of 1), and a step along each axis of a size that matters.
  start = np.vstack([np.zeros(size), np.diag([0.1] + [0.7] * len(_PARTS) + [0.1])])
  found = optimize.minimize(loss, np.zeros(size), method="Nelder-Mead", options={
      "maxfev": _MOST_EVALUATIONS, "initial_simplex": start})
  return Fit(_scaled(cluster, found.x), float(np.exp(found.x[0])), seen)


def _times(costs: OpCosts, scale: float) -> OpCosts:
  """Returns the costs with kernels' times scaled."""
  return dataclasses.replace(costs, compute_us=costs.compute_us * scale)


def _scaled(cluster: Cluster, x: np.ndarray) -> Cluster:
  """Returns the cluster with `_PARTS` scaled and the slowdown beside a busy worker set."""
  changes: Dict[str, Any] = {
      name: getattr(cluster, name) * float(np.exp(logarithm))
      for names, logarithm in zip(_PARTS, x[1:-1]) for name in names}
  # x: logarithms of the scales of kernels and of each part, then the slowdown itself.
  return dataclasses.replace(cluster, busy_slowdown=max(0.0, float(x[-1])), **changes)
