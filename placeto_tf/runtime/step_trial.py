"""Finds the faster of two steps: both run in turns in this process, and are timed at the client.

Steps are compared by the ratio within each pair, because the speed of the machine affects both
steps of a pair equally.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Callable, List, Tuple

import numpy as np

from placeto_tf.runtime import statistics

_WARM_UP = 3  # the first step of a function instantiates it
_LEAST_PAIRS = 6  # fewer pairs give no 95 % confidence interval of the median
_PAIRS, _MOST_PAIRS = 20, 60


@dataclasses.dataclass(frozen=True)
class StepTrial:
  """Two steps, timed in turns.

  Attributes:
    before_us, after_us: medians.
    steps: number of timed steps of each.
    low, high: 95 % confidence interval of the median ratio after / before (lower is better).
  """

  before_us: float
  after_us: float
  steps: int
  low: float
  high: float

  @property
  def faster(self) -> bool:
    """Returns whether the second step is faster, by more than the noise."""
    return self.high < 1.0


def in_turns(
    before: Callable[[], object], after: Callable[[], object], *,
    clock: Callable[[], float] = time.perf_counter, max_seconds: float = 30.0,
) -> StepTrial:
  """Times two steps in turns until it is known which is faster.

  Args:
    before, after: run one step each and return when it is done.
    clock: seconds.
    max_seconds: after which there are only as many pairs as a verdict needs.

  Returns:
    Medians of both in us, and the confidence interval of their ratio.
  """
  for step in (before, after):
    for _ in range(_WARM_UP):
      step()

  def timed(step: Callable[[], object]) -> float:
    began = clock()
    step()
    return clock() - began

  pairs: List[Tuple[float, float]] = []
  started = clock()
  while True:
    # Alternate the order within pairs.
    both = [timed(step) for step in ((before, after), (after, before))[len(pairs) % 2]]
    pairs.append((both[len(pairs) % 2], both[1 - len(pairs) % 2]))
    # Ratios within pairs, so that slow phases of the machine cancel.
    low, high = statistics.median_interval([later / max(first, 1e-9) for first, later in pairs])
    late = clock() - started > max_seconds
    # Testing after every pair would sooner or later find a difference by chance.
    if len(pairs) >= _LEAST_PAIRS and late or len(pairs) % _PAIRS == 0 and (
        not low <= 1.0 <= high or len(pairs) >= _MOST_PAIRS):
      break
  before_us, after_us = (float(np.median(times)) * 1e6 for times in zip(*pairs))
  return StepTrial(before_us, after_us, len(pairs), low, high)
