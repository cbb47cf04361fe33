"""What each placer of a run contributed: whoever goes on from the best so far shares in it.

Legend: N ops.
"""

from __future__ import annotations

import dataclasses
from typing import Callable, List, Optional

import numpy as np

from placeto_tf.problem.placement_problem import Budget, PlacementProblem

Placer = Callable[[PlacementProblem, Budget, int], np.ndarray]
NO_BUDGET = "no budget was left"


@dataclasses.dataclass(frozen=True, eq=False)
class Contribution:
  """What one placer did.

  Attributes:
    name: of the placer.
    placement: [N] int32, of a simple placer the one it made, of a search the best it ended with;
      None where it evaluated none.
    evaluations: placements it evaluated.
    seconds: it took.
    gain_us: by how much it lowered the best objective so far; 0 for the first.
    skipped: why it evaluated none, or "".
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
    contributions: in the order of the first runs; a placer that ran several times has one.
  """

  def __init__(
      self, problem: PlacementProblem, announce: Optional[Callable[[str], None]] = None):
    """Args: announce: called with the name of each placer before it runs."""
    self.contributions: List[Contribution] = []
    self._problem = problem
    self._announce = announce or (lambda name: None)

  def run(
      self, name: str, placer: Placer, budget: Budget, seed: int,
      problem: Optional[PlacementProblem] = None,
  ) -> float:
    """Runs a placer and returns its gain in us; accounts for it also if it is interrupted.

    Args:
      name: under which it is listed.
      placer: what to run.
      budget: of the problem, not of this placer.
      seed: for the placer.
      problem: the problem in other groups, where the placer needs them.
    """
    problem = problem or self._problem
    self._announce(name)
    evaluations, seconds = problem.evaluations, problem.seconds
    before_us, gain_us, placement = problem.best_objective_us, 0.0, None
    try:
      placement = placer(problem, budget, seed)
    except KeyboardInterrupt:
      placement = problem.best_placement
      raise
    finally:
      if np.isfinite(before_us):
        gain_us = max(0.0, before_us - problem.best_objective_us)
      used = problem.evaluations - evaluations
      self._add(Contribution(
          name, placement if used else None, used, problem.seconds - seconds, gain_us,
          "" if used else NO_BUDGET))
    return gain_us

  def skip(self, name: str, reason: str) -> None:
    """Lists a placer that did not run."""
    self._add(Contribution(name, None, skipped=reason))

  def _add(self, new: Contribution) -> None:
    for i, old in enumerate(self.contributions):
      if old.name == new.name:
        placement = old.placement if new.placement is None else new.placement
        self.contributions[i] = Contribution(
            new.name, placement, old.evaluations + new.evaluations, old.seconds + new.seconds,
            old.gain_us + new.gain_us, "" if placement is not None else new.skipped)
        return
    self.contributions.append(new)
