"""Feeds mutated graphs to `load_graph` and `estimate_costs`; reports forbidden outcomes.

  scripts/with_env python tests/robustness/fuzz_graphs.py --mutants=10000 --out=failures

A mutant must never crash the process, take more than 10 seconds (of CPU time where it is loaded),
or raise anything but the package's own errors. Mutants are GraphDefs, MetaGraphDefs, SavedModels
and CostGraphDefs in turn, each a function of the seed and its number: bytes flipped, inserted or
cut off, fields dropped, inputs rewired, huge or negative sizes, wrong types and names, nodes
repeated or lost, deep nesting.
They are read in worker processes, so that crashes are noticed. A mutant that fails is written to
--out with its number, and --first=NUMBER --mutants=1 tries it again.
"""

from __future__ import annotations

import collections
import json
import os
import random
import selectors
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, List

import graph_mutants
from absl import app, flags

FLAGS = flags.FLAGS

flags.DEFINE_integer("mutants", 10_000, "Mutants to try.", lower_bound=1)
flags.DEFINE_integer("first", 0, "Number of the first one.", lower_bound=0)
flags.DEFINE_integer("seed", 0, "Seed of all of them.")
flags.DEFINE_float("cost_share", 1.0, "Share of the mutants that load whose costs are estimated.",
                   lower_bound=0, upper_bound=1)
flags.DEFINE_float("limit_s", 10.0, "Seconds of CPU time that a mutant may take to load; costs "
                   "may take as long again.")
flags.DEFINE_string("out", None, "Directory for the mutants that fail.")
flags.DEFINE_bool("worker", False, "Internal: read mutants and print a JSON line for each.")

def work() -> None:
  """Reads mutants one by one and prints what happened; a crash ends the process."""
  with tempfile.TemporaryDirectory() as folder:
    graph_mutants.bases()
    for number in range(FLAGS.first, FLAGS.first + FLAGS.mutants):
      format, content, parses, done = graph_mutants.mutant(FLAGS.seed, number)
      with_costs = random.Random(number).random() < FLAGS.cost_share
      _print({"begins": number})
      found = graph_mutants.read(format, content, folder, with_costs)
      _print({"number": number, "format": format, "parses": parses, "done": done, **found})


def _print(line: Dict[str, Any]) -> None:
  sys.stdout.write(json.dumps(line) + "\n")
  sys.stdout.flush()


def run(first: int, count: int) -> List[Dict[str, Any]]:
  """The outcome of each mutant, crashes and hangs included."""
  found, last_told = [], time.monotonic()
  end = first + count
  while first < end:
    worker = subprocess.Popen(
        [sys.executable, os.path.abspath(__file__), "--worker", f"--seed={FLAGS.seed}",
         f"--first={first}", f"--mutants={end - first}", f"--cost_share={FLAGS.cost_share}"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    begun, finished = None, False
    assert worker.stdout is not None  # it is a pipe
    with worker, selectors.DefaultSelector() as selector:
      selector.register(worker.stdout, selectors.EVENT_READ)
      buffer = b""
      while True:
        # A child that analyses a mutant has a limit of its own, which is as long.
        limit_s = 120.0 if begun is None else 4 * FLAGS.limit_s
        if not selector.select(limit_s):
          worker.kill()
          break
        chunk = os.read(worker.stdout.fileno(), 1 << 16)
        if not chunk:
          break
        *lines, buffer = (buffer + chunk).split(b"\n")
        for line in map(json.loads, lines):
          if "begins" in line:
            begun, finished = line["begins"], False
          else:
            found.append(line)
            finished = True
      worker.wait()
    if finished and begun == end - 1:
      break
    if begun is None:
      raise RuntimeError("the worker ended before its first mutant; --worker shows why")
    if not finished:
      format, content, parses, done = graph_mutants.mutant(FLAGS.seed, begun)
      outcome = "hung" if worker.returncode == -9 else "crashed"
      found.append({"number": begun, "format": format, "parses": parses, "done": done,
                    "outcome": outcome, "error": f"exit code {worker.returncode}",
                    "load_s": 0.0, "cost_s": 0.0})
    first = begun + 1
    if time.monotonic() - last_told > 30:
      print(f"{first} mutants", file=sys.stderr)
      last_told = time.monotonic()
  return found


def is_failure(line: Dict[str, Any], limit_s: float) -> bool:
  """Whether a mutant did what it must not."""
  return line["outcome"] in ("crashed", "hung", "raised") or line["load_s"] > limit_s or (
      line["cost_s"] > limit_s + 5)  # the limit is kept by a process that is to be started


def summary(lines: List[Dict[str, Any]]) -> str:
  """A table of outcomes by format, and the slowest mutants."""
  counts = collections.Counter((line["format"], line["outcome"]) for line in lines)
  outcomes = ("costed", "loaded", "refused", "raised", "crashed", "hung")
  rows = [" ".join([f"{'format':16}", *(f"{name:>9}" for name in (*outcomes, "parse"))])]
  for format in graph_mutants.FORMATS:
    mine = [line for line in lines if line["format"] == format]
    if mine:
      share = sum(line["parses"] for line in mine) / len(mine)
      rows.append(" ".join([
          f"{format:16}", *(f"{counts[format, name]:9,}" for name in outcomes), f"{share:9.0%}"]))
  parsing = sum(line["parses"] for line in lines) / max(len(lines), 1)
  crashes = sum("TensorFlow cannot analyse" in line.get("error", "") for line in lines)
  rows.append(
      f"{len(lines):,} mutants, {parsing:.0%} parse; slowest load "
      f"{max(line['load_s'] for line in lines):.1f} s, slowest costs "
      f"{max(line['cost_s'] for line in lines):.1f} s; {crashes} crashes or hangs of TensorFlow "
      "were caught")
  return "\n".join(rows)


def main(_: Any) -> None:
  """Tries the mutants and prints the table; ends with 1 if there was a failure."""
  if FLAGS.worker:
    work()
    return
  lines = run(FLAGS.first, FLAGS.mutants)
  print(summary(lines))
  failures = [line for line in lines if is_failure(line, FLAGS.limit_s)]
  for line in failures:
    print(f"mutant {line['number']} ({line['format']}, {line['done']}): {line['outcome']}, "
          f"{line.get('error', '')} {line['load_s']:.1f} s {line['cost_s']:.1f} s")
    if FLAGS.out:
      os.makedirs(FLAGS.out, exist_ok=True)
      name = os.path.join(FLAGS.out, f"{FLAGS.seed}_{line['number']}")
      with open(f"{name}.bin", "wb") as file:
        file.write(graph_mutants.mutant(FLAGS.seed, line["number"])[1])
      with open(f"{name}.json", "w", encoding="utf-8") as file:
        json.dump(line, file, indent=1)
  sys.exit(1 if failures else 0)


if __name__ == "__main__":
  app.run(main)
