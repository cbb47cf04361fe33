"""Runs Placeto on a problem, from the problem's best placement.

Each function is the `Run` of a method; see the package. None imports TensorFlow.

Dimensions: N ops.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Optional

import numpy as np

from placeto_tf.environments.move_process import MoveProcess
from placeto_tf.environments.schedule import Schedule
from placeto_tf.policies.placeto.scorer import ScorerWeights, pretrained
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.candidates import best_so_far
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.search.annealing import anneal

_SCHEDULE = Schedule()  # of the moves before the first turn
# Evaluations of the first turn, the growth of turns, and what a gain is worth a turn later.
_FIRST_TURN, _GROWTH, _FADING = 40, 2, 0.5
_AFRESH = 1280  # evaluations of the first turn in which annealing begins from the start again


def place(
    problem: PlacementProblem, budget: Budget, seed: int = 0, *, weights: Optional[str] = None,
    start: Optional[np.ndarray] = None) -> np.ndarray:
  """Places by trained weights, in turns with annealing.

  Args:
    problem, budget, seed: see `search`.
    weights: directory of the weights; by default the shipped weights.
    start: [N] placement to begin from; by default the best so far.

  Returns:
    The best placement found, [N].
  """
  start = problem.search_log.best_known if start is None else start
  return search(problem, start, trained(weights), budget, seed)


def place_as_control(
    problem: PlacementProblem, budget: Budget, seed: int = 0, *, scored: bool) -> np.ndarray:
  """Places as `place` does, but without trained weights, for comparison.

  Args:
    problem, budget, seed: see `place`.
    scored: True scores moves by initial weights from the seed; False samples moves uniformly.

  Returns:
    The best placement found, [N].
  """
  weights = ScorerWeights.untrained(seed) if scored else indifferent()
  return search(problem, problem.search_log.best_known, weights, budget, seed)


def indifferent() -> ScorerWeights:
  """Returns weights that give equal scores to all moves, so that moves are sampled uniformly."""
  sampled = ScorerWeights.untrained()
  # All scores 0: the random tie-break decides.
  return dataclasses.replace(sampled, output=np.zeros_like(sampled.output))


def trained(directory: Optional[str]) -> ScorerWeights:
  """Returns the weights of a directory, or the shipped weights.

  Args:
    directory: of weights; None for the shipped weights.

  Raises:
    PlacetoError: the weights cannot be read.
  """
  return pretrained() if directory is None else ScorerWeights.load(directory)


def search(
    problem: PlacementProblem, start: np.ndarray, weights: ScorerWeights, budget: Budget,
    seed: int = 0) -> np.ndarray:
  """Improves a placement by the moves with the best scores, in turns with annealing.

  Where no single move gains, only worse placements lead to better ones: annealing makes them, and
  the moves improve what it finds. Both begin from the best placement so far. The next turn is of
  the one whose last turn gained more per evaluation; each turn is longer than the one before. The
  turn of `_AFRESH` evaluations is of annealing, which begins from the start then and later: what
  the moves found can be a valley out of which no annealing of this length leads.

  Args:
    problem: evaluates; the result may be its best placement so far.
    start: [N] placement to begin from.
    weights: of a scorer of gains.
    budget: of the search.
    seed: of all samples.

  Returns:
    The best placement found, [N], never worse than the start.
  """
  log, rng = problem.search_log, np.random.default_rng(seed)
  start = np.asarray(start, dtype=np.int32)

  def move(placement: np.ndarray, schedule: Schedule, part: Budget) -> None:
    MoveProcess(problem, placement, schedule, budget=part, rng=rng).run(weights.of_process)

  if not log.exhausted(budget):
    move(start, _SCHEDULE, budget)
  # [2] gains of moves and of annealing per evaluation, in their last turns.
  gains, anneals, evaluations, used = [math.inf, math.inf], True, _FIRST_TURN, math.inf
  # A turn of moves evaluates one placement even where no op can be moved.
  while not log.exhausted(budget) and (used > 1 or max(gains) > 0):
    before_us, began = log.best_objective_us, log.evaluations
    part = budget.at_most(log, evaluations)
    anneals |= evaluations == _AFRESH
    if anneals:
      anneal(problem, part, int(rng.integers(2**31)), start if evaluations >= _AFRESH else None)
    else:
      factor = 2 ** rng.uniform(-_SCHEDULE.vary, _SCHEDULE.vary)
      move(log.best_known, dataclasses.replace(
          _SCHEDULE, rounds=(evaluations,), several=0,
          levels=tuple(factor * level for level in _SCHEDULE.levels)), part)
    used = log.evaluations - began
    # A step of ops that cost nothing takes no time, before and after.
    gains[anneals] = log.best_objective_us and math.log(
        before_us / log.best_objective_us) / max(1, used)
    gains[not anneals] *= _FADING
    anneals ^= gains[anneals] <= gains[not anneals]
    evaluations *= _GROWTH
  return best_so_far(problem, start)
