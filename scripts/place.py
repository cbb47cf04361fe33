"""Places a TensorFlow graph on a cluster and writes it with its devices set.

  scripts/with_env python scripts/place.py --graph=zoo:inception_v3 --cluster=k80:4 --out=placed
"""

from __future__ import annotations

import os
import time

from absl import flags

from placeto_tf.programs import entry_point, shared_flags

FLAGS = flags.FLAGS

shared_flags.define_graph_flags()
shared_flags.define_cluster_flag()
shared_flags.define_budget_flags(max_seconds=60)
flags.DEFINE_string("out", None, "Directory to write; its earlier results are replaced only when "
                    "all new ones are there.", required=True)
flags.DEFINE_string("method", "auto", "Placer: auto, auto_unlearned (the same without "
                    "policies), or one by name; an unknown name is answered with the list.")
flags.DEFINE_integer("seed", 0, "Seed of all that is random.")
flags.DEFINE_string("grouping", "heavy_edge", "How ops are grouped; 'learned' has the hierarchical "
                    "policy learn it with half of the budget.")
flags.DEFINE_integer("max_groups", 128, "Groups at most.", lower_bound=1)
flags.DEFINE_enum("existing_devices", "start", ["keep", "start", "ignore"],
                  "Devices the graph came with: keep them, start from them, or ignore them.")
flags.DEFINE_multi_string("pin", [], "REGEX:DEVICE fixes the ops whose whole name matches; "
                          "repeatable.")
flags.DEFINE_enum("cost", "simulated", ["simulated", "measured"],
                  "What decides in the end: simulated steps, or real ones.")
flags.DEFINE_integer("max_measurements", 50, "Placements to run, with --cost=measured.",
                     lower_bound=1)
flags.DEFINE_string("policy_weights", None, "Directory of a run of scripts/train.py, or "
                    "of its weights, for a method of its policy: device_pointer (by default "
                    "the weights that ship); placeto and gdp, which go on learning from them; "
                    "methods such as placeto_zero_shot and gdp_fine_tune need them.")
shared_flags.define_runtime_flags()


def main() -> None:
  """Loads, places, writes and prints."""
  from placeto_tf import placing, reporting
  from placeto_tf.clusters import Cluster
  from placeto_tf.graphs import load_graph

  config = placing.PlacingConfig(
      method=FLAGS.method, max_seconds=FLAGS.max_seconds, max_evaluations=FLAGS.max_evaluations,
      seed=FLAGS.seed, grouping=FLAGS.grouping, max_groups=FLAGS.max_groups, costs=FLAGS.costs,
      existing_devices=FLAGS.existing_devices, pins=tuple(shared_flags.parse_pins(FLAGS.pin)),
      cost=FLAGS.cost, max_measurements=FLAGS.max_measurements, workers=tuple(FLAGS.workers),
      device_map=tuple(shared_flags.device_map().items()), policy_weights=FLAGS.policy_weights)
  if FLAGS.cost == "measured":
    # oneDNN joins ops after the graph is split, and what is timed would not be what was asked.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
  cluster = Cluster.parse(FLAGS.cluster)
  reporting.check_out_dir(FLAGS.out)
  started = time.monotonic()
  with reporting.stage(f"Loading {FLAGS.graph}"):
    entry_point.import_tensorflow_quietly()
    graph = load_graph(FLAGS.graph, **shared_flags.graph_options())
  with reporting.Workspace(FLAGS.out) as workspace:
    with reporting.ProgressBar(config) as bar:
      result = placing.place_with(
          graph, cluster, config, root_dir=workspace.tensorboard_dir, progress=bar,
          stage=reporting.stage)
    with reporting.stage("Writing"):
      reporting.write_result(result, workspace)
      workspace.publish()
  print(reporting.table(result))
  print(f"Written to {FLAGS.out} in {time.monotonic() - started:.0f} s.", flush=True)


def run() -> None:
  """Entry point of `placeto-place`."""
  entry_point.run_program(main)


if __name__ == "__main__":
  run()
