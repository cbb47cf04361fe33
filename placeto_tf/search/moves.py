"""Random moves between placements, shared by the searches."""

from __future__ import annotations

import dataclasses
import random
from typing import List, Sequence, Tuple

from placeto_tf.problem.units import Units


@dataclasses.dataclass(frozen=True)
class MoveConfig:
  """How often each kind of move is drawn; docs/results/rivals_tuned.md lists what was tried.

  Attributes:
    uniform: share of moves that send a unit to any device.
    neighbour: share that send it to the device of one of its neighbours.
    swap: share that swap two units. All others send a cluster of neighbours to one device.
    cluster_sizes: smallest and largest number of units in such a cluster.
  """

  uniform: float = 0.3
  neighbour: float = 0.4
  swap: float = 0.1
  cluster_sizes: Tuple[int, int] = (2, 8)


class Moves:
  """Draws moves: lists of (unit, device) that change at least one unit."""

  def __init__(self, units: Units, rng: random.Random, config: MoveConfig = MoveConfig()):
    self._units, self._rng, self._config = units, rng, config
    movable = set(units.movable)
    self._neighbours = [[v for v in vs if v in movable] for vs in units.neighbours]

  def propose(self, devices: Sequence[int]) -> List[Tuple[int, int]]:
    """A move from units' devices; empty where the draw changes nothing."""
    units, rng, config = self._units, self._rng, self._config
    unit = units.movable[int(rng.random() * len(units.movable))]
    kind = rng.random()
    if kind < config.uniform:
      return self._to(unit, _pick(rng, units.choices[unit]), devices)
    if kind < config.uniform + config.neighbour:
      if not units.neighbours[unit]:
        return self._to(unit, _pick(rng, units.choices[unit]), devices)
      return self._to(unit, devices[_pick(rng, units.neighbours[unit])], devices)
    if kind < config.uniform + config.neighbour + config.swap:
      other = _pick(rng, units.movable)
      first = self._to(unit, devices[other], devices)
      second = self._to(other, devices[unit], devices)
      return first + second if first and second else []
    return self._cluster(unit, devices)

  def _to(self, unit: int, device: int, devices: Sequence[int]) -> List[Tuple[int, int]]:
    if device == devices[unit] or not self._units.allowed_sets[unit] >> device & 1:
      return []
    return [(unit, device)]

  def _cluster(self, unit: int, devices: Sequence[int]) -> List[Tuple[int, int]]:
    """Sends a unit and some around it, all of which are on its device now, to one device."""
    rng = self._rng
    size = rng.randint(*self._config.cluster_sizes)
    members, position = [unit], 0
    seen = {unit}
    while position < len(members) < size:
      around = [
          v for v in self._neighbours[members[position]]
          if v not in seen and devices[v] == devices[unit]]
      rng.shuffle(around)
      for v in around[:size - len(members)]:
        seen.add(v)
        members.append(v)
      position += 1
    device = _pick(rng, self._units.choices[unit])
    return [change for member in members for change in self._to(member, device, devices)]


def _pick(rng: random.Random, items: Sequence[int]) -> int:
  return items[int(rng.random() * len(items))]
