"""Runs Placeto on a problem, from the problem's best placement.

Each function is the `Run` of a method; see the package. None imports TensorFlow.

Dimensions: N ops.
"""

from __future__ import annotations

import dataclasses
from typing import Optional

import numpy as np

from placeto_tf.environments.move_process import MoveProcess
from placeto_tf.environments.schedule import Schedule
from placeto_tf.policies.placeto.scorer import ScorerWeights, pretrained
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.candidates import best_so_far
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.search.annealing import anneal

_ANNEALING_SHARE = 0.5  # annealing's share of the remaining budget, if plenty is left


def place(
    problem: PlacementProblem, budget: Budget, seed: int = 0, *, weights: Optional[str] = None,
    start: Optional[np.ndarray] = None, annealing: bool = True) -> np.ndarray:
  """Places by trained weights, then by annealing.

  Args:
    problem, budget, seed, annealing: see `search`.
    weights: directory of the weights; by default the shipped weights.
    start: [N] placement to begin from; by default the best so far.

  Returns:
    The best placement found, [N].
  """
  start = problem.search_log.best_known if start is None else start
  return search(problem, start, trained(weights), budget, seed, annealing=annealing)


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
    problem: PlacementProblem,
    start: np.ndarray,
    weights: ScorerWeights,
    budget: Budget,
    seed: int = 0,
    *,
    schedule: Optional[Schedule] = None,
    annealing: bool = True,
) -> np.ndarray:
  """Improves a placement within the budget.

  Args:
    problem: evaluates; the result may be its best placement so far.
    start: [N] placement to begin from.
    weights: of a scorer of gains.
    budget: of the search.
    seed: of the samples and of annealing.
    schedule: of the move process.
    annealing: whether annealing gets the rest of the budget that the scorer leaves. If plenty is
      left, annealing begins from `start`, and the scorer continues from the better of both results.

  Returns:
    The best placement found, [N], never worse than the start.
  """
  # 1. The scorer's short rounds and a long one.
  placement = np.asarray(start, dtype=np.int32)
  schedule = schedule or Schedule()

  def run(placement: np.ndarray, schedule: Schedule) -> bool:
    """Runs a process; returns whether plenty of evaluations are left."""
    process = MoveProcess(
        problem, placement, schedule, budget=budget, rng=np.random.default_rng(seed))
    process.run(weights.of_process)
    return process.plenty

  if not problem.search_log.exhausted(budget):
    plenty = run(placement, schedule)
    # 2. With plenty left: annealing from the start, a second long round from there.
    if annealing and plenty and not problem.search_log.exhausted(budget):
      found = anneal(
          problem, budget.share(problem.search_log, _ANNEALING_SHARE), seed, start=placement)
      if not problem.search_log.exhausted(budget):
        run(found, dataclasses.replace(schedule, rounds=()))
  # 3. The rest of the budget goes to annealing from the best placement so far.
  if annealing and not problem.search_log.exhausted(budget):
    return anneal(problem, budget, seed)
  return best_so_far(problem, placement)
