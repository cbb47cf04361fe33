"""Places a TensorFlow graph on a cluster and writes it with its devices set.

  scripts/with_env python scripts/place.py --graph=zoo:inception_v3 --cluster=k80:4 --out=placed
"""

from __future__ import annotations

import os
import time

from absl import flags

from placeto_tf.errors import PlacementError
from placeto_tf.programs import entry_point, shared_flags

FLAGS = flags.FLAGS

shared_flags.define_graph_flags()
shared_flags.define_cluster_flag()
shared_flags.define_budget_flags(max_seconds=60)
flags.DEFINE_float("stop_within", None, "Ends the search early, once the step time is within this "
                   "share of its lower bound, or once doubling the search time has gained less "
                   "than this share; 0: never. Default: 0.01; with --max_evaluations, 0.",
                   lower_bound=0, upper_bound=1)
flags.DEFINE_string("out", None, "Directory of the results. Earlier results in it are replaced "
                    "once all new ones are complete. With --why it may be left out.")
flags.DEFINE_string("method", "auto", "Placer: auto, auto_unlearned (auto without policies), or "
                    "the name of a placer. The error of an unknown name lists all names.")
flags.DEFINE_integer("seed", 0, "Seed of the searches and policies.",
                     lower_bound=0, upper_bound=2**32 - 1)
flags.DEFINE_string("grouping", "heavy_edge", "Method of grouping ops: see placeto_tf/grouping.")
flags.DEFINE_integer("max_groups", 128, "The largest number of groups.", lower_bound=1)
flags.DEFINE_enum("existing_devices", "start", ["keep", "start", "ignore"],
                  "Devices that the graph already sets: keep them, start the search from them, or "
                  "ignore them.")
flags.DEFINE_multi_string("pin", [], "REGEX:DEVICE puts the ops whose whole name matches on the "
                          "device; repeatable.")
flags.DEFINE_string("allowed", None, "JSON file of allowed devices: an object with regular "
                    "expressions, which match whole op names, and the list of devices of each.")
flags.DEFINE_enum("timing", "simulated", ["simulated", "session"],
                  "Step times that choose the result: simulated, or of real steps on --workers.")
flags.DEFINE_integer("max_measurements", 50, "The most placements that --timing=session runs, when "
                     "--max_seconds of search are over.", lower_bound=1)
flags.DEFINE_string("policy_weights", None, "Directory of a run of scripts/train.py, or of its "
                    "weights, for --method=placeto (default: the weights that ship), "
                    "placeto_paper and gdp (which go on learning from them), "
                    "placeto_paper_zero_shot and gdp_fine_tune (which need them).")
shared_flags.define_runs_flag(
    "default: one for each core, 8 at most; with --ray one for each of Ray's cores; with "
    "--max_evaluations 1, so that the result is the same on any machine")
shared_flags.define_ray_flag()
shared_flags.define_import_flag()
shared_flags.define_replicas_flags()
shared_flags.define_look_flag()
flags.DEFINE_string("why", None, "Regex of whole op names: prints the devices of these ops, and "
                    "the step time with these ops on each other device.")
flags.DEFINE_bool("verbose", False, "Whether the table shows every placer of the search; by "
                  "default it has the graph as it is, the baselines and the result.")
shared_flags.define_runtime_flags()


def main() -> None:
  """Places, writes and prints."""
  from placeto_tf.placing import explaining, publishing, tables, what_now
  from placeto_tf.placing.config import PlacingConfig
  from placeto_tf.placing.observing import Observer

  if FLAGS.out is None and FLAGS.why is None:
    raise PlacementError("--out is missing; expected --out=VALUE (a directory to write), or "
                         "--why=REGEX, which may print without writing")
  started = time.monotonic()
  shared_flags.import_policies()
  config = PlacingConfig(
      method=FLAGS.method, max_seconds=FLAGS.max_seconds, max_evaluations=FLAGS.max_evaluations,
      stop_within=FLAGS.stop_within, seed=FLAGS.seed, grouping=FLAGS.grouping,
      max_groups=FLAGS.max_groups, cost_model=FLAGS.cost_model,
      existing_devices=FLAGS.existing_devices, pins=tuple(shared_flags.parse_pins(FLAGS.pin)),
      allowed=shared_flags.allowed_sets(FLAGS.allowed),
      timing=FLAGS.timing, max_measurements=FLAGS.max_measurements, workers=tuple(FLAGS.workers),
      device_map=tuple(shared_flags.device_map().items()), policy_weights=FLAGS.policy_weights,
      independent_runs=FLAGS.independent_runs, ray=FLAGS.ray,
      replicas=shared_flags.number_or_text(FLAGS.replicas),
      mirrored_variables=shared_flags.mirrored_variables(),
      slices=shared_flags.number_or_text(FLAGS.slices),
      check_replicas=FLAGS.check_replicas == "yes", batch_norm=FLAGS.batch_norm, look=FLAGS.look)
  if FLAGS.timing == "session":
    # oneDNN fuses ops after the graph is split, so another placement would be timed.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
  entry_point.import_tensorflow_quietly()
  result = publishing.place_into(
      FLAGS.out, FLAGS.graph, FLAGS.cluster, config, loading=shared_flags.graph_options(),
      observer=Observer(shown=True), why=FLAGS.why)
  print(tables.table(result, verbose=FLAGS.verbose))
  if FLAGS.why:
    print("\n".join(explaining.why_lines(result, FLAGS.why)))
  if FLAGS.out is None:
    return
  print(f"Written to {FLAGS.out} in {time.monotonic() - started:.0f} s.")
  print(what_now.last_lines(result.graph, result.placement.devices, FLAGS.out, FLAGS.workers))


def run() -> None:
  """Entry point of `placeto-place`."""
  entry_point.run_program(main)


if __name__ == "__main__":
  run()
