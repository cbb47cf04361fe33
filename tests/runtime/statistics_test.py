import math

import numpy as np
import pytest

from placeto_tf.runtime import statistics


def test_the_interval_is_made_of_order_statistics():
  # P(Binomial(6, 1/2) = 0) = 1/64: the extremes of six values hold the median with 1 - 2/64 > 0.95.
  assert statistics.median_interval([6, 1, 5, 2, 4, 3]) == (1, 6)
  # Of ten: 2 (1 + 10) / 1024 = 0.021 for the second ones, 0.109 for the third.
  assert statistics.median_interval(range(1, 11)) == (2, 9)


@pytest.mark.parametrize("n", [8, 25])
def test_the_interval_holds_the_median_as_often_as_it_says(n):
  rng = np.random.default_rng(n)
  samples = rng.exponential(1.0, (4000, n))  # median log 2
  held = np.mean([low <= math.log(2) <= high
                  for low, high in map(statistics.median_interval, samples)])
  assert 0.95 - 0.01 < held < 0.995
