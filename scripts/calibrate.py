"""Measures links and overheads of real workers, and with --graph the costs of its ops on them.

  scripts/with_env python scripts/calibrate.py --cluster=cpu:2 --workers=local:2 \\
      --graph=zoo:rnnlm:batch=8 --out=calibrated

Writes cluster.json and, with --graph, costs.pb: for --cluster and --cost_model of other programs.
With --replicas=R, costs.pb also has the times of one of R replicas; `place.py --replicas=auto` then
interpolates between the two.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Optional, Tuple

from absl import flags

from placeto_tf.programs import entry_point, shared_flags

if TYPE_CHECKING:
  from placeto_tf.graphs.computation_graph import ComputationGraph

FLAGS = flags.FLAGS

shared_flags.define_cluster_flag()
shared_flags.define_reading_flags()
shared_flags.define_runtime_flags()
flags.DEFINE_string("graph", None, "Graph whose ops are timed: a file or zoo:NAME[:key=value...].")
flags.DEFINE_string("out", None, "Directory of the results.", required=True)
flags.DEFINE_string("feed_values", None, "An .npz file with an array for each feed; default: "
                    "random values.")
flags.DEFINE_integer("replicas", None, "Also times the ops of one of this many replicas: kernels "
                     "are less efficient on fewer examples.", lower_bound=2)
flags.DEFINE_integer("runs", 20, "Timed steps of each small graph.", lower_bound=1)
flags.DEFINE_integer("graph_runs", 12, "Timed and traced steps of the graph on each device.",
                     lower_bound=1)
flags.DEFINE_float("timeout_seconds", 120.0, "Seconds after which a step counts as failed.",
                   lower_bound=0.1)
flags.DEFINE_integer("seed", 0, "Seed of random feeds.",
                     lower_bound=0, upper_bound=2**32 - 1)


def main() -> None:
  """Measures and writes."""
  os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # which joins ops: see measure.py
  from placeto_tf.clusters import Cluster
  from placeto_tf.files import outputs
  from placeto_tf.runtime import calibrating

  outputs.check(FLAGS.out)
  cluster = Cluster.parse(FLAGS.cluster)
  config = calibrating.CalibrationConfig(
      runs=FLAGS.runs, graph_runs=FLAGS.graph_runs, timeout_seconds=FLAGS.timeout_seconds,
      seed=FLAGS.seed)
  runtime, device_map = shared_flags.runtime(cluster)
  entry_point.import_tensorflow_quietly()
  graph, part = _graphs()
  if runtime.note:
    print(f"Note: {runtime.note}.", file=sys.stderr, flush=True)
  if cluster.num_devices == 1:
    print("Note: one device has no link to measure: what concerns transfers stays at zero.",
          file=sys.stderr, flush=True)
  with runtime:
    found = calibrating.calibrate(
        cluster, runtime, graph, config, part=part, feeds=FLAGS.feed_values or "random",
        device_map=device_map,
        progress=lambda stage: print(f"Measuring {stage}", file=sys.stderr, flush=True))
  os.makedirs(FLAGS.out, exist_ok=True)
  found.cluster.save(os.path.join(FLAGS.out, "cluster.json"))
  summary = {
      "cluster": os.path.join(FLAGS.out, "cluster.json"),
      "op_overhead_us": found.cluster.op_overhead_us,
      "sender_us_per_transfer": found.cluster.sender_us_per_transfer,
      "sender_us_per_kb": found.cluster.sender_us_per_byte * 1e3,
      "receiver_us_per_transfer": found.cluster.receiver_us_per_transfer,
      "receiver_us_per_kb": found.cluster.receiver_us_per_byte * 1e3,
      "latency_us": float(found.cluster.latency_us.max()),
      "busy_slowdown": found.cluster.busy_slowdown}
  if graph is not None and found.compute_us is not None and found.step_time_us is not None:
    path = os.path.join(FLAGS.out, "costs.pb")
    calibrating.write_costs(
        graph, found.cluster, found.compute_us, path, found.part, FLAGS.replicas or 1)
    summary.update(costs=path, step_time_us={
        name: us for name, us in zip(cluster.device_names, found.step_time_us.tolist())})
  print(json.dumps(summary), flush=True)


def _graphs() -> Tuple[Optional[ComputationGraph], Optional[ComputationGraph]]:
  """The graph of --graph, and that of one of --replicas."""
  from placeto_tf.errors import GraphError
  from placeto_tf.replication import ReplicaSource

  if not FLAGS.graph:
    return None, None
  source = ReplicaSource(FLAGS.graph, shared_flags.graph_options())
  if not FLAGS.replicas:
    return source.graph, None
  part = source.part(FLAGS.replicas)
  if part is source.graph:
    raise GraphError(
        f"the batch of {FLAGS.graph} is part of its shapes, so that no graph has a share of it; "
        "leave the first dimension of the feeds open, with None, or leave out --replicas")
  return source.graph, part


def run() -> None:
  """Entry point of `placeto-calibrate`."""
  entry_point.run_program(main)


if __name__ == "__main__":
  run()
