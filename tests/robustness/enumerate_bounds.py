"""Tries every placement of random small problems of every kind against their lower bound.

  PYTHONPATH=tests/support scripts/with_env python tests/robustness/enumerate_bounds.py --count=9000

`tests/search/lower_bounds_test.py` goes through the first 120.
"""

from __future__ import annotations

import sys
from typing import List

import numpy as np
from absl import app, flags
from enumerated_problems import every_kind_of_problem, least_us

from placeto_tf.errors import PlacetoError
from placeto_tf.search.lower_bounds import lower_bound_us

FLAGS = flags.FLAGS

flags.DEFINE_integer("first", 0, "The first seed.", lower_bound=0)
flags.DEFINE_integer("count", 10_000, "Seeds.", lower_bound=1)


def main(_: List[str]) -> None:
  """Prints seeds whose bound is above a step time, and how tight bounds are; ends with 1 if any."""
  wrong, ratios = 0, []
  for seed in range(FLAGS.first, FLAGS.first + FLAGS.count):
    try:
      problem = every_kind_of_problem(seed)
    except PlacetoError:  # a set of ops has no common device
      continue
    best, bound = least_us(problem), lower_bound_us(problem)
    if best is not None and np.isfinite(best) and best > 0:
      ratios.append(best / max(bound, 1e-9 * best))
      if bound > best:
        wrong += 1
        print(f"seed {seed}: the bound is {bound} us, a placement takes {best} us", flush=True)
  met = np.mean(np.array(ratios) < 1 + 1e-6)
  print(f"{len(ratios)} problems, {wrong} wrong bounds; met by a placement in {met:.1%}, "
        f"{np.exp(np.mean(np.log(np.minimum(ratios, 100)))):.3f} above the bound in the mean")
  sys.exit(1 if wrong else 0)


if __name__ == "__main__":
  app.run(main)
