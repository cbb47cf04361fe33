"""Local search: best improvement, unit by unit, until nothing improves; then a kick.

Iterated local search (Lourenço, Martin and Stützle 2003). A pass looks at every unit in random
order, simulates it on every device it may use, and leaves it on the best. After a pass without
improvement the search goes on with smaller units, down to single ops; from a local optimum at
the finest level it restarts, at groups, from the best placement with some random moves made.

Legend: N ops, U units, D devices.
"""

from __future__ import annotations

import random
from typing import Optional, Tuple

import numpy as np

from placeto_tf.problem.budget import Budget
from placeto_tf.problem.candidates import best_so_far
from placeto_tf.problem.method import AutoPart, Kind, Method, Stage, plain
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.problem.units import Units, level_counts, placed_units
from placeto_tf.search.moves import Moves
from placeto_tf.search.starts import best_start

DEFAULT_BUDGET = Budget(max_evaluations=10_000)
_KICK_MOVES = 6


def search_locally(
    problem: PlacementProblem, budget: Optional[Budget] = None, seed: int = 0) -> np.ndarray:
  """[N] the best placement that local search from the best simple one finds in the budget."""
  budget = budget or DEFAULT_BUDGET
  rng = random.Random(seed)
  best, best_us = best_start(problem, budget, seed)
  placement, objective_us = best, best_us
  while not problem.exhausted(budget):
    before = problem.evaluations
    for count in level_counts(problem):
      if problem.exhausted(budget):
        break  # making units of a large graph takes seconds
      units = placed_units(problem, placement, count)
      placement, objective_us = descend(problem, units, placement, objective_us, budget, rng)
    if objective_us < best_us:
      best, best_us = placement, objective_us
    if problem.evaluations == before:
      break  # nothing can be moved
    placement, objective_us = _kick(problem, best, budget, rng)
  return best_so_far(problem, best)


def descend(
    problem: PlacementProblem,
    units: Units,
    placement: np.ndarray,
    objective_us: float,
    budget: Budget,
    rng: random.Random,
) -> Tuple[np.ndarray, float]:
  """Moves single units to their best device until no such move improves or the budget ends.

  Args:
    problem: evaluates.
    units: what is moved.
    placement: [N] where to start; ops agree within each unit.
    objective_us: of `placement`.
    budget: when to stop.
    rng: decides the order.

  Returns:
    A placement [N] and its objective, never worse than the start.
  """
  current = np.array(placement, dtype=np.int32)
  order = list(units.movable)
  since = 0  # units looked at since the last improvement
  while order and since < len(order):
    rng.shuffle(order)
    for unit in order:
      if since >= len(order) or problem.exhausted(budget):
        return current, objective_us
      ops = units.ops[unit]
      others = [d for d in units.choices[unit] if d != current[ops[0]]]
      left = problem.remaining_evaluations(budget)
      others = others if left is None else others[:left]
      batch = np.repeat(current[None], len(others), axis=0)
      batch[:, ops] = np.array(others, dtype=np.int32)[:, None]
      found_us = problem.evaluate_ops(batch).objective_us
      b = int(found_us.argmin())
      since += 1
      if found_us[b] < objective_us:
        current, objective_us, since = batch[b].copy(), float(found_us[b]), 0
  return current, objective_us


def _kick(
    problem: PlacementProblem, placement: np.ndarray, budget: Budget, rng: random.Random
) -> Tuple[np.ndarray, float]:
  """A placement some random moves away, and its objective."""
  if problem.exhausted(budget):
    return placement, float("inf")
  units = placed_units(problem, placement, problem.num_groups)
  current = placement.copy()
  if units.movable:
    moves = Moves(units, rng)
    devices = units.devices(placement)
    for _ in range(_KICK_MOVES):
      for unit, device in moves.propose(devices):
        devices[unit] = device
        current[units.ops[unit]] = device
  if problem.exhausted(budget):
    return current, float("inf")
  return current, float(problem.evaluate_ops(current).objective_us[0])


METHODS = (
    Method("local_search", Kind.SEARCH, plain(search_locally), rank=3,
           auto=AutoPart(Stage.SEARCH, share=0.4)),)
