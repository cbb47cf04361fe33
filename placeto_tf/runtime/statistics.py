"""The median of repeated runs, and its uncertainty."""

from __future__ import annotations

import math
from typing import Sequence, Tuple

import numpy as np

CONFIDENCE = 0.95


def median_interval(values: Sequence[float]) -> Tuple[float, float]:
  """Returns a confidence interval of the median, whatever the values' distribution.

  Its ends are order statistics: the median lies between the k-th smallest and the k-th largest of
  n values with probability 1 - 2 P(Binomial(n, 1/2) < k). (David and Nagaraja, Order Statistics,
  section 7.1.)

  Returns:
    Its ends. Too few values for the confidence (below 6) give (0, inf).
  """
  from scipy import special  # scipy.stats takes seconds to import

  ordered = np.sort(np.asarray(values, dtype=np.float64))
  n = len(ordered)
  # The largest k with 2 P(Binomial(n, 1/2) < k) <= 1 - CONFIDENCE.
  k = int((special.bdtr(np.arange(n), n, 0.5) <= (1 - CONFIDENCE) / 2).sum())
  if not k:
    return 0.0, math.inf
  # k counts from 1.
  return float(ordered[k - 1]), float(ordered[n - k])


def relative_width(values: Sequence[float]) -> float:
  """Returns half the interval's width over the median: how far off the median may be."""
  low, high = median_interval(values)
  return (high - low) / 2 / float(np.median(values))
