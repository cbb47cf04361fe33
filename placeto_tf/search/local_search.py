"""Local search: best improvement, unit by unit, until nothing improves; then a kick.

Iterated local search (Lourenço, Martin and Stützle 2003). A pass looks at every unit in random
order, simulates it on every device it may use, and leaves it on the best. After a pass without
improvement, or after the most passes that the level allows, the search goes on with smaller
units, down to single ops. Then it restarts from the best placement after some random moves.

Legend: N ops, U units, D devices.
"""

from __future__ import annotations

import dataclasses
import random
from typing import Iterator, List, Optional, Sequence, Tuple

import numpy as np

from placeto_tf.errors import check_above_zero
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.candidates import best_so_far
from placeto_tf.problem.method import AutoPart, Kind, Method, Stage, plain
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.problem.units import Units, level_counts, placed_units
from placeto_tf.search.moves import MoveConfig, Moves
from placeto_tf.search.starts import best_start

DEFAULT_BUDGET = Budget(max_evaluations=10_000)


@dataclasses.dataclass(frozen=True)
class LocalSearchConfig:
  """How local search spends its budget; docs/results/rivals_tuned.md lists what was tried.

  Attributes:
    coarse_levels: units over the number of groups, before the levels from groups down to ops.
    passes: over the units of a coarse level, at most.
    rounds: how often the coarse levels are run, each time with new units, before the levels from
      groups down.
    finest: units over the number of groups, on the last level before a restart; None is ops.
    fine_passes: over the units of the other levels, at most; None is until nothing improves.
    first_improvement: whether a unit stays on the first device that is better; else the best.
    by_weight: whether a pass begins with the units that compute longest; else in random order.
    kick_moves: random moves at a restart.
    kick_units: units that these move, over the number of groups.
    moves: of a kick.
  """

  coarse_levels: Tuple[float, ...] = (0.125, 0.18, 0.25, 0.35, 0.5, 0.7)
  passes: int = 1
  rounds: int = 1
  finest: Optional[float] = None
  fine_passes: Optional[int] = None
  first_improvement: bool = True
  by_weight: bool = False
  kick_moves: int = 6
  kick_units: float = 1.0
  moves: MoveConfig = MoveConfig()

  def __post_init__(self) -> None:
    check_above_zero(self, "passes", "rounds", "kick_moves", "kick_units")


def search_locally(
    problem: PlacementProblem, budget: Optional[Budget] = None, seed: int = 0, *,
    config: LocalSearchConfig = LocalSearchConfig()) -> np.ndarray:
  """[N] the best placement that local search from the best simple one finds in the budget."""
  budget = budget or DEFAULT_BUDGET
  rng = random.Random(seed)
  best, best_us = best_start(problem, budget, seed)
  placement, objective_us = best, best_us
  while not problem.exhausted(budget):
    before = problem.evaluations
    for count, passes in _levels(problem, config):
      if problem.exhausted(budget):
        break  # making units of a large graph takes seconds
      units = placed_units(problem, placement, count)
      placement, objective_us = descend(
          problem, units, placement, objective_us, budget, rng, passes=passes, config=config)
    if objective_us < best_us:
      best, best_us = placement, objective_us
    if problem.evaluations == before:
      break  # no op can be moved
    placement, objective_us = _kick(problem, best, budget, rng, config)
  return best_so_far(problem, best)


def _levels(
    problem: PlacementProblem, config: LocalSearchConfig) -> List[Tuple[int, Optional[int]]]:
  """(number of units, passes) of each level."""
  coarse = dict.fromkeys(
      max(problem.num_devices, int(problem.num_groups * each)) for each in config.coarse_levels)
  finest = np.inf if config.finest is None else problem.num_groups * max(1.0, config.finest)
  return config.rounds * [
      (count, config.passes) for count in coarse if count < problem.num_groups] + [
      (count, config.fine_passes) for count in level_counts(problem) if count <= finest]


def descend(
    problem: PlacementProblem,
    units: Units,
    placement: np.ndarray,
    objective_us: float,
    budget: Budget,
    rng: random.Random,
    *,
    passes: Optional[int] = None,
    config: LocalSearchConfig = LocalSearchConfig(),
) -> Tuple[np.ndarray, float]:
  """Moves single units to their best device until no such move improves or the budget ends.

  Args:
    problem: evaluates.
    units: what is moved.
    placement: [N] where to start; ops agree within each unit.
    objective_us: of `placement`.
    budget: when to stop.
    rng: decides the order.
    passes: over the units, at most; None is until nothing improves.
    config: sets the order, and when a unit takes a device.

  Returns:
    A placement [N] and its objective, never worse than the start.
  """
  current = np.array(placement, dtype=np.int32)
  order = list(units.movable)
  since = 0  # units looked at since the last improvement
  number = 0
  while order and since < len(order) and number != passes:
    number += 1
    rng.shuffle(order)
    if config.by_weight:
      order.sort(key=lambda unit: -units.weight_us[unit])
    for unit in order:
      if since >= len(order) or problem.exhausted(budget):
        return current, objective_us
      ops = units.ops[unit]
      others = [d for d in units.choices[unit] if d != current[ops[0]]]
      if config.first_improvement:
        rng.shuffle(others)
      since += 1
      for batch in _candidates(problem, budget, current, ops, others, config):
        found_us = problem.evaluate_ops(batch).objective_us
        b = int(found_us.argmin())
        if found_us[b] < objective_us:
          current, objective_us, since = batch[b].copy(), float(found_us[b]), 0
          break
  return current, objective_us


def _candidates(
    problem: PlacementProblem, budget: Budget, current: np.ndarray, ops: np.ndarray,
    devices: Sequence[int], config: LocalSearchConfig) -> Iterator[np.ndarray]:
  """[B, N] the placement with some ops on other devices: all in one batch, or one by one."""
  size = 1 if config.first_improvement else len(devices)
  for first in range(0, len(devices), size):
    left = problem.remaining_evaluations(budget)
    chosen = devices[first:first + (size if left is None else min(size, left))]
    if not chosen:
      return
    batch = np.repeat(current[None], len(chosen), axis=0)
    batch[:, ops] = np.array(chosen, dtype=np.int32)[:, None]
    yield batch


def _kick(
    problem: PlacementProblem, placement: np.ndarray, budget: Budget, rng: random.Random,
    config: LocalSearchConfig,
) -> Tuple[np.ndarray, float]:
  """A placement after some random moves, and its objective."""
  if problem.exhausted(budget):
    return placement, float("inf")
  units = placed_units(
      problem, placement, max(problem.num_devices, int(problem.num_groups * config.kick_units)))
  current = placement.copy()
  if units.movable:
    moves = Moves(units, rng, config.moves)
    devices = units.devices(placement)
    for _ in range(config.kick_moves):
      for unit, device in moves.propose(devices):
        devices[unit] = device
        current[units.ops[unit]] = device
  if problem.exhausted(budget):
    return current, float("inf")
  return current, float(problem.evaluate_ops(current).objective_us[0])


METHODS = (
    Method("local_search", Kind.SEARCH, plain(search_locally), rank=3,
           auto=AutoPart(Stage.SEARCH, share=0.4)),)
