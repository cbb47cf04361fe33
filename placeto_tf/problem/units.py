"""`Units`: sets of ops that a search moves together, and their devices in a placement.

Groups are the usual units; refinement moves smaller ones. The ops of a unit always have the same
device, so a placement of units [U] and one of ops [N] are equivalent.

Legend: N ops, U units, D devices.
"""

from __future__ import annotations

import functools
from typing import List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from placeto_tf.grouping.contraction import contract
from placeto_tf.grouping.heavy_edge import heavy_edge
from placeto_tf.problem.placement_problem import PlacementProblem


class UnitTables(NamedTuple):
  """`Units` as compiled loops read them; runs of one array are delimited by offsets [U+1]."""

  op_offsets: np.ndarray  # [U+1] int32
  ops: np.ndarray  # [N] int32, the ops of each unit
  op_images: np.ndarray  # [N] int32, the row of `images` that says where each of these is
  images: np.ndarray  # [R, D] int32, where an op is when its unit is on a device
  neighbour_offsets: np.ndarray  # [U+1] int32
  neighbours: np.ndarray  # int32
  choice_offsets: np.ndarray  # [U+1] int32
  choices: np.ndarray  # int32, allowed devices
  allowed: np.ndarray  # [U, D] bool
  movable: np.ndarray  # int32 units


class Units:
  """The units of one search, their neighbours and where they may go.

  Attributes:
    unit_of_op: [N] int32.
    ops: [U] index arrays, the ops of each unit.
    allowed: [U, D] bool.
    choices: [U] lists of allowed devices; allowed_sets: [U] the same as bit masks.
    movable: units with more than one allowed device.
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
    self._neighbours = _neighbours(contraction.producers, contraction.consumers, count)

  @functools.cached_property
  def neighbours(self) -> List[List[int]]:
    """[U] lists of the units that exchange data with each unit, each listed once."""
    offsets, others = self._neighbours
    return [part.tolist() for part in np.split(others, offsets[1:-1])]

  @property
  def tables(self) -> UnitTables:
    """For compiled loops."""
    num_devices = self.allowed.shape[1]
    ops, choices = np.concatenate(self.ops), np.nonzero(self.allowed)[1]
    images, op_images = self._images(num_devices)
    return UnitTables(
        _offsets([len(each) for each in self.ops]), ops.astype(np.int32), op_images, images,
        *self._neighbours, _offsets(self.allowed.sum(axis=1)), choices.astype(np.int32),
        self.allowed, np.array(self.movable, dtype=np.int32))

  def _images(self, num_devices: int) -> Tuple[np.ndarray, np.ndarray]:
    """`UnitTables.images` and `.op_images`: ops are where their units are."""
    return (np.arange(num_devices, dtype=np.int32)[None].copy(),
            np.zeros(len(self.unit_of_op), dtype=np.int32))

  def __len__(self) -> int:
    return len(self.ops)

  def expand(self, devices: np.ndarray) -> np.ndarray:
    """[..., U] devices of units -> [..., N] devices of ops."""
    return np.asarray(devices, dtype=np.int32)[..., self.unit_of_op]

  def devices(self, placement: np.ndarray) -> List[int]:
    """[U] devices of the units in a placement [N] in which each unit has one device."""
    return placement[[ops[0] for ops in self.ops]].tolist()

  def project(self, problem: PlacementProblem, placement: np.ndarray) -> np.ndarray:
    """[U] the allowed device that has most of each unit's compute time in a placement [N]."""
    kinds = problem.cluster.device_kinds[placement]
    weight = problem.costs.compute_us[np.arange(problem.graph.num_ops), kinds] + 1e-3
    votes = np.bincount(
        self.unit_of_op * problem.num_devices + placement, weight,
        minlength=len(self) * problem.num_devices).reshape(len(self), -1)
    return np.where(self.allowed, votes, -1.0).argmax(axis=1).astype(np.int32)


def _neighbours(
    producers: np.ndarray, consumers: np.ndarray, count: int) -> Tuple[np.ndarray, np.ndarray]:
  """Offsets [U+1] into an array of each unit's neighbours, in the order of the first edge."""
  edges = len(producers)
  owner, other = np.concatenate([producers, consumers]), np.concatenate([consumers, producers])
  turn = np.tile(np.arange(edges), 2)
  order = np.lexsort((turn, other, owner))
  first = np.ones(len(order), dtype=bool)
  first[1:] = (np.diff(owner[order]) != 0) | (np.diff(other[order]) != 0)
  order = order[first]
  order = order[np.lexsort((turn[order], owner[order]))]
  return (_offsets(np.bincount(owner[order], minlength=count)),
          np.ascontiguousarray(other[order], dtype=np.int32))


def _offsets(counts: Union[Sequence[int], np.ndarray]) -> np.ndarray:
  """[U+1] int32 where each unit's run begins."""
  return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)


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
