"""Dense arrays that the published network needs in addition to a GraphTensor.

`derive` computes them from the GraphTensor of one graph. A `GraphTable` keeps them for several
graphs, padded to one size. An observation has the number of its graph, since tf-agents takes no
GraphTensor as observation. A padding group belongs to no edge and no mask, and has no effect; a
padding edge leads from the first group to itself and carries nothing.

Dimensions: C graphs, P graphs looked up, G groups and F dataflow edges of the largest graph, D
devices, S static features.
"""

from __future__ import annotations

from typing import Dict, Sequence

import numpy as np

from placeto_tf.encoding import schema  # checks for the legacy Keras, so before TensorFlow
from placeto_tf.encoding.graph_tensor import encode
from placeto_tf.encoding.grouped_graph import GroupedGraph
from placeto_tf.errors import PlacetoError

import tensorflow as tf  # isort: skip
import tensorflow_gnn as tfgnn  # isort: skip

STATIC = "static"  # [G, S] compute time, output bytes, memory, each divided by its maximum
ALLOWED = "allowed"  # [G, D], 1 or 0
SOURCES, TARGETS = "sources", "targets"  # [F] int32
EDGES = "edges"  # [F, 1]: 1, 0 for padding
HEARS = "hears"  # [G, 2]: whether any edge ends at the group; whether any begins at it
RELATIVES = "relatives"  # [3, G, G], marks ancestors, descendants, parallels of each group

NUM_STATIC = 3

Derived = Dict[str, tf.Tensor]


def derive(graph: tfgnn.GraphTensor) -> Derived:
  """Computes the dense arrays of one graph.

  Returns:
    Name -> array; the constants at the top of the module give names and shapes.
  """
  groups, devices = graph.node_sets[schema.GROUP], graph.node_sets[schema.DEVICE]
  g, d = groups.total_size, devices.total_size  # G, D
  option, flow = graph.edge_sets[schema.OPTION], graph.edge_sets[schema.DATAFLOW]
  pairs = _ends(option)  # [O, 2] option edges: group, device
  # Each option edge marks its (group, device) pair: [G, D] both.
  allowed = tf.scatter_nd(pairs, tf.ones(tf.shape(pairs)[:1]), [g, d])
  compute_us = tf.scatter_nd(pairs, option["compute_us"][:, 0], [g, d])
  # [G] compute time on the fastest allowed device.
  fastest_us = tf.reduce_min(tf.where(allowed > 0, compute_us, np.inf), axis=1)
  held = (groups["persistent_bytes"] + groups["working_bytes"])[:, 0]  # [G]
  sources, targets = flow.adjacency.source, flow.adjacency.target
  reachable = _reachable(_ends(flow), g)  # [G, G]
  columns = (fastest_us, groups["output_bytes"][:, 0], held)
  return {
      # Each column is divided by its maximum, so that graphs of all sizes have similar values.
      STATIC: tf.stack([each / tf.maximum(tf.reduce_max(each), 1e-9) for each in columns], axis=1),
      ALLOWED: allowed,
      SOURCES: sources, TARGETS: targets,
      EDGES: tf.ones([tf.size(sources), 1]),
      # A group gets messages from producers if an edge ends at it, from consumers if one begins.
      HEARS: tf.stack([tf.cast(tf.math.bincount(ends, minlength=g, maxlength=g) > 0, tf.float32)
                       for ends in (targets, sources)], axis=1),
      RELATIVES: tf.stack([
          # Row v: groups with a path to v, groups with a path from v, and groups without either.
          tf.transpose(reachable), reachable,
          tf.maximum(1.0 - reachable - tf.transpose(reachable) - tf.eye(g), 0.0)]),
  }


class GraphTable:
  """A lookup table of the derived arrays of several graphs.

  Attributes:
    num_devices: D.
  """

  def __init__(self, graphs: Sequence[GroupedGraph]):
    """Derives and stacks the arrays.

    Args:
      graphs: C graphs, on clusters with equal numbers of devices.

    Raises:
      PlacetoError: clusters differ in size.
    """
    self.num_devices = graphs[0].num_devices
    for i, graph in enumerate(graphs):
      if graph.num_devices != self.num_devices:
        raise PlacetoError(
            f"graph {i} is on {graph.num_devices} devices, graph 0 on {self.num_devices}; the "
            "graphs of one network need clusters of one size")
    # The derived arrays do not depend on the placement, so device 0 is as good as any.
    rows = [derive(encode(graph, np.zeros(graph.num_groups, np.int32))) for graph in graphs]
    self._table = {name: _padded([row[name].numpy() for row in rows]) for name in rows[0]}

  def __call__(self, graphs: tf.Tensor) -> Derived:
    """Looks up the arrays of several graphs.

    Args:
      graphs: [P] int32 numbers of graphs.

    Returns:
      Name -> array [P, ...].
    """
    return {name: tf.gather(table, graphs) for name, table in self._table.items()}


def _padded(arrays: Sequence[np.ndarray]) -> tf.Tensor:
  """Stacks arrays of several graphs, padded with 0 to the most groups, or edges, on every axis."""
  # Padding edges are (0, 0) in SOURCES and TARGETS and 0 in EDGES.
  shape = np.max([each.shape for each in arrays], axis=0)
  return tf.constant(np.stack([
      np.pad(each, [(0, most - size) for most, size in zip(shape, each.shape)])
      for each in arrays]))


def _ends(edges: tfgnn.EdgeSet) -> tf.Tensor:
  """Returns [E, 2] int32 source and target."""
  return tf.stack([edges.adjacency.source, edges.adjacency.target], axis=1)


def _reachable(ends: tf.Tensor, g: tf.Tensor) -> tf.Tensor:
  """Returns [G, G], 1 if a path of at least one edge leads from the row's to the column's group."""
  reachable = tf.scatter_nd(ends, tf.ones(tf.shape(ends)[:1]), [g, g])
  # Repeated squaring doubles the length of the paths; none of distinct groups has over G - 1 edges.
  for _ in range(int(g).bit_length()):
    reachable = tf.cast(reachable + tf.matmul(reachable, reachable) > 0, tf.float32)
  return reachable
