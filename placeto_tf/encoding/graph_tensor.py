"""Encodes a grouped graph and a placement as the GraphTensor of `schema.pbtxt`, field by field.

Two data structures have the same content: `GroupedGraph` has arrays for compiled code and for
inference, without TF-GNN and Keras; the GraphTensor is for networks and files. Each step of a
policy changes the placement and its times.

A group has an option edge to each device that it may use; the edge has the features of the pair
from the simulation. The GraphTensor has no compute times on other devices and no link of a device
to itself. Its numbers have 32 bits.

Dimensions: G groups, D devices, F pair features.
"""

from __future__ import annotations

from typing import Optional

import numpy as np

from placeto_tf.encoding import schema  # checks for the legacy Keras, so before TensorFlow
from placeto_tf.encoding.grouped_graph import GroupedGraph
from placeto_tf.encoding.pair_features import MEANINGS, NAMES, NUM_FEATURES
from placeto_tf.errors import PlacementError
from placeto_tf.problem.host_options import hosts_of

import tensorflow as tf  # isort: skip
import tensorflow_gnn as tfgnn  # isort: skip

# Features of groups with the same names as GroupedGraph's fields.
_OF_GROUPS = ("output_bytes", "persistent_bytes", "working_bytes", "num_ops", "main_op", "op_type",
              "output_rank")


class ReadableGraphTensor(tfgnn.GraphTensor):
  """A GraphTensor that prints its sets, and the range and meaning of each feature."""

  def __str__(self) -> str:
    known, lines = schema.load_schema(), []
    for sets, described in ((self.node_sets, known.node_sets), (self.edge_sets, known.edge_sets)):
      for name, each in sets.items():
        lines.append(f"{name} ({int(tf.reduce_sum(each.sizes))}): {described[name].description}")
        for feature, value in each.features.items():
          meaning = described[name].features[feature].description
          # [n, k]: a line for each of the k numbers, and names for those of option edges.
          for column, values in enumerate(value.numpy().T):
            said = f"{values.min():.4g} to {values.max():.4g}" if values.size else "none"
            if feature == schema.PAIR:
              title, meaning = NAMES[column], MEANINGS.get(NAMES[column], "")
            else:
              title = feature
            lines.append(f"  {title:<24} {said:<24} {meaning}".rstrip())
    return "\n".join(lines)


def encode(
    grouped: GroupedGraph, placement: np.ndarray, *, step_time_us: float = 0.0,
    start_us: Optional[np.ndarray] = None, pairs: Optional[np.ndarray] = None
) -> ReadableGraphTensor:
  """Builds the GraphTensor of a placement.

  Args:
    grouped: the graph of groups on its cluster.
    placement: [G] device of each group.
    step_time_us: of this placement, 0 if it is not known.
    start_us: [G] start of each group's main op, None if it is not known.
    pairs: [G, D, F] features of option edges, see `pair_features.PairState`; None if the placement
      was not simulated.

  Returns:
    A scalar GraphTensor of `schema.pbtxt`.

  Raises:
    PlacementError: the placement has the wrong length, or a device that does not exist.
  """
  g, d, cluster = grouped.num_groups, grouped.num_devices, grouped.cluster
  placement = np.asarray(placement)
  if placement.shape != (g,) or not ((placement >= 0) & (placement < d)).all():
    raise PlacementError(
        f"the placement has shape {placement.shape} and devices {np.unique(placement)}; expected "
        f"[{g}], a device for each group, and devices from 0 to {d - 1}")
  # links: every ordered pair of different devices.
  groups, devices, links = schema.GROUP, schema.DEVICE, np.nonzero(~np.eye(d, dtype=bool))
  option = np.nonzero(grouped.allowed)  # groups [O], devices [O] of option edges
  of_options = (np.zeros((len(option[0]), NUM_FEATURES)) if pairs is None else pairs[option])
  return ReadableGraphTensor.from_pieces(
      # Context: numbers of the whole graph.
      context=tfgnn.Context.from_fields(features={
          "step_time_us": _column([step_time_us]),
          "op_overhead_us": _column([cluster.op_overhead_us])}),
      # Node sets: groups, with the times of this placement, and devices.
      node_sets={
          groups: _nodes(
              g, **{name: getattr(grouped, name) for name in _OF_GROUPS},
              # The inverse of the order: position of each group.
              output_dims=grouped.output_dims, turn=np.argsort(grouped.order),
              start_us=np.zeros(g) if start_us is None else start_us),
          devices: _nodes(d, memory_bytes=cluster.memory_bytes, is_host=hosts_of(cluster)),
      },
      # Edge sets: dataflow that policies see, the other edges between groups, options, the
      # placement, links.
      edge_sets={
          **{name: _edges(
              groups, grouped.sources[part], groups, grouped.targets[part],
              bytes=grouped.edge_bytes[part])
             for name, part in ((schema.DATAFLOW, grouped.flow), (schema.FEEDBACK, ~grouped.flow))},
          schema.OPTION: _edges(
              groups, option[0], devices, option[1], compute_us=grouped.compute_us[option],
              **{schema.PAIR: of_options}),
          schema.PLACEMENT: _edges(groups, np.arange(g), devices, placement),
          schema.LINK: _edges(
              devices, links[0], devices, links[1],
              # Both include packing; the latency includes the gap after a transfer.
              bandwidth_bytes_per_us=1 / cluster.us_per_byte[links],
              latency_us=cluster.fixed_us[links]),
      })


def _column(values) -> tf.Tensor:
  """Returns values [n] as a column [n, 1]; values [n, k] are not changed."""
  # The schema has 32-bit floats, and scalars as columns.
  values = np.asarray(values, dtype=np.float32)
  return tf.constant(values if values.ndim == 2 else values.reshape(-1, 1))


def _nodes(size, **features) -> tfgnn.NodeSet:
  """Returns a node set of a size, with features [size] or [size, k]."""
  return tfgnn.NodeSet.from_fields(
      sizes=tf.constant([size], tf.int32),
      features={name: _column(values) for name, values in features.items()})


def _edges(source_set, sources, target_set, targets, **features) -> tfgnn.EdgeSet:
  """Returns an edge set with features [E] or [E, k], from source and target numbers [E]."""
  def index(values):
    """Returns int32 numbers of nodes."""
    return tf.constant(np.asarray(values), tf.int32)

  return tfgnn.EdgeSet.from_fields(
      sizes=tf.constant([len(sources)], tf.int32),
      features={name: _column(values) for name, values in features.items()},
      adjacency=tfgnn.Adjacency.from_indices(
          (source_set, index(sources)), (target_set, index(targets))))
