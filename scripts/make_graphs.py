"""Writes a family of TensorFlow graphs, and a TFRecord of their GraphTensors.

  scripts/with_env python scripts/make_graphs.py --family=cifar10 --count=32 --out=graphs/cifar10

writes MetaGraphs (cifar10_0000.meta, ...), graphs.tfrecord with schema.pbtxt, and graphs.json.
TF-GNN pipelines and the SavedModel of a Placeto run (policies/policy) read such GraphTensors.
train.py does not read them: it simulates, and so needs the graphs.

  scripts/with_env python scripts/make_graphs.py --describe=bert,bert:size=large,family:ptb[0:4]

writes nothing and prints sizes and step times of graphs on the first device of the cluster.
"""

from __future__ import annotations

import sys
from typing import Any

from absl import flags

from placeto_tf.programs import entry_point

FLAGS = flags.FLAGS

flags.DEFINE_string("family", None, "Family of the graphs: cifar10, nmt or ptb.")
flags.DEFINE_integer("count", 32, "Number of graphs.", lower_bound=1)
flags.DEFINE_integer("first", 0, "Index of the first graph.", lower_bound=0)
flags.DEFINE_string(
    "cluster", "k80:4", "Cluster in the GraphTensors: preset:count, or a JSON file.")
flags.DEFINE_string("grouping", "heavy_edge", "Method of grouping ops in the GraphTensors.")
flags.DEFINE_integer("max_groups", 100, "The largest number of groups.", lower_bound=1)
flags.DEFINE_string("out", None, "Directory of results.")
flags.DEFINE_list("describe", None, "Graphs whose sizes are printed; nothing is written: zoo "
                  "specs, family:NAME[a:b].")
flags.DEFINE_integer("seed", 0, "Any number: the seed of a graph is its index, see --first.",
                     lower_bound=0, upper_bound=2**32 - 1)


def main() -> None:
  """Writes the graphs, or describes some."""
  from placeto_tf.errors import PlacetoError
  from placeto_tf.files import outputs

  if FLAGS.describe:
    _describe()
    return
  missing = [name for name in ("family", "out") if not FLAGS[name].value]
  if missing:
    raise PlacetoError(f"--{missing[0]} is missing; give --family and --out, or --describe")
  outputs.check(FLAGS.out)
  entry_point.import_tensorflow_quietly()
  from placeto_tf.encoding import graph_sets

  config = graph_sets.GraphSetConfig(
      family=FLAGS.family, count=FLAGS.count, first=FLAGS.first, cluster=FLAGS.cluster,
      grouping=FLAGS.grouping, max_groups=FLAGS.max_groups)

  def show(done: int, total: int, row: Any) -> None:
    print(f"[{done}/{total}] {row['file']}: {row['ops']:,} ops in {row['groups']} groups, "
          f"{row['single_device_us'] / 1e3:.1f} ms on one device", file=sys.stderr, flush=True)

  rows = graph_sets.make_graph_set(config, FLAGS.out, progress=show)
  print(f"Done: {len(rows)} graphs of {min(row['ops'] for row in rows):,} to "
        f"{max(row['ops'] for row in rows):,} ops in {FLAGS.out}.", flush=True)


def _describe() -> None:
  entry_point.import_tensorflow_quietly()
  import pandas as pd

  from placeto_tf import zoo
  from placeto_tf.evaluation import graph_table, tables

  specs = [spec for text in FLAGS.describe for spec in zoo.expand(text)]
  for spec in specs:
    zoo.resolve(spec)  # finds errors in all specs before the first graph is built
  print(tables.markdown(pd.DataFrame(
      [graph_table.describe(spec, FLAGS.cluster) for spec in specs])))


def run() -> None:
  """Entry point of `placeto-make_graphs`."""
  entry_point.run_program(main)


if __name__ == "__main__":
  run()
