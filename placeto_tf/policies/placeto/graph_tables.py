"""What never changes in an episode, for several graphs padded to one size.

A network trained on a family keeps its graphs here, and an observation names the one it is of. A
padding group belongs to no edge and no mask, and nobody may look at it; a padding edge leads from
the first group to itself and carries nothing.

Legend: C graphs, G groups of the largest, E edges of the largest, D devices, S static features.
"""

from __future__ import annotations

from typing import Dict, Optional, Sequence

import numpy as np
import tensorflow as tf

from placeto_tf.encoding.grouped_graph import GroupedGraph
from placeto_tf.errors import PlacetoError
from placeto_tf.policies.placeto import device_features

STATIC = "static"  # [G, S]
DISALLOWED = "disallowed"  # [G, D], 0 or a logit that is never drawn
SOURCES, TARGETS = "sources", "targets"  # [E]
WEIGHT = "weight"  # [E], bytes over the largest edge's
REAL = "real"  # [E], 0 for padding
RELATIVES = "relatives"  # [3, G, G], marks ancestors, descendants, parallels of each group
EVERYONE = "everyone"  # [G], marks all groups, with 0 for padding

NEVER = -1e9  # a logit: finite, so that the entropy stays a number
NUM_STATIC = 3

Tables = Dict[str, tf.Tensor]


class GraphTables:
  """Looks up the constants of one graph among several.

  Attributes:
    num_graphs, num_groups, num_devices: C, G, D.
    padded: whether any graph is smaller than the largest, in groups or edges.
    choices: devices that the median group may be placed on.
  """

  def __init__(
      self, graphs: Sequence[GroupedGraph], scales_us: Sequence[float], *,
      max_groups: Optional[int] = None, mean_pooling: bool = False,
      device_scores: bool = False):
    """Stacks the graphs.

    Args:
      graphs: C of them, on clusters of equally many devices.
      scales_us: what each graph's times are divided by.
      max_groups: G; by default as many as the largest has.
      mean_pooling: whether RELATIVES and EVERYONE mark with 1 over the graph's groups, not with 1.
      device_scores: whether to keep what `DeviceFeatures` needs.

    Raises:
      PlacetoError: a graph has more than `max_groups` groups, or clusters differ in size.
    """
    self.num_graphs, self.num_devices = len(graphs), graphs[0].num_devices
    self.num_groups = max_groups or max(graph.num_groups for graph in graphs)
    edges = max(graph.num_edges for graph in graphs)
    for i, graph in enumerate(graphs):
      if graph.num_groups > self.num_groups:
        raise PlacetoError(
            f"graph {i} has {graph.num_groups} groups, there is room for {self.num_groups}; raise "
            "max_groups or group more coarsely")
      if graph.num_devices != self.num_devices:
        raise PlacetoError(
            f"graph {i} is on {graph.num_devices} devices, graph 0 on {self.num_devices}; this "
            "policy needs clusters of one size")
    self.padded = any(
        (graph.num_groups, graph.num_edges) != (self.num_groups, edges) for graph in graphs)
    self.choices = float(np.median(np.concatenate(
        [graph.allowed.sum(axis=1) for graph in graphs])))
    rows = []
    for graph, scale_us in zip(graphs, scales_us):
      tables = _tables(graph, scale_us, mean_pooling, device_scores)
      rows.append(_padded(tables, graph, self.num_groups, edges))
    self._tables = {name: tf.constant(np.stack([row[name] for row in rows])) for name in rows[0]}

  def __call__(self, graph: Optional[tf.Tensor] = None) -> Tables:
    """The constants of graph number `graph`, a scalar; None where there is only one."""
    return {name: table[0 if graph is None else graph] for name, table in self._tables.items()}


def _tables(
    graph: GroupedGraph, scale_us: float, mean_pooling: bool,
    device_scores: bool) -> Dict[str, np.ndarray]:
  """Name -> array of one graph, not padded."""
  mark = 1.0 / graph.num_groups if mean_pooling else 1.0
  relatives = np.stack([graph.ancestors, graph.descendants, graph.parallel])
  tables = {
      STATIC: _static_features(graph),
      DISALLOWED: np.where(graph.allowed, 0.0, NEVER),
      SOURCES: graph.sources,
      TARGETS: graph.targets,
      WEIGHT: graph.edge_bytes / max(float(graph.edge_bytes.max(initial=0.0)), 1.0),
      REAL: np.ones(graph.num_edges),
      RELATIVES: relatives * mark,
      EVERYONE: np.full(graph.num_groups, mark),
  }
  if device_scores:
    tables.update(device_features.tables(graph, scale_us))
  return {
      name: table.astype(np.int32 if name in (SOURCES, TARGETS) else np.float32)
      for name, table in tables.items()}


def _padded(
    tables: Dict[str, np.ndarray], graph: GroupedGraph, g: int, e: int) -> Dict[str, np.ndarray]:
  """The same with room for g groups and e edges."""
  per_edge, per_pair = (SOURCES, TARGETS, WEIGHT, REAL), (
      RELATIVES, *device_features.PAIR_TABLES)
  padded = {}
  for name, table in tables.items():
    if name in per_edge:
      pads = [(0, e - graph.num_edges)]
    elif name in per_pair:
      pads = [(0, 0)] * (table.ndim - 2) + [(0, g - graph.num_groups)] * 2
    else:
      pads = [(0, g - graph.num_groups)] + [(0, 0)] * (table.ndim - 1)
    padded[name] = np.pad(table, pads)
  return padded


def _static_features(grouped: GroupedGraph) -> np.ndarray:
  """[G, S] compute time, output bytes and memory, each over its maximum over the groups."""
  compute_us = np.where(grouped.allowed, grouped.compute_us, np.inf).min(axis=1)
  columns = (
      compute_us, grouped.output_bytes, grouped.persistent_bytes + grouped.working_bytes)
  return np.stack([column / max(float(column.max()), 1e-9) for column in columns], axis=1)
