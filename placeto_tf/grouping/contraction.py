"""`Contraction`: ops contracted into nodes, from which every grouping starts.

Legend: N ops, M nodes of the contracted graph, F pairs of nodes with an edge, D devices.
"""

from __future__ import annotations

import dataclasses
from typing import List, Tuple

import numpy as np

from placeto_tf.costs.op_costs import OpCosts
from placeto_tf.errors import PlacementError
from placeto_tf.graphs.computation_graph import CONTROL, ComputationGraph
from placeto_tf.grouping.grouping import Grouping

# What a transfer costs however small it is, as the bytes a link could move in that time: 10 us
# at 6.5 GB/s. Without it scalars would count for nothing and be cut everywhere.
TRANSFER_BYTES = 65536.0
CONTROL_BYTES = 1024.0  # a control edge to another device delays, but carries nothing


@dataclasses.dataclass(frozen=True, eq=False)
class Contraction:
  """Ops contracted into nodes, with the traffic between them.

  Attributes:
    node_of_op: [N] int32.
    weight_us: [M] float64 compute time on the fastest kind of device.
    pattern: [M] int32 index into `masks`.
    masks: the sets of allowed devices that occur, as bit masks.
    producers, consumers: [F] int32 nodes, one row per pair, sorted; never equal.
    traffic_bytes: [F] float64 bytes of the tensors that flow from producer to consumer, each
      with `TRANSFER_BYTES` added.
    rank: [M] int64 position of the node's first op in the topological order.
  """

  node_of_op: np.ndarray  # [N]
  weight_us: np.ndarray  # [M]
  pattern: np.ndarray  # [M]
  masks: Tuple[int, ...]
  producers: np.ndarray  # [F]
  consumers: np.ndarray  # [F]
  traffic_bytes: np.ndarray  # [F]
  rank: np.ndarray  # [M]

  @property
  def num_nodes(self) -> int:
    """M."""
    return len(self.weight_us)

  @property
  def node_masks(self) -> List[int]:
    """[M] bit masks of allowed devices."""
    return [self.masks[p] for p in self.pattern.tolist()]


def topological_rank(graph: ComputationGraph) -> np.ndarray:
  """[N] position of each op in `graph.topological_order`."""
  rank = np.empty(graph.num_ops, dtype=np.int64)
  rank[graph.topological_order] = np.arange(graph.num_ops)
  return rank


def contract(
    graph: ComputationGraph, costs: OpCosts, allowed_ops: np.ndarray, labels: np.ndarray
) -> Contraction:
  """Contracts ops with equal labels.

  Args:
    graph: the ops.
    costs: their compute times and output bytes.
    allowed_ops: [N, D] bool, where each op may run.
    labels: [N] ints; `graph.colocation` contracts what must share a device.

  Raises:
    PlacementError: the ops of one label have no device in common.
  """
  _, node_of_op = np.unique(labels, return_inverse=True)
  node_of_op = node_of_op.reshape(-1).astype(np.int32)
  m = int(node_of_op.max()) + 1
  allowed = np.ones((m, allowed_ops.shape[1]), dtype=bool)
  np.logical_and.at(allowed, node_of_op, allowed_ops)
  stuck = np.flatnonzero(~allowed.any(axis=1))
  if len(stuck):
    op = int(np.flatnonzero(node_of_op == stuck[0])[0])
    raise PlacementError(
        f"the ops that must share a device with {graph.op_names[op]!r} have none in common; pin "
        "fewer of them or add a device that all can use")
  rows, pattern = np.unique(allowed, axis=0, return_inverse=True)
  masks = tuple(sum(1 << int(d) for d in np.flatnonzero(row)) for row in rows)
  producers, consumers, traffic = _traffic(graph, costs, node_of_op, m)
  rank = np.full(m, graph.num_ops, dtype=np.int64)
  np.minimum.at(rank, node_of_op, topological_rank(graph))
  return Contraction(
      node_of_op, np.bincount(node_of_op, costs.compute_us.min(axis=1), minlength=m),
      pattern.reshape(-1).astype(np.int32), masks, producers, consumers, traffic, rank)


def _traffic(
    graph: ComputationGraph, costs: OpCosts, node_of_op: np.ndarray, m: int,
) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Sums bytes by pair of nodes; a tensor counts once for each node that consumes it."""
  producers = node_of_op[graph.edge_producers].astype(np.int64)
  consumers = node_of_op[graph.edge_consumers].astype(np.int64)
  control = graph.edge_ports == CONTROL
  # Control edges of one producer to one node are one signal, hence a negative id by producer.
  tensors = np.where(control, -1 - graph.edge_producers.astype(np.int64), graph.edge_outputs)
  apart = producers != consumers
  keys = tensors[apart] * m + consumers[apart]  # unique: a tensor has one producer
  _, first = np.unique(keys, return_index=True)
  index = np.flatnonzero(apart)[first]
  output_bytes = costs.output_bytes if len(costs.output_bytes) else np.zeros(1)
  weight = np.where(
      control[index], CONTROL_BYTES, output_bytes[np.maximum(tensors[index], 0)] + TRANSFER_BYTES)
  pairs, inverse = np.unique(producers[index] * m + consumers[index], return_inverse=True)
  traffic = np.bincount(inverse.reshape(-1), weight, minlength=len(pairs))
  return (pairs // m).astype(np.int32), (pairs % m).astype(np.int32), traffic


def number_groups(labels: np.ndarray, rank: np.ndarray) -> Grouping:
  """Numbers groups by their first op in topological order.

  Args:
    labels: [N] ints, equal for ops of one group.
    rank: [N] position of each op in the topological order.
  """
  _, group = np.unique(labels, return_inverse=True)
  group = group.reshape(-1)
  first = np.full(int(group.max()) + 1, len(labels), dtype=np.int64)
  np.minimum.at(first, group, rank)
  number = np.empty(len(first), dtype=np.int32)
  number[np.argsort(first)] = np.arange(len(first), dtype=np.int32)
  return Grouping(number[group])
