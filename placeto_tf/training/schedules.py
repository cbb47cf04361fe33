"""Schedules over a search, as functions of the used share of its budget."""

from __future__ import annotations

from typing import Tuple

from placeto_tf.problem.budget import Budget
from placeto_tf.problem.placement_problem import PlacementProblem


def spent_share(
    problem: PlacementProblem, budget: Budget, began: Tuple[int, float]) -> float:
  """Returns the share of the budget that is used up.

  Args:
    problem: its search log counts evaluations and seconds.
    budget: of the problem.
    began: evaluations and seconds of the problem when the search began.

  Returns:
    The larger of the shares of evaluations and seconds, in [0, 1]; 0 without limits.
  """
  log = problem.search_log
  shares = [0.0]
  for limit, now, then in zip(
      (budget.max_evaluations, budget.max_seconds), (log.evaluations, log.seconds), began):
    if limit is not None:
      # Work before the search began counts neither as spent nor as available.
      shares.append((now - then) / max(limit - then, 1e-9))
  return min(1.0, max(shares))


def between(first: float, last: float, share: float) -> float:
  """Interpolates linearly between two values.

  Args:
    first, last: values at shares 0 and 1.
    share: in [0, 1].

  Returns:
    The value at this share.
  """
  return first + (last - first) * share
