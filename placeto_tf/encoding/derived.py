"""Dense arrays that networks need beside a GraphTensor of `schema.pbtxt`, derived from it.

`derive` computes them from one graph. A `GraphTable` keeps them for several graphs, padded to one
size: an observation holds the number of its graph, since a GraphTensor cannot be an observation of
tf-agents. A padding group belongs to no edge and no mask, and has no effect; a padding edge leads
from the first group to itself and carries nothing.

Legend: C graphs, P looked up, G groups of the largest, F dataflow edges of the largest, D devices,
S static features, Q features of (group, device) pairs.
"""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence

import numpy as np

from placeto_tf.encoding import schema  # checks for the legacy Keras, so before TensorFlow
from placeto_tf.encoding.graph_tensor import encode
from placeto_tf.encoding.grouped_graph import GroupedGraph
from placeto_tf.errors import PlacetoError

import tensorflow as tf  # isort: skip
import tensorflow_gnn as tfgnn  # isort: skip

STATIC = "static"  # [G, S] compute time, output bytes, memory, each over its maximum
ON_DEVICE = "on_device"  # [G, D, Q]: see `_on_device`
ALLOWED = "allowed"  # [G, D], 1 or 0
SOURCES, TARGETS = "sources", "targets"  # [F] int32
EDGES = "edges"  # [F, 2]: 1, 0 for padding; bytes over the largest edge's
HEARS = "hears"  # [G, 2]: whether any edge ends there; whether any begins there
TRAFFIC = "traffic"  # [G, G] transfer time from each group to each, over the longest compute time
RELATIVES = "relatives"  # [3, G, G], marks ancestors, descendants, parallels of each group
EVERYONE = "everyone"  # [G], marks all groups, with 0 for padding

NUM_STATIC, NUM_ON_DEVICE = 3, 4
_PER_EDGE = (SOURCES, TARGETS, EDGES)
_MOST = 10.0  # times the longest compute time, at which times are cut

Derived = Dict[str, tf.Tensor]


def derive(graph: tfgnn.GraphTensor) -> Derived:
  """Name -> array of one scalar GraphTensor."""
  groups, devices = graph.node_sets[schema.GROUP], graph.node_sets[schema.DEVICE]
  g, d = groups.total_size, devices.total_size
  option, flow = graph.edge_sets[schema.OPTION], graph.edge_sets[schema.DATAFLOW]
  pairs = _ends(option)
  allowed = tf.scatter_nd(pairs, tf.ones(tf.shape(pairs)[:1]), [g, d])
  compute_us = tf.scatter_nd(pairs, option["compute_us"][:, 0], [g, d])
  fastest_us = tf.reduce_min(tf.where(allowed > 0, compute_us, np.inf), axis=1)
  longest_us = tf.maximum(tf.reduce_max(fastest_us), 1e-9)
  held = (groups["persistent_bytes"] + groups["working_bytes"])[:, 0]
  carried = flow["bytes"][:, 0]
  sources, targets = flow.adjacency.source, flow.adjacency.target
  reach = _reachable(_ends(flow), g)
  columns = (fastest_us, groups["output_bytes"][:, 0], held)
  return {
      STATIC: tf.stack([each / tf.maximum(tf.reduce_max(each), 1e-9) for each in columns], axis=1),
      ON_DEVICE: _on_device(graph, compute_us / longest_us, held),
      ALLOWED: allowed,
      SOURCES: sources, TARGETS: targets,
      EDGES: tf.stack([tf.ones_like(carried), carried / tf.maximum(
          tf.reduce_max(tf.concat([carried, [0.0]], axis=0)), 1.0)], axis=1),
      HEARS: tf.stack([tf.cast(tf.math.bincount(ends, minlength=g, maxlength=g) > 0, tf.float32)
                       for ends in (targets, sources)], axis=1),
      TRAFFIC: _traffic(graph, g, longest_us),
      RELATIVES: tf.stack([
          tf.transpose(reach), reach,
          tf.maximum(1.0 - reach - tf.transpose(reach) - tf.eye(g), 0.0)]),
      EVERYONE: tf.ones([g]),
  }


class GraphTable:
  """The derived arrays of several graphs, to be looked up.

  Attributes:
    num_graphs, num_groups, num_devices: C, G, D.
    padded: whether any graph is smaller than the largest, in groups or edges.
    choices: devices that the median group may be placed on.
    candidates: devices that some group with a choice may be placed on.
  """

  def __init__(self, graphs: Sequence[GroupedGraph], *, max_groups: Optional[int] = None):
    """Derives and stacks.

    Args:
      graphs: C of them, on clusters of equally many devices.
      max_groups: G; by default as many as the largest has.

    Raises:
      PlacetoError: a graph has more than `max_groups` groups, or clusters differ in size.
    """
    self.num_graphs, self.num_devices = len(graphs), graphs[0].num_devices
    self.num_groups = max_groups or max(graph.num_groups for graph in graphs)
    for i, graph in enumerate(graphs):
      if graph.num_groups > self.num_groups:
        raise PlacetoError(
            f"graph {i} has {graph.num_groups} groups, there is room for {self.num_groups}; raise "
            "max_groups or group more coarsely")
      if graph.num_devices != self.num_devices:
        raise PlacetoError(
            f"graph {i} is on {graph.num_devices} devices, graph 0 on {self.num_devices}; the "
            "graphs of one network need clusters of one size")
    edges = max(int(graph.flow.sum()) for graph in graphs)
    self.padded = any(
        (graph.num_groups, graph.flow.sum()) != (self.num_groups, edges)
        for graph in graphs)
    allowed = np.concatenate([graph.allowed for graph in graphs])
    self.choices = float(np.median(allowed.sum(axis=1)))
    with_choice = allowed[allowed.sum(axis=1) > 1]
    self.candidates: List[int] = np.flatnonzero(
        (with_choice if len(with_choice) else allowed).any(axis=0)).tolist()
    rows = [self._padded_row(graph, edges) for graph in graphs]
    self._table = {name: tf.constant(np.stack([row[name] for row in rows])) for name in rows[0]}

  def __call__(self, graphs: tf.Tensor) -> Derived:
    """The arrays of `graphs` [P] int32, [P, ...] each."""
    return {name: tf.gather(table, graphs) for name, table in self._table.items()}

  def _padded_row(self, graph: GroupedGraph, edges: int) -> Dict[str, np.ndarray]:
    """Name -> array of one graph, with room for all groups and edges."""
    found = derive(encode(graph, np.zeros(graph.num_groups, np.int32)))
    missing = self.num_groups - graph.num_groups
    padded = {}
    for name, tensor in found.items():
      array = tensor.numpy()
      pads = [(0, 0)] * array.ndim
      if name in _PER_EDGE:
        pads[0] = (0, edges - len(array))
      elif name in (RELATIVES, TRAFFIC):
        pads[-2:] = [(0, missing)] * 2
      else:
        pads[0] = (0, missing)
      padded[name] = np.pad(array, pads)
    return padded


def _ends(edges: tfgnn.EdgeSet) -> tf.Tensor:
  """[E, 2] int32 source and target."""
  return tf.stack([edges.adjacency.source, edges.adjacency.target], axis=1)


def _reachable(ends: tf.Tensor, g: tf.Tensor) -> tf.Tensor:
  """[G, G] 1 where a path of at least one edge leads from the row's group to the column's."""
  reach = tf.scatter_nd(ends, tf.ones(tf.shape(ends)[:1]), [g, g])

  def doubled(length, reach):  # paths of twice the length
    return 2 * length, tf.cast(reach + tf.matmul(reach, reach) > 0, tf.float32)

  return tf.while_loop(
      lambda length, _: length < g, doubled, (1, reach),
      shape_invariants=(tf.TensorShape([]), tf.TensorShape([None, None])))[1]


def _traffic(graph: tfgnn.GraphTensor, g: tf.Tensor, longest_us: tf.Tensor) -> tf.Tensor:
  """[G, G] transfer times along all edges, also those that are no structure."""
  # In falling order; with a median of nothing there are no transfers.
  bandwidth = tf.sort(graph.edge_sets[schema.LINK]["bandwidth_bytes_per_us"][:, 0])
  count = tf.shape(bandwidth)[0]
  around = tf.concat([bandwidth, [np.inf]], axis=0)
  median = (tf.gather(around, tf.maximum(count - 1, 0) // 2) + tf.gather(around, count // 2)) / 2
  flows = [graph.edge_sets[name] for name in (schema.DATAFLOW, schema.FEEDBACK)]
  us = tf.scatter_nd(
      tf.concat([_ends(each) for each in flows], axis=0),
      tf.concat([each["bytes"][:, 0] for each in flows], axis=0) / median, [g, g])
  return tf.minimum(us / longest_us, _MOST)


def _on_device(graph: tfgnn.GraphTensor, compute: tf.Tensor, held: tf.Tensor) -> tf.Tensor:
  """[G, D, Q] features that differ between kinds of devices; equal for equal devices.

  Compute time there, over the largest of any group on its fastest device; the share of the
  device's memory that the group holds; the device's mean bandwidth over the cluster's best; and
  whether it is a host.

  Args:
    graph: of G groups and D devices.
    compute: [G, D], of the first.
    held: [G] bytes.
  """
  devices, links = graph.node_sets[schema.DEVICE], graph.edge_sets[schema.LINK]
  bandwidth = tf.math.unsorted_segment_mean(
      links["bandwidth_bytes_per_us"][:, 0], links.adjacency.source, devices.total_size)
  bandwidth = tf.where(bandwidth > 0, bandwidth, 1.0)  # of a device without links
  of_devices = tf.stack(
      [bandwidth / tf.reduce_max(bandwidth), devices["is_host"][:, 0]], axis=1)
  return tf.concat([
      tf.stack([tf.minimum(compute, _MOST), held[:, None] / devices["memory_bytes"][:, 0]], axis=2),
      tf.broadcast_to(of_devices, tf.concat([tf.shape(compute), [2]], axis=0))], axis=2)
