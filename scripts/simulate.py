"""Simulates placements of a graph: one JSON line for each, on stdout.

  scripts/with_env python scripts/simulate.py --graph=zoo:inception_v3 --cluster=k80:4 \\
      --placement=placed/placement.json,other.json

A CostGraphDef file as --graph is simulated with its own costs. A placement that was made for
another graph is an error, unless --any_graph is given. If the step time differs from the one in the
placement's file, a note is written to stderr.
"""

from __future__ import annotations

import json
import math
import sys

from absl import flags

from placeto_tf.programs import entry_point, shared_flags

FLAGS = flags.FLAGS

shared_flags.define_graph_flags()
shared_flags.define_cluster_flag()
flags.DEFINE_list("placement", None, "placement.json files, comma separated.", required=True)
shared_flags.define_any_graph_flag()
shared_flags.define_look_flag()
flags.DEFINE_integer("seed", 0, "Any number: simulations are deterministic.",
                     lower_bound=0, upper_bound=2**32 - 1)


def main() -> None:
  """Loads the graph once and simulates every placement."""
  from placeto_tf.clusters import Cluster
  from placeto_tf.costs import assumed_shapes, estimate_costs
  from placeto_tf.costs.look import looking
  from placeto_tf.placements import Placement
  from placeto_tf.simulation import Simulator

  entry_point.import_tensorflow_quietly()
  placements = [Placement.load(path) for path in FLAGS.placement]
  cluster = Cluster.parse(FLAGS.cluster)
  graph = assumed_shapes.load(FLAGS.graph, **shared_flags.graph_options())
  with looking(FLAGS.look, shared_flags.tell):
    simulator = Simulator(graph, estimate_costs(graph, cluster, source=FLAGS.cost_model), cluster)
  for path, placement in zip(FLAGS.placement, placements):
    result = simulator.simulate(
        placement.indices(graph, cluster, any_graph=FLAGS.any_graph))
    said, found = placement.step_time_us, float(result.step_time_us)
    if said is not None and not math.isclose(said, found, rel_tol=1e-9):
      print(f"Note: a step takes {found / 1e3:.4g} ms, not {said / 1e3:.4g} ms as {path} says; it "
            "was placed with another graph, cluster or costs.", file=sys.stderr, flush=True)
    by_device = lambda values: dict(zip(cluster.device_names, values.tolist()))  # noqa: E731
    print(json.dumps({
        "placement": path,
        "step_time_us": found,
        "busy_us": by_device(result.busy_us),
        "transfer_us": by_device(result.transfer_us),
        "transfer_bytes": float(result.transfer_bytes),
        "peak_memory_bytes": by_device(result.peak_memory_bytes),
        "fits": bool(result.fits),
    }), flush=True)


def run() -> None:
  """Entry point of `placeto-simulate`."""
  entry_point.run_program(main)


if __name__ == "__main__":
  run()
