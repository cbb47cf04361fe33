"""`Budget`: the limits of a search."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Optional

from placeto_tf.errors import PlacementError


@dataclasses.dataclass(frozen=True)
class Budget:
  """Limits of a search, which ends at the first limit that is reached; None is no limit.

  Attributes:
    max_evaluations, max_seconds: counted from the time when the problem was made.
    target_us: the search may end if a placement that fits is at least as good.
    stop_within: `auto` may end if doubling the search gained less than this share of the step time.
      With it, `target_us` must be a lower bound plus this share of the bound.
  """

  max_evaluations: Optional[int] = None
  max_seconds: Optional[float] = None
  target_us: Optional[float] = None
  stop_within: Optional[float] = None

  def __post_init__(self) -> None:
    for field in dataclasses.fields(self):
      limit = getattr(self, field.name)
      # NaN fails both comparisons, so it is refused as well.
      if limit is not None and not 0 < limit < math.inf:
        raise PlacementError(f"{field.name} is {limit}; expected a number above 0, or none")

  def share(self, used: Any, share: float) -> Budget:
    """Returns the budget that ends after a share of the remaining budget, or at its target.

    Args:
      used: the `SearchLog`, which counts the evaluations and seconds so far.
      share: from 0 to 1, of the remaining budget.

    Returns:
      A budget whose limits count from the same beginning; without `stop_within`.
    """
    evaluations, seconds = self.max_evaluations, self.max_seconds
    if evaluations is not None:
      left = max(0, evaluations - used.evaluations)
      # Limits count from the beginning of the log, so the used part is added again.
      evaluations = max(1, used.evaluations + math.ceil(share * left))
    if seconds is not None:
      # A limit must be above 0, even if no time is left.
      seconds = used.seconds + max(1e-9, share * (seconds - used.seconds))
    # `stop_within` judges a whole search, not a share of one.
    return Budget(evaluations, seconds, self.target_us)

  def at_most(self, used: Any, evaluations: int) -> Budget:
    """Returns the budget that also ends after a number of further evaluations.

    Args:
      used: the `SearchLog`.
      evaluations: the most that are still allowed.

    Returns:
      The budget with the nearer limit on evaluations.
    """
    # The nearer of both limits; the limits of time and target are kept.
    end = used.evaluations + evaluations
    return dataclasses.replace(self, max_evaluations=min(end, self.max_evaluations or end))
