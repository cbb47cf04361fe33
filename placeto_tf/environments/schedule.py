"""`Schedule`: the rounds and levels of the move process, one record for training and search.

The process goes through short rounds and one long round. A round goes through levels from coarse to
fine: first a handful of large groups, which moves whole layers at once, then smaller and smaller
groups, formed from the placement so far. The first rounds are short, so that few evaluations go to
groups of a poor placement.
"""

from __future__ import annotations

import dataclasses
from typing import Tuple

from placeto_tf.errors import PlacementError, check_at_least
from placeto_tf.problem.supernodes import COARSE_TO_FINE

LONG_EVALUATIONS = 3000  # the most evaluations of a long round after short ones
LONG_OF_PLENTY = 1000  # the most of the long round, if plenty are left: see `MoveProcess.plenty`


@dataclasses.dataclass(frozen=True)
class Schedule:
  """Settings of the rounds, levels and preferences of the move process.

  Attributes:
    rounds: evaluations of each short round; its levels get equal parts.
    levels: number of groups of each level of a short round, divided by the problem's number of
      groups, coarse to fine.
    vary: after the first short round, levels are up to 2^vary times as fine or as coarse, so that
      groups differ between rounds.
    long_levels: number of groups of each level of the long round, divided by the problem's; without
      any, there is no long round.
    long_shares: the share of the long round that each of its levels gets.
    long_share: the long round's share of the budget that the short rounds leave.
    temperature: of the noise on preferences in the long round, in units of scores.
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
  long_levels: Tuple[float, ...] = tuple(factor for factor, _ in COARSE_TO_FINE)
  long_shares: Tuple[float, ...] = tuple(share for _, share in COARSE_TO_FINE)
  long_share: float = 1.0
  temperature: float = 0.01
  forget: float = 0.1
  several: int = 21
  most: int = 8
  least_score: float = 0.15

  def __post_init__(self) -> None:
    check_at_least(0, self, "vary", "temperature", "forget", "several")
    levels = self.levels if self.rounds else self.long_levels
    if not levels or min(self.levels + self.long_levels) <= 0:
      raise PlacementError(
          f"levels is {self.levels} and long_levels {self.long_levels}; expected numbers above 0, "
          "such as 0.25,1")
    if len(self.long_levels) != len(self.long_shares):
      raise PlacementError(
          f"long_levels has {len(self.long_levels)} numbers and long_shares "
          f"{len(self.long_shares)}; expected a share for each level")
