"""Encodes one placement of a grouped graph as a GraphTensor, as `schema.pbtxt` describes it.

Legend: G groups, D devices, K groups to be placed now.
"""

from __future__ import annotations

from typing import Optional, Sequence

import numpy as np

from placeto_tf.encoding import schema  # checks for the legacy Keras, so before TensorFlow
from placeto_tf.encoding.grouped_graph import GroupedGraph
from placeto_tf.errors import PlacementError

import tensorflow as tf  # isort: skip
import tensorflow_gnn as tfgnn  # isort: skip


def encode(
    grouped: GroupedGraph,
    placement: np.ndarray,
    *,
    step_time_us: float = 0.0,
    start_us: Optional[np.ndarray] = None,
    current: Sequence[int] = (),
    visited: Sequence[int] = (),
) -> tfgnn.GraphTensor:
  """Encodes a placement [G] int32 as a scalar GraphTensor.

  Args:
    grouped: the graph of groups on its cluster.
    placement: [G] device of each group.
    step_time_us: of this placement, 0 where it is not known.
    start_us: [G] start of each group's main op, None where it is not known.
    current: [K] the groups that are to be placed now.
    visited: groups that were placed before.

  Raises:
    PlacementError: the placement has the wrong length or names a device that does not exist.
  """
  g, d = grouped.num_groups, grouped.num_devices
  placement = np.asarray(placement)
  if placement.shape != (g,):
    raise PlacementError(
        f"the placement has shape {placement.shape}, expected [{g}], one device per group")
  if placement.min() < 0 or placement.max() >= d:
    wrong = int(np.flatnonzero((placement < 0) | (placement >= d))[0])
    raise PlacementError(
        f"group {wrong} is placed on device {int(placement[wrong])}; there are {d} devices, "
        "numbered from 0")
  option_group, option_device = np.nonzero(grouped.allowed)
  link = (grouped.link_sources, grouped.link_targets)
  return tfgnn.GraphTensor.from_pieces(
      context=tfgnn.Context.from_fields(features={"step_time_us": _column([step_time_us])}),
      node_sets={
          schema.GROUP: _nodes(
              g,
              output_bytes=grouped.output_bytes,
              persistent_bytes=grouped.persistent_bytes,
              working_bytes=grouped.working_bytes,
              num_ops=grouped.num_ops,
              start_us=np.zeros(g) if start_us is None else start_us,
              current=_flags(g, current),
              visited=_flags(g, visited)),
          schema.DEVICE: _nodes(
              d, memory_bytes=grouped.memory_bytes, is_host=grouped.is_host),
      },
      edge_sets={
          schema.DATAFLOW: _edges(
              schema.GROUP, grouped.flow_sources, schema.GROUP, grouped.flow_targets,
              bytes=grouped.flow_bytes),
          schema.OPTION: _edges(
              schema.GROUP, option_group, schema.DEVICE, option_device,
              compute_us=grouped.compute_us[option_group, option_device]),
          schema.PLACEMENT: _edges(schema.GROUP, np.arange(g), schema.DEVICE, placement),
          schema.LINK: _edges(
              schema.DEVICE, link[0], schema.DEVICE, link[1],
              bandwidth_bytes_per_us=grouped.bandwidth_bytes_per_us[link],
              latency_us=grouped.latency_us[link]),
      })


def _column(values) -> tf.Tensor:
  return tf.constant(np.asarray(values, dtype=np.float32).reshape(-1, 1))


def _flags(g: int, groups: Sequence[int]) -> np.ndarray:
  flags = np.zeros(g)
  flags[np.asarray(groups, dtype=np.int64)] = 1
  return flags


def _nodes(size, **features) -> tfgnn.NodeSet:
  return tfgnn.NodeSet.from_fields(
      sizes=tf.constant([size], tf.int32),
      features={name: _column(values) for name, values in features.items()})


def _edges(source_set, sources, target_set, targets, **features) -> tfgnn.EdgeSet:
  def index(values):
    return tf.constant(np.asarray(values), tf.int32)

  return tfgnn.EdgeSet.from_fields(
      sizes=tf.constant([len(sources)], tf.int32),
      features={name: _column(values) for name, values in features.items()},
      adjacency=tfgnn.Adjacency.from_indices(
          (source_set, index(sources)), (target_set, index(targets))))
