"""`Account`: what has been evaluated, the best of it, and when.

Every placer, learned or not, asks its problem for step times, and the problem books them here. So
budgets are counted in the same way for all: an evaluation is one computed step time of a placement,
duplicates and starting points included.

Legend: N ops.
"""

from __future__ import annotations

import dataclasses
import math
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import numpy as np

from placeto_tf.errors import PlacementError
from placeto_tf.problem.budget import Budget


class Improvement(NamedTuple):
  """When the best placement changed, and what it was worth."""

  evaluations: int
  seconds: float
  objective_us: float
  fits: bool


@dataclasses.dataclass(eq=False)
class Account:
  """Evaluations, and the best so far; its clock begins when it is made.

  One placement is better than another if it fits and the other does not; then by its objective.

  Attributes:
    started: `time.monotonic()` when it was made.
    evaluations: placements evaluated so far.
    of_islands: how many of these each island made; empty where no search ran as islands.
    best_placement: [N] int32 of the best placement so far, or None.
    best_objective_us, best_fits: of that; infinite and False where there is none.
    improvements: one each time the best placement changed.
    observer: called after each batch of evaluations, if any.
    stopped: whether every budget counts as used up.
  """

  started: float = dataclasses.field(default_factory=time.monotonic)
  evaluations: int = 0
  of_islands: Tuple[int, ...] = ()
  best_placement: Optional[np.ndarray] = None
  best_objective_us: float = math.inf
  best_fits: bool = False
  improvements: List[Improvement] = dataclasses.field(default_factory=list)
  observer: Optional[Callable[[], None]] = None
  stopped: bool = False

  def __getstate__(self) -> Dict[str, Any]:
    """For another machine, whose clock began at another time; nobody observes it there."""
    return {**self.__dict__, "started": self.started - time.monotonic(), "observer": None}

  def __setstate__(self, state: Dict[str, Any]) -> None:
    self.__dict__.update(state, started=state["started"] + time.monotonic())

  def stop(self) -> None:
    """Has every budget count as used up, so that searches end soon."""
    self.stopped = True

  def copy(self) -> Account:
    """The account as it is now, which nobody observes and nothing stopped."""
    best = self.best_placement
    return dataclasses.replace(
        self, improvements=list(self.improvements), observer=None, stopped=False,
        best_placement=None if best is None else best.copy())  # Ray's own cannot be written to

  @property
  def best_known(self) -> np.ndarray:
    """[N] of the best placement so far.

    Raises:
      PlacementError: nothing has been evaluated.
    """
    if self.best_placement is None:
      raise PlacementError("no placement has been evaluated yet; evaluate a start first")
    return self.best_placement

  @property
  def history(self) -> List[Tuple[int, float, float]]:
    """(evaluations, seconds, objective_us) at each improvement."""
    return [each[:3] for each in self.improvements]

  @property
  def seconds(self) -> float:
    """Seconds since the account was made."""
    return time.monotonic() - self.started

  def exhausted(self, budget: Budget) -> bool:
    """Whether the budget is used up."""
    return self.stopped or (
        budget.max_evaluations is not None and self.evaluations >= budget.max_evaluations
    ) or (budget.max_seconds is not None and self.seconds >= budget.max_seconds) or (
        budget.target_us is not None and self.best_fits
        and self.best_objective_us <= budget.target_us)

  def remaining_evaluations(self, budget: Budget) -> Optional[int]:
    """How many more placements may be evaluated; None where the budget has no such limit."""
    if budget.max_evaluations is None:
      return None
    return max(0, budget.max_evaluations - self.evaluations)

  def expected_evaluations(self, budget: Budget, evaluations: int, seconds: float) -> float:
    """About how many more placements the budget allows; infinitely many without a limit.

    Args:
      budget: of the rest.
      evaluations, seconds: the account's own when it began what tells how many there are a second.
    """
    found = math.inf
    if budget.max_evaluations is not None:
      found = max(0, budget.max_evaluations - self.evaluations)
    if budget.max_seconds is not None:
      rate = (self.evaluations - evaluations) / max(1e-9, self.seconds - seconds)
      found = min(found, rate * max(0.0, budget.max_seconds - self.seconds))
    return found

  def is_better(self, fits: bool, objective_us: float) -> bool:
    """Whether a placement is better than the best so far."""
    return (not fits, objective_us) < (not self.best_fits, self.best_objective_us)

  def book(
      self, evaluations: int, best: Optional[Tuple[np.ndarray, bool, float]] = None,
      turn: Optional[int] = None) -> None:
    """Counts evaluations.

    Args:
      evaluations: how many.
      best: (placement [N], whether it fits, objective_us) of the best one, where it is better than
        the best so far.
      turn: which of them that was, counted from 1; by default the last.
    """
    if best is not None:
      self.best_placement, self.best_fits, self.best_objective_us = best
      self.improvements.append(Improvement(
          self.evaluations + (evaluations if turn is None else turn), self.seconds, best[2],
          best[1]))
    self.evaluations += evaluations
    if self.observer is not None:
      self.observer()
