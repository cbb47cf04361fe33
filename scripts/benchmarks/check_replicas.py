"""Trains the replicas of each row of a table beside their graph, and writes the results to it.

  scripts/with_env python scripts/benchmarks/check_replicas.py \\
      --table=docs/results/data/replicas.csv --limit_s=60

Every check has a process of its own and ends within the limit, as after a search. Rows with the
same graph and replicas share one check. Results are kept in --out, so that the same command
continues after an interruption, and are written to the column `check` of the table. Prints the
graph, the replicas, the number of checked replicas, steps, and seconds of the clock and of the
processor.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from typing import Any, Dict

import pandas as pd
from absl import flags

from placeto_tf.files import outputs
from placeto_tf.programs import entry_point

FLAGS = flags.FLAGS
flags.DEFINE_string("table", "docs/results/data/replicas.csv",
                    "The table: columns graph, replicas (2, \"8 mirrored\") and check.")
flags.DEFINE_float("limit_s", 60.0, "Seconds in which each check ends.", lower_bound=1.0)
flags.DEFINE_string("out", "runs/replica_checks.json", "JSON file of the results so far.")
flags.DEFINE_string("graph", None, "Checks only this graph and prints the result as JSON.")
flags.DEFINE_string("replicas", "2", "Replicas of --graph.")


def _processor_s() -> float:
  """Returns the processor seconds of this process."""
  used = resource.getrusage(resource.RUSAGE_SELF)
  return used.ru_utime + used.ru_stime


def checked(graph: str, strategy: str, limit_s: float) -> Dict[str, Any]:
  """Makes replicas and checks them, as `place` does after its search.

  Args:
    graph: anything that `load_graph` takes.
    strategy: number of replicas, and "mirrored" where each has variables of its own.
    limit_s: seconds of the check.

  Returns:
    Its text, replicas, steps, and seconds of the clock and the processor.
  """
  from placeto_tf.replication.batches import ReplicaSource
  from placeto_tf.runtime.checking import check_replicas

  source = ReplicaSource(graph)
  count, _, mirrored = strategy.partition(" ")
  replicated = source.replicas(int(count), bool(mirrored))
  started_s = _processor_s()
  found = check_replicas(source, replicated, limit_s)
  return {"text": str(found), "replicas": found.replicas, "of": replicated.replicas,
          "steps": found.steps, "seconds": round(found.seconds, 1),
          "processor_s": round(_processor_s() - started_s, 1)}


def _in_process(graph: str, strategy: str, limit_s: float) -> Dict[str, Any]:
  """Returns the result of `checked` in a process of its own, or how that process ended."""
  done = subprocess.run(
      [sys.executable, os.path.abspath(__file__), f"--graph={graph}", f"--replicas={strategy}",
       f"--limit_s={limit_s}"],
      stdout=subprocess.PIPE, text=True, check=False)
  if done.returncode:
    return {"text": f"not checked: the process ended with {done.returncode}"}
  return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
  """Checks the rows, and writes results and table after each."""
  if FLAGS.graph:
    entry_point.import_tensorflow_quietly()
    print(json.dumps(checked(FLAGS.graph, FLAGS.replicas, FLAGS.limit_s)))
    return
  os.makedirs(os.path.dirname(os.path.abspath(FLAGS.out)), exist_ok=True)
  made: Dict[str, Dict[str, Any]] = {}
  if os.path.exists(FLAGS.out):
    with open(FLAGS.out, encoding="utf-8") as file:
      made = json.load(file)
  # Other columns are written as they were read, digit by digit.
  table = pd.read_csv(FLAGS.table, dtype=str, keep_default_na=False)
  for at, (graph, strategy) in enumerate(zip(table["graph"], table["replicas"])):
    if strategy == "1":
      continue
    key = f"{graph}, {strategy}"
    if key not in made:
      found = made[key] = _in_process(f"zoo:{graph}", strategy, FLAGS.limit_s)
      figures = [f"{name} {value}" for name, value in found.items() if name != "text"]
      print(", ".join([key, *figures, found["text"]]), flush=True)
      outputs.write_json(FLAGS.out, made)
    table.loc[at, "check"] = made[key]["text"]
    outputs.write(FLAGS.table, table.to_csv(index=False, lineterminator="\n").encode("utf-8"))


if __name__ == "__main__":
  entry_point.run_program(main)
