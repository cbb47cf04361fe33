"""Draws a picture of each table of docs/results/data for the pages of docs/results.

  scripts/with_env python scripts/benchmarks/plot_results.py

A picture has a line for each graph (and cluster) and a dot for each method: the method's step time
divided by that of a reference, or the figure itself.
"""

from __future__ import annotations

import os
import pathlib
from typing import Any, Optional, Sequence

import numpy as np
import pandas as pd
from absl import app, flags

FLAGS = flags.FLAGS

flags.DEFINE_string("docs", "docs/results", "Folder of the pages; tables are in its `data`.")

_MARKERS = "osD^vP*X<>"


def by_method(rows: pd.DataFrame, value: str) -> pd.DataFrame:
  """Returns a row for each graph and cluster, with a column for each method."""
  return rows.astype({value: float}).pivot_table(
      value, ["graph", "cluster"], "method", sort=False).reset_index()


def draw(
    path: str, rows: pd.DataFrame, columns: Sequence[str], over: Optional[str], label: str,
    logarithmic: bool = False) -> None:
  """Writes a picture.

  Args:
    path: of the PNG.
    rows: with "graph", and "cluster" where there are several.
    columns: a dot for each.
    over: the column that figures are divided by, or None.
    label: of the axis, which may be logarithmic.
  """
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.figure import Figure

  names = rows["graph"] + (" on " + rows["cluster"] if "cluster" in rows else "")
  figure = Figure(figsize=(9, 1.4 + 0.26 * len(rows)), dpi=110)
  FigureCanvasAgg(figure)
  axes = figure.subplots()
  lines = range(len(rows))
  for k, column in enumerate(columns):
    axes.plot(rows[column] / (rows[over] if over else 1.0), lines, _MARKERS[k], color=f"C{k}",
              label=column, alpha=0.85)
  if over:
    axes.axvline(1.0, color="0.4", linewidth=1)
  axes.set_yticks(list(lines), names, fontsize=9)
  axes.invert_yaxis()
  axes.grid(color="0.9")
  axes.set_axisbelow(True)
  axes.set_xlabel(label)
  if logarithmic:
    axes.set_xscale("log")
  axes.legend(fontsize=8, ncols=min(len(columns), 6), loc="lower center", bbox_to_anchor=(0.5, 1.0))
  figure.tight_layout()
  figure.savefig(path)


def main(argv: Sequence[str]) -> None:
  """Draws all pictures."""
  del argv
  data = {path.stem: pd.read_csv(path)
          for path in sorted(pathlib.Path(FLAGS.docs, "data").glob("*.csv"))}

  def picture(name: str, *args: Any) -> None:
    draw(os.path.join(FLAGS.docs, f"{name}.png"), *args)

  picture("auto_over_the_zoo", data["auto_over_the_zoo"],
          ["one device", "expert", "METIS", "bound"], "auto", "step time over that of auto")
  picture("expert", data["expert"], ["layers over all devices", "expert"], "one device",
          "step time over that of one device")
  picture("bounds", data["bounds"].dropna(subset=["found"]), ["bound before", "bound"], "found",
          "lower bound over the best known step")
  picture("groupings", data["groupings"], ["heavy_edge", "single_consumer", "metis", "none"], None,
          "excess over the best known placement of single ops, %")
  picture("methods_alone", data["methods_alone"], [
      "expert", "metis", "list schedulers", "annealing", "local_search",
      "placeto"], "auto", "step time over that of auto")
  picture("replicas", data["replicas"], ["placement alone", "data parallelism", "bound"],
          "replicas=auto", "step time over that of --replicas=auto")
  picture("gdp", data["gdp"], [
      "METIS", "hierarchical", "GDP from scratch", "zero-shot", "fine-tuned", "annealing",
      "placeto"], "expert", "step time over the expert's")
  foreign = data["foreign_graphs"]
  picture("foreign_graphs", foreign.assign(
      graph=foreign["graph"] + foreign["evaluations"].map(", {:,}".format)),
      ["placeto", "placeto_uniform", "local_search", "annealing"], "start",
      "step time over the best of one device, expert and METIS, by graph and evaluations")
  picture("learned_placers", by_method(data["learned_placers"], "mean ms"), [
      "expert", "metis", "rnn", "hierarchical", "placeto"],
      "single", "step time over that of one device")
  picture("learned_placers_evaluations", by_method(
      data["learned_placers_evaluations"].replace("never", np.nan), "to the best of rnn"),
      ["rnn", "hierarchical", "placeto"], "rnn",
      "evaluations to within 1 % of the best of rnn, over its own", True)


if __name__ == "__main__":
  app.run(main)
