"""Helpers that placers share: candidate placements, and the best of them within the budget.

Dimensions: N ops, D devices, B placements side by side.
"""

from __future__ import annotations

from typing import List, Optional

import numpy as np

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.host_options import hosts_of
from placeto_tf.problem.placement_problem import PlacementProblem


def best_of(
    problem: PlacementProblem, placements: np.ndarray, budget: Optional[Budget] = None
) -> np.ndarray:
  """Evaluates placements as far as the budget allows and returns the best.

  The placement with the least memory over the limits is best; then the lower objective decides,
  then the order. If the best does not fit and a host may take some of its variables, the best is
  evaluated once more with these on the host. If the budget is used up, the first placement is
  returned without an evaluation.

  Args:
    problem: evaluates.
    placements: [B, N] or [N] int32.
    budget: of the evaluations; None evaluates all placements.

  Returns:
    [N] int32.
  """
  placements = np.atleast_2d(np.asarray(placements, dtype=np.int32))
  remaining = None if budget is None else problem.search_log.remaining_evaluations(budget)
  if remaining is not None:
    # Never more evaluations than the budget has left.
    placements = placements[:max(1, remaining)]
    if remaining == 0:
      return placements[0].copy()
  evaluation = problem.evaluate_ops(placements)
  best = evaluation.best()
  found = placements[best].copy()
  # Nothing to relieve if the best fits, or if no evaluation is left.
  if evaluation.fits[best] or remaining == len(placements):
    return found
  lighter = relieved(problem, found, evaluation.peak_memory_bytes[best])
  if (lighter == found).all():
    return found
  again = problem.evaluate_ops(lighter)
  return lighter if again.excess_bytes[0] < evaluation.excess_bytes[best] else found


def relieved(
    problem: PlacementProblem, placement: np.ndarray, peak_memory_bytes: np.ndarray) -> np.ndarray:
  """Moves ops from devices with too little memory to a host, the largest variables first.

  Args:
    problem: of the ops.
    placement: [N] int32.
    peak_memory_bytes: [D], of the placement.

  Returns:
    [N] int32, equal to the placement if nothing can be moved.
  """
  hosts = hosts_of(problem.cluster)
  # [N] ops on a device that a host may take.
  movable = problem.allowed_ops[:, hosts].any(axis=1) & ~hosts[placement]
  sets, found = problem.graph.colocation, placement.copy()
  # [N, D] bool, the hosts that each op may use.
  to = problem.allowed_ops * hosts
  for d, excess in enumerate(peak_memory_bytes - problem.cluster.memory_bytes):
    here = movable & (placement == d)
    # [N] bytes of variables of each set on this device, by label.
    held = np.bincount(
        sets[here], problem.costs.persistent_bytes[here], minlength=len(placement))
    order = np.argsort(-held, kind="stable")
    before = np.cumsum(held[order]) - held[order]
    # Largest sets first, as many as cover the excess.
    moved = order[(before < excess) & (held[order] > 0)]
    if len(moved):
      # Ops without variables may use the host because of these variables, so they move, too.
      here &= np.isin(sets, moved) | (held[sets] == 0)
      found[here] = to[here].argmax(axis=1)
  return found


def best_so_far(problem: PlacementProblem, otherwise: np.ndarray) -> np.ndarray:
  """Returns a copy of the problem's best placement, or of another if nothing was evaluated.

  Searches return it instead of their own best placement: by the objective alone, a placement that
  does not fit can be better than one that fits, but the problem prefers the one that fits.

  Args:
    problem: remembers its best placement.
    otherwise: [N], returned if the problem has no best placement.

  Returns:
    [N] int32.
  """
  best = problem.search_log.best_placement
  return np.asarray(otherwise if best is None else best, dtype=np.int32).copy()


def allowed_or_nearest(problem: PlacementProblem, placement: np.ndarray) -> np.ndarray:
  """Moves ops that may not run on their device to a device that they may use.

  The new device is a host if they may use one, because ops without a kernel belong there; else it
  is the first device that they may use.

  Args:
    problem: of the allowed devices.
    placement: [N] device of each op; equal for colocated ops.

  Returns:
    [N] int32, equal for colocated ops.
  """
  return nearest_allowed(
      problem.cluster, problem.allowed_ops, np.asarray(placement, dtype=np.int32))


def nearest_allowed(cluster: Cluster, allowed: np.ndarray, placement: np.ndarray) -> np.ndarray:
  """Moves ops as `allowed_or_nearest` does.

  Args:
    cluster: of D devices.
    allowed: [N, D] bool, the devices that ops may use.
    placement: [N] int32 device of each op.

  Returns:
    [N] int32.
  """
  may = allowed[np.arange(len(placement)), placement]
  return np.where(may, placement, fallback_devices(cluster, allowed)).astype(np.int32)


def fallback_devices(cluster: Cluster, allowed: np.ndarray) -> np.ndarray:
  """Returns for each op a host that the op may use, else the first device that it may use.

  Args:
    cluster: of D devices.
    allowed: [N, D] bool, the devices that ops may use.

  Returns:
    [N] int32.
  """
  # 0 not allowed, 1 device, 2 host; argmax takes the first of the largest.
  return (allowed * (1 + hosts_of(cluster))).argmax(axis=1).astype(np.int32)


def compute_devices(problem: PlacementProblem) -> List[int]:
  """Returns the devices that are not hosts; all devices if every one is a host."""
  devices = [d for d, device in enumerate(problem.cluster.devices) if not device.host]
  return devices or list(range(problem.num_devices))


def device_speeds(problem: PlacementProblem, devices: List[int]) -> np.ndarray:
  """Returns the relative speeds of some devices on this graph.

  Speed is the inverse of a device's time for the ops that all of these devices may run.

  Args:
    problem: of the costs.
    devices: indices of P devices.

  Returns:
    [P] float64 with sum 1; equal speeds if a device needs no time.
  """
  common = problem.allowed_ops[:, devices].all(axis=1)
  compute_us = problem.costs.compute_us[common].sum(axis=0)
  time_us = compute_us[problem.cluster.device_kinds[devices]]
  # If common ops are missing, or have no cost, no device is known to be faster.
  if not (time_us > 0).all():
    return np.full(len(devices), 1 / len(devices))
  return (1 / time_us) / (1 / time_us).sum()
