"""Measures the gain by using the host: large tables placed, against `tf.device("/CPU:0")` by hand.

  scripts/with_env python scripts/benchmarks/host_tables.py --out=runs/host_tables

Five graphs with tables of 1 to 40 GB are placed on V100s of 16 GB. They are compared with the same
graph with its tables put on the CPU by hand, and with placements without the host. For graphs of
the zoo, the program counts the ops that the host may run besides the GPUs: without such ops a
search is the same, placement by placement, as without the host. The tables are never allocated.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any, Callable, Dict, List, Sequence, Tuple

import numpy as np
import pandas as pd
from absl import flags

from placeto_tf.programs import entry_point

FLAGS = flags.FLAGS

flags.DEFINE_integer("max_evaluations", 1000, "Placements of each search.", lower_bound=50)
flags.DEFINE_string("method", "auto_unlearned", "Placer of the graphs.")
flags.DEFINE_string("out", "runs/host_tables", "Directory of the results.")
flags.DEFINE_list(
    "zoo", ["inception_v3", "resnet50", "rnnlm", "nmt", "gnmt", "bert", "transformer_xl",
             "nasnet_mobile", "wavenet", "amoebanet"], "Names of the zoo.")
flags.DEFINE_list("zoo_clusters", ["k80:4", "v100:4"], "Clusters of the graphs of --zoo.")

_GB = 2**30

# Name -> cluster, batch, tables as (rows, width, looked up per example), layers of the tower,
# optimizer.
_ROWS = Tuple[int, int, int]
GRAPHS: Dict[str, Tuple[str, int, Sequence[_ROWS], Sequence[int], str]] = {
    "matrix factorization, 1 GB": (
        "v100:1", 4096, [(2_000_000, 64, 1), (2_000_000, 64, 1)], [256, 64], "Adagrad"),
    "wide and deep, 9 GB": (
        "v100:2", 2048, [(30_000_000, 8, 20), (16_000_000, 64, 1), (16_000_000, 64, 1)],
        [1024, 512, 256], "GradientDescent"),
    "DLRM, 24 tables of 19 GB": (
        "v100:4", 2048, [(3_300_000, 64, 1)] * 24, [1024, 1024, 512], "GradientDescent"),
    "two towers, a table of 25 GB": (
        "v100:2", 4096, [(50_000_000, 128, 50), (1_000_000, 128, 1)], [1024, 256], "Adagrad"),
    "bag of n-grams, a table of 40 GB": (
        "v100:4", 1024, [(160_000_000, 64, 100)], [2048, 2048, 1024], "GradientDescent"),
}


def build(name: str, scope: Callable[[], Any]) -> Any:
  """Builds a training graph whose tables are made and read within `scope`."""
  import tensorflow as tf

  v1 = tf.compat.v1
  _, batch, tables, layers, optimizer = GRAPHS[name]
  with tf.Graph().as_default() as graph:
    parts = []
    for k, (rows, width, count) in enumerate(tables):
      ids = v1.placeholder(tf.int32, [batch, count], name=f"ids_{k}")
      with scope(), v1.variable_scope(f"embedding_{k}"):
        table = v1.get_variable("table", [rows, width])
        parts.append(tf.reduce_sum(tf.nn.embedding_lookup(table, ids), axis=1))
    x = tf.concat([*parts, v1.placeholder(tf.float32, [batch, 64], name="dense")], axis=1)
    for k, units in enumerate([*layers, 1]):
      with v1.variable_scope(f"layer_{k}"):
        w = v1.get_variable("w", [x.shape[1], units])
        x = tf.matmul(x, w)
        x = tf.nn.relu(x) if k < len(layers) else x
    make = getattr(v1.train, f"{optimizer}Optimizer")
    make(0.1).minimize(tf.reduce_mean(x**2), name="train")
  return graph


def row_of(name: str) -> Dict[str, Any]:
  """Places one graph, with its tables free and on the CPU by hand."""
  import tensorflow as tf

  import placeto_tf as placeto
  from placeto_tf.errors import PlacementError

  cluster = GRAPHS[name][0]
  options = dict(method=FLAGS.method, max_evaluations=FLAGS.max_evaluations, seed=0)
  free = placeto.load_graph(build(name, contextlib.nullcontext), fetches=["train"])
  result = placeto.place(free, cluster, **options)
  by_hand = placeto.load_graph(build(name, lambda: tf.device("/CPU:0")), fetches=["train"])
  kept = placeto.place(by_hand, cluster, "current", max_evaluations=20)
  gpus = [device for device in result.cluster.device_names if "GPU" in device]
  try:
    alone = placeto.place(free, cluster, allowed={".*": gpus}, **options)
    without = f"{alone.step_time_us:.0f}"
  except PlacementError:
    without = "does not fit"
  tables = [op for op, kind in zip(free.op_names, free.op_types) if op.startswith("embedding")]
  held = dict(zip(free.op_names, result.costs.persistent_bytes))
  return {
      "graph": name, "cluster": cluster,
      "tables_gb": round(sum(held[op] for op in tables) / _GB, 1),
      "on_gpu_gb": round(
          sum(held[op] for op in tables if "GPU" in result.placement[op]) / _GB, 1),
      "placed_us": round(result.step_time_us),
      "by_hand_us": round(kept.baselines["current"].step_time_us), "without_host": without}


def newly_offered(name: str, cluster_name: str) -> int:
  """Returns the number of ops of a zoo graph that may use the host but also run elsewhere."""
  from placeto_tf.clusters import Cluster, allowed_devices
  from placeto_tf.costs import estimate_costs
  from placeto_tf.graphs import load_graph
  from placeto_tf.problem.host_options import hosts_of, offered_devices

  graph, cluster = load_graph(f"zoo:{name}"), Cluster.parse(cluster_name)
  hosts = hosts_of(cluster)
  offered = offered_devices(graph, cluster, estimate_costs(graph, cluster))
  elsewhere = allowed_devices(graph, cluster)[:, ~hosts].any(axis=1)
  return int(np.count_nonzero(elsewhere & offered[:, hosts].any(axis=1)))


def main() -> None:
  """Writes and prints both tables."""
  entry_point.import_tensorflow_quietly()
  os.makedirs(FLAGS.out, exist_ok=True)
  rows: List[Dict[str, Any]] = []
  for name in GRAPHS:
    rows.append(row_of(name))
    print(rows[-1], flush=True)
  pd.DataFrame(rows).to_csv(os.path.join(FLAGS.out, "tables.csv"), index=False)
  for name in FLAGS.zoo:
    for cluster in FLAGS.zoo_clusters:
      print(f"{name} on {cluster}: {newly_offered(name, cluster)} ops", file=sys.stderr, flush=True)


if __name__ == "__main__":
  entry_point.run_program(main)
