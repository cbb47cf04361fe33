"""`SearchLog`: the used evaluation budget, the best placement, and the runs of methods.

Every method gets its step times from the problem, and the problem counts them here. So budgets are
counted in the same way for all methods: an evaluation is one computed step time of a placement,
duplicates and starting points included. `N` is the number of ops.
"""

from __future__ import annotations

import dataclasses
import math
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import numpy as np

from placeto_tf.errors import PlacementError
from placeto_tf.problem.budget import Budget


def _nobody(running: str) -> None:
  """Observes nothing; `running` is the name of the method that runs."""


class Improvement(NamedTuple):
  """A change of the best placement.

  Attributes:
    evaluations, seconds: used when the placement was found.
    objective_us: step time plus penalty of the new best placement.
    excess_bytes: its bytes over the memory limits; 0 if it fits.
  """

  evaluations: int
  seconds: float
  objective_us: float
  excess_bytes: float


@dataclasses.dataclass(frozen=True, eq=False)
class MethodRun:
  """One method's part of a search, over all its runs.

  Attributes:
    name: of the method.
    placement: [N] int32, the placement that a construction made, or the best placement at the end
      of a search; None if the method evaluated none.
    evaluations: number of placements that the method evaluated.
    seconds: duration of the method.
    gain_us: decrease of the best objective so far by the method; 0 for the first method.
    start_us: the best objective at the method's begin; None for the first method.
  """

  name: str
  placement: Optional[np.ndarray]
  evaluations: int = 0
  seconds: float = 0.0
  gain_us: float = 0.0
  start_us: Optional[float] = None


@dataclasses.dataclass(eq=False)
class SearchLog:
  """The evaluations of a search, the best placement so far, and the runs of methods.

  A placement with fewer bytes over the memory limits is better; among equal ones the objective
  decides. The clock of the log starts when it is made.

  Attributes:
    started: `time.monotonic()` when the log was made.
    evaluations: number of placements evaluated so far.
    best_placement: [N] int32 of the best placement so far, or None.
    best_objective_us, best_excess_bytes: of the best placement; infinite if there is none.
    improvements: one for each change of the best placement.
    method_runs: one per method, in the order in which methods first ran.
    running: name of the method that runs.
    observer: called with that name when a method begins and after each batch of evaluations.
    stopped: whether every budget counts as used up.
    proven: whether the best placement is known to be optimal.
    saturated: whether the search ended because a longer search was not expected to gain enough.
    clock: where step times come from: "simulated", "session" or "own".
  """

  started: float = dataclasses.field(default_factory=time.monotonic)
  evaluations: int = 0
  best_placement: Optional[np.ndarray] = None
  best_objective_us: float = math.inf
  best_excess_bytes: float = math.inf
  improvements: List[Improvement] = dataclasses.field(default_factory=list)
  method_runs: List[MethodRun] = dataclasses.field(default_factory=list)
  running: str = ""
  observer: Callable[[str], None] = _nobody
  stopped: bool = False
  proven: bool = False
  saturated: bool = False
  clock: str = "simulated"

  def __getstate__(self) -> Dict[str, Any]:
    """Returns the state for a copy, also on another machine: without observer, not stopped."""
    # Monotonic clocks of two machines differ, so the (negative) elapsed seconds are sent instead.
    return {**self.__dict__, "started": self.started - time.monotonic(), "observer": _nobody,
            "stopped": False}

  def __setstate__(self, state: Dict[str, Any]) -> None:
    self.__dict__.update(state, started=state["started"] + time.monotonic())

  @property
  def best_fits(self) -> bool:
    """Returns whether the best placement fits in memory."""
    return self.best_excess_bytes == 0

  @property
  def best_known(self) -> np.ndarray:
    """Returns the best placement so far, [N] int32.

    Raises:
      PlacementError: nothing has been evaluated.
    """
    if self.best_placement is None:
      raise PlacementError("no placement has been evaluated yet; evaluate a start first")
    return self.best_placement

  @property
  def history(self) -> List[Tuple[int, float, float]]:
    """Returns (evaluations, seconds, objective_us) at each improvement."""
    return [each[:3] for each in self.improvements]

  @property
  def seconds(self) -> float:
    """Returns the seconds since the log was made."""
    return time.monotonic() - self.started

  def stop(self) -> None:
    """Makes every budget count as used up, so that searches end soon."""
    self.stopped = True

  def exhausted(self, budget: Budget) -> bool:
    """Returns whether the budget is used up."""
    # Used up at the first limit; a target counts only with a placement that fits.
    return self.stopped or (
        budget.max_evaluations is not None and self.evaluations >= budget.max_evaluations
    ) or (budget.max_seconds is not None and self.seconds >= budget.max_seconds) or (
        budget.target_us is not None and self.best_fits
        and self.best_objective_us <= budget.target_us)

  def remaining_evaluations(self, budget: Budget) -> Optional[int]:
    """Returns the number of further evaluations; None without a limit on evaluations."""
    if budget.max_evaluations is None:
      return None
    # Limits count all evaluations of the log, of any method.
    return max(0, budget.max_evaluations - self.evaluations)

  def progress(self, budget: Budget, evaluations: int, seconds: float) -> List[float]:
    """Returns the progress of a search within its budget.

    Args:
      budget: of the search.
      evaluations, seconds: counts of the log when the search began, which are not part of it.

    Returns:
      The used share of the seconds, the used evaluations, and their limit or infinity.
    """
    share, limit = 0.0, math.inf
    if budget.max_evaluations is not None:
      limit = max(1, budget.max_evaluations - evaluations)
    if budget.max_seconds is not None:
      share = (self.seconds - seconds) / max(1e-9, budget.max_seconds - seconds)
    return [share, self.evaluations - evaluations, limit]

  def book(
      self, evaluations: int, best: Optional[Tuple[np.ndarray, float, float]] = None,
      turn: Optional[int] = None) -> None:
    """Counts evaluations and keeps the best placement.

    Args:
      evaluations: number of evaluations.
      best: (placement [N], excess_bytes, objective_us) of the best new placement, if it is better
        than the best so far.
      turn: the number of that placement among the new ones, from 1; by default the last.

    Returns:
      None.
    """
    if best is not None:
      self.best_placement, self.best_excess_bytes, self.best_objective_us = best
      # Counted up to its own turn within the batch.
      self.improvements.append(Improvement(
          self.evaluations + (evaluations if turn is None else turn), self.seconds, best[2],
          best[1]))
    # Observers see the log with this batch in.
    self.evaluations += evaluations
    self.observer(self.running)

  def run(self, name: str, method: Callable[[], np.ndarray]) -> np.ndarray:
    """Runs a method and records its part, also if the method is interrupted.

    Args:
      name: of the record.
      method: returns its placement [N]; its evaluations are counted here.
    """
    self.running = name
    self.observer(name)
    evaluations, seconds, placement = self.evaluations, self.seconds, None
    # Gains are measured against the best objective when the method began.
    start_us = None if self.best_placement is None else self.best_objective_us
    try:
      placement = method()
    # The record of an interrupted search has the best placement so far.
    except KeyboardInterrupt:
      placement = self.best_placement
      raise
    finally:
      # Without an evaluation the budget was used up before the method began.
      used = self.evaluations - evaluations
      gain_us = 0.0 if start_us is None else max(0.0, start_us - self.best_objective_us)
      self._add(MethodRun(
          name, placement if used else None, used, self.seconds - seconds, gain_us, start_us))
    return placement

  def skip(self, name: str) -> None:
    """Records a method that did not run, because nothing was left of the budget or to gain."""
    self._add(MethodRun(name, None))

  def _add(self, new: MethodRun) -> None:
    """Adds a run to the record of its method, or begins that record."""
    # A method that runs several times has one record.
    for i, old in enumerate(self.method_runs):
      if old.name == new.name:
        # Later runs of one method add up; the first start and the last placement are kept.
        placement = old.placement if new.placement is None else new.placement
        self.method_runs[i] = MethodRun(
            new.name, placement, old.evaluations + new.evaluations, old.seconds + new.seconds,
            old.gain_us + new.gain_us, old.start_us)
        return
    self.method_runs.append(new)
