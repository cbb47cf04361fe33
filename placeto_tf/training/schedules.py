"""Schedules over a search, by the share of its budget that is used up."""

from __future__ import annotations

from typing import Tuple

from placeto_tf.problem.budget import Budget
from placeto_tf.problem.placement_problem import PlacementProblem


def spent_share(
    problem: PlacementProblem, budget: Budget, began: Tuple[int, float]) -> float:
  """Returns share of the budget that is used up, in [0, 1].

  Args:
    problem: has counted the evaluations and the seconds.
    budget: of the problem.
    began: evaluations and seconds of the problem when the search began.
  """
  account = problem.account
  shares = [0.0]
  for limit, now, then in zip(
      (budget.max_evaluations, budget.max_seconds), (account.evaluations, account.seconds), began):
    if limit is not None:
      shares.append((now - then) / max(limit - then, 1e-9))
  return min(1.0, max(shares))


def between(first: float, last: float, share: float) -> float:
  """Interpolates from the first value to the last one in a straight line."""
  return first + (last - first) * share
