"""Places a TensorFlow graph on a cluster and writes it with its devices set.

  scripts/with_env python scripts/place.py --graph=zoo:inception_v3 --cluster=k80:4 --out=placed
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Dict, Iterator, Union

from absl import flags

from placeto_tf.programs import entry_point, shared_flags

FLAGS = flags.FLAGS

shared_flags.define_graph_flags()
shared_flags.define_cluster_flag()
shared_flags.define_budget_flags(max_seconds=60)
shared_flags.define_stop_within_flag()
flags.DEFINE_string("out", None, "Directory to write; its earlier results are replaced only when "
                    "all new ones are there.", required=True)
flags.DEFINE_string("method", "auto", "Placer: auto, auto_unlearned (the same without "
                    "policies), or one by name; an unknown name is answered with the list.")
flags.DEFINE_integer("seed", 0, "Seed of all that is random.",
                     lower_bound=0, upper_bound=2**32 - 1)
flags.DEFINE_string("grouping", "heavy_edge", "How ops are grouped; with 'learned' the "
                    "hierarchical policy learns it with half of the budget.")
flags.DEFINE_integer("max_groups", 128, "Groups at most.", lower_bound=1)
flags.DEFINE_enum("existing_devices", "start", ["keep", "start", "ignore"],
                  "The graph's own devices: keep them, start from them, or ignore them.")
flags.DEFINE_multi_string("pin", [], "REGEX:DEVICE fixes the ops whose whole name matches; "
                          "repeatable.")
flags.DEFINE_enum("cost", "simulated", ["simulated", "measured"],
                  "The steps that decide in the end: simulated or real ones.")
flags.DEFINE_integer("max_measurements", 50, "Placements to run, with --cost=measured.",
                     lower_bound=1)
flags.DEFINE_string("policy_weights", None, "Directory of a run of scripts/train.py, or "
                    "of its weights, for a method of its policy: device_pointer (by default "
                    "the weights that ship); placeto and gdp, which go on learning from them; "
                    "methods such as placeto_zero_shot and gdp_fine_tune need them.")
shared_flags.define_islands_flag(
    "default: one for each core, 8 at most; with --ray one for each of Ray's cores; with "
    "--max_evaluations 1, so that the result is the same on any machine")
shared_flags.define_ray_flag()
shared_flags.define_replicas_flags()
flags.DEFINE_bool("verbose", False, "Whether the table shows every placer that took part; by "
                  "default the graph as it is, the baselines and the answer.")
shared_flags.define_runtime_flags()


def main() -> None:
  """Loads, places, writes and prints."""
  from placeto_tf.clusters import Cluster
  from placeto_tf.graphs import load_graph, result_directory
  from placeto_tf.placements import writing
  from placeto_tf.placing import progress_bar, replica_search, reports, run, signatures
  from placeto_tf.placing.config import PlacingConfig, Progress
  from placeto_tf.placing.result import PlacingResult
  from placeto_tf.placing.summaries import PlacingSummaries
  from placeto_tf.problem.placement_problem import PlacementProblem
  from placeto_tf.replication import ReplicaSource

  config = PlacingConfig(
      method=FLAGS.method, max_seconds=FLAGS.max_seconds, max_evaluations=FLAGS.max_evaluations,
      stop_within=FLAGS.stop_within, seed=FLAGS.seed, grouping=FLAGS.grouping,
      max_groups=FLAGS.max_groups, costs=FLAGS.costs,
      existing_devices=FLAGS.existing_devices, pins=tuple(shared_flags.parse_pins(FLAGS.pin)),
      cost=FLAGS.cost, max_measurements=FLAGS.max_measurements, workers=tuple(FLAGS.workers),
      device_map=tuple(shared_flags.device_map().items()), policy_weights=FLAGS.policy_weights,
      islands=FLAGS.islands, ray=FLAGS.ray, replicas=shared_flags.replicas(),
      mirrored_variables=shared_flags.mirrored_variables(),
      check_replicas=FLAGS.check_replicas == "yes", batch_norm=FLAGS.batch_norm)
  if FLAGS.cost == "measured":
    # oneDNN joins ops after the graph is split, so another placement would be timed.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
  config = replica_search.with_replicas_of_spec(config, FLAGS.graph)
  cluster = Cluster.parse(FLAGS.cluster)
  result_directory.check(FLAGS.out)
  started = time.monotonic()
  keys = shared_flags.signatures()
  graphs = source = None
  with progress_bar.stage(f"Loading {FLAGS.graph}"):
    entry_point.import_tensorflow_quietly()
    options = shared_flags.graph_options()
    if keys:
      graphs = signatures.load_signatures(FLAGS.graph, keys, options)
      graph = graphs.whole
    elif config.replicas != 1:
      source = ReplicaSource(FLAGS.graph, options, batch_norm=FLAGS.batch_norm)
      graph = source.graph
    else:
      graph = load_graph(FLAGS.graph, **options)
  for part in [graph] if graphs is None else graphs.parts.values():
    progress_bar.say(reports.step_line(part))
  inputs = [FLAGS.graph, FLAGS.cluster, FLAGS.costs, FLAGS.policy_weights or ""]
  with reports.Workspace(FLAGS.out, inputs) as workspace, contextlib.ExitStack() as boards:
    workspace.claim(reports.result_names(graph, signatures=bool(keys)))
    writing.check_writable(graph, workspace.path)
    board = workspace.tensorboard_dir
    progress_bar.say(f"To watch the search: tensorboard --logdir={board}")
    summaries: Dict[str, PlacingSummaries] = {}

    @contextlib.contextmanager
    def watch(key: str, config: PlacingConfig) -> Iterator[Progress]:
      """Shows how far a search is, and writes it down."""
      events = summaries[key] = boards.enter_context(PlacingSummaries(os.path.join(board, key)))
      with progress_bar.ProgressBar(config.budget) as bar:

        def progress(problem: PlacementProblem, stage: str) -> None:
          bar(problem, stage)
          events(problem, stage)

        yield progress

    result: Union[PlacingResult, signatures.SignaturesResult]
    if graphs is not None:
      result = signatures.place_graphs(
          graphs, cluster, config, root_dir=board, stage=progress_bar.stage,
          watch=lambda key, share: watch(signatures.folder_of(key), share))
      found = {signatures.folder_of(key): each for key, each in result.results.items()}
      text = reports.table_of_signatures(result, verbose=FLAGS.verbose)
    else:
      with watch("placing", config) as progress:
        if source is not None:
          result = replica_search.place_replicas(
              source, cluster, config, progress=progress, stage=progress_bar.stage)
        else:
          result = run.place_with(
              graph, cluster, config, root_dir=board, progress=progress, stage=progress_bar.stage)
      found = {"placing": result}
      text = reports.table(result, verbose=FLAGS.verbose)
    with progress_bar.stage("Writing"):
      reports.write_result(result, workspace)
      for key, each in found.items():
        summaries[key].finish(each)
    boards.close()
    workspace.publish()
  print(text)
  print(f"Written to {FLAGS.out} in {time.monotonic() - started:.0f} s.", flush=True)


def run() -> None:
  """Entry point of `placeto-place`."""
  entry_point.run_program(main)


if __name__ == "__main__":
  run()
