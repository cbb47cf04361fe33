"""Compares `--method=auto` with proven optima, one device, and METIS.

  scripts/with_env python scripts/benchmarks/benchmark_auto.py --parts=optimal,large
  scripts/with_env python scripts/benchmarks/benchmark_auto.py --parts=single \\
      --graphs=zoo:inception_v3

Parts:
  optimal  generated graphs of at most 18 groups that cannot be split, 2 and 3 devices: how often
           auto finds the proven optimum, and its error otherwise
  single   --graphs on --clusters: the step times of one device and of the bound, over auto's
  large    --large_ops ops on 8 devices: auto against METIS, and the process's peak memory
"""

from __future__ import annotations

import os
import pathlib
import resource
import sys
import time
from typing import Dict, List

import numpy as np
from absl import app, flags

FLAGS = flags.FLAGS

flags.DEFINE_list("parts", ["optimal", "single", "large"], "Parts to run, comma separated.")
flags.DEFINE_integer("cases", 30, "Generated graphs of the part `optimal`.", lower_bound=1)
flags.DEFINE_integer("max_groups", 18, "The largest number of groups of a generated graph.",
                     lower_bound=2)
flags.DEFINE_float("optimal_seconds", 10, "Seconds for auto on each generated graph.")
flags.DEFINE_float("proof_seconds", 120, "Seconds for the proof of each generated graph.")
flags.DEFINE_float("seconds", 60, "Seconds for auto in the other parts.")
flags.DEFINE_list("graphs", ["zoo:inception_v3", "zoo:nasnet_mobile", "zoo:rnnlm:layers=4"],
                  "Graphs of the part `single`.")
flags.DEFINE_list("clusters", ["k80:4"], "Clusters of the part `single`.")
flags.DEFINE_integer("large_ops", 50_000, "Ops of the large graph.", lower_bound=1000)
flags.DEFINE_integer("seed", 0, "Seed of graphs and searches.")


def generated_problem(seed: int, devices: int, max_groups: int):
  """Makes a random layered graph of colocated sets, which are its groups, on a K80 machine."""
  rng = np.random.default_rng(seed)
  count = int(rng.integers(max(2, max_groups // 2), max_groups + 1))
  members: List[int] = []
  depth, edges = [], []
  for g in range(count):
    members += [g] * int(rng.integers(1, 4))
    depth.append(int(rng.integers(0, max(2, count // 3))))
  sets = np.array(members)
  order = np.argsort(np.array(depth)[sets], kind="stable")
  sets = sets[order]
  level = np.array(depth)[sets]
  for v in range(len(sets)):
    earlier = np.flatnonzero(level < level[v])
    for u in rng.permutation(earlier)[:int(rng.integers(0, 4))]:
      edges.append((int(u), 0, v))
    own = np.flatnonzero(sets[:v] == sets[v])
    if len(own):
      edges.append((int(own[-1]), 0, v))
  edges = sorted(set(edges))
  return problem_of(
      len(sets), edges, rng.lognormal(6, 1, len(sets)), rng.lognormal(13.5, 1.5, len(sets)),
      f"k80:{devices}", count, colocation=sets)


def large_problem(ops: int, seed: int):
  """Makes a graph of blocks of parallel branches, forward and backward, on eight K80s."""
  rng = np.random.default_rng(seed)
  branches, length = 6, 8
  block = branches * length + 1
  blocks = ops // (2 * block)
  edges, joint = [], -1
  half = blocks * block
  for b in range(blocks):
    first = b * block
    for branch in range(branches):
      for i in range(length):
        op = first + branch * length + i
        if i or joint >= 0:
          edges.append((op - 1 if i else joint, 0, op))
      edges.append((op, 0, first + block - 1))
    joint = first + block - 1
  mirror = [(2 * half - 1 - v, 0, 2 * half - 1 - u) for u, _, v in edges]
  activations = [(u, 0, 2 * half - 1 - u) for u in range(half)]
  return problem_of(
      2 * half, edges + mirror + activations, rng.lognormal(4, 1, 2 * half),
      rng.lognormal(11, 1.5, 2 * half), "k80:8", 128)


def problem_of(n, edges, compute_us, output_bytes, cluster, max_groups, colocation=None):
  """Makes a problem of n ops with one output each."""
  from placeto_tf.clusters import Cluster, allowed_devices
  from placeto_tf.costs import OpCosts
  from placeto_tf.graphs import ComputationGraph
  from placeto_tf.grouping import group_ops
  from placeto_tf.problem import PlacementProblem

  first: Dict[int, int] = {}  # a set is named by its first op
  colocation = np.array(
      [first.setdefault(int(s), i) for i, s in enumerate(
          np.arange(n) if colocation is None else colocation)], dtype=np.int32)
  graph = ComputationGraph.from_edges(
      [f"op{i}" for i in range(n)], ["Op"] * n, [1] * n, edges, colocation=colocation)
  cluster = Cluster.parse(cluster)
  costs = OpCosts(
      np.repeat(np.round(compute_us, 1)[:, None], len(cluster.kind_devices), axis=1),
      np.round(output_bytes), np.zeros(n), np.zeros(n))
  allowed = allowed_devices(graph, cluster)
  allowed[:, [device.host for device in cluster.devices]] = False
  grouping = group_ops(graph, costs, allowed, max_groups=max_groups)
  return PlacementProblem(graph, costs, cluster, grouping, allowed_ops=allowed)


def optimal() -> None:
  """Compares auto with proven optima."""
  sys.path.append(str(pathlib.Path(__file__).parents[2] / "tests"))  # the oracle is a test's
  from exact import prove

  from placeto_tf.placing.auto import run_auto
  from placeto_tf.problem import Budget

  ratios, unproven = [], 0
  for case in range(FLAGS.cases):
    devices, seed = 2 + case % 2, FLAGS.seed + case
    problem = generated_problem(seed, devices, FLAGS.max_groups)
    proof = prove(problem, Budget(max_seconds=FLAGS.proof_seconds))
    proof_seconds = problem.search_log.seconds
    if not proof.proven:
      unproven += 1
      print(f"case {case}: {problem.num_groups} groups, {devices} devices: no proof in "
            f"{proof_seconds:.0f} s, gap {proof.objective_us / proof.lower_bound_us - 1:.2%}",
            flush=True)
      continue
    problem = generated_problem(seed, devices, FLAGS.max_groups)
    run_auto(problem, Budget(max_seconds=FLAGS.optimal_seconds), seed, learned=False)
    ratios.append(problem.search_log.best_objective_us / proof.objective_us)
    print(f"case {case}: {problem.num_groups} groups, {devices} devices: optimum "
          f"{proof.objective_us / 1e3:.3f} ms (proof {proof_seconds:.1f} s), auto "
          f"{ratios[-1]:.4f} times that in {problem.search_log.seconds:.1f} s", flush=True)
  found = np.array(ratios)
  if len(found):
    print(f"optimal: {(found <= 1 + 1e-9).mean():.0%} of {len(found)} proven graphs, the worst "
          f"{found.max() - 1:.2%} above; {unproven} unproven")


def rows():
  """Yields (name, cluster name, function that makes a problem) of --graphs and --clusters."""
  from placeto_tf.clusters import Cluster
  from placeto_tf.costs import estimate_costs
  from placeto_tf.graphs import load_graph
  from placeto_tf.grouping import group_ops
  from placeto_tf.problem import PlacementProblem
  from placeto_tf.problem.host_options import offered_devices

  for name in FLAGS.graphs:
    graph = load_graph(name)
    for cluster_name in FLAGS.clusters:
      cluster = Cluster.parse(cluster_name)
      costs = estimate_costs(graph, cluster)
      allowed = offered_devices(graph, cluster, costs)
      grouping = group_ops(graph, costs, allowed)

      def make(graph=graph, costs=costs, cluster=cluster, grouping=grouping, allowed=allowed):
        return PlacementProblem(graph, costs, cluster, grouping, allowed_ops=allowed)

      yield name, cluster_name, make


def single() -> None:
  """Compares auto with one device."""
  from placeto_tf.placing import registry, running
  from placeto_tf.problem import Budget
  from placeto_tf.search.lower_bounds import lower_bound_us
  from placeto_tf.search.simple import single

  for name, cluster, make in rows():
    problem = make()
    single(problem)
    one_us, bound_us = problem.search_log.best_objective_us, lower_bound_us(problem)
    problem = make()
    running.run(problem, registry.find("auto"), Budget(max_seconds=FLAGS.seconds), FLAGS.seed)
    us = problem.search_log.best_objective_us
    print(f"{name} {cluster}: one device {one_us / 1e3:.1f} ms, auto {us / 1e3:.1f} ms "
          f"({one_us / us:.2f}x; the bound allows {one_us / bound_us:.2f}x)", flush=True)


def large() -> None:
  """Compares auto with METIS on a large graph."""
  from placeto_tf.placing.auto import run_auto
  from placeto_tf.problem import Budget
  from placeto_tf.search.lower_bounds import lower_bound_us
  from placeto_tf.search.metis import partition_ops

  problem = large_problem(FLAGS.large_ops, FLAGS.seed)
  started = time.monotonic()
  partition_ops(problem)
  metis_us, metis_seconds = problem.search_log.best_objective_us, time.monotonic() - started
  problem = large_problem(FLAGS.large_ops, FLAGS.seed)
  run_auto(problem, Budget(max_seconds=FLAGS.seconds), FLAGS.seed, learned=False)
  for row in problem.search_log.method_runs:
    print(f"  {row.name}: {row.evaluations} evaluations, {row.seconds:.1f} s, gained "
          f"{row.gain_us / 1e3:.2f} ms")
  memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
  print(f"large: {problem.graph.num_ops} ops on 8 devices: METIS {metis_us / 1e3:.1f} ms in "
        f"{metis_seconds:.1f} s, auto {problem.search_log.best_objective_us / 1e3:.1f} ms in "
        f"{problem.search_log.seconds:.1f} s (bound {lower_bound_us(problem) / 1e3:.1f} ms), peak "
        f"memory {memory:.2f} GB")


def main(_) -> None:
  """Runs the parts."""
  for part in FLAGS.parts:
    {"optimal": optimal, "single": single, "large": large}[part]()


if __name__ == "__main__":
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
  os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
  app.run(main)
