"""Repeats the figures of Placeto's paper: trains the policies, draws figures, prints their tables.

  scripts/with_env python scripts/benchmarks/placeto_figures.py --out=runs/placeto

Training uses `--preset=paper` where nothing else is stated. After an interruption the same
command continues where it stopped. The parts:

  curves    one graph: sampled episodes during training, as published, with the reward at the end,
            in random order, with the paper's simpler embeddings, and with settings of the paper
            that the preset changes; for comparison the best of searches with --simulations
  families  policies trained on members 0 to 7 and applied to members 24 to 31: the distribution
            over graphs of zero-shot, of a policy that was trained on these graphs (optimized), of a
            policy that was trained on members 0 to 7 of all families (mixed), of uniform
            placements, and of searches with --simulations, including the shipped Placeto

Step times are divided by the best of one device, the expert and METIS.
"""

from __future__ import annotations

import collections
import functools
import glob
import json
import os
import sys
from typing import Any, Dict, List, Sequence, Tuple

import numpy as np
from absl import flags

from placeto_tf.programs import entry_point, shared_flags

FLAGS = flags.FLAGS

flags.DEFINE_string("out", None, "Directory of runs, tables and plots.", required=True)
flags.DEFINE_list("parts", ["curves", "families"], "Parts to run.")
flags.DEFINE_string("graph", "family:nmt[40:41]", "The graph of the curves.")
flags.DEFINE_string("cluster", "k80:2+p100:2", "Cluster of all graphs.")
flags.DEFINE_list("families", ["cifar10", "nmt", "ptb"], "Families.")
flags.DEFINE_list("policies", ["zero-shot", "optimized", "mixed"], "Policies of the part "
                  "`families`.")
flags.DEFINE_list("variants", None, "Curves of the part `curves`; default: all.")
flags.DEFINE_integer("iterations", 240, "Updates of a run, from 8 episodes each.", lower_bound=1)
flags.DEFINE_integer("max_groups", 24, "Groups of a graph.", lower_bound=1)
flags.DEFINE_list("simulations", ["1000"], "Simulations of the searches; the part `families` uses "
                  "the first number.")
flags.DEFINE_list("seeds", ["0", "1", "2"], "Seeds of training, one run each.")

VARIANTS = {
    "as published": (), "reward at the end": ("reward=final",), "random order": ("order=random",),
    "poolings, no messages": ("embedding=simple_partitioner",),
    "one sum over groups": ("embedding=simple_aggregator",),
    "entropy from 1.0": ("placeto.entropy=1.0",),
    "three-layer transform": ("transform_layers=3",)}
SEARCHES = ("local_search", "annealing", "placeto")
_LAST = 3  # the table has the mean over so many watches, because one watch has only 8 episodes


def train(
    graphs: Sequence[str], held_out: Sequence[str], seed: int, settings: Sequence[str], name: str
) -> str:
  """Trains to the end, unless the run is finished; returns the directory of the run."""
  from placeto_tf import policies

  policy = policies.trainable()["placeto"]().preset("paper")
  config = policy.configure(
      {"graphs": tuple(shared_flags.expand_globs(graphs)),
       "held_out": tuple(shared_flags.expand_globs(held_out)), "clusters": (FLAGS.cluster,),
       "watch_cluster": FLAGS.cluster, "iterations": FLAGS.iterations, "seed": seed,
       "watch_every": max(1, FLAGS.iterations // 12),
       "checkpoint_every": max(1, FLAGS.iterations // 4), "max_groups": FLAGS.max_groups},
      settings)
  root_dir = os.path.join(FLAGS.out, name.replace(" ", "_").replace(",", "") + f"_s{seed}")
  policy.train(config, root_dir)
  print(f"{root_dir} is trained", file=sys.stderr, flush=True)
  return root_dir


def train_on(kind: str, family: str, seed: int) -> str:
  """`train`s a policy of --policies, as the module says."""
  seen, held_out = f"family:{family}[0:8]", f"family:{family}[24:32]"
  if kind == "mixed":
    return train([f"family:{each}[0:8]" for each in FLAGS.families],
                 [f"family:{each}[24:26]" for each in FLAGS.families], seed, (), kind)
  return train([held_out if kind == "optimized" else seen], [held_out], seed, (),
               f"{family} {kind}")


def problem_makers(specs: str) -> List[Any]:
  """Returns, for each graph, a function that makes its problem."""
  from placeto_tf.clusters import Cluster
  from placeto_tf.environments.problems import make_problem
  from placeto_tf.graphs import load_graph

  return [functools.partial(
      make_problem, load_graph(spec), Cluster.parse(FLAGS.cluster), max_groups=FLAGS.max_groups,
      num_threads=1) for spec in shared_flags.expand_globs([specs])]


def best_of_search(make: Any, name: str, evaluations: int, seed: int) -> float:
  """Returns a search's best step time from the best known placement, divided by the latter's.

  "uniform moves" is Placeto's process with uniform devices.
  """
  from placeto_tf.environments.problems import with_starts
  from placeto_tf.placing import registry
  from placeto_tf.policies.placeto.published.config import PublishedConfig
  from placeto_tf.policies.placeto.published.search import improve
  from placeto_tf.problem.budget import Budget

  start = with_starts(make()).starts[0]
  problem = make()
  before_us = float(problem.evaluate(start[None]).objective_us[0])
  budget = Budget(max_evaluations=evaluations)
  if name == "uniform moves":
    improve(problem, start, budget, seed, config=PublishedConfig(), uniform=True)
  else:
    registry.find(name).load()(problem, budget, seed)
  return problem.search_log.best_objective_us / before_us


def mean_and_deviation(values: Sequence[float]) -> str:
  """Formats mean and deviation over seeds."""
  return f"{np.mean(values):.3f}" + (
      f" ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else "")


def _figures(run: str) -> Dict[str, Dict[int, float]]:
  """Returns name -> iteration -> value; for iterations that were run twice, the last value."""
  import tensorflow as tf
  from tensorboard.backend.event_processing import event_file_loader

  found: Dict[str, Dict[int, float]] = collections.defaultdict(dict)
  # The oldest file first.
  for path in sorted(glob.glob(os.path.join(run, "train", "events*")), key=os.path.getmtime):
    for event in event_file_loader.EventFileLoader(path).Load():
      for value in event.summary.value:
        if value.tag.startswith("Metrics/"):
          found[value.tag[len("Metrics/"):]][event.step] = float(tf.make_ndarray(value.tensor))
  return found


def curves(seeds: Sequence[int]) -> str:
  """Draws curves.png and returns the table."""
  found: Dict[str, List[Dict[str, List[Tuple[int, float]]]]] = {}
  for name in FLAGS.variants or VARIANTS:
    runs = [train([FLAGS.graph], [FLAGS.graph], seed, VARIANTS[name], name) for seed in seeds]
    found[name] = [
        {metric: sorted(points.items()) for metric, points in _figures(run).items()}
        for run in runs]
  make = problem_makers(FLAGS.graph)[0]
  decisions = 8 * make().num_groups
  figure, panels = _figure(1)
  lines = ["| | sampled, untrained | sampled, trained | greedy, trained | best met |",
           "|---|---:|---:|---:|---:|"]
  for name, series in found.items():
    sampled, greedy = (
        np.array([[value for _, value in run[f"held_out_{kind}"]] for run in series])
        for kind in ("last", "greedy"))
    xs = decisions * np.array([step for step, _ in series[0]["held_out_last"]])
    panels[0].plot(xs, sampled.mean(axis=0), label=name)
    panels[0].fill_between(xs, sampled.min(axis=0), sampled.max(axis=0), alpha=0.15)
    lines.append(f"| {name} | " + " | ".join(map(mean_and_deviation, (
        sampled[:, 0], sampled[:, -_LAST:].mean(axis=1), greedy[:, -_LAST:].mean(axis=1),
        [min(value for _, value in run["best"]) for run in series]))) + " |")
  for name in (*SEARCHES, "uniform moves"):
    for evaluations in shared_flags.whole_numbers("simulations"):
      best = [best_of_search(make, name, evaluations, seed) for seed in seeds]
      lines.append(
          f"| {name}, {evaluations:,} simulations | | | | {mean_and_deviation(best)} |")
  panels[0].set_yscale("log")  # the first decrease is 20 times the differences of the variants
  ticks = [tick for tick in (0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.5, 2, 3, 4)
           if panels[0].get_ylim()[0] < tick < panels[0].get_ylim()[1]]
  panels[0].set_yticks(ticks, map(str, ticks))
  panels[0].minorticks_off()
  _finish(figure, panels, "decisions", "sampled step time over the best known", "curves.png")
  return "\n".join(lines)


def families(seeds: Sequence[int]) -> str:
  """Draws families.png and returns the table."""
  import placeto_rows

  from placeto_tf.policies.placeto.published.weights import PublishedWeights

  count = shared_flags.whole_numbers("simulations")[0]
  figure, panels = _figure(len(FLAGS.families))
  lines = ["| family | | " + " | ".join(map(str, seeds)) + " | mean |",
           "|---|---|" + "---:|" * (len(seeds) + 1)]
  for panel, family in zip(panels, FLAGS.families):
    by_row: Dict[str, List[List[float]]] = {}
    for seed in seeds:
      path = os.path.join(FLAGS.out, f"{family}_s{seed}.json")
      if not os.path.exists(path):
        runs = {kind: train_on(kind, family, seed) for kind in FLAGS.policies}
        makers = problem_makers(f"family:{family}[24:32]")
        rows: Dict[str, List[Tuple[float, float]]] = {}
        for kind, run in runs.items():
          found = placeto_rows.rows(
              makers, PublishedWeights.load(run), [count], seed, rivals=not rows)
          rows[kind] = found[f"zero-shot, {count}"]
          rows[f"{kind}, greedy"] = found["greedy (known start)"]
          rows.update({name.partition(",")[0]: found[name] for name in (
              f"uniform moves, {count}", "uniform placements") if name in found})
        ratios = {row: [ratio for ratio, _ in values] for row, values in rows.items()}
        ratios.update({
            name: [best_of_search(make, name, count, seed) for make in makers]
            for name in SEARCHES})
        with open(path, "w", encoding="utf-8") as file:
          json.dump(ratios, file, indent=1)
      with open(path, encoding="utf-8") as file:
        for row, values in json.load(file).items():
          by_row.setdefault(row, []).append(values)
    for row, values in by_row.items():
      if row != "uniform placements":  # two to three times as slow as all others
        xs = np.sort(np.concatenate(values))
        panel.step(xs, np.arange(1, len(xs) + 1) / len(xs), where="post", label=row)
      means = np.exp(np.log(values).mean(axis=1))
      lines.append(f"| {family} | {row} | " + " | ".join(f"{mean:.3f}" for mean in means)
                   + f" | {mean_and_deviation(means)} |")
    panel.set_title(family, fontsize=9)
  _finish(figure, panels, "step time over the best known", "share of graphs", "families.png")
  return "\n".join(lines)


def _figure(count: int) -> Tuple[Any, Any]:
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.figure import Figure

  figure = Figure(figsize=(4.5 * count + 2, 4), dpi=110, layout="constrained")
  FigureCanvasAgg(figure)
  return figure, figure.subplots(1, count, squeeze=False)[0]


def _finish(figure: Any, panels: Any, across: str, up: str, name: str) -> None:
  for panel in panels:
    panel.set_xlabel(across)
    panel.grid(color="0.9")
  panels[0].set_ylabel(up)
  panels[-1].legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
  figure.savefig(os.path.join(FLAGS.out, name))


def main() -> None:
  """Makes the parts."""
  entry_point.import_tensorflow_quietly()
  seeds = shared_flags.whole_numbers("seeds")
  for part in FLAGS.parts:
    print({"curves": curves, "families": families}[part](seeds), flush=True)


if __name__ == "__main__":
  entry_point.run_program(main)
