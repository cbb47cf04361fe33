"""The inputs of GDP for a graph on a cluster: arrays of nodes, edges and devices.

A node is an op, or a set of ops that must share a device. Nodes are in the topological order of
their main ops; the main op is the one with the longest compute time. In the order of first ops, all
variables would come first, far from the ops that read and update them. Features have mean 0 and
deviation 1 over a graph's nodes, so that one network serves many graphs. Op type, output shape and
the ids of adjacent nodes come from the paper (arXiv 1910.01578, section 3). This module adds
compute time, bytes, memory, degrees, the position in a depth-first walk, and a row per device.

Dimensions: P graphs looked up, M nodes, E edges, D devices (padded), F node features, C device
features.
"""

from __future__ import annotations

from typing import Dict, Sequence

import numpy as np
import tensorflow as tf

from placeto_tf.encoding.grouped_graph import OUTPUT_DIMS, GroupedGraph, main_ops
from placeto_tf.errors import PlacementError
from placeto_tf.grouping import group_ops
from placeto_tf.grouping.contraction import number_groups
from placeto_tf.policies.baselines import op_features
from placeto_tf.problem.host_options import hosts_of
from placeto_tf.problem.placement_problem import PlacementProblem

_ADJACENT = 3  # number of producers, and of consumers, whose ids are features
_FURTHEST = 5.0  # features are clipped at this many deviations from the mean
# The order of FEATURES: costs, a flag for a known shape, its dimensions, adjacent nodes, waves.
NODE_FEATURES = 9 + 1 + OUTPUT_DIMS + 2 * _ADJACENT + 2 * op_features.NUM_WAVES
DEVICE_FEATURES = 5

OP_TYPES, FEATURES, SOURCES, TARGETS, MASK, DEVICES, WALK, NUM_NODES, NUM_EDGES = (
    "op_types", "features", "sources", "targets", "mask", "devices", "walk", "num_nodes",
    "num_edges")


Inputs = Dict[str, np.ndarray]  # of one graph, see `node_inputs`


class NodeTable:
  """A lookup table of the inputs of several graphs, with nodes and edges in ragged rows."""

  def __init__(self, graphs: Sequence[Inputs]):
    names = (OP_TYPES, FEATURES, MASK, SOURCES, TARGETS)
    # One ragged row a graph: [graphs, (nodes or edges), ...].
    self._rows = {
        name: tf.RaggedTensor.from_row_lengths(
            np.concatenate([each[name] for each in graphs]), [len(each[name]) for each in graphs])
        for name in names}
    # [graphs, D C]
    self._devices = tf.constant(np.stack([each[DEVICES].reshape(-1) for each in graphs]))

  def __call__(self, graphs: tf.Tensor) -> Dict[str, tf.Tensor]:
    """Looks up graphs; their nodes and edges are concatenated.

    Args:
      graphs: [P] int32 numbers of graphs.

    Returns:
      The network's inputs: `node_inputs` without `WALK`, of M nodes and E edges of all P graphs,
      `DEVICES` [P, D C], and `NUM_NODES`, `NUM_EDGES` [P] int32.
    """
    # Ragged [P, ...], then flat: the concatenated values of all rows.
    rows = {name: tf.gather(table, graphs) for name, table in self._rows.items()}
    found = {name: row.values for name, row in rows.items()}
    # [P] int32 both.
    sizes, edges = (tf.cast(rows[name].row_lengths(), tf.int32) for name in (MASK, SOURCES))
    # [E] number of the first node of each edge's graph, because edges number each graph from 0.
    first = tf.repeat(tf.cumsum(sizes, exclusive=True), edges)
    found.update({name: found[name] + first for name in (SOURCES, TARGETS)})
    found.update({
        NUM_NODES: sizes, NUM_EDGES: edges, DEVICES: tf.gather(self._devices, graphs)})
    return found


def one_node(max_devices: int) -> Inputs:
  """Returns a graph of one node, which a network needs to make its variables."""
  none = np.zeros(0, np.int32)
  return {
      OP_TYPES: np.zeros(1, np.int32), FEATURES: np.zeros((1, NODE_FEATURES), np.float32),
      SOURCES: none, TARGETS: none, MASK: np.ones((1, max_devices), np.float32),
      DEVICES: np.zeros((max_devices, DEVICE_FEATURES), np.float32)}


def node_problem(problem: PlacementProblem) -> PlacementProblem:
  """Returns the problem with nodes as groups: only ops that must share a device are grouped.

  Args:
    problem: its own groups are not used.

  Returns:
    The problem; its groups are in the topological order of their main ops.
  """
  grouping = group_ops(problem.graph, problem.costs, problem.allowed_ops, method="none")
  # Nodes take the rank of their main op, not of their first, so that variables are near readers.
  op_rank = problem.graph.topological_rank[main_ops(problem.graph, problem.costs, grouping)]
  return problem.regrouped(number_groups(grouping.group_of_op, op_rank[grouping.group_of_op]))


def node_inputs(grouped: GroupedGraph, max_devices: int) -> Inputs:
  """Computes the inputs of GDP for one graph.

  Args:
    grouped: the graph of a problem made by `node_problem`.
    max_devices: D, the most devices that the network can serve.

  Returns:
    `OP_TYPES` [M] int32 hash buckets; `FEATURES` [M, F] float32; `SOURCES` and `TARGETS` [E] int32
    nodes; `MASK` [M, D] float32, 1 for devices that the node may use; `DEVICES` [D, C] float32,
    with rows of zeros after the cluster's devices; and `WALK` [M], the nodes' positions in a
    depth-first walk.

  Raises:
    PlacementError: the cluster has more devices than `max_devices`.
  """
  d = grouped.num_devices
  if d > max_devices:
    raise PlacementError(
        f"the cluster has {d} devices, hosts included, the policy was made for {max_devices} at "
        "most; train one with a larger max_devices")
  # Devices that the cluster lacks are masked, and their rows of features are 0.
  mask = np.zeros((grouped.num_groups, max_devices), np.float32)
  mask[:, :d] = grouped.allowed
  devices = np.zeros((max_devices, DEVICE_FEATURES), np.float32)
  devices[:d] = _device_features(grouped)
  # All edges, also edges that run against the order of main ops.
  edges = grouped.sources, grouped.targets, grouped.num_groups
  walk = op_features.walk_numbers(*edges)
  # [M, F], standardized over the nodes of this graph alone.
  features = op_features.standardized(np.concatenate([
      _cost_features(grouped),
      op_features.shape_features(grouped.output_rank, grouped.output_dims),
      op_features.neighbours(*edges, _ADJACENT),
      _position_features(grouped, walk)], axis=1))
  return {
      OP_TYPES: grouped.op_type, FEATURES: np.clip(features, -_FURTHEST, _FURTHEST),
      SOURCES: grouped.sources, TARGETS: grouped.targets, MASK: mask, DEVICES: devices, WALK: walk}


def _cost_features(grouped: GroupedGraph) -> np.ndarray:
  """Returns [M, 9]: compute time, bytes, ops and degrees, most of them as logarithms."""
  m = grouped.num_groups
  compute_us = grouped.compute_us.min(axis=1)  # [M] on the fastest device
  counts = (
      compute_us, grouped.output_bytes, grouped.persistent_bytes, grouped.working_bytes,
      grouped.num_ops, np.bincount(grouped.targets, minlength=m),
      np.bincount(grouped.sources, minlength=m))
  # Both the compute time, in which large ops differ, and its logarithm, in which small ops differ.
  return np.stack(
      [compute_us, grouped.allowed.mean(axis=1), *(np.log1p(count) for count in counts)], axis=1)


def _position_features(grouped: GroupedGraph, walk: np.ndarray) -> np.ndarray:
  """Returns [M, 2 W] waves of the share of compute time before a node in a depth-first walk.

  Neighbouring nodes have similar values, and distant parts of the graph different ones.
  """
  # Only nodes with a choice of devices count in the walk.
  weights = grouped.compute_us.min(axis=1) + grouped.cluster.op_overhead_us * grouped.num_ops
  return op_features.waves(op_features.shares_before(
      walk, weights * (grouped.allowed.sum(axis=1) > 1)))


def _device_features(grouped: GroupedGraph) -> np.ndarray:
  """Returns [D, 5]: present, host, speed, cost of links, memory relative to the graph's needs."""
  compute_us = grouped.compute_us.sum(axis=0)  # [D] us of the whole graph on one device
  d, cluster = grouped.num_devices, grouped.cluster
  # Packing included; the diagonal is no link.
  bandwidth = 1 / np.where(np.eye(d, dtype=bool), np.nan, cluster.us_per_byte)
  out = np.nanmean(bandwidth, axis=1) if d > 1 else np.ones(1)  # [D] bytes/us
  # Bytes that the whole graph needs on one device.
  held = float(grouped.persistent_bytes.sum() + grouped.working_bytes.sum())
  # The cost of links: the time to move all outputs once over a link, relative to a step.
  dear = float(grouped.output_bytes.sum()) / out / max(float(compute_us.min()), 1e-9)
  return np.stack([
      np.ones(d), hosts_of(cluster), compute_us.min() / np.maximum(compute_us, 1e-9),
      np.log1p(dear), np.log1p(cluster.memory_bytes / max(held, 1.0))], axis=1)
