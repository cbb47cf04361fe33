"""Bookkeeping: evaluations, time and gain of each placer of a run.

Legend: N ops.
"""

from __future__ import annotations

import dataclasses
from typing import Callable, List, Optional

import numpy as np

from placeto_tf.problem.budget import Budget
from placeto_tf.problem.placement_problem import PlacementProblem

# The type of function that a ledger runs; a `Run` is one.
Called = Callable[[PlacementProblem, Budget, int], np.ndarray]
NO_BUDGET = "no budget was left"
NOTHING_LEFT = "nothing was left to gain"
TOO_LITTLE_TIME = "there was too little time"
# Reasons not to run a placer that are no errors.
ORDINARY_REASONS = (NO_BUDGET, NOTHING_LEFT, TOO_LITTLE_TIME)


@dataclasses.dataclass(frozen=True, eq=False)
class Entry:
  """The account of one placer.

  Attributes:
    name: of the placer.
    placement: [N] int32, the placement that a simple placer made, or the best that a search ended
      with; None if it evaluated none.
    evaluations: number of placements that it evaluated.
    seconds: the time that it took.
    gain_us: by how much it lowered the best objective so far; 0 for the first placer.
    skipped: why it evaluated no placement, or "".
  """

  name: str
  placement: Optional[np.ndarray]
  evaluations: int = 0
  seconds: float = 0.0
  gain_us: float = 0.0
  skipped: str = ""


class Ledger:
  """Runs placers and keeps account of them.

  Attributes:
    entries: one per placer, in the order in which placers first ran.
    announce: called with the name of each placer before it runs.
    proven: whether a placer has shown that the best placement is optimal.
    bound_us: a lower bound on the step time, where it is known before the placers run.
    no_more: whether the search ended because more of it was not expected to gain enough.
  """

  def __init__(self, problem: PlacementProblem):
    self.entries: List[Entry] = []
    self._problem = problem
    self.announce: Callable[[str], None] = lambda name: None
    self.proven, self.no_more = False, False
    self.bound_us: Optional[float] = None

  def run(
      self, name: str, placer: Called, budget: Budget, seed: int,
      problem: Optional[PlacementProblem] = None,
  ) -> float:
    """Runs a placer and returns its gain in us. A placer that is interrupted has its entry too.

    Args:
      name: of the placer's entry.
      placer: what to run.
      budget: of the problem, not of this placer.
      seed: for the placer.
      problem: the problem in other groups, where the placer needs them.
    """
    problem = problem or self._problem
    self.announce(name)
    evaluations, seconds = problem.account.evaluations, problem.account.seconds
    before_us, gain_us, placement = problem.account.best_objective_us, 0.0, None
    try:
      placement = placer(problem, budget, seed)
    except KeyboardInterrupt:
      placement = problem.account.best_placement
      raise
    finally:
      if np.isfinite(before_us):
        gain_us = max(0.0, before_us - problem.account.best_objective_us)
      used = problem.account.evaluations - evaluations
      self._add(Entry(
          name, placement if used else None, used, problem.account.seconds - seconds, gain_us,
          "" if used else NO_BUDGET))
    return gain_us

  def skip(self, name: str, reason: str) -> None:
    """Lists a placer that did not run."""
    self._add(Entry(name, None, skipped=reason))

  def _add(self, new: Entry) -> None:
    for i, old in enumerate(self.entries):
      if old.name == new.name:
        placement = old.placement if new.placement is None else new.placement
        self.entries[i] = Entry(
            new.name, placement, old.evaluations + new.evaluations, old.seconds + new.seconds,
            old.gain_us + new.gain_us, "" if placement is not None else new.skipped)
        return
    self.entries.append(new)
