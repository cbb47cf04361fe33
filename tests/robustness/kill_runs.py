"""Kills programs at random moments, starts them again, and compares what they leave.

  scripts/with_env python tests/robustness/kill_runs.py --kills=100 --log=kills.jsonl

place, train (all policies), evaluate, measure, study and make_graphs are started in forks of this
process, killed by SIGKILL, SIGTERM or SIGINT, and started again until they come to their end: see
killed_runs.py for what has to hold. A trial is a function of the seed and its
number, but for the moment of the kill, which is a share of the time that a whole run takes. Stopped
midway, the same command goes on where --log ends.
"""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Dict, List

import campaigns
import forked
import killed_runs
import shortcuts
from absl import app, flags

from placeto_tf.errors import PlacetoError

FLAGS = flags.FLAGS

flags.DEFINE_integer("kills", 100, "Kills at least, in all.", lower_bound=1)
flags.DEFINE_integer("seed", 0, "Seed of signals and moments.", lower_bound=0)
flags.DEFINE_list("cases", [], "Of what is killed; default: all.")
flags.DEFINE_string("log", None, "File that keeps the trials, to go on from.")

# Part of a case's name -> what it imports beside what all programs do.
_MODULES = {
    "make_graphs": ("tensorflow_gnn", "placeto_tf.encoding.graph_sets"),
    "train": tuple(f"placeto_tf.policies.{name}"
                   for name in ("placeto.training", "placeto.published.training", "gdp.training",
                                "one_graph"))}


def main(_: List[str]) -> None:
  """Kills, and prints the table; ends with 1 if something did not hold."""
  unknown = sorted(set(FLAGS.cases) - set(killed_runs.CASES))
  if unknown:
    raise PlacetoError(f"there is no case {unknown[0]!r}; expected some of "
                       f"{', '.join(killed_runs.CASES)}")
  names = FLAGS.cases or list(killed_runs.CASES)
  log = campaigns.Log(FLAGS.log)
  forked.import_all(*(module for part, modules in _MODULES.items() for module in modules
                      if any(part in name for name in names)))
  prepare = shortcuts.shortcuts()
  references: Dict[str, killed_runs.Reference] = {}
  trials: List[campaigns.Trial] = []
  number = 0
  try:
    while sum(len(trial["signals"]) for trial in trials) < FLAGS.kills:
      name = names[number % len(names)]
      key = name, number // len(names)
      if key not in log.trials:
        with tempfile.TemporaryDirectory() as folder:
          if name not in references:
            references[name] = killed_runs.Reference(
                killed_runs.CASES[name], forked.SCRIPTS, os.path.join(folder, "whole"),
                prepare)
          log.add(killed_runs.trial(name, references[name], FLAGS.seed, key[1], folder))
      trials.append(log.trials[key])
      number += 1
  except KeyboardInterrupt:
    print("interrupted: what was tried until then", file=sys.stderr)
  wrong = [trial for trial in trials if trial["outcome"] != "equal"]
  for trial in wrong:
    print(f"{trial['kind']} trial {trial['number']} ({', '.join(trial['signals'])}): "
          f"{trial['text']}")
  signals = [name for trial in trials for name in trial["signals"]]
  print(f"{len(signals)} kills: "
        + ", ".join(f"{signals.count(each)} by {each}" for each in sorted(set(signals))))
  print(campaigns.table(trials, ("equal", "wrong"), "program"))
  sys.exit(1 if wrong else 0)


def run() -> None:
  """Entry point."""
  app.run(main)


if __name__ == "__main__":
  run()
