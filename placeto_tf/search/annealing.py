"""Simulated annealing on coarse groups of ops (supernodes), from coarse to fine.

Kirkpatrick, Gelatt and Vecchi, "Optimization by simulated annealing" (1983). Three choices matter:

- Start and temperature. The start is the best simple placement, and the temperature is low from
  the beginning (0.1 % of the start's step time), because a high one destroys the start.
- Moves. Half of them move a group to the device of one of its neighbours, or a whole cluster of
  neighbours to one device, because moving single groups at random cuts more edges than it saves.
- Levels. The search begins with a few large supernodes and goes on to smaller ones as the budget is
  used up. The supernodes of a level are merged along heavy edges whose ends share a device in the
  placement so far, so a level starts from exactly the placement that the previous one found.

Dimensions: N ops, U supernodes, D devices.
"""

from __future__ import annotations

import math
from typing import Callable, List, Optional, Sequence, Tuple

import numpy as np

from placeto_tf.problem.budget import Budget
from placeto_tf.problem.candidates import best_so_far
from placeto_tf.problem.compiled_evaluation import USED, CompiledEvaluations, evaluate, over
from placeto_tf.problem.method import Kind, Method, plain
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.problem.supernodes import COARSE_TO_FINE, Supernodes, placed_supernodes
from placeto_tf.search.moves import Moves, copy_supernode, propose, put
from placeto_tf.search.starts import best_start
from placeto_tf.simulation.compiling import compiled, copy_into

DEFAULT_BUDGET = Budget(max_evaluations=10_000)
# A level ends early after this many moves in a row, per supernode and in all, that changed nothing.
STALL, STALL_AT_LEAST = 10, 100
HOTTEST = 0.05  # the highest temperature of any round, as a fraction of the step time
# Temperatures at the start and the end of every level, as fractions of the step time at the level's
# start; the first is REHEAT times as high in each further round.
START_TEMPERATURE, END_TEMPERATURE, REHEAT = 1e-3, 1e-5, 4.0
# A level whose share of the budget has fewer evaluations per supernode is skipped, because it would
# get nothing done. docs/results/what_did_not_help.md lists the settings tried.
EVALUATIONS_A_SUPERNODE = 0.08


def anneal(
    problem: PlacementProblem, budget: Optional[Budget] = None, seed: int = 0,
    start: Optional[np.ndarray] = None) -> np.ndarray:
  """Anneals until the budget is used up, from the best placement so far, or the best simple one.

  Args:
    problem: evaluates.
    budget: of the search; None allows 10,000 evaluations.
    seed: of moves and acceptance.
    start: [N] another placement to begin from.

  Returns:
    [N] int32, the problem's best placement.
  """
  budget = budget or DEFAULT_BUDGET
  placement, objective_us = best_start(problem, budget, seed) if start is None else (
      start, float(problem.evaluate_ops(start).objective_us[0]))
  levels = _levels(problem, problem.search_log.remaining_evaluations(budget))
  return anneal_rounds(
      problem, lambda placement, count: placed_supernodes(problem, placement, count), levels,
      placement, objective_us, budget, np.random.default_rng(seed))


def anneal_rounds(
    problem: PlacementProblem, make: Callable[[np.ndarray, int], Supernodes],
    levels: Sequence[Tuple[int, float]], placement: np.ndarray, objective_us: float, budget: Budget,
    rng: np.random.Generator) -> np.ndarray:
  """Anneals all levels, again and again while budget is left; each round begins hotter.

  Args:
    problem: evaluates.
    make: makes about so many supernodes, which a placement [N] does not split.
    levels: (number of supernodes, share of the budget) of each level, coarse to fine.
    placement: [N] where to start.
    objective_us: of `placement`.
    budget: of all rounds.
    rng: decides moves and acceptance.

  Returns:
    [N] int32, the problem's best placement.
  """
  hot = START_TEMPERATURE
  while not problem.search_log.exhausted(budget):
    before = problem.search_log.evaluations
    for i, (count, share) in enumerate(levels):
      if problem.search_log.exhausted(budget):
        break
      # The level's share, relative to the levels still to come.
      part = budget.share(problem.search_log, share / sum(later for _, later in levels[i:]))
      placement, objective_us = anneal_supernodes(
          problem, make(placement, count), placement, objective_us, part, rng, min(HOTTEST, hot))
    if problem.search_log.evaluations == before:
      break  # no op can be moved
    hot *= REHEAT
  return best_so_far(problem, placement)


def _levels(
    problem: PlacementProblem, evaluations: Optional[int]) -> List[Tuple[int, float]]:
  """Returns (number of supernodes, share of the budget) of each level.

  No level is coarser than one supernode per device or finer than single ops.
  """
  finest = max(problem.num_groups, len(np.unique(problem.graph.colocation)))
  levels: List[Tuple[int, float]] = []
  for factor, share in COARSE_TO_FINE:
    count = min(max(int(problem.num_groups * factor), problem.num_devices), finest)
    # Levels that the limits make equal are one, with both shares.
    if levels and levels[-1][0] == count:
      share += levels.pop()[1]
    levels.append((count, share))
  if evaluations is not None:
    # Levels with too few evaluations for their supernodes are skipped; at least one level is kept.
    enough = [(count, share) for count, share in levels
              if share * evaluations >= EVALUATIONS_A_SUPERNODE * count]
    levels = enough or levels[:1]
  return levels


def anneal_supernodes(
    problem: PlacementProblem,
    supernodes: Supernodes,
    placement: np.ndarray,
    objective_us: float,
    budget: Budget,
    rng: np.random.Generator,
    hot: float = START_TEMPERATURE,
) -> Tuple[np.ndarray, float]:
  """Anneals supernodes from a placement whose ops agree within each supernode.

  Args:
    problem: evaluates.
    supernodes: the coarse groups that are moved.
    placement: [N] where to start.
    objective_us: of `placement`.
    budget: when to stop.
    rng: decides moves and acceptance.
    hot: temperature at the start, as a fraction of `objective_us`.

  Returns:
    The best placement [N] found, and its objective.
  """
  best = np.array(placement, dtype=np.int32)
  if not supernodes.movable:
    return best, objective_us
  sampled = Moves.of(supernodes)
  devices = np.array(supernodes.devices(best), dtype=np.int32)
  # [2] objectives of the current and of the best placement.
  current, found_us = best.copy(), np.full(2, objective_us)
  began = problem.search_log.evaluations, problem.search_log.seconds
  # Geometric cooling: T = T0 * exp(log(T1 / T0) * used share of the budget).
  schedule = np.array([
      max(hot * objective_us, 1e-12), math.log(END_TEMPERATURE / hot), 0.0, 0.0, 0.0])
  # Ends a level that has frozen.
  patience, since = STALL * len(supernodes.movable) + STALL_AT_LEAST, 0
  with CompiledEvaluations(problem, budget) as evaluations:
    evaluations.evaluator.row[0] = current
    while since < patience and evaluations.more():
      schedule[2:] = problem.search_log.progress(budget, *began)
      since = _anneal(sampled, devices, current, best, found_us, schedule, rng, since, patience,
                      evaluations.evaluator)
  return best, float(found_us[1])


@compiled(nogil=True, _nrt=False)
def _anneal(
    moves, devices, current, best, found_us, schedule, rng, since, patience, evaluator):
  """Makes a block of moves.

  Args:
    moves: `Moves`.
    devices: [U] int32; current, best: [N] int32; found_us: [2] float64 objectives of these.
    schedule: [5] float64: the temperature at the start, the change of its logarithm over the whole
      budget, and `SearchLog.progress`.
    rng: NumPy's generator.
    since: number of moves in a row that changed nothing.
    patience: the level ends after so many moves in a row that changed nothing.
    evaluator: `Evaluator`; its row equals `current`.
  """
  row, tables = evaluator.row[0], moves.tables
  # Evaluations of this block are not in `schedule` yet.
  before = evaluator.counts[USED]
  while since < patience and not over(evaluator):
    count = 0
    # Samples that change nothing cost no evaluation.
    while count == 0:
      count = propose(moves, rng, devices)
    for k in range(count):
      put(tables, row, moves.supernodes[k], moves.devices[k])
    now_us = evaluate(evaluator)
    # The share of evaluations or of seconds, whichever is further.
    used = (schedule[3] + evaluator.counts[USED] - before) / schedule[4]
    temperature = schedule[0] * math.exp(schedule[1] * min(1.0, max(schedule[2], used)))
    rise = now_us - found_us[0]
    since += 1
    # Metropolis rule.
    if rise <= 0 or rng.random() < math.exp(-rise / temperature):
      # Moves between placements with equal objectives do not count as progress.
      if rise != 0:
        since = 0
      found_us[0] = now_us
      for k in range(count):
        devices[moves.supernodes[k]] = moves.devices[k]
        copy_supernode(tables, row, current, moves.supernodes[k])
      if now_us < found_us[1]:
        found_us[1] = now_us
        copy_into(best, current)
    else:
      for k in range(count):
        # Rejected: the evaluated row goes back to the current placement.
        copy_supernode(tables, current, row, moves.supernodes[k])
  return since


METHODS = (
    Method("annealing", Kind.SEARCH, plain(anneal), rank=1, repeats=True),)
