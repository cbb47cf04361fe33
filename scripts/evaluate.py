"""Runs every method on every graph and cluster with every seed, at equal budgets.

  scripts/with_env python scripts/evaluate.py --graphs=zoo:inception_v3,zoo:rnnlm \\
      --clusters=k80:2,k80:4 --methods=single,metis,annealing,placeto,auto --max_evaluations=2000 \\
      --seeds=0,1,2 --out=runs/table

--replicas=auto adds a row with replicas for each graph and cluster, and a table that compares it
with the best of --methods (by default auto) and with data parallelism.

--start=single,expert,metis makes every search begin from the best of these placements.
--budgets=30,100,300 adds tables of these budgets beside --max_evaluations. Every method that
searches runs once more with each budget, because methods such as annealing plan for their budget.
--flagfile=docs/results/data/held_out.flags sets graphs, clusters, starts, budgets and seeds, and
the methods that a new method has to beat; then --methods=annealing,placeto,MINE with the same --out
runs the missing rows.
--reach=METHOD adds a table of the evaluations until each method found METHOD's final result.

Prints the tables and writes them (table.md), results.csv, the placements and plots. Every method
gets the same budget, and its starting points count. After an interruption the same command
continues where it stopped; after Ctrl-C, the table of the finished rows is printed.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Dict, List

from absl import flags

from placeto_tf.programs import entry_point, shared_flags

if TYPE_CHECKING:
  import pandas as pd

FLAGS = flags.FLAGS

shared_flags.define_budget_flags(max_seconds=None)
shared_flags.define_reading_flags()
flags.DEFINE_list("graphs", None, "Graphs, comma separated: files, globs, zoo:NAME[:key=value].")
flags.DEFINE_list("clusters", None, "Clusters, comma separated.")
flags.DEFINE_list("methods", None, "Methods, comma separated; with --replicas auto by default.")
flags.DEFINE_bool("controls", False, "Whether to add controls of each learned method: the same "
                  "procedure with untrained weights, and with uniform samples.")
flags.DEFINE_list("seeds", ["0"], "Seeds, comma separated.")
shared_flags.define_runs_flag("default: 1, so that methods are compared on one core each")
shared_flags.define_ray_flag()
shared_flags.define_import_flag()
shared_flags.define_replicas_flags()
flags.DEFINE_string("grouping", "heavy_edge", "Method of grouping ops: see placeto_tf/grouping.")
flags.DEFINE_integer("max_groups", 128, "The largest number of groups.", lower_bound=1)
flags.DEFINE_list("policy_weights", [], "POLICY=DIRECTORY pairs of runs of scripts/train.py: for "
                  "methods that need weights, such as gdp_fine_tune, and for placeto instead of "
                  "the weights that ship. Without weights placeto_paper and gdp learn from "
                  "scratch.")
flags.DEFINE_list("start", [], "Methods without a search; every search starts from the best of "
                  "their placements, which counts as one evaluation. Default: each search has "
                  "starts of its own.")
flags.DEFINE_list("budgets", [], "Further numbers of evaluations; every method that searches also "
                  "runs once with each, for a table of all budgets.")
flags.DEFINE_string("reach", None, "A method; adds a table of the evaluations and seconds that "
                    "each method takes to get within 1 % of this method's result, and of its own "
                    "result.")
flags.DEFINE_string("out", None, "Directory of results.")


def _pairs(texts: List[str]) -> Dict[str, str]:
  """Returns policy -> directory of POLICY=DIRECTORY texts.

  Raises:
    PlacetoError: a text is no such pair.
  """
  from placeto_tf.errors import PlacetoError

  for text in texts:
    if "=" not in text:
      raise PlacetoError(f"--policy_weights has {text!r}; expected POLICY=DIRECTORY")
  return dict(text.split("=", 1) for text in texts)


def main() -> None:
  """Evaluates, and writes the tables."""
  from placeto_tf.errors import PlacetoError
  from placeto_tf.evaluation import EvaluationConfig, evaluate, read_results
  from placeto_tf.files import outputs
  from placeto_tf.placing import registry

  entry_point.import_tensorflow_quietly()
  shared_flags.import_policies()
  wanted = ("graphs", "clusters", "out") + (("methods",) if FLAGS.replicas == "1" else ())
  missing = [name for name in wanted if not FLAGS[name].value]
  if missing:
    raise PlacetoError(f"--{missing[0]} is missing; give it")
  methods = tuple(FLAGS.methods or ("auto",))
  if FLAGS.reach and FLAGS.reach not in methods:
    raise PlacetoError(f"--reach={FLAGS.reach} is none of --methods={','.join(methods)}")
  config = EvaluationConfig(
      graphs=shared_flags.expand_globs(FLAGS.graphs), clusters=tuple(FLAGS.clusters),
      methods=registry.with_controls(methods) if FLAGS.controls else methods,
      seeds=shared_flags.whole_numbers("seeds"), max_evaluations=FLAGS.max_evaluations,
      max_seconds=FLAGS.max_seconds, budgets=shared_flags.whole_numbers("budgets"),
      grouping=FLAGS.grouping, max_groups=FLAGS.max_groups,
      start=tuple(FLAGS.start), independent_runs=FLAGS.independent_runs or 1,
      graph_options=shared_flags.graph_options(), policy_weights=_pairs(FLAGS.policy_weights),
      replicas=shared_flags.number_or_text(FLAGS.replicas),
      mirrored_variables=shared_flags.mirrored_variables(),
      batch_norm=FLAGS.batch_norm, check_replicas=FLAGS.check_replicas == "yes")
  outputs.check(FLAGS.out)
  try:
    rows = evaluate(config, FLAGS.out, progress=shared_flags.show_row, ray=FLAGS.ray)
  except KeyboardInterrupt:
    path = os.path.join(FLAGS.out, "results.csv")
    if os.path.exists(path):
      _write_tables(read_results(path))
      print(f"Interrupted: these rows are in {path}; the same command goes on.", flush=True)
    raise
  _write_tables(rows)
  print(f"Done: {len(rows)} rows in {FLAGS.out}/results.csv.", flush=True)


def _write_tables(rows: pd.DataFrame) -> None:
  """Prints the tables of rows and writes them with the pictures."""
  from placeto_tf.evaluation import tables

  tables.write_plots(rows, FLAGS.out)
  found = [tables.step_time_table(rows)]
  if FLAGS.replicas != "1":
    found.append(tables.replicas_table(rows, FLAGS.out))
  if FLAGS.budgets:
    found.append(tables.budget_tables(rows, FLAGS.out))
  if FLAGS.reach in set(rows["method"]):
    found.append(tables.reach_table(rows, FLAGS.out, FLAGS.reach))
  text = "\n\n".join(found)
  with open(os.path.join(FLAGS.out, "table.md"), "w", encoding="utf-8") as file:
    file.write(text + "\n")
  print(text)


def run() -> None:
  """Entry point of `placeto-evaluate`."""
  entry_point.run_program(main)


if __name__ == "__main__":
  run()
