"""Measures what islands on threads gain over one search on one core; prints a table.

  scripts/with_env python scripts/benchmarks/benchmark_islands.py --out=runs/islands
  scripts/with_env python scripts/benchmarks/benchmark_islands.py --methods=auto \\
      --islands=1,2,4,8 --seconds=30

Runs of one graph and method take turns, so that what else runs on the machine falls on all numbers
of islands alike. Each is a line of OUT/runs.csv, with the load of the machine; a rerun skips those
that are there. No more islands run than there are cores. A row of the table is one method on one
graph with one number of islands:

- evaluations a second, and over those of the first number of islands; the same for a CPU second,
  which other programs disturb less.
- "locked": the share of CPU time outside of compiled loops, in which an island needs the
  interpreter's lock. From it follows, by mean-value analysis of a closed queue (Reiser and
  Lavenberg 1980) in which the lock serves one island at a time, how many islands' worth of work
  64 cores do.
- the best objective at equal wall clock, and how much lower it is than with the first number.
"""

from __future__ import annotations

import collections
import contextlib
import csv
import math
import os
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, Tuple
from unittest import mock

from absl import flags

from placeto_tf.programs import entry_point

FLAGS = flags.FLAGS

flags.DEFINE_list("graphs", ["zoo:inception_v3", "zoo:nasnet_mobile"], "Graphs.")
flags.DEFINE_list("more_graphs", ["zoo:rnnlm", "zoo:gnmt"], "Graphs for auto only.")
flags.DEFINE_string("cluster", "k80:4", "Cluster.")
flags.DEFINE_list("methods", ["annealing", "device_pointer", "auto"], "Methods.")
flags.DEFINE_list("islands", ["1", "2"], "Numbers of islands, the first to compare with.")
flags.DEFINE_list("seeds", ["0"], "Seeds.")
flags.DEFINE_float("seconds", 12, "Time of each run.")
flags.DEFINE_string("out", "runs/islands", "Directory for runs.csv.")

KEY = ("graph", "method", "islands", "seed", "seconds")
FIELDS = KEY + ("evaluations", "took_s", "cpu_s", "compiled_s", "objective_us", "load")


class CpuTime:
  """CPU seconds of this process's threads in compiled loops."""

  def __init__(self) -> None:
    self._of_thread: Dict[int, float] = collections.defaultdict(float)

  @property
  def seconds(self) -> float:
    """Of all threads."""
    return sum(self._of_thread.values())

  def inside(self, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, whose CPU time counts as compiled."""

    def timed(*args: Any) -> Any:
      began = time.thread_time()
      found = function(*args)
      self._of_thread[threading.get_ident()] += time.thread_time() - began
      return found

    return timed


@contextlib.contextmanager
def compiled_loops_watched() -> Iterator[CpuTime]:
  """Has the calls of the searches' compiled loops timed."""
  from placeto_tf.encoding import pair_features
  from placeto_tf.grouping import contraction, merging, node_sets
  from placeto_tf.policies.device_pointer import best_first
  from placeto_tf.problem import units
  from placeto_tf.search import annealing, local_search
  from placeto_tf.simulation import engines

  cpu = CpuTime()
  with contextlib.ExitStack() as stack:
    for owner, name in (
        (annealing, "_anneal"), (local_search, "_descend"),
        (best_first, "score"), (best_first, "_try_moves"),
        (pair_features, "features_of"), (pair_features, "observe"),
        (contraction, "_add_up"), (contraction, "_patterns"), (contraction, "_traffic"),
        (merging, "_join"), (merging, "_join_cheap"), (merging, "_merge_heaviest_edges"),
        (merging, "_merge_isolated"), (merging, "_merge_single_device"), (merging, "labels"),
        (node_sets, "_add_edges"), (units, "_ops_by_unit"), (units, "_neighbours"),
        (engines.ReferenceEngine, "run"), (engines.ExtendedEngine, "run")):
      stack.enter_context(mock.patch.object(owner, name, cpu.inside(getattr(owner, name))))
    yield cpu


def useful_cores(locked: float, cores: int) -> float:
  """How many times as much as one island `cores` islands do, on as many cores.

  Args:
    locked: share of the time in which an island holds the lock.
    cores: how many.
  """
  waiting, rate = 0.0, 1.0
  for n in range(1, cores + 1):
    in_lock = locked * (1 + waiting)
    rate = n / (1 - locked + in_lock)
    waiting = rate * in_lock
  return rate


def measure(problem: Any, method: str, islands: int, seed: int, cpu: CpuTime) -> Dict[str, Any]:
  """The fields of one run besides its key; it begins after the references, on that many cores."""
  from placeto_tf.placing import registry, running
  from placeto_tf.problem.budget import Budget
  from placeto_tf.search.islands import Islands

  problem = problem.renewed()
  problem.simulator.num_threads = islands
  for reference in registry.references():
    reference.load()(problem, Budget(), 0)
  evaluations, seconds = problem.account.evaluations, problem.account.seconds
  used, compiled_s = time.process_time(), cpu.seconds
  running.run(problem, registry.find(method), Budget(max_seconds=seconds + FLAGS.seconds), seed,
              islands=Islands(islands))
  return {
      "evaluations": problem.account.evaluations - evaluations,
      "took_s": problem.account.seconds - seconds,
      "cpu_s": time.process_time() - used, "compiled_s": cpu.seconds - compiled_s,
      "objective_us": problem.account.best_objective_us, "load": os.getloadavg()[0]}


def read_runs(path: str) -> List[Dict[str, str]]:
  """The lines of runs.csv; none where it is not there."""
  if not os.path.exists(path):
    return []
  with open(path, newline="", encoding="utf-8") as file:
    return list(csv.DictReader(file))


def write_run(path: str, run: Dict[str, Any]) -> None:
  """Adds a line to runs.csv."""
  new = not os.path.exists(path)
  with open(path, "a", newline="", encoding="utf-8") as file:
    writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
    if new:
      writer.writeheader()
    writer.writerow(run)


def run_all(path: str, rows: List[Tuple[str, str]], cpu: CpuTime) -> None:
  """Makes the runs that are missing of (graph, method) rows."""
  from placeto_tf.clusters import Cluster
  from placeto_tf.graphs import load_graph
  from placeto_tf.placing import registry, running
  from placeto_tf.problem.budget import Budget
  from placeto_tf.problem.placement_problem import PlacementProblem

  problems: Dict[str, PlacementProblem] = {}
  done = {tuple(run[field] for field in KEY) for run in read_runs(path)}
  for graph, method in rows:
    keys = [(graph, method, islands, seed, str(FLAGS.seconds))
            for seed in FLAGS.seeds for islands in FLAGS.islands]
    keys = [key for key in keys if key not in done]
    if not keys:
      continue
    if graph not in problems:
      problems[graph] = PlacementProblem.build(load_graph(graph), Cluster.parse(FLAGS.cluster))
    warm = problems[graph].renewed()  # compiles
    running.run(warm, registry.find(method), Budget(max_evaluations=300), 0)
    for key in keys:
      found = measure(problems[graph], method, int(key[2]), int(key[3]), cpu)
      write_run(path, {**dict(zip(KEY, key)), **found})


def print_table(path: str, rows: List[Tuple[str, str]]) -> None:
  """The table of the rows, and what islands gain in the mean over the graphs of each method."""
  totals: Dict[Tuple[str, str, str], Dict[str, float]] = {}
  for run in read_runs(path):
    if run["seconds"] != str(FLAGS.seconds) or run["seed"] not in FLAGS.seeds:
      continue
    total = totals.setdefault(
        (run["graph"], run["method"], run["islands"]), collections.defaultdict(float))
    for field in FIELDS[len(KEY):]:
      total[field] += float(run[field])
    total["log_us"] += math.log(float(run["objective_us"])) / len(FLAGS.seeds)
  print("| graph | method | islands | evaluations/s | ratio | evaluations/CPU s | ratio | locked "
        "| on 64 cores | step ms | lower by | load |\n|---|---|" + "---:|" * 10)
  lower: Dict[Tuple[str, str], List[float]] = collections.defaultdict(list)
  for graph, method in rows:
    first = totals[graph, method, FLAGS.islands[0]]
    for islands in FLAGS.islands:
      total = totals[graph, method, islands]
      rate, first_rate = (each["evaluations"] / each["took_s"] for each in (total, first))
      cpu_rate, first_cpu = (each["evaluations"] / each["cpu_s"] for each in (total, first))
      locked = 1 - total["compiled_s"] / total["cpu_s"]
      gain = first["log_us"] - total["log_us"]
      lower[method, islands].append(gain)
      print(f"| {graph} | {method} | {islands} | {rate:,.0f} | {_ratio(rate, first_rate)} "
            f"| {cpu_rate:,.0f} | {_ratio(cpu_rate, first_cpu)} | {locked:.3f} "
            f"| {useful_cores(locked, 64):.0f} | {math.exp(total['log_us']) / 1e3:.2f} "
            f"| {_percent(gain)} | {total['load'] / len(FLAGS.seeds):.1f} |")
  for (method, islands), gains in lower.items():
    if islands != FLAGS.islands[0]:
      print(f"\n{method}, {islands} islands: {_percent(sum(gains) / len(gains))} lower in the "
            f"geometric mean, {_percent(min(gains))} at worst", end="")
  print()


def _ratio(one: float, other: float) -> str:
  """One over the other, where runs were long enough to evaluate anything."""
  return f"{one / other:.2f}" if other > 0 else "-"


def _percent(gain: float) -> str:
  """How much lower, from the logarithm of a ratio."""
  return f"{100 * (1 - math.exp(-gain)):.2f} %"


def main() -> None:
  """Makes the runs and prints the table."""
  os.makedirs(FLAGS.out, exist_ok=True)
  path = os.path.join(FLAGS.out, "runs.csv")
  rows = [(graph, method) for graph in FLAGS.graphs for method in FLAGS.methods]
  if "auto" in FLAGS.methods:
    rows += [(graph, "auto") for graph in FLAGS.more_graphs]
  with compiled_loops_watched() as cpu:
    run_all(path, rows, cpu)
  print_table(path, rows)


if __name__ == "__main__":
  entry_point.run_program(main)
