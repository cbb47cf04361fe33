"""A picture of a GraphTensor of `schema.pbtxt`: groups, dataflow, devices, links.

Dimensions: G groups, D devices, E dataflow edges.
"""

from __future__ import annotations

from typing import List

import numpy as np

from placeto_tf.encoding import schema  # checks for the legacy Keras, so before TensorFlow

import tensorflow_gnn as tfgnn  # isort: skip


def draw(graph: tfgnn.GraphTensor, path: str) -> None:
  """Writes a PNG: above, groups from left to right along the dataflow, below, devices and links.

  A group's area shows its compute time on its fastest device, its colour the device it is on, its
  number its index; the width of an edge shows its bytes. All features are written out for the three
  groups that compute longest.

  Args:
    graph: one placement, as `graph_tensor.encode` makes it.
    path: of the file.
  """
  from matplotlib.backends.backend_agg import FigureCanvasAgg  # slow to import, seldom needed
  from matplotlib.figure import Figure

  groups, devices = graph.node_sets[schema.GROUP], graph.node_sets[schema.DEVICE]
  flow, option = graph.edge_sets[schema.DATAFLOW], graph.edge_sets[schema.OPTION]
  g = int(groups.total_size)
  sources, targets = flow.adjacency.source.numpy(), flow.adjacency.target.numpy()
  compute_us = np.full(g, np.inf)
  np.minimum.at(compute_us, option.adjacency.source.numpy(), _column(option, "compute_us"))
  placement = np.zeros(g, dtype=int)
  placed = graph.edge_sets[schema.PLACEMENT].adjacency
  placement[placed.source.numpy()] = placed.target.numpy()

  figure = Figure(figsize=(11, 6.2), dpi=90, layout="constrained")
  FigureCanvasAgg(figure)
  above, below = figure.subplots(2, 1, height_ratios=[4, 1])
  x, y = _layout(g, sources, targets)
  carried = _column(flow, "bytes")
  widest = max(float(carried.max(initial=0.0)), 1.0)
  for source, target, each in zip(sources, targets, carried):
    above.annotate(
        "", (x[target], y[target]), (x[source], y[source]), arrowprops={
            "arrowstyle": "->", "color": "0.6", "linewidth": 0.4 + 2.5 * each / widest,
            "connectionstyle": "arc3,rad=0.08", "shrinkA": 5, "shrinkB": 5})
  above.scatter(
      x, y, s=30 + 500 * compute_us / max(float(compute_us.max()), 1e-9),
      c=[f"C{device}" for device in placement], edgecolors="black", linewidths=0.5, zorder=3)
  for group in range(g):
    above.annotate(str(group), (x[group], y[group]), ha="center", va="center", fontsize=6, zorder=4)
  shown = np.argsort(-compute_us)[:3]
  above.set_title(
      f"group (features of {', '.join(map(str, shown))} below) and dataflow ({len(sources)} edges, "
      f"{widest / 2**20:.1f} MB at most): acyclic, from left to right; step_time_us "
      f"{float(_column(graph.context, 'step_time_us')[0]):,.0f}", fontsize=9)
  above.set_axis_off()
  _write_features(below, [_group_text(groups, compute_us, group) for group in shown],
                  _device_text(devices, graph.edge_sets[schema.LINK], option, g))
  figure.savefig(path)


def _column(holder, name: str) -> np.ndarray:
  return holder[name].numpy()[:, 0]


def _layout(g: int, sources: np.ndarray, targets: np.ndarray):
  """[G] x, the longest path of edges that leads to a group, and [G] y, which spreads a column."""
  depth = np.zeros(g, dtype=int)
  for _ in range(g):  # an acyclic graph of G groups has no longer path
    deeper = depth.copy()
    np.maximum.at(deeper, targets, depth[sources] + 1)
    if (deeper == depth).all():
      break
    depth = deeper
  y = np.zeros(g)
  for column in np.unique(depth):
    members = np.flatnonzero(depth == column)
    y[members] = np.arange(len(members)) - (len(members) - 1) / 2 + 0.3 * (column % 2)
  return depth.astype(float), y


def _group_text(groups, compute_us: np.ndarray, group: int) -> str:
  features = {name: float(_column(groups, name)[group]) for name in sorted(groups.features)}
  rows = [f"{name:17s}{value:16,.0f}" for name, value in features.items()]
  rows.append(f"{'option.compute_us':17s}{compute_us[group]:16,.0f}")
  return "\n".join([f"group {group}", *rows])


def _device_text(devices, link, option, g: int) -> str:
  rows: List[str] = ["device   memory_bytes  is_host  options"]
  allowed = option.adjacency.target.numpy()
  for device in range(int(devices.total_size)):
    rows.append(
        f"{device:6d} {_column(devices, 'memory_bytes')[device]:14,.0f} "
        f"{_column(devices, 'is_host')[device]:8.0f} {(allowed == device).sum():5d}/{g}")
  rows.append(f"link: {int(link.total_size)} ordered pairs")
  for name in ("bandwidth_bytes_per_us", "latency_us"):
    values = _column(link, name)
    rows.append(f"  {name} {values.min(initial=0):,.1f} to {values.max(initial=0):,.1f}")
  return "\n".join(rows)


def _write_features(axes, of_groups: List[str], of_devices: str) -> None:
  axes.set_axis_off()
  for i, text in enumerate([*of_groups, of_devices]):
    axes.text(0.24 * i, 1.0, text, family="monospace", fontsize=6.5, va="top",
              transform=axes.transAxes)
