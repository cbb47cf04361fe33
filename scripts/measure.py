"""Times placements in real TensorFlow sessions, beside the prediction: one JSON line for each.

  scripts/with_env python scripts/measure.py --graph=zoo:rnnlm:batch=8 --cluster=cluster.json \\
      --placement=placed/placement.json,other.json --workers=local:2

Steps run on workers if --workers is given or if the cluster's device names have tasks, otherwise in
this process. Times on workers of this machine are scaled to the full speed of its cores at the time
of calibration (see placeto_tf/runtime/core_speed.py).
"""

from __future__ import annotations

import json
import math
import os
import sys
from typing import Optional

from absl import flags

from placeto_tf.programs import entry_point, shared_flags

FLAGS = flags.FLAGS

shared_flags.define_graph_flags()
shared_flags.define_cluster_flag()
shared_flags.define_runtime_flags()
flags.DEFINE_list("placement", None, "placement.json files, comma separated.", required=True)
shared_flags.define_any_graph_flag()
shared_flags.define_look_flag()
flags.DEFINE_string("feed_values", None, "An .npz file with an array for each feed; default: "
                    "random values.")
flags.DEFINE_integer("warmup_runs", 3, "Steps before the timed ones.", lower_bound=1)
flags.DEFINE_integer("max_runs", 60, "The largest number of timed steps of a placement.",
                     lower_bound=6)
flags.DEFINE_float("max_seconds", 60.0, "Seconds to time a placement, roughly.", lower_bound=0.0)
flags.DEFINE_float("timeout_seconds", 120.0, "Seconds after which a step counts as failed.",
                   lower_bound=0.1)
flags.DEFINE_integer("seed", 0, "Seed of random feeds.",
                     lower_bound=0, upper_bound=2**32 - 1)


def main() -> None:
  """Loads the graph once and times every placement."""
  # oneDNN fuses ops after the graph is split, so another placement would be timed.
  os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
  from placeto_tf.clusters import Cluster
  from placeto_tf.costs import assumed_shapes, estimate_costs
  from placeto_tf.costs.look import looking
  from placeto_tf.placements import Placement
  from placeto_tf.runtime import measuring
  from placeto_tf.simulation import Simulator

  placements = [Placement.load(path) for path in FLAGS.placement]
  cluster = Cluster.parse(FLAGS.cluster)
  config = measuring.MeasuringConfig(
      warmup_runs=FLAGS.warmup_runs, min_runs=min(8, FLAGS.max_runs), max_runs=FLAGS.max_runs,
      max_seconds=FLAGS.max_seconds, timeout_seconds=FLAGS.timeout_seconds,
      seed=FLAGS.seed)
  runtime, device_map = shared_flags.runtime(cluster)
  entry_point.import_tensorflow_quietly()
  graph = assumed_shapes.load(FLAGS.graph, **shared_flags.graph_options())
  with looking(FLAGS.look, shared_flags.tell):
    costs = estimate_costs(graph, cluster, source=FLAGS.cost_model)
  simulator = Simulator(graph, costs, cluster)
  indices = [
      placement.indices(graph, cluster, any_graph=FLAGS.any_graph) for placement in placements]
  with runtime:
    measurer = measuring.Measurer(
        graph, cluster, runtime, config, feeds=FLAGS.feed_values or "random",
        device_map=device_map)
    for note in filter(None, (runtime.note, *costs.notes)):
      print(f"Note: {note}.", file=sys.stderr, flush=True)
    for path, placement, devices in zip(FLAGS.placement, placements, indices):
      simulated = simulator.simulate(devices)
      step = measurer.try_measure(placement)
      line = {
          "placement": path, "measured_us": _finite(step.step_time_us),
          "low_us": _finite(step.low_us), "high_us": _finite(step.high_us), "runs": step.runs,
          "predicted_us": float(simulated.step_time_us)}
      if step.failure:
        line["failure"] = step.failure
      print(json.dumps(line), flush=True)


def _finite(value: float) -> Optional[float]:
  return value if math.isfinite(value) else None


def run() -> None:
  """Entry point of `placeto-measure`."""
  entry_point.run_program(main)


if __name__ == "__main__":
  run()
