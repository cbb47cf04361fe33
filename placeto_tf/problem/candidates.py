"""Helpers that placers share: candidate placements, and the best of them within the budget.

Dimensions: N ops, D devices, B placements side by side.
"""

from __future__ import annotations

from typing import List, Optional, Tuple

import numpy as np

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.host_options import hosts_of
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.simulation.memory import Lifetimes


def best_of(
    problem: PlacementProblem, placements: np.ndarray, budget: Optional[Budget] = None
) -> np.ndarray:
  """Evaluates placements as far as the budget allows and returns the best.

  The placement with the least memory over the limits is best; then the lower objective decides,
  then the order. If the best does not fit and a host may take some of its ops, the best is
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
  lighter = relieved(problem, found)
  if (lighter == found).all():
    return found
  again = problem.evaluate_ops(lighter)
  return lighter if again.excess_bytes[0] < evaluation.excess_bytes[best] else found


def relieved(problem: PlacementProblem, placement: np.ndarray) -> np.ndarray:
  """Moves ops from devices with too little memory to a host, those that hold most bytes first.

  Args:
    problem: of the ops.
    placement: [N] int32.

  Returns:
    [N] int32, equal to the placement if nothing can be moved.
  """
  hosts = hosts_of(problem.cluster)
  # [N, D] bool, the hosts that each op may use.
  to = problem.allowed_ops * hosts
  # [N] ops on a device that a host may take.
  movable = to.any(axis=1) & ~hosts[placement]
  sets, found = problem.graph.colocation, placement.copy()
  if not movable.any():
    return found
  peak_bytes, held_by_op = bytes_at_peaks(problem, placement)
  for d, excess in enumerate(peak_bytes - problem.cluster.memory_bytes):
    here = movable & (placement == d)
    # [N] bytes of each set at this device's peak, by label.
    held = np.bincount(sets[here], held_by_op[here], minlength=len(placement))
    order = np.argsort(-held, kind="stable")
    # Largest sets first, as many as cover the excess.
    moved = order[(np.cumsum(held[order]) - held[order] < excess) & (held[order] > 0)]
    if len(moved):
      # If hosts are for some ops only, ops that hold nothing may use one because of the ops that
      # move, so they move, too.
      here &= np.isin(sets, moved) | ((held[sets] == 0) & ~to.any(axis=1).all())
      found[here] = to[here].argmax(axis=1)
  return found


def bytes_at_peaks(
    problem: PlacementProblem, placement: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
  """Finds the peaks of memory, and the bytes that each op holds on its device at its peak.

  The simulation does not count as an evaluation, because no step time is used.

  Args:
    problem: of N ops on D devices.
    placement: [N] int32.

  Returns:
    [D] bytes and [N] bytes.
  """
  step = problem.simulator.simulate(placement)
  lifetimes = Lifetimes.of(problem.graph, problem.costs, step)
  alive = np.concatenate([lifetimes.at_peak(d)[1] for d in range(problem.num_devices)])
  return step.peak_memory_bytes, np.bincount(
      lifetimes.ops[alive], lifetimes.sizes_bytes[alive], minlength=problem.graph.num_ops)


def on_one_device(problem: PlacementProblem) -> np.ndarray:
  """Returns the placement of all ops on the first device that is no host, [N], where allowed."""
  return allowed_or_nearest(
      problem, np.full(problem.graph.num_ops, compute_devices(problem)[0]))


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
  compute_us = problem.costs.compute_us[problem.allowed_ops[:, devices].all(axis=1)].sum(axis=0)
  time_us = compute_us[problem.cluster.device_kinds[devices]]
  # If common ops are missing, or have no cost, no device is known to be faster.
  if not (time_us > 0).all():
    return np.full(len(devices), 1 / len(devices))
  return (1 / time_us) / (1 / time_us).sum()
