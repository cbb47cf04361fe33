"""Measures the loss by each method of grouping: a search on its groups against one on single ops.

  scripts/with_env python scripts/benchmarks/benchmark_grouping.py --out=runs/grouping

The search is annealing on groups, which it never splits. It always starts from the best of the same
simple placements; each group begins on the device with most of its compute time in that placement.
Results are compared with the best known placement: the best of all searches here, improved by
`auto` for --best_seconds with moves of single ops. An interrupted run continues where it stopped.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Dict, List

import numpy as np
import pandas as pd
from absl import flags

from placeto_tf.evaluation.tables import markdown
from placeto_tf.programs import entry_point

FLAGS = flags.FLAGS

flags.DEFINE_list(
    "graphs", ["resnet50", "inception_v3", "rnnlm", "transformer_xl", "wavenet", "rnnlm:layers=4",
               "bert", "nasnet_mobile", "nmt", "amoebanet", "gnmt"], "Names of the zoo.")
flags.DEFINE_list("groupings", ["heavy_edge", "single_consumer", "metis", "none"], "Methods of "
                  "grouping; `none` groups only ops that must share a device, and ignores "
                  "--max_groups.")
flags.DEFINE_string("cluster", "k80:4", "Cluster to place on.")
flags.DEFINE_integer("max_groups", 128, "The largest number of groups.", lower_bound=1)
flags.DEFINE_integer("max_evaluations", 10_000, "Placements of each search.", lower_bound=100)
flags.DEFINE_list("seeds", ["0", "1"], "Seeds of each search.")
flags.DEFINE_float("best_seconds", 60, "Seconds for auto, which improves the best known placement.")
flags.DEFINE_string("out", "runs/grouping", "Directory of the results.")

FIELDS = ("graph", "grouping", "seed", "groups", "step_time_us", "fits", "evaluations", "seconds")
BEST = "op level"

Row = Dict[str, Any]


def measure(name: str, done: Dict[tuple, Row], results: Any) -> None:
  """Runs the missing rows of one graph, and passes each to `results`."""
  from placeto_tf.clusters import Cluster
  from placeto_tf.costs import estimate_costs
  from placeto_tf.graphs import load_graph
  from placeto_tf.grouping import group_ops
  from placeto_tf.placing.auto import run_auto
  from placeto_tf.problem import Budget, PlacementProblem
  from placeto_tf.problem.host_options import offered_devices
  from placeto_tf.simulation import Simulator

  keys = [(name, grouping, seed) for grouping in FLAGS.groupings for seed in FLAGS.seeds]
  if all(key in done for key in (*keys, (name, BEST, ""))):
    return
  graph, cluster = load_graph(f"zoo:{name}"), Cluster.parse(FLAGS.cluster)
  costs = estimate_costs(graph, cluster)
  allowed = offered_devices(graph, cluster, costs)
  simulator = Simulator(graph, costs, cluster)

  def problem_of(grouping: str):
    groups = group_ops(graph, costs, allowed, max_groups=FLAGS.max_groups, method=grouping)
    return PlacementProblem(
        graph, costs, cluster, groups, allowed_ops=allowed, simulator=simulator)

  starts = simple_placements(problem_of("none"))
  for key in keys:
    if key not in done:
      problem = problem_of(key[1])
      anneal_groups(problem, starts, int(key[2]))
      np.save(_placement_path(key), problem.search_log.best_placement)
      results(key, problem)
  if (name, BEST, "") not in done:
    found = [np.load(_placement_path(key)) for key in keys]
    problem = problem_of("heavy_edge")
    problem.evaluate_ops(np.stack(found))
    run_auto(
        problem, Budget(max_seconds=problem.search_log.seconds + FLAGS.best_seconds), learned=False)
    results((name, BEST, ""), problem)


def simple_placements(problem: Any) -> List[np.ndarray]:
  """Returns placements [N] that need no search and do not use groups."""
  from placeto_tf.search.simple import single
  from placeto_tf.search.starts import start_methods

  return [single(problem)] + [
      method.load()(problem) for method in start_methods() if method.name != "metis_groups"]


def anneal_groups(problem: Any, starts: List[np.ndarray], seed: int) -> None:
  """Anneals the problem's groups with all evaluations, hotter each time that nothing changes."""
  from placeto_tf.problem.budget import Budget
  from placeto_tf.problem.supernodes import Supernodes
  from placeto_tf.search.annealing import HOTTEST, AnnealingConfig, anneal_supernodes
  from placeto_tf.search.metis import partition_ops

  budget = Budget(max_evaluations=FLAGS.max_evaluations)
  rng = np.random.default_rng(seed)
  problem.evaluate(np.stack([problem.project(start) for start in starts]))
  partition_ops(problem, budget, seed, groups=True)
  config = AnnealingConfig()
  supernodes, hot = Supernodes(problem), config.start_temperature
  while not problem.search_log.exhausted(budget):
    anneal_supernodes(
        problem, supernodes, problem.search_log.best_placement,
        problem.search_log.best_objective_us, budget, rng,
        temperatures=(hot, config.end_temperature))
    hot = min(HOTTEST, config.reheat * hot)


def table(rows: pd.DataFrame) -> str:
  """Returns a Markdown table: per graph the best known in ms, and each grouping's excess over it.

  Values are means over seeds. The last line has geometric means over the graphs with all groupings
  but `none`; that one is left out for graphs with too many ops for these budgets.
  """
  compared = [grouping for grouping in FLAGS.groupings if grouping != "none"]
  # [graphs, groupings] means over seeds.
  times_us = rows.pivot_table("step_time_us", "graph", "grouping").reindex(FLAGS.graphs)
  times_us = times_us.dropna(subset=[*compared, BEST])
  groups = rows.pivot_table("groups", "graph", "grouping")
  best_us = rows.groupby("graph")["step_time_us"].min()[times_us.index]
  above = times_us.div(best_us, axis=0) - 1
  shown = pd.DataFrame({"best known": (best_us / 1e3).map("{:.1f} ms".format)})
  for name in FLAGS.groupings:
    shown[name] = above[name].map("{:+.1%}".format) + groups[name].map(" ({:,.0f})".format)
    shown.loc[above[name].isna(), name] = ""
  means = np.exp(np.log1p(above[compared]).mean()) - 1
  shown.loc["geometric mean"] = means.map("{:+.1%}".format)
  return markdown(shown.fillna("").rename_axis("graph").reset_index())


def _placement_path(key: tuple) -> str:
  return os.path.join(FLAGS.out, "-".join(key).replace(":", "-") + ".npy")


def main() -> None:
  """Runs the missing rows in --out and prints the table."""
  os.makedirs(FLAGS.out, exist_ok=True)
  path = os.path.join(FLAGS.out, "results.csv")
  rows: List[Row] = []
  if os.path.exists(path):
    rows = pd.read_csv(path, dtype={"seed": str}, keep_default_na=False).to_dict("records")
  done = {(row["graph"], row["grouping"], row["seed"]): row for row in rows}

  def results(key: tuple, problem: Any) -> None:
    rows.append(dict(zip(FIELDS, (
        *key, problem.num_groups, problem.search_log.best_objective_us,
        problem.search_log.best_fits, problem.search_log.evaluations,
        round(problem.search_log.seconds, 1)))))
    pd.DataFrame(rows).to_csv(path, index=False)
    print(", ".join(f"{field} {rows[-1][field]}" for field in FIELDS), file=sys.stderr, flush=True)

  for name in FLAGS.graphs:
    measure(name, done, results)
  print(table(pd.DataFrame(rows)))


if __name__ == "__main__":
  entry_point.run_program(main)
