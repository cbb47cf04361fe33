"""`Supernodes`: coarse groups of ops that a search moves together, and their devices.

Usually supernodes are the problem's groups; refinement moves smaller supernodes. All ops of a
supernode have the same device, so a placement of supernodes [U] determines one of ops [N].

Dimensions: N ops, U supernodes (coarse groups), D devices, R images of a device.
"""

from __future__ import annotations

from typing import List, NamedTuple, Optional, Tuple

import numpy as np

from placeto_tf.grouping.contraction import contract
from placeto_tf.problem.placement_problem import PlacementProblem

# Levels of a search, (number of supernodes divided by the number of groups, share of the budget):
# first a handful of large supernodes, which moves whole layers at once.
# docs/results/what_did_not_help.md has other levels.
COARSE_TO_FINE: Tuple[Tuple[float, float], ...] = (
    (0.0625, 0.05), (0.125, 0.1), (0.25, 0.15), (0.5, 0.2), (1.0, 0.2), (2.0, 0.1), (4.0, 0.1),
    (8.0, 0.1))


class SupernodeTables(NamedTuple):
  """`Supernodes` as arrays for compiled loops; offsets [U+1] delimit the runs of an array."""

  op_offsets: np.ndarray  # [U+1] int32
  ops: np.ndarray  # [N] int32, the ops of each supernode
  op_images: np.ndarray  # [N] int32, the row of `images` for each of these ops
  images: np.ndarray  # [R, D] int32, the op's device for each device of its supernode
  neighbour_offsets: np.ndarray  # [U+1] int32
  neighbours: np.ndarray  # int32
  choice_offsets: np.ndarray  # [U+1] int32
  choices: np.ndarray  # int32, allowed devices
  allowed: np.ndarray  # [U, D] bool
  movable: np.ndarray  # int32 supernodes


class Supernodes:
  """The supernodes of one search, their neighbours and their allowed devices.

  Attributes:
    supernode_of_op: [N] int32.
    allowed: [U, D] bool.
    movable: supernodes with more than one allowed device.
    weight_us: [U] compute time on the fastest kind of device.
  """

  def __init__(self, problem: PlacementProblem, supernode_of_op: Optional[np.ndarray] = None):
    """Contracts the graph to its supernodes.

    Args:
      problem: of N ops.
      supernode_of_op: [N] labels 0..U-1; by default the problem's groups.
    """
    if supernode_of_op is None:
      supernode_of_op = problem.grouping.group_of_op
    contraction = contract(problem.graph, problem.costs, problem.allowed_ops, supernode_of_op)
    self.supernode_of_op = contraction.node_of_op
    count = contraction.num_nodes
    self._op_offsets = _offsets(np.bincount(self.supernode_of_op, minlength=count))
    self._op_order = np.argsort(self.supernode_of_op, kind="stable").astype(np.int32)
    self.weight_us = contraction.weight_us
    # [patterns, D] bool from bit masks; [U, D] by the pattern of each supernode.
    of_mask = np.array([[mask >> d & 1 for d in range(problem.num_devices)]
                        for mask in contraction.masks], dtype=bool)
    self.allowed = of_mask[contraction.pattern]
    self.movable: List[int] = np.flatnonzero(self.allowed.sum(axis=1) > 1).tolist()
    self._neighbours = _neighbours(contraction.producers, contraction.consumers, count)

  @property
  def tables(self) -> SupernodeTables:
    """Returns the arrays that compiled loops read."""
    # Row-major, so the choices of one supernode are consecutive.
    choices = np.nonzero(self.allowed)[1]
    images, op_images = self._images(self.allowed.shape[1])
    neighbour_offsets, neighbours = self._neighbours
    return SupernodeTables(
        self._op_offsets, self._op_order, op_images, images, neighbour_offsets, neighbours,
        _offsets(self.allowed.sum(axis=1)), choices.astype(np.int32), self.allowed,
        np.array(self.movable, dtype=np.int32))

  def _images(self, num_devices: int) -> Tuple[np.ndarray, np.ndarray]:
    """Returns `SupernodeTables.images` and `.op_images`: ops have the devices of supernodes."""
    # One row of images, the identity: R = 1.
    return (np.arange(num_devices, dtype=np.int32)[None].copy(),
            np.zeros(len(self.supernode_of_op), dtype=np.int32))

  def __len__(self) -> int:
    return len(self.weight_us)

  def devices(self, placement: np.ndarray) -> List[int]:
    """Returns the devices of the supernodes, [U], in a placement [N] that splits none of them."""
    # The first op of each supernode has the device of all its ops.
    return placement[self._op_order[self._op_offsets[:-1]]].tolist()


def _offsets(counts: np.ndarray) -> np.ndarray:
  """Returns the start of each supernode's run, [U+1] int32, by the lengths of all runs."""
  return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)


def _neighbours(
    producers: np.ndarray, consumers: np.ndarray, count: int) -> Tuple[np.ndarray, np.ndarray]:
  """Lists each supernode's neighbours, none twice, in the order of the first edge between them.

  Returns:
    Offsets [U+1] into the neighbours, and the neighbours, both int32.
  """
  # Of a pair and the opposite pair, the first one.
  ends = np.sort(np.stack([producers, consumers], axis=1), axis=1).astype(np.int64)
  first = np.sort(np.unique(ends[:, 0] * count + ends[:, 1], return_index=True)[1])
  # Each pair once in the list of both of its ends.
  owners = np.stack([producers[first], consumers[first]], axis=1).ravel()
  others = np.stack([consumers[first], producers[first]], axis=1).ravel()
  return (_offsets(np.bincount(owners, minlength=count)),
          others[np.argsort(owners, kind="stable")].astype(np.int32))


def placed_supernodes(problem: PlacementProblem, placement: np.ndarray, count: int) -> Supernodes:
  """Makes supernodes whose ops share a device in a placement, so that a search can start there.

  The supernodes are the problem's own groups if the ops of each group share a device.

  Args:
    problem: of N ops.
    placement: [N] int32.
    count: approximate number of supernodes.
  """
  if count == problem.num_groups and _agrees(problem.grouping.group_of_op, placement):
    return Supernodes(problem)
  return Supernodes(problem, problem.sets.merged(placement, max(1, count)))


def level_counts(problem: PlacementProblem) -> List[int]:
  """Returns numbers of supernodes of levels from groups to single ops, each four times finer."""
  smallest = len(np.unique(problem.graph.colocation))
  counts = [problem.num_groups]
  # Colocated ops move together, so their sets are the finest supernodes.
  while counts[-1] * 4 < smallest:
    counts.append(counts[-1] * 4)
  if counts[-1] < smallest:
    counts.append(smallest)
  return counts


def _agrees(groups: np.ndarray, placement: np.ndarray) -> bool:
  """Returns whether the ops of every group have one device."""
  first = np.zeros(int(groups.max()) + 1, dtype=placement.dtype)
  # Compares all ops with the last op of their group; any op of the group would do.
  first[groups] = placement
  return bool((first[groups] == placement).all())
