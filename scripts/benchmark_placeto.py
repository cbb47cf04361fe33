"""What trained Placeto policies place, beside draws and placers that do not learn.

  scripts/with_env python scripts/benchmark_placeto.py --graphs='family:ptb[24:32]' \
      --weights=runs/tied_ptb_s0,runs/tied_ptb_s1,runs/tied_ptb_s2 --budgets=100,1000 --out=ptb.json

Prints step times over the best of one device, expert and METIS: geometric means over the graphs,
mean and deviation over the weights, each of which is put to work with its own seed.

  single, expert, metis   what they place
  greedy (random start)   the last placement of one episode of likeliest devices, from a random
                          placement; its evaluations are those of the row
  greedy (known start)    the same from the best of single, expert and METIS
  uniform placements      the best of as many uniformly random placements as the greedy episode
                          from a random start evaluates
  zero-shot, untrained,   the best met in so many evaluations by episodes from the best placement so
  uniform moves           far: of the trained policy, of its network as it began, of uniform devices
"""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any, Dict, List, Sequence, Tuple

import numpy as np
from absl import flags

from placeto_tf.programs import entry_point, shared_flags

FLAGS = flags.FLAGS

flags.DEFINE_list("graphs", None, "Graphs, comma separated.", required=True)
flags.DEFINE_string("cluster", "k80:4", "Their cluster.")
flags.DEFINE_list("weights", None, "Directories that scripts/train.py --policy=placeto wrote: one "
                  "for each seed.", required=True)
flags.DEFINE_list("budgets", ["100", "1000"], "Evaluations of zero-shot, untrained and uniform.")
flags.DEFINE_string("out", None, "A JSON file for every figure.")

SEARCHES = {"zero-shot": ("placeto", True), "untrained": ("placeto", False),
            "uniform moves": ("random", False)}


def figures(
    problem_of: Any, weights: Sequence[Any], budgets: Sequence[int]
) -> Dict[str, List[Tuple[float, float]]]:
  """Row -> for each of the weights (step time over the best known placer's, evaluations).

  Args:
    problem_of: called without arguments, a new `PlacementProblem` of one graph.
    weights: `PlacetoWeights` of training runs that differ in their seeds.
    budgets: of the searches.
  """
  from placeto_tf.methods.placeto.improve import improve
  from placeto_tf.training.placeto_training import given_start

  problem = problem_of()
  known = given_start(problem, "best_known")
  best_us = float(problem.evaluate(known[None]).objective_us[0])
  found: Dict[str, List[Tuple[float, float]]] = {}

  def enter(row: str, objective_us: float, evaluations: int) -> None:
    found.setdefault(row, []).append((objective_us / best_us, evaluations))

  for name in ("single", "expert", "metis"):
    placement = given_start(problem, name)
    for _ in weights:
      enter(name, float(problem.evaluate(placement[None]).objective_us[0]), 1)
  for seed, each in enumerate(weights):
    config = dataclasses.replace(each.config, learn=False)
    rng = np.random.default_rng(seed)
    scattered = _random(problem, rng, 1)[0]
    for row, start in (("greedy (random start)", scattered), ("greedy (known start)", known)):
      last_us, evaluations = greedy_episode(problem_of(), start, config, each.arrays, seed)
      enter(row, last_us, evaluations)
      if start is scattered:
        drawn = problem.evaluate(_random(problem, rng, max(1, evaluations))).objective_us
        enter("uniform placements", float(drawn.min()), evaluations)
    rules = dataclasses.replace(config.environment, start="best", num_episodes=1)
    for budget in budgets:
      for row, (policy, trained) in SEARCHES.items():
        from placeto_tf.problem.budget import Budget

        result = improve(
            problem_of(), known, Budget(budget), seed, policy=policy,
            config=dataclasses.replace(config, environment=rules),
            weights=each.arrays if trained else None)
        enter(f"{row}, {budget}", result.objective_us, result.evaluations)
  return found


def greedy_episode(problem, start: np.ndarray, config, arrays, seed: int) -> Tuple[float, int]:
  """The last objective of an episode of likeliest devices, and what it evaluated."""
  from placeto_tf.encoding.grouped_graph import GroupedGraph
  from placeto_tf.environments.cost import SimulatedCost
  from placeto_tf.environments.placement_environment import PlacementEnvironment
  from placeto_tf.training.placeto_learner import PlacetoLearner

  grouped = GroupedGraph.build(
      problem.graph, problem.costs, problem.cluster, problem.grouping, problem.allowed)
  rules = dataclasses.replace(config.environment, start="given", num_episodes=1)
  environment = PlacementEnvironment(
      problem.allowed, SimulatedCost(problem, grouped), start, order=grouped.order, config=rules,
      seed=seed)
  learner = PlacetoLearner(
      environment, [grouped], dataclasses.replace(config, environment=rules), seed, weights=arrays)
  time_step = environment.reset()
  while not time_step.is_last().all():
    logits = learner.logits(time_step.observation)
    time_step = environment.step(logits.argmax(-1).astype(np.int32))
  return float(environment.objective_us[0]), problem.evaluations


def table(by_graph: Sequence[Dict[str, List[Tuple[float, float]]]]) -> List[str]:
  """A line for each row: geometric mean over graphs, mean and deviation over weights."""
  lines = []
  for row in by_graph[0]:
    ratios = np.log([[ratio for ratio, _ in of_graph[row]] for of_graph in by_graph])
    means = np.exp(ratios.mean(axis=0))  # one for each of the weights
    evaluations = np.mean([[count for _, count in of_graph[row]] for of_graph in by_graph])
    deviation = means.std(ddof=1) if len(means) > 1 else 0.0
    lines.append(f"{row:24s} {means.mean():.3f} +- {deviation:.3f}  {evaluations:8.0f} evaluations")
  return lines


def _random(problem, rng: np.random.Generator, count: int) -> np.ndarray:
  """[count, G] uniformly random allowed devices."""
  draws = np.where(problem.allowed, rng.random((count,) + problem.allowed.shape), -1.0)
  return draws.argmax(axis=2).astype(np.int32)


def main() -> None:
  """Prints the table."""
  entry_point.import_tensorflow_quietly()
  from placeto_tf.clusters import Cluster
  from placeto_tf.graphs import load_graph
  from placeto_tf.training.placeto_weights import PlacetoWeights
  from placeto_tf.training.pointer_problems import make_problem

  weights = [PlacetoWeights.load(directory) for directory in FLAGS.weights]
  cluster, found = Cluster.parse(FLAGS.cluster), {}
  for spec in shared_flags.expand_globs(FLAGS.graphs):
    graph = load_graph(spec)

    def problem_of(graph=graph):
      return make_problem(graph, cluster, max_groups=weights[0].max_groups, num_threads=1)

    found[spec] = figures(problem_of, weights, shared_flags.whole_numbers("budgets"))
    print(f"{spec} is done", file=sys.stderr, flush=True)
  print("\n".join(table(list(found.values()))))
  if FLAGS.out:
    with open(FLAGS.out, "w", encoding="utf-8") as file:
      json.dump(found, file, indent=1)


def run() -> None:
  """Entry point."""
  entry_point.run_program(main)


if __name__ == "__main__":
  run()
