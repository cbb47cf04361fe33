"""Layer by layer along the network's depth, as the experts of the papers split models by hand.

Forward and backward of a layer stay together, the layers of a device are consecutive, and the
cut points balance compute time: Mirhoseini et al. 2017, section 4.1; Addanki et al. 2019,
section 4.1.
"""

from __future__ import annotations

from typing import List, Optional, Sequence

import numpy as np

from placeto_tf.problem.budget import Budget
from placeto_tf.problem.candidates import (
  allowed_or_nearest,
  best_of,
  compute_devices,
  device_speeds,
)
from placeto_tf.problem.method import AutoPart, Kind, Method, Stage, unseeded
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.search.layers import layer_positions


def split_by_depth(problem: PlacementProblem, budget: Optional[Budget] = None) -> np.ndarray:
  """[N] the network cut along its depth into one piece for each device that is not a host."""
  return best_of(problem, _cuts(problem, [compute_devices(problem)]), budget)


def split_fewer(problem: PlacementProblem, budget: Optional[Budget] = None) -> np.ndarray:
  """[N] the best such cut for the 2, 3, ... fastest devices, but not for all of them.

  Every further cut sends data once more, so with slow links it is best to leave out some devices.
  Beyond 8, the numbers of devices tried double.
  """
  devices = compute_devices(problem)
  fastest = np.argsort(-device_speeds(problem, devices), kind="stable")
  counts = [k for k in range(2, len(devices)) if k <= 8 or k & (k - 1) == 0]
  if not counts:  # the expert has tried them all
    best = problem.account.best_placement
    return split_by_depth(problem, budget) if best is None else best.copy()
  return best_of(problem, _cuts(problem, [
      [devices[i] for i in sorted(fastest[:k])] for k in counts]), budget)


def _has_fewer(problem: PlacementProblem) -> bool:
  """Whether there are fewer devices than all to cut for, and more than one."""
  return len(compute_devices(problem)) > 2


def _cuts(problem: PlacementProblem, device_sets: Sequence[List[int]]) -> np.ndarray:
  """[B, N] one placement for each set of devices, with one piece for each device in order."""
  _, layer = np.unique(layer_positions(problem.graph), return_inverse=True)
  layer = layer.reshape(-1)
  placements = []
  for devices in device_sets:
    cuts = balanced_cuts(_weights_us(problem, layer, devices), device_speeds(problem, devices))
    piece = np.searchsorted(cuts, layer, side="right")
    placements.append(
        allowed_or_nearest(problem, np.asarray(devices, dtype=np.int32)[piece]))
  return np.stack(placements)


def _weights_us(problem: PlacementProblem, layer: np.ndarray, devices: List[int]) -> np.ndarray:
  """[L] compute time of each layer.

  Ops that can only run on hosts have weight 0: they do not load these devices.

  Args:
    layer: [N] of each op, numbered along the depth.
    devices: those that share the layers.
  """
  movable = problem.allowed_ops[:, devices].any(axis=1)
  overhead_us = problem.cluster.op_overhead_us * (problem.costs.compute_us.min(axis=1) > 0)
  weight = np.where(movable, problem.costs.compute_us.min(axis=1) + overhead_us, 0.0)
  return np.bincount(layer, weight)


def balanced_cuts(weight: np.ndarray, shares: np.ndarray) -> np.ndarray:
  """Cuts a row of layers into consecutive pieces, piece p in proportion to `shares[p]`.

  The largest weight over share of all pieces is as small as possible. Bisection finds the capacity,
  and pieces are filled greedily from the first layer on.

  Args:
    weight: [L] of each layer.
    shares: [P] positive, of each piece.

  Returns:
    [P-1] the first layer of every piece but the first; pieces may be empty.
  """
  ends = np.cumsum(weight)
  low, high = 0.0, float(ends[-1] / shares.min())
  for _ in range(60):
    middle = (low + high) / 2
    if _fill(ends, shares * middle)[-1] >= len(weight):
      high = middle
    else:
      low = middle
  return _fill(ends, shares * (high * (1 + 1e-12)))[:-1]


def _fill(ends: np.ndarray, capacity: np.ndarray) -> np.ndarray:
  """[P] where each piece ends if it takes as many layers as its capacity holds."""
  cuts, done = [], 0.0
  first = 0
  for room in capacity:
    first = int(np.searchsorted(ends, done + room, side="right"))
    done = float(ends[first - 1]) if first else 0.0
    cuts.append(first)
  return np.array(cuts)


METHODS = (
    Method("expert", Kind.BASELINE, unseeded(split_by_depth), rank=2, start_rank=1,
           title="expert (layer by layer)", auto=AutoPart(Stage.REFERENCE)),
    Method("expert_fewer", Kind.CONSTRUCTION, unseeded(split_fewer), rank=1, start_rank=6,
           auto=AutoPart(Stage.CONSTRUCTION, condition=_has_fewer)),
)
