"""The data that never change in an episode, for several graphs padded to one size.

A network trained on a family keeps its graphs here, and observations hold the number of their
graph. A padding group belongs to no edge and no mask, and has no effect; a padding edge leads from
the first group to itself and carries nothing.

Legend: C graphs, P looked up, G groups of the largest, F edges of the largest, D devices, C'
candidate devices, S static features, Q features of (group, device) pairs.
"""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence

import numpy as np
import tensorflow as tf

from placeto_tf.encoding.grouped_graph import GroupedGraph
from placeto_tf.errors import PlacetoError

STATIC = "static"  # [G, S]
ON_DEVICE = "on_device"  # [G, D, Q]
DISALLOWED = "disallowed"  # [G, D], 0 or a logit that is never drawn
SOURCES, TARGETS = "sources", "targets"  # [F]
WEIGHT = "weight"  # [F], bytes over the largest edge's
REAL = "real"  # [F], 0 for padding
HAS_PARENTS, HAS_CHILDREN = "has_parents", "has_children"  # [G], 0 for groups without
TRAFFIC = "traffic"  # [G, G] transfer time from each group to each, over the longest compute time
RELATIVES = "relatives"  # [3, G, G], marks ancestors, descendants, parallels of each group
EVERYONE = "everyone"  # [G], marks all groups, with 0 for padding

NEVER = -1e9  # a logit: finite, so that the entropy stays a number
NUM_STATIC = 3
NUM_ON_DEVICE = 4

Tables = Dict[str, tf.Tensor]


class GraphTables:
  """Looks up the constants of some graphs among several.

  Attributes:
    num_graphs, num_groups, num_devices: C, G, D.
    padded: whether any graph is smaller than the largest, in groups or edges.
    choices: devices that the median group may be placed on.
    candidates: [C'] devices that some group with a choice may be placed on.
  """

  def __init__(
      self, graphs: Sequence[GroupedGraph], *, max_groups: Optional[int] = None,
      mean_pooling: bool = False):
    """Stacks the graphs.

    Args:
      graphs: C of them, on clusters of equally many devices.
      max_groups: G; by default as many as the largest has.
      mean_pooling: whether RELATIVES and EVERYONE mark with 1 over the graph's groups, not with 1.

    Raises:
      PlacetoError: a graph has more than `max_groups` groups, or clusters differ in size.
    """
    self.num_graphs, self.num_devices = len(graphs), graphs[0].num_devices
    self.num_groups = max_groups or max(graph.num_groups for graph in graphs)
    edges = max(len(graph.flow_sources) for graph in graphs)
    for i, graph in enumerate(graphs):
      if graph.num_groups > self.num_groups:
        raise PlacetoError(
            f"graph {i} has {graph.num_groups} groups, there is room for {self.num_groups}; raise "
            "max_groups or group more coarsely")
      if graph.num_devices != self.num_devices:
        raise PlacetoError(
            f"graph {i} is on {graph.num_devices} devices, graph 0 on {self.num_devices}; the "
            "graphs of one network need clusters of one size")
    self.padded = any(
        (graph.num_groups, len(graph.flow_sources)) != (self.num_groups, edges)
        for graph in graphs)
    allowed = np.concatenate([graph.allowed for graph in graphs])
    self.choices = float(np.median(allowed.sum(axis=1)))
    with_choice = allowed[allowed.sum(axis=1) > 1]
    self.candidates: List[int] = np.flatnonzero(
        (with_choice if len(with_choice) else allowed).any(axis=0)).tolist()
    rows = [
        _padded(_tables(graph, mean_pooling), graph, self.num_groups, edges) for graph in graphs]
    self._tables = {name: tf.constant(np.stack([row[name] for row in rows])) for name in rows[0]}

  def __call__(self, graphs: Optional[tf.Tensor] = None) -> Tables:
    """The constants of `graphs` [P] int32, [P, ...] each; None where there is only one, P = 1."""
    if graphs is None:
      return {name: table[:1] for name, table in self._tables.items()}
    return {name: tf.gather(table, graphs) for name, table in self._tables.items()}


def _tables(graph: GroupedGraph, mean_pooling: bool) -> Dict[str, np.ndarray]:
  """Name -> array of one graph, not padded."""
  mark = 1.0 / graph.num_groups if mean_pooling else 1.0
  relatives = np.stack([graph.ancestors, graph.descendants, graph.parallel])
  tables = {
      STATIC: _static_features(graph),
      ON_DEVICE: _on_device_features(graph),
      DISALLOWED: np.where(graph.allowed, 0.0, NEVER),
      SOURCES: graph.flow_sources,
      TARGETS: graph.flow_targets,
      WEIGHT: graph.flow_bytes / max(float(graph.flow_bytes.max(initial=0.0)), 1.0),
      REAL: np.ones(len(graph.flow_sources)),
      HAS_PARENTS: np.isin(np.arange(graph.num_groups), graph.flow_targets),
      HAS_CHILDREN: np.isin(np.arange(graph.num_groups), graph.flow_sources),
      TRAFFIC: _traffic(graph),
      RELATIVES: relatives * mark,
      EVERYONE: np.full(graph.num_groups, mark),
  }
  return {
      name: table.astype(np.int32 if name in (SOURCES, TARGETS) else np.float32)
      for name, table in tables.items()}


def _padded(
    tables: Dict[str, np.ndarray], graph: GroupedGraph, g: int, f: int) -> Dict[str, np.ndarray]:
  """The same with room for g groups and f edges."""
  per_edge = (SOURCES, TARGETS, WEIGHT, REAL)
  padded = {}
  for name, table in tables.items():
    if name in per_edge:
      pads = [(0, f - len(graph.flow_sources))]
    elif name in (RELATIVES, TRAFFIC):
      pads = [(0, 0)] * (table.ndim - 2) + [(0, g - graph.num_groups)] * 2
    else:
      pads = [(0, g - graph.num_groups)] + [(0, 0)] * (table.ndim - 1)
    padded[name] = np.pad(table, pads)
  return padded


def _fastest_us(grouped: GroupedGraph) -> np.ndarray:
  """[G] compute time on the fastest allowed device."""
  return np.where(grouped.allowed, grouped.compute_us, np.inf).min(axis=1)


def _traffic(grouped: GroupedGraph) -> np.ndarray:
  """[G, G] transfer times along all edges, also those that `encoding.structure` leaves out."""
  g, others = grouped.num_groups, ~np.eye(grouped.num_devices, dtype=bool)
  bandwidth = np.median(grouped.bandwidth_bytes_per_us[others]) if others.any() else np.inf
  traffic = np.zeros((g, g))
  traffic[grouped.sources, grouped.targets] = grouped.edge_bytes / bandwidth
  return np.minimum(traffic / max(float(_fastest_us(grouped).max()), 1e-9), 10.0)


def _static_features(grouped: GroupedGraph) -> np.ndarray:
  """[G, S] compute time, output bytes and memory, each over its maximum over the groups."""
  columns = (
      _fastest_us(grouped), grouped.output_bytes,
      grouped.persistent_bytes + grouped.working_bytes)
  return np.stack([column / max(float(column.max()), 1e-9) for column in columns], axis=1)


def _on_device_features(grouped: GroupedGraph) -> np.ndarray:
  """[G, D, Q] features that differ between kinds of devices; equal for equal devices.

  Compute time there, over the largest of any group on its fastest device; the share of the
  device's memory that the group holds; the device's mean bandwidth over the cluster's best; and
  whether it is a host.
  """
  g, d = grouped.num_groups, grouped.num_devices
  compute = grouped.compute_us / max(float(_fastest_us(grouped).max()), 1e-9)
  fill = (grouped.persistent_bytes + grouped.working_bytes)[:, None] / grouped.memory_bytes
  others = ~np.eye(d, dtype=bool)
  bandwidth = np.array([
      (grouped.bandwidth_bytes_per_us[i, others[i]].mean() if d > 1 else 1.0) for i in range(d)])
  per_device = np.stack([bandwidth / bandwidth.max(), grouped.is_host.astype(float)], axis=1)
  return np.concatenate([
      np.stack([np.minimum(compute, 10.0), fill], axis=2),
      np.broadcast_to(per_device, (g, d, 2))], axis=2)
