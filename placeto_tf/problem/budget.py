"""`Budget`: when a search ends."""

from __future__ import annotations

import dataclasses
import math
from typing import Optional, Protocol

from placeto_tf.errors import PlacementError


class Used(Protocol):
  """A count of evaluations and seconds, such as a `SearchLog`."""

  @property
  def evaluations(self) -> int:
    """Returns the number of placements evaluated so far."""

  @property
  def seconds(self) -> float:
    """Returns the seconds since the count began."""


@dataclasses.dataclass(frozen=True)
class Budget:
  """When a search ends: at the first limit it meets; None is no limit.

  Attributes:
    max_evaluations, max_seconds: counted from when the problem was made.
    target_us: the search may end once a placement that fits is at least as good.
    stop_within: `auto` may end once twice as much search gained less than this share of the step
      time; who sets it sets `target_us` to a lower bound and this share of it.
  """

  max_evaluations: Optional[int] = None
  max_seconds: Optional[float] = None
  target_us: Optional[float] = None
  stop_within: Optional[float] = None

  def __post_init__(self) -> None:
    for field in dataclasses.fields(self):
      limit = getattr(self, field.name)
      # NaN fails both comparisons, and so is refused as well.
      if limit is not None and not 0 < limit < math.inf:
        raise PlacementError(f"{field.name} is {limit}; expected a number above 0, or none")

  def share(self, used: Used, share: float) -> Budget:
    """Returns the budget that ends after a share of the rest, or at its target.

    Args:
      used: counts the evaluations and seconds so far.
      share: from 0 to 1, of the rest of this budget.

    Returns:
      A budget whose limits count from the beginning, as this one's do; without `stop_within`.
    """
    evaluations, seconds = self.max_evaluations, self.max_seconds
    if evaluations is not None:
      left = max(0, evaluations - used.evaluations)
      # Limits count from the beginning of the log, so the used part is added again.
      evaluations = max(1, used.evaluations + math.ceil(share * left))
    if seconds is not None:
      # A limit has to be above 0, also where no time is left.
      seconds = used.seconds + max(1e-9, share * (seconds - used.seconds))
    # `stop_within` judges a whole search, not a share of one.
    return Budget(evaluations, seconds, self.target_us)

  def at_most(self, used: Used, evaluations: int) -> Budget:
    """Returns the budget that ends after so many more evaluations, if it does not end before.

    Args:
      used: counts the evaluations so far.
      evaluations: the most that are still allowed.

    Returns:
      The budget with the nearer limit on evaluations.
    """
    # The nearer of both limits; the clock and the target stay.
    end = used.evaluations + evaluations
    return dataclasses.replace(self, max_evaluations=min(end, self.max_evaluations or end))
