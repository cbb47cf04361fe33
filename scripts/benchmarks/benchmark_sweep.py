"""Sweeps batch size, devices and links, to show where placement makes steps shorter.

  scripts/with_env python scripts/benchmarks/benchmark_sweep.py --out=runs/sweep

Writes the files of scripts/evaluate.py, the clusters, sweep.md (step times of one device and of the
method, and their ratio) and sweep.png (this ratio against the batch size, a curve per cluster).
After an interruption the same command continues where it stopped.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Dict, List, Tuple

from absl import flags

from placeto_tf.programs import entry_point, shared_flags

FLAGS = flags.FLAGS

flags.DEFINE_list("models", ["inception_v3", "rnnlm"], "Models of the zoo, with their options.")
flags.DEFINE_list("batches", ["16", "32", "64", "128", "256"], "Batch sizes.")
flags.DEFINE_string("device", "a100", "Preset of the devices.")
flags.DEFINE_list("counts", ["2", "4", "8"], "Numbers of devices.")
flags.DEFINE_list("links", ["pcie=24000", "nvlink=225000"],
                  "NAME=BANDWIDTH pairs of the links between devices, in bytes per microsecond.")
flags.DEFINE_string("method", "auto", "The method that places.")
flags.DEFINE_integer("max_evaluations", 3000, "Placements that a run evaluates.", lower_bound=1)
flags.DEFINE_string("out", None, "Directory of results.", required=True)


def _links() -> Dict[str, float]:
  """Returns name of a link -> bytes per microsecond."""
  return {name: float(value) for name, _, value in (text.partition("=") for text in FLAGS.links)}


def write_clusters(directory: str) -> Dict[Tuple[int, str], str]:
  """Writes the clusters; returns (number of devices, name of the links) -> file of the cluster.

  Raises:
    PlacetoError: the directory has another cluster of the same name, perhaps with results.
  """
  import numpy as np

  from placeto_tf.clusters import Cluster
  from placeto_tf.errors import PlacetoError

  os.makedirs(directory, exist_ok=True)
  paths = {}
  for count in shared_flags.whole_numbers("counts"):
    cluster = Cluster.parse(f"{FLAGS.device}:{count}")
    placed_on = np.array([not device.host for device in cluster.devices])
    between = placed_on[:, None] & placed_on & ~np.eye(len(placed_on), dtype=bool)
    for name, bandwidth in _links().items():
      path = os.path.join(directory, f"{FLAGS.device}_{count}_{name}.json")
      linked = dataclasses.replace(cluster, bandwidth_bytes_per_us=np.where(
          between, bandwidth, cluster.bandwidth_bytes_per_us))
      if os.path.exists(path) and Cluster.load(path).to_json() != linked.to_json():
        raise PlacetoError(
            f"{path} is another cluster than {name}={bandwidth:g} makes; give another --out")
      linked.save(path)
      paths[count, name] = path
  return paths


def gains(rows: List[dict], method: str) -> Dict[Tuple[str, str], Tuple[float, float, bool]]:
  """(graph, cluster) -> us of one device, us of the method, whether one device fits the graph."""
  single = {(row["graph"], row["cluster"]): row for row in rows if row["method"] == "single"}
  return {
      key: (single[key]["step_time_us"], row["step_time_us"], single[key]["fits"])
      for row in rows if row["method"] == method
      for key in [(row["graph"], row["cluster"])]}


def _table(found, graphs, paths) -> str:
  lines = ["| model, batch | " + " | ".join(f"{count} {name}" for count, name in paths) + " |",
           "|---|" + "---:|" * len(paths)]
  for (model, batch), graph in graphs.items():
    cells = []
    for path in paths.values():
      single_us, found_us, fits = found[graph, path]
      cells.append(f"{single_us / 1e3:.1f} / {found_us / 1e3:.1f} = {single_us / found_us:.2f}"
                   + ("" if fits else " (one device: out of memory)"))
    lines.append(f"| {model}, {batch} | " + " | ".join(cells) + " |")
  return "\n".join(lines)


def _plot(found, graphs, paths, out: str) -> str:
  from matplotlib.figure import Figure  # no pyplot: no global state, no display

  figure = Figure(figsize=(9.5, 4.0), layout="constrained")
  panels = figure.subplots(1, len(FLAGS.models), sharey=True, squeeze=False)[0]
  styles = dict(zip(_links(), ("-", "--", ":", "-.")))
  counts = shared_flags.whole_numbers("counts")
  for axes, model in zip(panels, FLAGS.models):
    for (count, name), path in paths.items():
      curve = [(batch, *found[graph, path]) for (of, batch), graph in graphs.items() if of == model]
      x, y = [each[0] for each in curve], [each[1] / each[2] for each in curve]
      colour = f"C{counts.index(count)}"
      axes.plot(x, y, styles.get(name, "-"), color=colour, label=f"{count} devices, {name}")
      # Graphs that do not fit on one device run only if they are placed on several.
      axes.scatter(x, y, color=colour, facecolors=[
          colour if each[3] else "white" for each in curve], zorder=3)
    axes.set_xscale("log", base=2)
    axes.set_xticks(x, [str(batch) for batch in x])
    axes.set_title(f"{model} on {FLAGS.device}")
    axes.set_xlabel("batch size (hollow: one device runs out of memory)")
    axes.grid(alpha=0.3)
  panels[0].set_ylabel(f"one device's step time over that of {FLAGS.method}")
  panels[-1].legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1.0))
  path = os.path.join(out, "sweep.png")
  figure.savefig(path, dpi=120)
  return path


def main() -> None:
  """Evaluates, then writes the table and the plot."""
  from placeto_tf.evaluation import EvaluationConfig, evaluate
  from placeto_tf.files import outputs

  entry_point.import_tensorflow_quietly()
  outputs.check(FLAGS.out)
  paths = write_clusters(os.path.join(FLAGS.out, "clusters"))
  graphs = {(model, batch): f"zoo:{model}:batch={batch}"
            for model in FLAGS.models for batch in shared_flags.whole_numbers("batches")}
  config = EvaluationConfig(
      graphs=tuple(graphs.values()), clusters=tuple(paths.values()),
      methods=("single", FLAGS.method), max_evaluations=FLAGS.max_evaluations)

  rows = evaluate(config, FLAGS.out, progress=shared_flags.show_row)
  found = gains(rows.to_dict("records"), FLAGS.method)
  table = _table(found, graphs, paths)
  outputs.write(os.path.join(FLAGS.out, "sweep.md"), (table + "\n").encode())
  print(table)
  print(f"Done: {_plot(found, graphs, paths, FLAGS.out)}", flush=True)


if __name__ == "__main__":
  entry_point.run_program(main)
