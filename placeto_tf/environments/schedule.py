"""`Schedule`: the rounds and levels of the move process, one record for training and search.

A round goes through levels from coarse to fine: first a handful of large groups, which moves whole
layers at once, then smaller and smaller groups, formed from the placement so far. The first rounds
are short, so that few evaluations go to groups of a poor placement.
"""

from __future__ import annotations

import dataclasses
from typing import Tuple

from placeto_tf.errors import PlacementError, check_at_least


@dataclasses.dataclass(frozen=True)
class Schedule:
  """Settings of the rounds, levels and preferences of the move process.

  Attributes:
    rounds: evaluations of each round; its levels get equal parts.
    levels: number of groups of each level, divided by the problem's number of groups, coarse to
      fine.
    vary: after the first round, levels are up to 2^vary times as fine or as coarse, so that groups
      differ between rounds.
    forget: amount by which each failure lowers the preference for a move for the rest of a level.
    several: moves of several groups at once are made during so many first evaluations.
    most: number of groups that move together at first; it doubles after an improvement, else it
      falls to a third.
    least_score: least score of a group that moves with others; half of the best score is a second
      limit.
  """

  rounds: Tuple[int, ...] = (20, 40, 80, 160)
  levels: Tuple[float, ...] = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0)
  vary: float = 0.25
  forget: float = 0.1
  several: int = 21
  most: int = 8
  least_score: float = 0.15

  def __post_init__(self) -> None:
    check_at_least(0, self, "vary", "forget", "several")
    if not (self.rounds and self.levels) or min(self.rounds + self.levels) <= 0:
      raise PlacementError(
          f"rounds is {self.rounds} and levels {self.levels}; expected numbers above 0, such as "
          "rounds (20, 40) and levels (0.25, 1.0)")
