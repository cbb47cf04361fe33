"""Simulated annealing on groups, then on smaller units.

Kirkpatrick, Gelatt and Vecchi, "Optimization by simulated annealing" (1983). What matters here:

- Start and temperature. The start is the best simple placement, and the temperature is low from
  the beginning (0.1 % of the start's step time): a hot start forgets what the start knew.
- Moves. Half of them send a group where one of its neighbours is, or a whole cluster of
  neighbours to one device: moving single groups at random cuts more edges than it mends.
- Levels. Groups are cheap to search and coarse. As the budget is used up, the search goes on
  with smaller units, made anew by merging along heavy edges only where the placement so far has
  both ends on one device, so that each level starts from exactly what the last one found.

Legend: N ops, U units, D devices.
"""

from __future__ import annotations

import math
import random
from typing import Any, List, Optional, Tuple

import numpy as np

from placeto_tf.problem.budget import Budget
from placeto_tf.problem.candidates import best_so_far
from placeto_tf.problem.method import AutoPart, Kind, Method, Stage, plain
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.problem.units import Units, placed_units
from placeto_tf.search.moves import Moves
from placeto_tf.search.starts import best_start

DEFAULT_BUDGET = Budget(max_evaluations=10_000)
START_TEMPERATURE = 1e-3  # over the step time of the start
END_TEMPERATURE = 1e-5
# A level ends early when so many moves in a row, this many a unit and some, changed nothing.
STALL, STALL_AT_LEAST = 10, 100
# What is left of the budget then is used for another round of all levels, this much hotter.
REHEAT, HOTTEST = 4.0, 0.05
# (units over the number of groups, share of the budget)
LEVELS = ((1.0, 0.4), (4.0, 0.35), (16.0, 0.25))


def anneal(
    problem: PlacementProblem, budget: Optional[Budget] = None, seed: int = 0) -> np.ndarray:
  """[N] the best placement of an annealing run that uses up the budget.

  Starts from the problem's best placement so far, or else from the best simple one. Without a
  budget it evaluates 10,000 placements.
  """
  budget = budget or DEFAULT_BUDGET
  placement, objective_us = best_start(problem, budget, seed)
  rng = random.Random(seed)
  levels = _levels(problem)
  hot = START_TEMPERATURE
  while not problem.exhausted(budget):
    before = problem.evaluations
    for i, (count, share) in enumerate(levels):
      if problem.exhausted(budget):
        break
      part = budget.share(problem, share / sum(later for _, later in levels[i:]))
      units = placed_units(problem, placement, count)
      placement, objective_us = anneal_units(
          problem, units, placement, objective_us, part, rng, temperatures=(hot, END_TEMPERATURE))
    if problem.evaluations == before:
      break  # nothing can be moved
    hot = min(HOTTEST, REHEAT * hot)
  return best_so_far(problem, placement)


def _levels(problem: PlacementProblem) -> List[Tuple[int, float]]:
  """(number of units, share of the budget) of each level; no level is finer than single ops."""
  smallest = len(np.unique(problem.graph.colocation))
  levels: List[Tuple[int, float]] = []
  for factor, share in LEVELS:
    count = min(int(problem.num_groups * factor), max(smallest, problem.num_groups))
    if levels and levels[-1][0] == count:
      share += levels.pop()[1]
    levels.append((count, share))
  return levels


def anneal_units(
    problem: PlacementProblem,
    units: Units,
    placement: np.ndarray,
    objective_us: float,
    budget: Budget,
    rng: random.Random,
    *,
    temperatures: Tuple[float, float] = (START_TEMPERATURE, END_TEMPERATURE),
) -> Tuple[np.ndarray, float]:
  """Anneals units from a placement whose ops agree within each unit.

  Args:
    problem: evaluates.
    units: what is moved.
    placement: [N] where to start.
    objective_us: of `placement`.
    budget: when to stop.
    rng: decides moves and acceptance.
    temperatures: at the start and at the end, over `objective_us`.

  Returns:
    The best placement [N] met, and its objective.
  """
  current = np.array(placement, dtype=np.int32)
  best, best_us = current.copy(), objective_us
  if not units.movable:
    return best, best_us
  moves = Moves(units, rng)
  devices = units.devices(current)
  progress = _Progress(problem, budget)
  hot = max(temperatures[0] * objective_us, 1e-12)
  cooling = math.log(temperatures[1] / temperatures[0])
  patience, since = STALL * len(units.movable) + STALL_AT_LEAST, 0
  width = speculation(problem, budget)
  batch = np.empty((width, len(current)), dtype=np.int32)
  while since < patience and not problem.exhausted(budget):
    proposals: List[Any] = []
    batch[:] = current
    while len(proposals) < width:
      move = moves.propose(devices)
      if move:
        for unit, device in move:
          batch[len(proposals), units.ops[unit]] = device
        proposals.append(move)
    found = problem.evaluate_ops(batch).objective_us.tolist()
    temperature = hot * math.exp(cooling * progress.done())
    for move, row, found_us in zip(proposals, batch, found):
      rise = found_us - objective_us
      since += 1
      if rise <= 0 or rng.random() < math.exp(-rise / temperature):
        since = 0 if rise != 0 else since
        objective_us = found_us
        current[:] = row
        for unit, device in move:
          devices[unit] = device
        if found_us < best_us:
          best_us = found_us
          best[:] = row
        break  # the other proposals were made for a placement that is no more
  return best, best_us


def speculation(problem: PlacementProblem, budget: Budget) -> int:
  """How many moves to simulate at once, the first that is accepted being made.

  Most moves are rejected, so simulating a few ahead on idle cores wastes little time. It does
  waste evaluations, and which ones depends on the machine: where these are limited, one.
  """
  if budget.max_evaluations is not None or problem.simulator.num_threads == 1:
    return 1
  return 2 * min(4, problem.simulator.num_threads)


class _Progress:
  """How much of a budget has been used since this object was made, 0 to 1."""

  def __init__(self, problem: PlacementProblem, budget: Budget):
    self._problem, self._budget = problem, budget
    self._evaluations, self._seconds = problem.evaluations, problem.seconds

  def done(self) -> float:
    problem, budget = self._problem, self._budget
    part = 0.0
    if budget.max_evaluations is not None:
      part = (problem.evaluations - self._evaluations) / max(
          1, budget.max_evaluations - self._evaluations)
    if budget.max_seconds is not None:
      part = max(part, (problem.seconds - self._seconds) / max(
          1e-9, budget.max_seconds - self._seconds))
    return min(1.0, part)


METHODS = (
    Method("annealing", Kind.SEARCH, plain(anneal), rank=1,
           auto=AutoPart(Stage.SEARCH, share=0.9)),)
