"""Extends a placement to all ops of a graph's file, also to ops that the fetches do not need.

TensorFlow places all ops of the graph in a session, so the placement of unneeded ops must be
consistent, too. An op that TensorFlow colocates with a needed op (initializers and savers of a
variable, ops with `_class`) gets the device of the needed op; members of a collective group get one
device each; all others go to the host.

Dimensions: M ops of the file, N needed ops, D devices.
"""

from __future__ import annotations

import dataclasses
from typing import Any, List, Sequence, Tuple

import numpy as np

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.clusters.constraints import apart
from placeto_tf.clusters.device_names import find_device
from placeto_tf.graphs.collective_groups import is_member
from placeto_tf.graphs.colocation import colocate
from placeto_tf.graphs.computation_graph import KERNEL_TYPES, ComputationGraph
from placeto_tf.graphs.kernels import KernelSupport
from placeto_tf.graphs.node_table import read_nodes


@dataclasses.dataclass(frozen=True, eq=False)
class FileOps:
  """All ops of a graph's file.

  Attributes:
    names: [M].
    types: [M].
    positions: [N] index into [M] of each needed op.
    colocation: [M] int32, the smallest index of the ops that TensorFlow wants on one device.
    has_kernel: [M, K] bool, columns as in `KERNEL_TYPES`.
  """

  names: Sequence[str]
  types: Sequence[str]
  positions: np.ndarray  # [N]
  colocation: np.ndarray  # [M]
  has_kernel: np.ndarray  # [M, K]


def file_op_names(graph: ComputationGraph) -> List[str]:
  """Returns the names of all ops of the file [M], or of a graph made of arrays alone [N]."""
  nodes = _file_nodes(graph)
  return list(graph.op_names) if nodes is None else [node.name for node in nodes]


def file_ops(graph: ComputationGraph) -> FileOps:
  """Reads all ops of the graph's file."""
  source, nodes = graph.source, _file_nodes(graph)
  if source is None or nodes is None:
    return FileOps(
        graph.op_names, graph.op_types, np.arange(graph.num_ops), np.asarray(graph.colocation),
        graph.has_kernel)
  names = [node.name for node in nodes]
  index = {name: i for i, name in enumerate(names)}
  positions = np.array([index[name] for name in graph.op_names], dtype=np.int64)
  m = len(names)
  has_kernel = np.ones((m, len(KERNEL_TYPES)), dtype=bool)
  # A CostGraphDef has neither types nor attributes, so each op is a set of its own.
  if source.format == "cost_graph_def":
    colocation, op_types = np.arange(m), ["Unknown"] * m
  else:
    table = read_nodes(source.graph_def)
    colocation, op_types = colocate(table), table.types
    support = KernelSupport(table.op_defs)
    # The kernels of needed ops are known; only the others are looked up.
    needed = np.zeros(m, dtype=bool)
    needed[positions] = True
    for i in np.flatnonzero(~needed).tolist():
      has_kernel[i] = support.has_kernel(table.nodes[i])
  has_kernel[positions] = graph.has_kernel
  return FileOps(names, op_types, positions, colocation, has_kernel)


def cover(
    graph: ComputationGraph, cluster: Cluster, indices: np.ndarray
) -> Tuple[Sequence[str], np.ndarray]:
  """Extends a placement of the needed ops to all ops of the file.

  Args:
    graph: N needed ops.
    cluster: D devices.
    indices: [N] device of each needed op.

  Returns:
    [M] names and [M] int32 devices.
  """
  names = file_op_names(graph)
  # All ops are needed: there is nothing to extend.
  if len(names) == graph.num_ops:
    return graph.op_names, indices.astype(np.int32)
  ops = file_ops(graph)
  devices = np.full(len(ops.names), -1, dtype=np.int32)
  devices[ops.positions] = indices
  # A set goes to the device of its needed op.
  leaders = np.full(len(ops.names), -1, dtype=np.int32)
  placed = np.flatnonzero(devices >= 0)[::-1]
  leaders[ops.colocation[placed]] = devices[placed]  # the first op of a set is written last
  devices = np.where(devices >= 0, devices, leaders[ops.colocation])
  rest = devices < 0
  devices[rest] = _homes(ops, cluster)[rest]
  # Collectives of initializers, such as the broadcast of the first values.
  if any(map(is_member, ops.types)):
    nodes = list(_file_nodes(graph))
    own = np.array([
        find_device(cluster.device_names, node.device) if node.device else None for node in nodes])
    own = np.where(rest, np.where(own == None, -1, own), devices).astype(int)  # noqa: E711
    allowed = np.arange(cluster.num_devices) == devices[:, None]
    for j, device in enumerate(cluster.devices):
      if device.type in KERNEL_TYPES:
        allowed[rest, j] = ops.has_kernel[rest, KERNEL_TYPES.index(device.type)]
    for op, column in apart(nodes, allowed, own).items():
      devices[rest & (ops.colocation == ops.colocation[op])] = column
  return ops.names, devices


def _homes(ops: FileOps, cluster: Cluster) -> np.ndarray:
  """Returns [M] the host, or the first device on which all ops of the set have kernels."""
  # The host first, then other CPUs, then the lower index.
  devices = cluster.devices
  by_preference = sorted(
      range(len(devices)), key=lambda j: (not devices[j].host, devices[j].type != "CPU", j))
  # [M, K], at a set's label: whether all ops of the set have a kernel.
  common = np.ones_like(ops.has_kernel)
  np.logical_and.at(common, ops.colocation, ops.has_kernel)
  homes = np.full(len(ops.names), by_preference[0], dtype=np.int32)
  # Begin with the least preferred device, so that the most preferred one is written last.
  for j in reversed(by_preference):
    kind = devices[j].type
    able = common[:, KERNEL_TYPES.index(kind)] if kind in KERNEL_TYPES else np.array(True)
    homes = np.where(able, j, homes)
  return homes[ops.colocation].astype(np.int32)


def _file_nodes(graph: ComputationGraph) -> Any:
  """Returns the nodes of the file, as rewritten to place single ops; None without a file."""
  source = graph.source
  if source is None:
    return None
  return (source.proto if source.graph_def is None else source.graph_def).node
