"""`GroupedGraph`: a graph of groups on a cluster as arrays, from which policies get their inputs.

Its arrays do not depend on the placement. Groups are numbered by their first ops, as in `Grouping`;
`order` sorts groups by their main ops.

Two groups may feed each other, because a group's ops need not be neighbours. Ops that must share a
device are colocated: a variable, the ops that read it, and the op that applies its gradient at the
end of the step. A group with such ops feeds the forward pass and is fed by the backward pass. So in
a training graph nearly all groups lie on one cycle, and each is an ancestor of all others.
Therefore policies see only edges that agree with the order of the groups' main ops (the ops with
the longest compute times). Edges against that order, such as an edge from a gradient to the update
of a variable, are left out. Costs and simulation keep every edge.

Dimensions: N ops, G groups, E edges between groups, D devices.
"""

from __future__ import annotations

import dataclasses
import functools
import zlib
from typing import Tuple

import numpy as np

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.costs.op_costs import OpCosts
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.graphs.shapes import declared_shape
from placeto_tf.grouping.grouping import Grouping
from placeto_tf.problem.placement_problem import PlacementProblem

OP_TYPE_BUCKETS, OUTPUT_DIMS = 512, 4  # hash buckets of op types; dimensions of a shape in features


@dataclasses.dataclass(frozen=True, eq=False)
class GroupedGraph:
  """Groups, the dataflow between groups, devices, and the links between devices.

  Attributes:
    compute_us: [G, D] float64, compute time of all of a group's ops on each device.
    output_bytes: [G] float64, bytes of the tensors that other groups read.
    persistent_bytes: [G] float64, memory used throughout the step.
    working_bytes: [G] float64, all outputs plus the largest temporary.
    num_ops: [G] int32.
    main_op: [G] int32, the group's op with the longest compute time, of equal ones the first in
      topological order. The group's start time is that of its main op.
    op_type: [G] int32 below `OP_TYPE_BUCKETS`, a hash of the main op's type. TensorFlow has more
      types, but a graph uses about a hundred.
    output_rank: [G] int32 of the main op's first output, -1 if it is not known.
    output_dims: [G, 4] int64, the output's last dimensions, last one first; 0 for missing ones.
    order: [G] int32, the groups in the topological order of their main ops.
    sources, targets: [E] int32 groups, unique pairs sorted by (source, target), no self-loops.
    edge_bytes: [E] float64, bytes that move if the groups are on different devices; 0 for edges
      of control dependencies alone.
    allowed: [G, D] bool.
    cluster: the D devices and the links between them.
  """

  compute_us: np.ndarray  # [G, D]
  output_bytes: np.ndarray  # [G]
  persistent_bytes: np.ndarray  # [G]
  working_bytes: np.ndarray  # [G]
  num_ops: np.ndarray  # [G]
  main_op: np.ndarray  # [G]
  op_type: np.ndarray  # [G]
  output_rank: np.ndarray  # [G]
  output_dims: np.ndarray  # [G, 4]
  order: np.ndarray  # [G]
  sources: np.ndarray  # [E]
  targets: np.ndarray  # [E]
  edge_bytes: np.ndarray  # [E]
  allowed: np.ndarray  # [G, D]
  cluster: Cluster

  @property
  def num_groups(self) -> int:
    """Returns G."""
    return len(self.output_bytes)

  @property
  def num_devices(self) -> int:
    """Returns D."""
    return self.cluster.num_devices

  @functools.cached_property
  def flow(self) -> np.ndarray:
    """Returns [E] bool, the edges that policies see, which agree with `order`."""
    positions = np.argsort(self.order)  # the inverse: position of each group
    return positions[self.sources] < positions[self.targets]

  @property
  def flow_ends(self) -> np.ndarray:
    """Returns [F, 2] int32, sources and targets of the edges of `flow`."""
    return np.stack([self.sources[self.flow], self.targets[self.flow]], axis=1)

  @classmethod
  def of(cls, problem: PlacementProblem) -> GroupedGraph:
    """Returns the groups of a problem, with the summed costs of the ops of each group.

    Args:
      problem: its grouping is used.
    """
    graph, costs, cluster = problem.graph, problem.costs, problem.cluster
    g, group_of_op = problem.num_groups, problem.grouping.group_of_op

    def total(of_op):
      """Returns [G] sums over the ops of each group, from [N]."""
      return np.bincount(group_of_op, weights=of_op, minlength=g)

    # Temporaries of a group's ops are not alive at the same time: the largest counts, not the sum.
    largest_temporary = np.zeros(g)
    np.maximum.at(largest_temporary, group_of_op, costs.temporary_bytes)
    # Costs are by kind of device; devices of one kind share a column: [G, D].
    compute_us = np.stack(
        [total(costs.compute_us[:, kind]) for kind in cluster.device_kinds], axis=1)
    sources, targets, edge_bytes, output_bytes = _group_edges(graph, costs, group_of_op, g)

    main_op = main_ops(graph, costs, problem.grouping)
    output_rank, output_dims = output_shapes(graph, main_op)
    return cls(
        compute_us=compute_us,
        output_bytes=output_bytes,
        persistent_bytes=total(costs.persistent_bytes),
        working_bytes=total(costs.made_bytes(graph)) + largest_temporary,
        num_ops=np.bincount(group_of_op, minlength=g).astype(np.int32),
        main_op=main_op.astype(np.int32),
        op_type=np.array(
            # Stable over processes, unlike hash().
            [zlib.crc32(graph.op_types[op].encode()) % OP_TYPE_BUCKETS for op in main_op],
            dtype=np.int32),
        output_rank=output_rank,
        output_dims=output_dims,
        order=np.argsort(graph.topological_rank[main_op]).astype(np.int32),
        sources=sources,
        targets=targets,
        edge_bytes=edge_bytes,
        allowed=problem.allowed,
        cluster=cluster,
    )


def main_ops(graph: ComputationGraph, costs: OpCosts, grouping: Grouping) -> np.ndarray:
  """Returns each group's op with the longest compute time, of equal ones the first in the order.

  Args:
    graph, costs: of the N ops.
    grouping: of the ops.

  Returns:
    [G] ops.
  """
  # Sorted by group, then falling compute time, then topological rank; the first of each run wins.
  by_weight = np.lexsort(
      (graph.topological_rank, -costs.compute_us.max(axis=1), grouping.group_of_op))
  return by_weight[np.unique(grouping.group_of_op[by_weight], return_index=True)[1]]


def output_shapes(graph: ComputationGraph, ops: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
  """Returns the shapes of the first outputs of ops; a graph made of costs alone has no shapes.

  Args:
    graph: of the ops.
    ops: [M] their numbers.

  Returns:
    rank [M] int32, -1 if the shape is not known; and dims [M, 4] int64, last dimension first, 0 for
    missing dimensions and 1 for unknown ones.
  """
  rank = np.full(len(ops), -1, dtype=np.int32)
  dims = np.zeros((len(ops), OUTPUT_DIMS), dtype=np.int64)
  nodes = graph.nodes  # which declare shapes
  for row, op in enumerate(ops if nodes else ()):
    shape = declared_shape(nodes[op])
    if shape is not None:
      last = [max(dim, 1) for dim in shape[::-1][:OUTPUT_DIMS]]  # unknown dimensions, -1, as 1
      rank[row], dims[row, :len(last)] = len(shape), last
  return rank, dims


def _group_edges(graph, costs, group_of_op, g):
  """Returns edges between groups and their bytes; a tensor counts once for each reading group."""
  outputs = graph.edge_outputs
  source = group_of_op[graph.edge_producers].astype(np.int64)
  target = group_of_op[graph.edge_consumers].astype(np.int64)
  crossing = source != target  # edges between ops of different groups
  pairs = np.unique(source[crossing] * g + target[crossing])  # [E] source G + target, sorted
  data = crossing & (outputs >= 0)  # control edges move no bytes
  # (tensor, reading group) once each, however many ops of the group read it
  reads = np.unique(np.stack([outputs[data].astype(np.int64), target[data], source[data]]), axis=1)
  bytes_of_pair = np.zeros(len(pairs))
  np.add.at(
      bytes_of_pair, np.searchsorted(pairs, reads[2] * g + reads[1]), costs.output_bytes[reads[0]])
  # A tensor that leaves its group counts once in output_bytes, however many groups read it.
  tensors, first = np.unique(reads[0], return_index=True)
  output_bytes = np.bincount(
      reads[2][first], weights=costs.output_bytes[tensors], minlength=g).astype(np.float64)
  return ((pairs // g).astype(np.int32), (pairs % g).astype(np.int32), bytes_of_pair, output_bytes)
