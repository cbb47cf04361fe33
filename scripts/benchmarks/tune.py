"""Tunes methods: searches without learning, with equally many settings each, and one-shot policies.

  scripts/with_env python scripts/benchmarks/tune.py --out=runs/tuning
  scripts/with_env python scripts/benchmarks/tune.py --methods=hierarchical,gdp --seeds=0,1,2 \\
      --budgets=3200 \\
      --graphs='family:ptb[0],family:nmt[0],family:cifar10[0],zoo:resnet50' --out=runs/tuning

Fields are tried one after the other, each value with the best values of the earlier fields. A
setting is run on every graph with every seed, once for each number of evaluations in --budgets.
Runs start from the best of one device, expert and METIS. The score is the geometric mean of the
final step time divided by the start's (lower is better). Prints a table per method and the chosen
settings. After an interruption the same command continues where it stopped.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from typing import Any, Callable, Dict, Iterator, List, Tuple

import numpy as np
import pandas as pd
from absl import flags

from placeto_tf.programs import entry_point, shared_flags

FLAGS = flags.FLAGS

flags.DEFINE_list("methods", ["annealing", "local_search", "uniform"],
                  "Methods to tune.")
flags.DEFINE_list("graphs", ["family:ptb[20:24]", "family:nmt[20:24]", "family:cifar10[20:24]"],
                  "Validation graphs.")
flags.DEFINE_string("cluster", "k80:4", "Cluster of the validation graphs.")
flags.DEFINE_list("seeds", ["0", "1"], "Seeds of the searches.")
flags.DEFINE_list("budgets", ["100", "1000"], "Evaluations of a run.")
flags.DEFINE_string("out", None, "Directory of results.csv.", required=True)

FIELDS = ["method", "setting", "graph", "seed", "budget", "over_start"]
STARTS = ("single", "expert", "metis")


def _shares(factors: Tuple[float, ...], shares: Tuple[float, ...] = ()) -> Tuple:
  """Levels of annealing: factors with their shares, or equal ones."""
  return tuple(zip(factors, shares or (1 / len(factors),) * len(factors)))


FACTORS = (0.0625, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
DENSE = (0.0625, 0.09, 0.125, 0.18, 0.25, 0.35, 0.5, 0.7, 1.0, 2.0, 4.0, 8.0)
SHARES = (0.05, 0.1, 0.15, 0.2, 0.2, 0.1, 0.1, 0.1)


def _moves(uniform: float, neighbour: float, swap: float, sizes: Tuple[int, int] = (2, 8)) -> Any:
  from placeto_tf.search.moves import MoveConfig

  return MoveConfig(uniform, neighbour, swap, sizes)


def coordinates() -> Dict[str, Tuple[Any, List[Tuple[str, Tuple]]]]:
  """method -> (the setting to begin with, (field, values to try) in order).

  Fields that lost when the searches were tuned (docs/results/rivals_tuned.md) are gone.
  """
  from placeto_tf.environments.schedule import Schedule
  from placeto_tf.search.annealing import AnnealingConfig
  from placeto_tf.search.local_search import LocalSearchConfig

  best_first: List[Tuple[str, Tuple]] = [
      ("rounds", ((), (20, 40), (20, 40, 80, 160), (20, 40, 80, 160, 320, 640), (60, 240))),
      ("levels", (FACTORS[:-1], FACTORS[1:-2], DENSE[2:-1])),
      ("long_share", (0.3, 0.7, 1.0)),
      ("temperature", (0.0, 0.02, 0.1, 0.3)),
      ("forget", (0.0, 0.03, 0.3)),
      ("vary", (0.0, 0.5))]
  first = _moves(0.3, 0.4, 0.1)
  sizes = tuple(_moves(0.3, 0.4, 0.1, each) for each in ((2, 4), (2, 16), (4, 16)))
  return {
      "annealing": (AnnealingConfig(
          levels=_shares(FACTORS, SHARES), start_temperature=1e-3, end_temperature=1e-5,
          evaluations_a_supernode=0.0, reheat=4.0, moves=first), [
              ("levels", (
                  _shares((1.0, 4.0, 16.0), (0.4, 0.35, 0.25)),
                  _shares((0.03125, *FACTORS), (0.05, *SHARES)),
                  _shares(FACTORS[1:], SHARES[1:]), _shares(FACTORS[2:], SHARES[2:]),
                  _shares(FACTORS), _shares(FACTORS[:-1], SHARES[:-1]),
                  _shares((*FACTORS, 16.0), (*SHARES, 0.1)),
                  _shares(FACTORS, (0.1, 0.2, 0.2, 0.2, 0.1, 0.1, 0.05, 0.05)),
                  _shares(FACTORS, (0.03, 0.05, 0.1, 0.15, 0.2, 0.2, 0.15, 0.12)))),
              ("start_temperature", (1e-4, 3e-4, 2e-3, 4e-3)),
              ("end_temperature", (1e-6, 1e-4, 3e-4)),
              ("evaluations_a_supernode", (0.08,)),
              ("moves", (_moves(0.1, 0.6, 0.1), _moves(0.5, 0.3, 0.1), _moves(0.2, 0.5, 0.0),
                         _moves(0.3, 0.2, 0.1), _moves(0.1, 0.3, 0.1), *sizes))]),
      "local_search": (LocalSearchConfig(
          coarse_levels=(), passes=1, kick_moves=6, moves=first), [
              ("coarse_levels", (
                  (0.25, 0.5), (0.125, 0.25, 0.5), FACTORS[:4], (0.03125, *FACTORS[:4]), (0.125,),
                  (0.0625, 0.25), (0.125, 0.5), (0.125, 0.18, 0.25, 0.35, 0.5, 0.7))),
              ("passes", (2,)),
              ("kick_moves", (2, 3, 12, 24)),
              ("moves", (_moves(0.0, 0.0, 0.0), _moves(1.0, 0.0, 0.0), _moves(0.1, 0.6, 0.1),
                         _moves(0.1, 0.3, 0.1), sizes[0]))]),
      "uniform": (Schedule(), best_first),
      "placeto": (Schedule(), best_first),
  }


def placer(method: str, config: Any) -> Callable:
  """(problem, budget, seed) -> placement, from the problem's best placement."""
  from placeto_tf.policies.placeto.placers import indifferent, search
  from placeto_tf.policies.placeto.scorer import pretrained
  from placeto_tf.search.annealing import anneal
  from placeto_tf.search.local_search import search_locally

  searches: Dict[str, Callable[..., Any]] = {
      "annealing": anneal, "local_search": search_locally}
  if method in searches:
    return functools.partial(searches[method], config=config)
  weights = pretrained() if method == "placeto" else indifferent()
  return lambda problem, budget, seed: search(
      problem, problem.search_log.best_placement, weights, budget, seed, schedule=config)


class Bench:
  """The validation problems, loaded when first asked for, and the results so far."""

  def __init__(self, path: str):
    self.graphs = shared_flags.expand_globs(FLAGS.graphs)
    self.seeds = shared_flags.whole_numbers("seeds")
    self.budgets = shared_flags.whole_numbers("budgets")
    self._problems: Dict[str, Tuple[Callable, np.ndarray, float]] = {}
    self._path, self._results = path, {}
    if os.path.exists(path):
      rows = pd.read_csv(path, dtype=dict.fromkeys(FIELDS[:-1], str))
      self._results = rows.set_index(FIELDS[:-1])[FIELDS[-1]].to_dict()

  def measure(self, method: str, config: Any) -> Dict[int, float]:
    """Returns budget -> geometric mean of step times divided by the start's, over all runs."""
    logs: Dict[int, List[float]] = {budget: [] for budget in self.budgets}
    for graph in self.graphs:
      for seed in self.seeds:
        for budget in self.budgets:
          logs[budget].append(np.log(self._one(method, config, graph, seed, budget)))
    return {budget: float(np.exp(np.mean(each))) for budget, each in logs.items()}

  def _one(self, method: str, config: Any, graph: str, seed: int, evaluations: int) -> float:
    from placeto_tf.problem.budget import Budget

    key = (method, repr(config), graph, str(seed), str(evaluations))
    if key not in self._results:
      if graph not in self._problems:
        self._problems[graph] = _load(graph)
      make, start, start_us = self._problems[graph]
      problem = make()
      problem.evaluate_ops(start)
      placer(method, config)(problem, Budget(max_evaluations=evaluations), seed)
      self._results[key] = problem.search_log.best_objective_us / start_us
      pd.Series(self._results, name=FIELDS[-1]).rename_axis(FIELDS[:-1]).to_csv(self._path)
    return self._results[key]


def _load(graph: str) -> Tuple[Callable, np.ndarray, float]:
  """(a maker of fresh problems that share a simulator, [N] their start, its objective)."""
  from placeto_tf.clusters import Cluster
  from placeto_tf.environments.problems import make_problem
  from placeto_tf.graphs import load_graph
  from placeto_tf.problem.placement_problem import PlacementProblem
  from placeto_tf.search import PLACERS

  problem = make_problem(load_graph(graph), Cluster.parse(FLAGS.cluster), num_threads=1)

  def fresh():
    return PlacementProblem(
        problem.graph, problem.costs, problem.cluster, problem.grouping,
        allowed_ops=problem.allowed_ops, simulator=problem.simulator)

  first = fresh()
  for name in STARTS:
    PLACERS[name](first)
  return fresh, first.search_log.best_placement, first.search_log.best_objective_us


def tune(bench: Bench, method: str) -> Iterator[Tuple[str, str, Dict[int, float], bool]]:
  """Yields (field, value, result of `measure`, whether it is the best so far) for each setting."""

  def score(found):
    return float(np.mean(np.log(list(found.values()))))

  best, fields = coordinates()[method]
  found = bench.measure(method, best)
  least = score(found)
  yield "(first)", "", found, True
  for field, values in fields:
    base = best
    for value in values:
      config = dataclasses.replace(base, **{field: value})
      found = bench.measure(method, config)
      better = score(found) < least
      if better:
        best, least = config, score(found)
      yield field, str(value), found, better
  print(f"\n{method}: {best}\n", flush=True)


def main() -> None:
  """Prints a table per method."""
  os.makedirs(FLAGS.out, exist_ok=True)
  bench = Bench(os.path.join(FLAGS.out, "results.csv"))
  for method in FLAGS.methods:
    print(f"| {method} | value | {' | '.join(f'{each:,}' for each in bench.budgets)} | |\n"
          f"|---|---|{'---:|' * len(bench.budgets)}---|", flush=True)
    for field, value, found, better in tune(bench, method):
      cells = " | ".join(f"{each:.4f}" for each in found.values())
      print(f"| {field} | {value} | {cells} | {'best so far' if better else ''} |", flush=True)


if __name__ == "__main__":
  entry_point.run_program(main)
