"""Local search: supernode by supernode, until nothing improves; then a kick.

Iterated local search (Lourenço, Martin and Stützle 2003). A pass visits all supernodes in random
order, simulates each on the other devices that it may use, and moves it to the first device that
improves the placement. After a pass without improvement, or after the largest number of passes that
a level allows, the search goes on with smaller supernodes, down to single ops. Then it makes some
random moves (a kick) in the best placement and starts again.

Dimensions: N ops, U supernodes (coarse groups), D devices.
"""

from __future__ import annotations

from typing import List, Optional, Tuple

import numpy as np

from placeto_tf.problem.budget import Budget
from placeto_tf.problem.candidates import best_so_far
from placeto_tf.problem.compiled_evaluation import CompiledEvaluations, evaluate, over
from placeto_tf.problem.method import Kind, Method, plain
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.problem.supernodes import Supernodes, level_counts, placed_supernodes
from placeto_tf.search.annealing import DEFAULT_BUDGET
from placeto_tf.search.moves import Moves, copy_supernode, propose, put, shuffle
from placeto_tf.search.starts import best_start
from placeto_tf.simulation.compiling import compiled

# Number of supernodes divided by the number of groups, for the levels before those of groups and of
# single ops; the most passes over the supernodes of such a level; the random moves of a restart.
# docs/results/what_did_not_help.md lists the settings tried.
COARSE_LEVELS = (0.125, 0.18, 0.25, 0.35, 0.5, 0.7)
PASSES, KICK_MOVES = 1, 6


def search_locally(
    problem: PlacementProblem, budget: Optional[Budget] = None, seed: int = 0) -> np.ndarray:
  """Searches locally from the best simple placement, with a kick after each local optimum.

  Args:
    problem: evaluates.
    budget: of the search; None allows 10,000 evaluations.
    seed: of orders and kicks.

  Returns:
    [N] int32, the problem's best placement.
  """
  budget = budget or DEFAULT_BUDGET
  rng = np.random.default_rng(seed)
  best, best_us = best_start(problem, budget, seed)
  placement, objective_us = best, best_us
  # One round: all levels from coarse to fine, then a kick from the best placement.
  while not problem.search_log.exhausted(budget):
    before = problem.search_log.evaluations
    for count, passes in _levels(problem):
      if problem.search_log.exhausted(budget):
        break  # making supernodes of a large graph takes seconds
      supernodes = placed_supernodes(problem, placement, count)
      placement, objective_us = descend(
          problem, supernodes, placement, objective_us, budget, rng, passes=passes)
    # The result of a round that ends worse than the best placement is dropped.
    if objective_us < best_us:
      best, best_us = placement, objective_us
    if problem.search_log.evaluations == before:
      break  # no op can be moved
    placement, objective_us = _kick(problem, best, budget, rng)
  return best_so_far(problem, best)


def _levels(problem: PlacementProblem) -> List[Tuple[int, Optional[int]]]:
  """Returns (number of supernodes, passes) per level; passes None: until nothing improves."""
  # Distinct counts in order; never fewer supernodes than devices.
  coarse = dict.fromkeys(
      max(problem.num_devices, int(problem.num_groups * each)) for each in COARSE_LEVELS)
  return [(count, PASSES) for count in coarse if count < problem.num_groups] + [
      (count, None) for count in level_counts(problem)]


def descend(
    problem: PlacementProblem,
    supernodes: Supernodes,
    placement: np.ndarray,
    objective_us: float,
    budget: Budget,
    rng: np.random.Generator,
    *,
    passes: Optional[int] = None,
) -> Tuple[np.ndarray, float]:
  """Moves single supernodes to better devices until no such move improves or the budget ends.

  Args:
    problem: evaluates.
    supernodes: the coarse groups that are moved.
    placement: [N] where to start; ops agree within each supernode.
    objective_us: of `placement`.
    budget: when to stop.
    rng: decides the order.
    passes: the most passes over the supernodes; None goes on until nothing improves.

  Returns:
    A placement [N] and its objective, never worse than the start.
  """
  current = np.array(placement, dtype=np.int32)
  order = np.array(supernodes.movable, dtype=np.int32)
  found_us, tables = np.full(1, objective_us), supernodes.tables
  visit = np.zeros(VISIT, dtype=np.int64)
  others = np.zeros(problem.num_devices, dtype=np.int32)
  # Passes over all supernodes, in blocks that may end inside a pass.
  number = 0
  with CompiledEvaluations(problem, budget) as evaluations:
    evaluations.evaluator.row[0] = current
    while len(order) and visit[SINCE] < len(order) and number != passes:
      number += 1
      rng.shuffle(order)
      visit[SUPERNODE] = 0
      # When all supernodes in a row brought no improvement, the placement is a local optimum.
      while visit[SUPERNODE] < len(order) and (visit[OTHERS] or visit[SINCE] < len(order)):
        more = evaluations.more()
        _descend(tables, order, visit, others, current, found_us, rng, evaluations.evaluator, more)
        if not more:
          return current, float(found_us[0])
  return current, float(found_us[0])


# Entries of `visit`: the position in the order, the number of supernodes since the last
# improvement, the number of devices to try for the supernode, and the number tried so far.
SUPERNODE, SINCE, OTHERS, TRIED, VISIT = range(5)


@compiled(nogil=True, _nrt=False)
def _descend(tables, order, visit, others, current, found_us, rng, evaluator, more):
  """Visits supernodes for a block, which may end in the middle of a visit.

  Args:
    tables: `SupernodeTables`.
    order: [M] int32 supernodes.
    visit: [VISIT] int64, the state of the visit (see the comment above).
    others: [D] int32, the devices to try, in order.
    current: [N] int32; found_us: [1] float64 its objective.
    rng: NumPy's generator.
    evaluator: `Evaluator`; its row equals `current`.
    more: whether more evaluations are allowed; if not, the visit ends.
  """
  # The visit's state is in arrays, so that the next block can go on in the middle of a visit.
  row = evaluator.row[0]
  while visit[SUPERNODE] < order.shape[0] and (
      visit[OTHERS] > 0 or visit[SINCE] < order.shape[0]):
    supernode = order[visit[SUPERNODE]]
    if visit[OTHERS] == 0:
      if not more or over(evaluator):
        return
      # All devices that the supernode may use but its own.
      here = current[tables.ops[tables.op_offsets[supernode]]]
      for k in range(tables.choice_offsets[supernode], tables.choice_offsets[supernode + 1]):
        if tables.choices[k] != here:
          others[visit[OTHERS]] = tables.choices[k]
          visit[OTHERS] += 1
      shuffle(rng, others, visit[OTHERS])
      visit[SINCE] += 1
      visit[TRIED] = 0
    # Try the devices in turn until the first improvement.
    while more and visit[TRIED] < visit[OTHERS]:
      if over(evaluator):
        return
      device = others[visit[TRIED]]
      put(tables, row, supernode, device)
      now_us = evaluate(evaluator)
      visit[TRIED] += 1
      # The move is kept, and the count of supernodes without improvement begins again.
      if now_us < found_us[0]:
        put(tables, current, supernode, device)
        found_us[0] = now_us
        visit[SINCE], visit[TRIED] = 0, visit[OTHERS]
    # The evaluated row follows `current` again.
    copy_supernode(tables, current, row, supernode)
    visit[SUPERNODE] += 1
    visit[OTHERS] = 0


def _kick(
    problem: PlacementProblem, placement: np.ndarray, budget: Budget, rng: np.random.Generator
) -> Tuple[np.ndarray, float]:
  """Makes some random moves; returns the placement [N] and its objective."""
  if problem.search_log.exhausted(budget):
    return placement, float("inf")
  # Supernodes agree with the placement, so that a move sends whole supernodes.
  supernodes = placed_supernodes(
      problem, placement, max(problem.num_devices, problem.num_groups))
  current = placement.copy()
  if supernodes.movable:
    _move(Moves.of(supernodes), rng,
          np.array(supernodes.devices(placement), dtype=np.int32), current, KICK_MOVES)
  if problem.search_log.exhausted(budget):
    return current, float("inf")
  return current, float(problem.evaluate_ops(current).objective_us[0])


@compiled(nogil=True, _nrt=False)
def _move(moves, rng, devices, placement, count):
  """Makes `count` random moves in a placement [N] and its supernodes' devices [U], unevaluated."""
  for _ in range(count):
    # The next proposal overwrites the move's arrays, so each move is applied at once.
    for k in range(propose(moves, rng, devices)):
      devices[moves.supernodes[k]] = moves.devices[k]
      put(moves.tables, placement, moves.supernodes[k], moves.devices[k])


METHODS = (
    Method("local_search", Kind.SEARCH, plain(search_locally), rank=3, repeats=True),)
