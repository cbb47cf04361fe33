"""Measures loading, costing, grouping, placing and writing back of one graph; prints JSON.

  scripts/with_env python scripts/benchmarks/benchmark_large.py --make=1000000 \\
      --to=million.cost_graph.pb
  scripts/with_env python scripts/benchmarks/benchmark_large.py --measure=million.cost_graph.pb

The shipped policy places. `reproduce.py --page=waiting` measures each graph in a process of its
own, so that its peak memory is that of one graph and its seconds are a user's whole waiting time,
imports included. CPU time is that of all threads and forks, for machines that also do other work.
Costs are estimated again, not taken from the cache.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from typing import Any, Callable, Dict, Tuple

import numpy as np
from absl import app, flags

FLAGS = flags.FLAGS

flags.DEFINE_string("cluster", "k80:4", "Cluster of the costs and the groups.")
flags.DEFINE_integer("evaluations", 300, "Placements that the shipped policy evaluates.",
                     lower_bound=1)
flags.DEFINE_string("measure", None, "File to measure in this process; prints a JSON line.")
flags.DEFINE_string("make", None, "Graph that is written to --to: a spec, or a number of ops.")
flags.DEFINE_string("to", None, "File to write.")

_BRANCHES = 8  # of the synthetic graph
_CELL = 50  # ops of a branch in one cell


def synthetic_cost_graph(num_ops: int) -> Any:
  """Makes a chain of cells, each with parallel branches that end in one op, as in deep networks.

  Every op also reads an op of the previous cell, so there are about twice as many edges as ops.
  """
  from tensorflow.core.framework import cost_graph_pb2

  rng = np.random.default_rng(0)
  costs = rng.integers(0, 200, num_ops).tolist()
  sizes = (rng.integers(1, 1 << 16, num_ops) * 4).tolist()
  picks = rng.integers(0, _CELL * _BRANCHES, num_ops).tolist()
  proto = cost_graph_pb2.CostGraphDef()
  width = _CELL * _BRANCHES + 1  # with the op that reads all branches
  for i in range(num_ops):
    cell, place = divmod(i, width)
    node = proto.node.add(
        name=f"cell_{cell}/op_{place}", id=i, compute_cost=costs[i], is_final=i == num_ops - 1)
    node.output_info.add(size=sizes[i], alias_input_port=-1)
    first = cell * width
    if place == _CELL * _BRANCHES:  # reads the ends of all branches
      for branch in range(_BRANCHES):
        node.input_info.add(preceding_node=first + (branch + 1) * _CELL - 1)
      continue
    before = first - 1 if place % _CELL == 0 else i - 1
    if before >= 0:
      node.input_info.add(preceding_node=before)
    if cell:
      node.control_input.append(first - width + picks[i])
  return proto


def make(what: str, path: str) -> None:
  """Writes the graph of a row."""
  if what.isdecimal():
    proto = synthetic_cost_graph(int(what))
  else:
    from placeto_tf.graphs import load_graph

    source = load_graph(what).source
    assert source is not None  # every graph that is loaded has one
    proto = source.proto
  with open(path, "wb") as file:
    file.write(proto.SerializeToString())


def measure(path: str) -> Dict[str, Any]:
  """Returns the seconds of each stage, and the peak memory of this process."""
  found: Dict[str, Any] = {}

  def timed(stage: str, function: Callable[[], Any]) -> Any:
    started = time.perf_counter()
    result = function()
    found[stage] = time.perf_counter() - started
    return result

  def imports() -> None:
    import tensorflow  # noqa: F401

    from placeto_tf import costs, grouping, placements  # noqa: F401
    from placeto_tf.placing import run  # noqa: F401

  timed("import", imports)
  from placeto_tf.clusters import Cluster
  from placeto_tf.costs import estimate_costs
  from placeto_tf.graphs import load_graph
  from placeto_tf.grouping import group_ops
  from placeto_tf.placements import Placement, write_placed
  from placeto_tf.placing import registry, running
  from placeto_tf.problem.budget import Budget
  from placeto_tf.problem.host_options import offered_devices
  from placeto_tf.problem.placement_problem import PlacementProblem
  from placeto_tf.search.lower_bounds import lower_bound_us

  cluster = Cluster.parse(FLAGS.cluster)
  graph = timed("load", lambda: load_graph(path))
  costs = timed("cost", lambda: estimate_costs(graph, cluster, cache=False))

  def group() -> Tuple[Any, np.ndarray]:
    allowed = offered_devices(graph, cluster, costs)
    return group_ops(graph, costs, allowed), allowed

  grouping, allowed = timed("group", group)

  def place() -> np.ndarray:
    problem = PlacementProblem(graph, costs, cluster, grouping, allowed_ops=allowed)
    budget, policy = Budget(max_evaluations=FLAGS.evaluations), registry.find("placeto")
    running.prepare(problem, policy, budget)
    found["start_us"] = problem.search_log.best_objective_us
    placement = running.run(problem, policy, budget)
    found["placed_us"] = problem.search_log.best_objective_us
    found["bound_us"] = lower_bound_us(problem)
    return placement

  indices = timed("place", place)

  def write() -> None:
    placement = Placement.from_indices(graph, cluster, indices)
    with tempfile.TemporaryDirectory() as folder:
      write_placed(graph, placement, folder)
      placement.save(os.path.join(folder, "placement.json"))

  timed("write", write)
  used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
  peak = max(usage.ru_maxrss for usage in used) * 1024
  found["cpu_s"] = sum(usage.ru_utime + usage.ru_stime for usage in used)
  return {**found, "ops": graph.num_ops, "edges": graph.num_edges, "groups": grouping.num_groups,
          "file_bytes": os.path.getsize(path), "peak_bytes": peak}


def measured(what: str, cluster: str, evaluations: int) -> Dict[str, Any]:
  """Returns the figures of `measure`, made in a process of its own. Args: what: see --make."""
  def run(*args: str) -> str:
    return subprocess.run(
        [sys.executable, os.path.abspath(__file__), f"--cluster={cluster}",
         f"--evaluations={evaluations}", *args], stdout=subprocess.PIPE, text=True, check=True
    ).stdout

  with tempfile.TemporaryDirectory() as folder:
    suffix = ".cost_graph.pb" if what.isdecimal() else ".meta"
    path = os.path.join(folder, f"graph{suffix}")
    run(f"--make={what}", f"--to={path}")
    return json.loads(run(f"--measure={path}").splitlines()[-1])


def main(_: Any) -> None:
  """Writes a graph, or measures one in this process."""
  if FLAGS.make:
    make(FLAGS.make, FLAGS.to)
  else:
    print(json.dumps(measure(FLAGS.measure)))


if __name__ == "__main__":
  app.run(main)
