"""Measures what Ray costs `evaluate.py`, and what a second node of one core gains; prints a table.

  scripts/with_env python scripts/benchmark_ray.py
  scripts/with_env python scripts/benchmark_ray.py --tasks=24 --seconds=20

The nodes are processes of this machine (`ray.cluster_utils.Cluster`): a head that runs no tasks,
and nodes of one core each. Every task is a run of annealing that ends by time. Besides: bytes that
are sent once for each problem and node, and with each task and back.
"""

from __future__ import annotations

import os
import pickle
import shutil
import tempfile
import time
from typing import Any, List

from absl import flags

from placeto_tf.programs import entry_point

FLAGS = flags.FLAGS

flags.DEFINE_string("graph", "zoo:inception_v3", "Graph.")
flags.DEFINE_string("cluster", "k80:4", "Cluster.")
flags.DEFINE_integer("tasks", 8, "Tasks, a seed each.", lower_bound=2)
flags.DEFINE_float("seconds", 5, "Time of each.")
flags.DEFINE_list("nodes", ["1", "2"], "Numbers of nodes, the first to compare with.")


def measure(config: Any, nodes: int) -> List[float]:
  """[2] seconds from the connected Ray to the first row and to the last one."""
  from ray.cluster_utils import Cluster

  from placeto_tf.evaluation import evaluate

  cluster = Cluster(
      initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
  out = tempfile.mkdtemp(prefix="benchmark_ray_")
  try:
    for _ in range(nodes):
      cluster.add_node(num_cpus=1)
    ends: List[float] = []
    began = time.monotonic()
    evaluate(config, out, ray=cluster.address, progress=lambda *_: ends.append(time.monotonic()))
    return [ends[0] - began, ends[-1] - began]
  finally:
    cluster.shutdown()
    shutil.rmtree(out)


def sizes(config: Any) -> List[int]:
  """[3] bytes of a problem, of a task besides it, and of what it answers."""
  from placeto_tf.clusters import Cluster
  from placeto_tf.evaluation import runs
  from placeto_tf.evaluation.evaluate import problem_factory
  from placeto_tf.graphs import load_graph

  problem = problem_factory(load_graph(FLAGS.graph), Cluster.parse(FLAGS.cluster), config)()
  key = (FLAGS.graph, FLAGS.cluster, "annealing", 0)
  found = runs.run(problem.renewed(), key, config, None)
  return [len(pickle.dumps(each, protocol=pickle.HIGHEST_PROTOCOL))
          for each in (problem.portable(with_shapes=True), (key, config), found)]


def main() -> None:
  """Prints the table."""
  from placeto_tf.evaluation import EvaluationConfig

  config = EvaluationConfig(
      graphs=(FLAGS.graph,), clusters=(FLAGS.cluster,), methods=("annealing",),
      seeds=tuple(range(FLAGS.tasks)), max_seconds=FLAGS.seconds)
  problem_bytes, task_bytes, found_bytes = sizes(config)
  print(f"{problem_bytes:,} bytes a problem and node, {task_bytes:,} a task, {found_bytes:,} back; "
        f"load {os.getloadavg()[0]:.1f}\n")
  print("| nodes | first row s | beyond its own time s | all rows s | ratio |\n|"
        + "---:|" * 5)
  first_s = None
  for nodes in FLAGS.nodes:
    row_s, all_s = measure(config, int(nodes))
    first_s = first_s or all_s
    print(f"| {nodes} | {row_s:.1f} | {row_s - FLAGS.seconds:.1f} | {all_s:.1f} "
          f"| {first_s / all_s:.2f} |", flush=True)


if __name__ == "__main__":
  entry_point.run_program(main)
