"""Random moves between placements, shared by the searches, in compiled code.

Dimensions: N ops, U supernodes (coarse groups).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placeto_tf.problem.supernodes import Supernodes, SupernodeTables
from placeto_tf.simulation.compiling import part

# Shares of moves: a supernode to any device, to the device of a neighbour, a swap of two. All other
# moves send a cluster of neighbouring supernodes to one device; the fewest and the most of these.
# docs/results/what_did_not_help.md lists the settings tried.
UNIFORM, NEIGHBOUR, SWAP = 0.3, 0.4, 0.1
CLUSTER_SIZES = (2, 8)


class Moves(NamedTuple):
  """Tables from which moves are sampled, and the last move, whose length `propose` returns."""

  tables: SupernodeTables
  is_movable: np.ndarray  # [U] bool
  supernodes: np.ndarray  # int32, the supernodes that the move sends
  devices: np.ndarray  # int32, the device to which the move sends each of them
  members: np.ndarray  # int32, a buffer of `propose`
  around: np.ndarray  # [U] int32, a buffer of `propose`

  @classmethod
  def of(cls, supernodes: Supernodes) -> Moves:
    """Prepares moves of the coarse groups of a search, with their neighbours and devices."""
    largest = max(2, CLUSTER_SIZES[1])  # a swap has two supernodes
    is_movable = np.zeros(len(supernodes), dtype=bool)
    is_movable[supernodes.movable] = True
    return cls(
        supernodes.tables, is_movable, np.zeros(largest, np.int32), np.zeros(largest, np.int32),
        np.zeros(largest, np.int32), np.zeros(len(supernodes), np.int32))


@part
def pick(rng, count):
  """Samples an index.

  Returns:
    An int from 0 to count - 1.
  """
  return int(rng.random() * count)


@part
def shuffle(rng, items, count):
  """Shuffles the first items of an array in place.

  Args:
    rng: NumPy's generator.
    items: the array.
    count: number of items that are shuffled.

  Returns:
    None.
  """
  # Fisher-Yates from the end.
  for i in range(count - 1, 0, -1):
    j = pick(rng, i + 1)
    items[i], items[j] = items[j], items[i]


@part
def propose(moves, rng, at):
  """Samples a move and writes it to `moves.supernodes` and `moves.devices`.

  Args:
    moves: `Moves`.
    rng: NumPy's generator.
    at: [U] int32, the supernodes' devices; read only.

  Returns:
    The number of supernodes that the move sends, all distinct; 0 if the move changes nothing.
  """
  t = moves.tables
  supernode = t.movable[pick(rng, t.movable.shape[0])]
  # One random number decides the kind of move: uniform, neighbour, swap, or else a cluster.
  kind = rng.random()
  # Allowed devices of the supernode: a run of a flat array, delimited by offsets.
  choices = t.choices[t.choice_offsets[supernode]:t.choice_offsets[supernode + 1]]
  if kind < UNIFORM + NEIGHBOUR:
    near = t.neighbours[t.neighbour_offsets[supernode]:t.neighbour_offsets[supernode + 1]]
    # A supernode without neighbours moves anywhere instead.
    if kind < UNIFORM or near.shape[0] == 0:
      return _add(moves, 0, supernode, choices[pick(rng, choices.shape[0])], at)
    return _add(moves, 0, supernode, at[near[pick(rng, near.shape[0])]], at)
  if kind < UNIFORM + NEIGHBOUR + SWAP:
    # A swap counts only if each supernode may use the other one's device.
    other = t.movable[pick(rng, t.movable.shape[0])]
    count = _add(moves, 0, supernode, at[other], at)
    return 2 if _add(moves, count, other, at[supernode], at) == 2 else 0
  # A random device of the first member: all members that may use it move there together.
  members = _cluster(moves, rng, supernode, at)
  device = choices[pick(rng, choices.shape[0])]
  count = 0
  for k in range(members):
    count = _add(moves, count, moves.members[k], device, at)
  return count


@part
def _add(moves, count, supernode, device, at):
  """Adds (supernode, device) to the move if allowed and a change; returns the new count."""
  if device == at[supernode] or not moves.tables.allowed[supernode, device]:
    return count
  # Entries before `count` are kept: a move is built up supernode by supernode.
  moves.supernodes[count], moves.devices[count] = supernode, device
  return count + 1


@part
def _cluster(moves, rng, supernode, at):
  """Fills moves.members with a supernode and neighbours on its device; returns their number."""
  t, members, around = moves.tables, moves.members, moves.around
  # Breadth first from the supernode, neighbours of a member in random order, up to a random size.
  smallest, largest = CLUSTER_SIZES
  size = smallest + pick(rng, largest - smallest + 1)
  members[0] = supernode
  count, position = 1, 0
  while position < count < size:
    found = 0
    for k in range(
        t.neighbour_offsets[members[position]], t.neighbour_offsets[members[position] + 1]):
      other = t.neighbours[k]
      if moves.is_movable[other] and at[other] == at[supernode]:
        # Clusters are small, so a linear scan finds duplicates.
        known = False
        for m in range(count):
          known = known or members[m] == other
        if not known:
          around[found] = other
          found += 1
    # If not all neighbours fit, a random choice of them is added.
    shuffle(rng, around, found)
    for k in range(min(found, size - count)):
      members[count] = around[k]
      count += 1
    position += 1
  return count


@part
def put(tables, placement, supernode, device):
  """Puts all ops of a supernode on a device.

  Args:
    tables: `SupernodeTables`.
    placement: [N] int32, changed in place.
    supernode, device: indices.

  Returns:
    None.
  """
  for k in range(tables.op_offsets[supernode], tables.op_offsets[supernode + 1]):
    # Each op goes to its own image of the device: the device itself, or its replica's counterpart.
    placement[tables.ops[k]] = tables.images[tables.op_images[k], device]


@part
def copy_supernode(tables, source, target, supernode):
  """Copies the devices of a supernode's ops from one placement to another.

  Args:
    tables: `SupernodeTables`.
    source: [N] int32, a placement.
    target: [N] int32, the placement that is changed.
    supernode: index.

  Returns:
    None.
  """
  for k in range(tables.op_offsets[supernode], tables.op_offsets[supernode + 1]):
    target[tables.ops[k]] = source[tables.ops[k]]


