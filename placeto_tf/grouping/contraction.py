"""`Contraction`: the graph of nodes (sets of ops), from which every grouping starts.

Dimensions: N ops, M nodes of the contracted graph, F pairs of nodes with an edge, D devices.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import NoReturn, Tuple

import numpy as np

from placeto_tf.costs.op_costs import OpCosts
from placeto_tf.errors import PlacementError
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.grouping.grouping import Grouping

# The fixed time of a transfer, as the bytes that a link could move in that time: 10 us at 6.5 GB/s.
# Otherwise edges with scalars would have no weight, and groups would be divided at any of them.
TRANSFER_BYTES = 65536.0
CONTROL_BYTES = 1024.0  # a control edge to another device takes time, but moves no data


@dataclasses.dataclass(frozen=True, eq=False)
class Contraction:
  """Ops contracted into nodes, with the traffic between them.

  Attributes:
    node_of_op: [N] int32.
    weight_us: [M] float64 compute time on the fastest kind of device.
    pattern: [M] int32 index into `masks`.
    masks: the distinct sets of allowed devices, as bit masks.
    producers, consumers: [F] int32 nodes, one row per pair, sorted; never equal.
    traffic_bytes: [F] float64 bytes of the tensors from producer to consumer; `TRANSFER_BYTES` are
      added for each tensor.
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

  @functools.cached_property
  def order(self) -> np.ndarray:
    """Returns the nodes sorted by rank, [M] int64."""
    return np.argsort(self.rank, kind="stable")

  @functools.cached_property
  def single_consumers(self) -> Tuple[np.ndarray, np.ndarray]:
    """Returns the nodes with one consumer, and their consumers.

    The last nodes come first, so that a chain grows from its end until a cap is reached.
    """
    single = np.flatnonzero(np.bincount(self.producers, minlength=self.num_nodes) == 1)
    single = single[np.argsort(-self.rank[single], kind="stable")]
    return single, self.consumers[np.searchsorted(self.producers, single)]


def contract(
    graph: ComputationGraph, costs: OpCosts, allowed_ops: np.ndarray, labels: np.ndarray
) -> Contraction:
  """Contracts ops with equal labels.

  Args:
    graph: the ops.
    costs: their compute times and output bytes.
    allowed_ops: [N, D] bool, where each op may run.
    labels: [N] ints; `graph.colocation` contracts ops that must share a device.

  Raises:
    PlacementError: the ops of one label have no device in common.
  """
  node_of_op = _numbered(labels)
  m = int(node_of_op.max()) + 1
  # Ops by node; ops of node i begin at starts[i].
  order = np.argsort(node_of_op, kind="stable")
  starts = np.searchsorted(node_of_op[order], np.arange(m))
  # [M, D] devices that all ops of a node may use, and [M] the first rank of its ops.
  allowed = np.logical_and.reduceat(allowed_ops[order], starts, axis=0)
  rank = np.minimum.reduceat(graph.topological_rank[order], starts)
  stuck = np.flatnonzero(~allowed.any(axis=1))
  if len(stuck):
    raise_stuck(graph, node_of_op, int(stuck[0]))
  rows, pattern = _distinct_rows(allowed)
  masks = tuple(sum(1 << int(d) for d in np.flatnonzero(row)) for row in rows)
  producers, consumers, traffic = _traffic(
      node_of_op, m, *graph.edges_by_tensor, np.asarray(costs.output_bytes, np.float64))
  return Contraction(
      node_of_op, np.bincount(node_of_op, costs.compute_us.min(axis=1), minlength=m),
      pattern, masks, producers, consumers, traffic, rank)


def raise_stuck(graph: ComputationGraph, node_of_op: np.ndarray, node: int) -> NoReturn:
  """Raises an error for a node whose ops have no device in common.

  Args:
    graph: the ops.
    node_of_op: [N] node of each op.
    node: the node.

  Raises:
    PlacementError: always.
  """
  op = int(np.flatnonzero(node_of_op == node)[0])
  raise PlacementError(
      f"the ops that must share a device with {graph.op_names[op]!r} have none in common; pin "
      "fewer of them or add a device that all can use")


def _numbered(labels: np.ndarray) -> np.ndarray:
  """Numbers labels from 0 without gaps, in their order: [N] int32."""
  return np.unique(labels, return_inverse=True)[1].reshape(-1).astype(np.int32)


def _distinct_rows(allowed: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
  """Finds the distinct rows of [M, D] bool in lexicographic order, and each row's index, int32."""
  # [M] texts of bits, the first device first: they sort as the rows do.
  bits = np.packbits(allowed, axis=1)
  _, first, found = np.unique(
      bits.view(f"S{bits.shape[1]}").reshape(-1), return_index=True, return_inverse=True)
  return allowed[first], found.reshape(-1).astype(np.int32)


def _traffic(
    node_of_op: np.ndarray, m: int, edge_producers: np.ndarray, edge_consumers: np.ndarray,
    edge_tensors: np.ndarray, output_bytes: np.ndarray,
) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Sums bytes by pair of nodes; a tensor counts once for each node that consumes it.

  Args:
    node_of_op: [N] int32.
    m: number of nodes.
    edge_producers, edge_consumers, edge_tensors: `ComputationGraph.edges_by_tensor`.
    output_bytes: [O] float64.

  Returns:
    Producers and consumers, int32, and bytes, float64, of pairs in order.
  """
  producers, consumers = node_of_op[edge_producers].astype(np.int64), node_of_op[edge_consumers]
  # The first edge of each tensor to each node; tensors are numbered from 0 in their order.
  tensor = np.cumsum(np.diff(edge_tensors, prepend=edge_tensors[:1]) != 0)
  _, first = np.unique(tensor * m + consumers, return_index=True)
  first = np.sort(first[producers[first] != consumers[first]])
  # [pairs' edges] bytes: those of a tensor, or of a control signal.
  weights, sent = np.full(len(first), CONTROL_BYTES), edge_tensors[first]
  weights[sent >= 0] = output_bytes[sent[sent >= 0]] + TRANSFER_BYTES
  pairs, pair = np.unique(producers[first] * m + consumers[first], return_inverse=True)
  return ((pairs // m).astype(np.int32), (pairs % m).astype(np.int32),
          np.bincount(pair.reshape(-1), weights, minlength=len(pairs)))


def number_groups(labels: np.ndarray, rank: np.ndarray) -> Grouping:
  """Numbers groups by their first op in topological order.

  Args:
    labels: [N] ints, equal for ops of one group.
    rank: [N] position of each op in the topological order.
  """
  group = _numbered(labels)
  first = np.full(int(group.max()) + 1, len(labels), dtype=np.int64)
  np.minimum.at(first, group, rank)
  number = np.empty(len(first), dtype=np.int32)
  number[np.argsort(first)] = np.arange(len(first), dtype=np.int32)
  return Grouping(number[group])
