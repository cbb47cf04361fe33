"""Measures one pass of GDP's network over a large graph: seconds of each stage, and peak memory.

  scripts/with_env python scripts/benchmarks/benchmark_gdp.py --nodes=50000
  scripts/with_env python scripts/benchmarks/benchmark_gdp.py --graph=zoo:gnmt:layers=8 \\
      --cluster=k80:8 \\
      --policy_weights=runs/gdp --metis

Prints a JSON line. Without --policy_weights the network is untrained, which takes as long.
"""

from __future__ import annotations

import json
import resource
import time
from typing import Any, Callable, Dict

import numpy as np
from absl import flags

from placeto_tf.encoding.grouped_graph import OP_TYPE_BUCKETS, GroupedGraph
from placeto_tf.programs import entry_point

FLAGS = flags.FLAGS

flags.DEFINE_integer("nodes", 50000, "Nodes of a synthetic graph, if --graph is not given.",
                     lower_bound=1)
flags.DEFINE_string("graph", None, "A graph: a file, or zoo:NAME[:key=value].")
flags.DEFINE_string("cluster", "k80:4", "Cluster that the graph is placed on.")
flags.DEFINE_string("policy_weights", None, "Directory of a run of scripts/train.py --policy=gdp.")
flags.DEFINE_bool("gradient", False, "Whether to measure a gradient of the loss as well.")
flags.DEFINE_bool("metis", False, "Whether to place the graph with METIS, on one device and by the "
                  "human-expert baseline, too.")

_SAMPLES = 16  # as many as gdp_zero_shot evaluates


def synthetic(num_nodes: int, max_devices: int) -> Any:
  """Random features; every node but the first reads two of the twenty before it."""
  from placeto_tf.policies.baselines import gdp_inputs as lib
  from placeto_tf.policies.baselines import op_features

  rng = np.random.default_rng(0)
  targets = np.repeat(np.arange(1, num_nodes), 2)
  sources = np.maximum(0, targets - 1 - rng.integers(0, 20, len(targets)))
  return {
      lib.OP_TYPES: rng.integers(0, OP_TYPE_BUCKETS, num_nodes).astype(np.int32),
      lib.FEATURES: rng.normal(size=(num_nodes, lib.NODE_FEATURES)).astype(np.float32),
      lib.SOURCES: sources.astype(np.int32), lib.TARGETS: targets.astype(np.int32),
      lib.MASK: np.ones((num_nodes, max_devices), np.float32),
      lib.DEVICES: np.ones((max_devices, lib.DEVICE_FEATURES), np.float32),
      lib.WALK: op_features.walk_numbers(sources, targets, num_nodes)}


def main() -> None:
  """Prints the figures of one process."""
  found: Dict[str, Any] = {}

  def timed(stage: str, function: Callable[[], Any]) -> Any:
    started = time.perf_counter()
    result = function()
    found[f"{stage}_s"] = round(time.perf_counter() - started, 2)
    return result

  timed("import", _imports)
  import tensorflow as tf

  from placeto_tf.policies.baselines.gdp import GRAPH, STRETCH, GdpPolicy, load_network
  from placeto_tf.policies.baselines.gdp_inputs import node_inputs
  from placeto_tf.policies.baselines.gdp_network import GdpConfig, GdpNetwork

  network = GdpNetwork(GdpConfig()) if FLAGS.policy_weights is None else load_network(
      FLAGS.policy_weights)
  problem = None
  if FLAGS.graph is None:
    inputs = synthetic(FLAGS.nodes, network.config.max_devices)
  else:
    problem = timed("load_and_cost", _problem)
    found["ops"] = problem.graph.num_ops
    inputs = timed("inputs", lambda: node_inputs(
        GroupedGraph.of(problem), network.config.max_devices))
  found["nodes"] = len(inputs["mask"])
  policy = GdpPolicy([inputs], network)
  timed("trace_and_pass", policy.greedy)
  timed("pass", policy.greedy)
  sampled, info = timed("sample", lambda: policy.sample(np.random.default_rng(0), _SAMPLES - 1))
  if problem is not None:
    placements = np.concatenate([policy.greedy()[None], sampled])
    evaluation = timed("simulate", lambda: problem.evaluate(placements))
    found["likeliest_ms"] = round(float(evaluation.step_time_us[0]) / 1e3, 1)
    best = problem.simulator.simulate(problem.search_log.best_placement)
    found["gdp_ms"], found["gdp_fits"] = round(best.step_time_us / 1e3, 1), bool(best.fits)
  found["gdp_peak_gb"] = _peak_gb()
  if FLAGS.gradient:
    stretches = tf.constant(info[STRETCH])
    observation = {GRAPH: tf.zeros_like(stretches), STRETCH: stretches}

    @tf.function(autograph=False)
    def gradients():
      with tf.GradientTape() as tape:
        mean = tf.reduce_mean(policy(observation)[0].log_prob(tf.constant(sampled)))
      return tape.gradient(mean, policy.trainable_variables)

    timed("trace_and_gradient", gradients)
    timed("gradient", gradients)
    found["gradient_peak_gb"] = _peak_gb()
  if FLAGS.metis and problem is not None:
    _compare(problem, timed, found)
  print(json.dumps(found), flush=True)


def _imports() -> None:
  entry_point.import_tensorflow_quietly()
  from placeto_tf.policies.baselines import gdp  # noqa: F401


def _problem() -> Any:
  from placeto_tf.clusters import Cluster
  from placeto_tf.environments.problems import make_problem
  from placeto_tf.graphs import load_graph
  from placeto_tf.policies.baselines.gdp_inputs import node_problem

  return node_problem(make_problem(load_graph(FLAGS.graph), Cluster.parse(FLAGS.cluster)))


def _compare(problem: Any, timed: Callable, found: Dict[str, Any]) -> None:
  from placeto_tf.search import PLACERS

  for name in ("metis", "single", "expert"):
    placement = timed(name, lambda name=name: PLACERS[name](problem))
    simulated = problem.simulator.simulate(placement)
    found[f"{name}_ms"] = round(simulated.step_time_us / 1e3, 1)
    found[f"{name}_fits"] = bool(simulated.fits)


def _peak_gb() -> float:
  return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)


if __name__ == "__main__":
  entry_point.run_program(main)
