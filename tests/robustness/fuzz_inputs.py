"""Feeds mutated files of all kinds but graphs to their loaders; reports what they must never do.

  scripts/with_env python tests/robustness/fuzz_inputs.py --mutants=5000

Never may one raise anything but the package's own errors in one sentence, or take more than 30
seconds of CPU time, at which this process ends and names it. A mutant is a function of the seed and
its number; --kinds and --first play single ones again. fuzz_graphs.py has graphs.
"""

from __future__ import annotations

import collections
import resource
import sys
import tempfile
import time
from typing import List

import input_mutants
from absl import app, flags

FLAGS = flags.FLAGS

flags.DEFINE_integer("mutants", 5_000, "Of each kind.", lower_bound=1)
flags.DEFINE_integer("first", 0, "Number of the first one.", lower_bound=0)
flags.DEFINE_integer("seed", 0, "Seed of all of them.", lower_bound=0)
flags.DEFINE_list("kinds", [], "Kinds of files; default: all.")

_LIMIT_S = 30


def main(_: List[str]) -> None:
  """Tries the mutants and prints the counts; ends with 1 if there was a failure."""
  failed = False
  for name in FLAGS.kinds or input_mutants.KINDS:
    kind, counts = input_mutants.kinds((name,))[name], collections.Counter()
    for number in range(FLAGS.first, FLAGS.first + FLAGS.mutants):
      print(f"\r{name} {number}", end="", file=sys.stderr, flush=True)
      file, content, done = input_mutants.mutant(kind, FLAGS.seed, number)
      hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
      resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + _LIMIT_S + 1, hard))
      with tempfile.TemporaryDirectory() as folder:
        input_mutants.write(kind, folder, file, content, done)
        outcome, text = input_mutants.read(kind, folder)
      counts[outcome] += 1
      if outcome not in ("loaded", "refused"):
        failed = True
        print(f"{name} mutant {number}: {outcome}, {file} {done}: {text[:400]}")
    print(f"{name}: {dict(counts)}", flush=True)
  sys.exit(failed)


if __name__ == "__main__":
  app.run(main)
