"""Measures how fast placements are simulated, and prints one line per figure.

  scripts/with_env python scripts/benchmarks/benchmark_simulation.py

For every graph: one simulation on one core, the plain Python simulator of the tests and grappler's
MeasureCosts in the same run, and all cores against one; then a graph of a million ops, and the
compilation of the event loop. Times are medians over random placements of groups of ops, each the
best of its repetitions, because other work can only slow a machine down.

  scripts/with_env python scripts/benchmarks/benchmark_simulation.py \\
      --against=DIR_OF_ANOTHER_CHECKOUT

compares instead with the simulator of another checkout. Both run each placement in turns on one
core, with the reference rules and with extensions of the cluster, on a random layered graph of
--large_ops ops. It says whether all step times are equal to the bit.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, Iterator, List, Tuple

import numpy as np
from absl import app, flags

FLAGS = flags.FLAGS

flags.DEFINE_list("graphs", ["zoo:inception_v3", "zoo:nasnet_mobile"],
                  "Graphs to simulate: files or zoo:NAME.")
flags.DEFINE_string("cluster", "k80:4", "Cluster to simulate them on.")
flags.DEFINE_integer("groups", 128, "Groups that random placements keep together.", lower_bound=2)
flags.DEFINE_integer("placements", 32, "Random placements.", lower_bound=1)
flags.DEFINE_integer("repeats", 15, "Repetitions, of which the best counts.", lower_bound=1)
flags.DEFINE_integer("large_ops", 1_000_000, "Ops of the large graph; 0 leaves it out.",
                     lower_bound=0)
flags.DEFINE_bool("grappler", True, "Time MeasureCosts as well.")
flags.DEFINE_integer("seed", 0, "Seed of the placements.")
flags.DEFINE_string("against", None, "Another checkout, whose simulator to compare with.")

# Fields of the cluster, by name: each in a simulator of its own.
VARIANTS: Dict[str, Dict[str, Any]] = {
    "reference": {},
    "a transfer a pair": {"transfer_per_destination": True},
    "packing, unpacking": {
        "sender_us_per_transfer": 3.0, "receiver_us_per_transfer": 3.0},
    "TensorFlow's executor": {
        "ready_order": "executor", "sender_us_per_transfer": 3.0,
        "receiver_us_per_transfer": 3.0, "delivery_us": 10.0},
}

# One runs per checkout; it answers "variant placement" with seconds, step time and peaks.
_WORKER = """
import dataclasses, importlib.util, json, sys, time
import numpy as np
spec = importlib.util.spec_from_file_location("benchmark", sys.argv[1])
benchmark = importlib.util.module_from_spec(spec)
spec.loader.exec_module(benchmark)
from placeto_tf.simulation.simulator import Simulator
n, count, seed = (int(argument) for argument in sys.argv[2:])
graph, costs, cluster, placements = benchmark.large_case(n, count, seed)
simulators = {
    name: Simulator(graph, costs, dataclasses.replace(cluster, **fields), num_threads=1)
    for name, fields in benchmark.VARIANTS.items()}
for line in sys.stdin:
  name, k = json.loads(line)
  started = time.perf_counter()
  step_time_us, peak_bytes = simulators[name].simulate_many(placements[k:k + 1])
  seconds = time.perf_counter() - started
  print(json.dumps([seconds, step_time_us.tolist(), peak_bytes.tolist()]), flush=True)
"""

_START = """
import time; started = time.perf_counter()
import numpy as np
from placeto_tf.simulation.simulator import Simulator
from placeto_tf.clusters import Cluster, Device
from placeto_tf.costs.op_costs import OpCosts
from placeto_tf.graphs.computation_graph import ComputationGraph
graph = ComputationGraph.from_edges(["a"], ["X"], [1], [])
cluster = Cluster((Device("/GPU:0", "GPU", 1),), np.ones((1, 1)), np.zeros((1, 1)))
costs = OpCosts(np.ones((1, 1)), np.ones(1), np.zeros(1), np.zeros(1))
imported = time.perf_counter()
Simulator(graph, costs, cluster).simulate_many(np.zeros((1, 1), np.int32))
print(time.perf_counter() - imported, time.perf_counter() - started)
"""


def best_s(function, repeats: int) -> float:
  """Shortest of several runs, in seconds."""
  times = []
  for _ in range(repeats):
    started = time.perf_counter()
    function()
    times.append(time.perf_counter() - started)
  return min(times)


def load_oracle():
  """The plain Python simulator of the tests, which are no package."""
  path = pathlib.Path(__file__).resolve().parents[2] / "tests" / "simulation" / "oracle.py"
  spec = importlib.util.spec_from_file_location("oracle", path)
  assert spec is not None and spec.loader is not None  # the file exists
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module.Oracle


def benchmark_graph(name: str) -> None:
  """All ratios for one graph."""
  from placeto_tf.clusters import Cluster, allowed_devices
  from placeto_tf.costs import estimate_costs
  from placeto_tf.graphs import load_graph
  from placeto_tf.grouping import group_ops
  from placeto_tf.simulation import Simulator

  cluster = Cluster.parse(FLAGS.cluster)
  graph = load_graph(name)
  started = time.perf_counter()
  costs = estimate_costs(graph, cluster, cache=not FLAGS.grappler)
  grappler_s = time.perf_counter() - started
  allowed = allowed_devices(graph, cluster)
  grouping = group_ops(graph, costs, allowed, max_groups=FLAGS.groups)
  group_allowed = np.ones((grouping.num_groups, cluster.num_devices), dtype=bool)
  np.logical_and.at(group_allowed, grouping.group_of_op, allowed)
  random = np.random.default_rng(FLAGS.seed)
  draws = random.random((FLAGS.placements, *group_allowed.shape)) * group_allowed
  placements = grouping.expand(draws.argmax(axis=2)).astype(np.int32)

  one = Simulator(graph, costs, cluster, num_threads=1)
  one.simulate_many(placements)
  each_s = [best_s(lambda p=p: one.simulate_many(p), FLAGS.repeats) for p in placements[:, None]]
  one_s = float(np.median(each_s))
  print(f"{name}: {graph.num_ops} ops, {graph.num_edges} edges, {cluster.num_devices} devices")
  print(f"  one simulation on one core            {1e6 * one_s:10.0f} us")

  oracle = load_oracle()(graph, costs, cluster)
  few = placements[:5]
  oracle_s = float(np.median([best_s(lambda p=p: oracle.simulate(p), 3) for p in few]))
  schedule_s = float(np.median([best_s(lambda p=p: oracle.schedule(p), 3) for p in few]))
  print(f"  plain Python, schedule and memory     {1e6 * oracle_s:10.0f} us  "
        f"{oracle_s / one_s:8.0f} x")
  print(f"  plain Python, schedule alone          {1e6 * schedule_s:10.0f} us  "
        f"{schedule_s / one_s:8.0f} x")
  if FLAGS.grappler:
    print(f"  grappler's costs                      {1e6 * grappler_s:10.0f} us  "
          f"{grappler_s / one_s:8.0f} x")

  many = Simulator(graph, costs, cluster)
  batch = np.tile(placements, (8, 1))
  many.simulate_many(batch)
  alone_s, together_s = np.inf, np.inf
  for _ in range(FLAGS.repeats):  # in turns, so that other load meets both
    alone_s = min(alone_s, best_s(lambda: one.simulate_many(batch), 1))
    together_s = min(together_s, best_s(lambda: many.simulate_many(batch), 1))
  efficiency = alone_s / together_s / many.num_threads
  label = f"simulate_many on {many.num_threads} cores, a placement"
  print(f"  {label:37s} {1e6 * together_s / len(batch):10.0f} us  "
        f"{100 * efficiency:8.0f} % efficiency")


def large_case(n: int, count: int, seed: int) -> Tuple[Any, Any, Any, np.ndarray]:
  """A random layered graph of n ops, its costs, four devices, and placements [count, n]."""
  from placeto_tf.clusters import Cluster, Device
  from placeto_tf.costs.op_costs import OpCosts
  from placeto_tf.graphs.computation_graph import ComputationGraph

  random = np.random.default_rng(seed)
  consumers = np.repeat(np.arange(1, n), 2)
  producers = np.maximum(consumers - random.geometric(0.02, len(consumers)), 0)
  edges = np.stack([producers, np.zeros_like(producers), consumers], axis=1)
  graph = ComputationGraph.from_edges([f"op{i}" for i in range(n)], ["X"] * n, [1] * n, edges)
  costs = OpCosts(
      random.exponential(100.0, (n, 1)), random.integers(1, 10**6, n).astype(np.float64),
      np.zeros(n), np.zeros(n))
  cluster = Cluster(
      tuple(Device(f"/GPU:{d}", "GPU", 12 * 2**30) for d in range(4)), np.full((4, 4), 7600.0),
      np.full((4, 4), 25.0), 5.7)
  stretches = random.integers(0, 4, (count, n // 100 + 1))
  return graph, costs, cluster, np.repeat(stretches, 100, axis=1)[:, :n].astype(np.int32)


def benchmark_large(n: int) -> None:
  """A random layered graph of n ops on four devices."""
  from placeto_tf.simulation import Simulator

  graph, costs, cluster, (placement,) = large_case(n, 1, FLAGS.seed)
  simulator = Simulator(graph, costs, cluster, num_threads=1)
  seconds = best_s(lambda: simulator.simulate_many(placement), 5)
  rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 2**30
  print(f"{n} ops, {graph.num_edges} edges: one simulation {1e3 * seconds:.0f} ms, peak memory of "
        f"the process {rss:.2f} GB")


def benchmark_start() -> None:
  """The first and the second start with an empty cache of compiled code."""
  with tempfile.TemporaryDirectory() as cache:
    environment = dict(os.environ, NUMBA_CACHE_DIR=cache)
    for label in ("first start, compiling", "second start, from disk"):
      output = subprocess.run(
          [sys.executable, "-c", _START], env=environment, check=True, capture_output=True,
          text=True).stdout.split()
      print(f"{label}: {float(output[0]):.2f} s until the first result, "
            f"{float(output[1]):.2f} s with imports")


@contextlib.contextmanager
def worker(checkout: str, n: int, count: int) -> Iterator[subprocess.Popen]:
  """A process with the simulator of a checkout; `ask` asks it."""
  process = subprocess.Popen(
      [sys.executable, "-c", _WORKER, os.path.abspath(__file__), str(n), str(count),
       str(FLAGS.seed)],
      env=dict(os.environ, PYTHONPATH=os.path.abspath(checkout)), cwd=checkout, text=True,
      stdin=subprocess.PIPE, stdout=subprocess.PIPE)
  try:
    yield process
  finally:
    assert process.stdin is not None
    process.stdin.close()
    process.wait()


def ask(process: subprocess.Popen, variant: str, placement: int) -> List[Any]:
  """[seconds, step time, peaks] of one simulation by a worker."""
  assert process.stdin is not None and process.stdout is not None
  process.stdin.write(json.dumps([variant, placement]) + "\n")
  process.stdin.flush()
  return json.loads(process.stdout.readline())


def compare(checkout: str, n: int) -> None:
  """Prints, for each variant, this checkout's time over the other's, by placement."""
  os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
  here = str(pathlib.Path(__file__).resolve().parents[2])
  with worker(checkout, n, FLAGS.placements) as theirs, worker(here, n, FLAGS.placements) as ours:
    for variant in VARIANTS:
      best = np.full((2, FLAGS.placements), np.inf)
      equal = True
      for _ in range(FLAGS.repeats + 1):  # the first compiles
        for k in range(FLAGS.placements):
          (before_s, *before), (after_s, *after) = (
              ask(process, variant, k) for process in (theirs, ours))
          best[:, k] = np.minimum(best[:, k], (before_s, after_s))
          equal = equal and before == after
      ratio = best[1] / best[0]
      print(f"{variant:30s} {1e6 * np.median(best[0]):8.0f} us -> {1e6 * np.median(best[1]):8.0f} "
            f"us, ratio {np.exp(np.log(ratio).mean()):.3f} (geometric mean), by placement "
            + " ".join(f"{value:.2f}" for value in ratio)
            + ("; results are equal" if equal else "; results DIFFER"), flush=True)


def main(argv) -> None:
  """Runs all benchmarks."""
  del argv
  if FLAGS.against:
    compare(FLAGS.against, FLAGS.large_ops)
    return
  if FLAGS.large_ops:  # first, so that the memory of the process is that of this graph
    benchmark_large(FLAGS.large_ops)
  benchmark_start()
  for name in FLAGS.graphs:
    benchmark_graph(name)


if __name__ == "__main__":
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
  os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
  app.run(main)
