"""Measures how much more islands on threads evaluate than one search; prints a table.

  scripts/with_env python scripts/benchmark_islands.py
  scripts/with_env python scripts/benchmark_islands.py --methods=annealing --islands=1,2,4

A row is one method on one graph: evaluations a second by number of islands, and over those of the
first number; evaluations a CPU second likewise, which other programs on the machine disturb less.
"locked" is the share of an island's CPU time in which it needs the interpreter's lock: the CPU time
outside of compiled loops. From it follows, by mean-value analysis of a closed queue (Reiser and
Lavenberg 1980) in which the lock serves one island at a time, how many islands' worth of work 64
cores do, and at most any number of cores.
"""

from __future__ import annotations

import collections
import os
import threading
import time
from typing import Any, Callable, Dict

import numpy as np
from absl import app, flags

FLAGS = flags.FLAGS

flags.DEFINE_list("graphs", ["zoo:inception_v3", "zoo:nasnet_mobile"], "Graphs.")
flags.DEFINE_string("cluster", "k80:4", "Cluster.")
flags.DEFINE_list("methods", ["annealing", "local_search", "genetic", "device_pointer", "auto"],
                  "Methods.")
flags.DEFINE_list("islands", ["1", "2"], "Numbers of islands, the first to compare with.")
flags.DEFINE_float("seconds", 20, "Time of each run.")
flags.DEFINE_integer("rounds", 1, "Runs of each; those of one row take turns.", lower_bound=1)


class CpuTime:
  """CPU seconds of this process's threads in compiled loops."""

  def __init__(self) -> None:
    self.compiled_s: Dict[int, float] = collections.defaultdict(float)

  def inside(self, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, whose CPU time counts as compiled."""

    def timed(*args: Any) -> Any:
      began = time.thread_time()
      found = function(*args)
      self.compiled_s[threading.get_ident()] += time.thread_time() - began
      return found

    return timed


def watch_compiled_loops() -> CpuTime:
  """Has the calls of the searches' compiled loops timed from now on."""
  from placeto_tf.policies.device_pointer import sweeps
  from placeto_tf.search import annealing, genetic, local_search
  from placeto_tf.simulation import engines

  cpu = CpuTime()
  for owner, name in (
      (annealing, "_anneal"), (local_search, "_descend"), (genetic, "_breed"),
      (genetic, "_scatter"), (sweeps, "_sweep"), (engines.ReferenceEngine, "run"),
      (engines.ExtendedEngine, "run")):
    setattr(owner, name, cpu.inside(getattr(owner, name)))
  return cpu


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


def measure(problem: Any, method: str, islands: int, cpu: CpuTime) -> np.ndarray:
  """[4]: evaluations, seconds, CPU seconds, CPU seconds in compiled loops of one run."""
  from placeto_tf.methods import registry, running
  from placeto_tf.problem.budget import Budget

  problem = problem.renewed()
  problem.islands = islands
  for reference in registry.references():
    reference.load()(problem, Budget(), 0)
  evaluations, seconds = problem.evaluations, problem.seconds
  used, compiled_s = time.process_time(), sum(cpu.compiled_s.values())
  running.run(problem, registry.find(method), Budget(max_seconds=seconds + FLAGS.seconds), 0)
  return np.array([
      problem.evaluations - evaluations, problem.seconds - seconds, time.process_time() - used,
      sum(cpu.compiled_s.values()) - compiled_s])


def main(_: Any) -> None:
  """Prints the table, a row as soon as it is there."""
  from placeto_tf.clusters import Cluster
  from placeto_tf.graphs import load_graph
  from placeto_tf.methods import registry, running
  from placeto_tf.problem.budget import Budget
  from placeto_tf.problem.placement_problem import PlacementProblem

  cpu, counts = watch_compiled_loops(), [int(text) for text in FLAGS.islands]
  print("| graph | method | islands | evaluations/s | ratio | evaluations/CPU s | ratio "
        "| locked | on 64 cores | at most |\n|---|---|" + "---:|" * 8)
  for graph in FLAGS.graphs:
    problem = PlacementProblem.build(load_graph(graph), Cluster.parse(FLAGS.cluster))
    for method in FLAGS.methods:
      warm = problem.renewed()  # compiles
      warm.evaluate_ops(registry.find("single").load()(problem.renewed()))
      running.run(warm, registry.find(method), Budget(max_evaluations=300), 0)
      totals = {count: np.zeros(4) for count in counts}
      for _ in range(FLAGS.rounds):
        for count in counts:
          totals[count] += measure(problem, method, count, cpu)
      first = totals[counts[0]]
      for count, total in totals.items():
        evaluations, seconds, cpu_s, compiled_s = total
        locked = 1 - compiled_s / cpu_s
        print(f"| {graph} | {method} | {count} | {evaluations / seconds:,.0f} "
              f"| {evaluations / seconds / (first[0] / first[1]):.2f} "
              f"| {evaluations / cpu_s:,.0f} | {evaluations / cpu_s / (first[0] / first[2]):.2f} "
              f"| {locked:.3f} | {useful_cores(locked, 64):.0f} | {1 / locked:.0f} |", flush=True)


if __name__ == "__main__":
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
  os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
  app.run(main)
