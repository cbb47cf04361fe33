"""The learning curves of a run as a picture, from its events for TensorBoard."""

from __future__ import annotations

import collections
import glob
import os
from typing import Dict

import tensorflow as tf
from tensorboard.backend.event_processing import event_file_loader

_METRICS = "Metrics/"


def read(directory: str) -> Dict[str, Dict[int, float]]:
  """Returns name -> iteration -> value, of the figures that are not of one graph.

  Iterations that a killed run did twice count as they were done last.
  """
  found: Dict[str, Dict[int, float]] = collections.defaultdict(dict)
  # Oldest file first: a resumed run overwrites the iterations that it did again.
  for path in sorted(glob.glob(os.path.join(directory, "events*")), key=os.path.getmtime):
    for event in event_file_loader.EventFileLoader(path).Load():
      for value in event.summary.value:
        if value.tag.startswith(_METRICS):
          found[value.tag[len(_METRICS):]][event.step] = float(tf.make_ndarray(value.tensor))
  return dict(found)


def draw(root_dir: str) -> None:
  """Writes curves.png into the root directory of a run, a panel a figure."""
  from matplotlib.backends.backend_agg import FigureCanvasAgg  # slow to import
  from matplotlib.figure import Figure

  # One point is no curve; rates and skipped updates say nothing of the policy.
  curves = {name: points for name, points in read(os.path.join(root_dir, "train")).items()
            if len(points) > 1 and not name.endswith(("_a_second", "skipped"))}
  if not curves:
    return
  columns = min(3, len(curves))
  # Rounded up.
  rows = -(-len(curves) // columns)
  figure = Figure(figsize=(4 * columns, 2.6 * rows), dpi=90, layout="constrained")
  FigureCanvasAgg(figure)
  panels = figure.subplots(rows, columns, squeeze=False).ravel()
  for panel, (name, points) in zip(panels, sorted(curves.items())):
    steps = sorted(points)
    panel.plot(steps, [points[step] for step in steps], linewidth=1)
    panel.set_title(name, fontsize=9)
    panel.tick_params(labelsize=7)
  # Panels that the last row has too many.
  for panel in panels[len(curves):]:
    panel.set_axis_off()
  figure.supxlabel("iteration", fontsize=9)
  figure.savefig(os.path.join(root_dir, "curves.png"))
