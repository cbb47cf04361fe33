"""`Units`: sets of ops that a search moves together, and their devices in a placement.

Groups are the usual units; refinement moves smaller ones. The ops of a unit always have the same
device, so a placement of units [U] and one of ops [N] are equivalent.

Legend: N ops, U units, D devices.
"""

from __future__ import annotations

from typing import List, Optional

import numpy as np

from placeto_tf.grouping.contraction import contract
from placeto_tf.grouping.heavy_edge import heavy_edge
from placeto_tf.problem.placement_problem import PlacementProblem


class Units:
  """The units of one search, their neighbours and where they may go.

  Attributes:
    unit_of_op: [N] int32.
    ops: [U] index arrays, the ops of each unit.
    allowed: [U, D] bool.
    choices: [U] lists of allowed devices; allowed_sets: [U] the same as bit masks.
    movable: units with more than one allowed device.
    neighbours: [U] lists of the units that exchange data with each unit, each listed once.
    weight_us: [U] compute time on the fastest kind of device.
  """

  def __init__(self, problem: PlacementProblem, unit_of_op: Optional[np.ndarray] = None):
    """Args: unit_of_op [N] labels 0..U-1; by default the problem's groups."""
    if unit_of_op is None:
      unit_of_op = problem.grouping.group_of_op
    contraction = contract(problem.graph, problem.costs, problem.allowed_ops, unit_of_op)
    self.unit_of_op = contraction.node_of_op
    count = contraction.num_nodes
    order = np.argsort(self.unit_of_op, kind="stable")
    ends = np.cumsum(np.bincount(self.unit_of_op, minlength=count))
    self.ops: List[np.ndarray] = np.split(order, ends[:-1])
    self.weight_us = contraction.weight_us
    self.allowed_sets: List[int] = contraction.node_masks
    self.choices: List[List[int]] = [
        [d for d in range(problem.num_devices) if mask >> d & 1] for mask in self.allowed_sets]
    self.allowed = np.zeros((count, problem.num_devices), dtype=bool)
    for u, devices in enumerate(self.choices):
      self.allowed[u, devices] = True
    self.movable = [u for u, devices in enumerate(self.choices) if len(devices) > 1]
    neighbours: List[dict] = [{} for _ in range(count)]
    for u, v in zip(contraction.producers.tolist(), contraction.consumers.tolist()):
      neighbours[u][v] = neighbours[v][u] = True
    self.neighbours: List[List[int]] = [list(found) for found in neighbours]

  def __len__(self) -> int:
    return len(self.ops)

  def expand(self, devices: np.ndarray) -> np.ndarray:
    """[..., U] devices of units -> [..., N] devices of ops."""
    return np.asarray(devices, dtype=np.int32)[..., self.unit_of_op]

  def devices(self, placement: np.ndarray) -> List[int]:
    """[U] devices of the units in a placement [N] in which each unit has one device."""
    return placement[[ops[0] for ops in self.ops]].tolist()

  def place(self, placement: np.ndarray, unit: int, device: int) -> None:
    """Puts a unit on a device in a placement [N]."""
    placement[self.ops[unit]] = device

  def project(self, problem: PlacementProblem, placement: np.ndarray) -> np.ndarray:
    """[U] the allowed device that has most of each unit's compute time in a placement [N]."""
    kinds = problem.cluster.device_kinds[placement]
    weight = problem.costs.compute_us[np.arange(problem.graph.num_ops), kinds] + 1e-3
    votes = np.bincount(
        self.unit_of_op * problem.num_devices + placement, weight,
        minlength=len(self) * problem.num_devices).reshape(len(self), -1)
    return np.where(self.allowed, votes, -1.0).argmax(axis=1).astype(np.int32)


def placed_units(problem: PlacementProblem, placement: np.ndarray, count: int) -> Units:
  """About `count` units whose ops share a device in a placement [N], so a search can start there.

  The units are the problem's own groups if these do the same.
  """
  groups = problem.grouping.group_of_op
  if count == problem.num_groups and _agrees(groups, placement):
    return Units(problem)
  # Ops without a common allowed device never merge. So each device gets its own copy of all the
  # devices, and an op may use only the copy of the device it is on now.
  here = np.arange(problem.num_devices) == placement[:, None]
  allowed = (here[:, :, None] & problem.allowed_ops[:, None, :]).reshape(len(placement), -1)
  labels = heavy_edge(problem.graph, problem.costs, allowed, max(1, count))
  return Units(problem, labels)


def level_counts(problem: PlacementProblem) -> List[int]:
  """Numbers of units per level: from groups to (nearly) single ops, each four times finer."""
  smallest = len(np.unique(problem.graph.colocation))
  counts = [problem.num_groups]
  while counts[-1] * 4 < smallest:
    counts.append(counts[-1] * 4)
  if counts[-1] < smallest:
    counts.append(smallest)
  return counts


def _agrees(groups: np.ndarray, placement: np.ndarray) -> bool:
  """Whether the ops of every group have one device."""
  first = np.zeros(int(groups.max()) + 1, dtype=placement.dtype)
  first[groups] = placement
  return bool((first[groups] == placement).all())
