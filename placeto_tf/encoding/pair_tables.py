"""`PairTables`: the part of the features of (group, device) pairs that does not depend on moves.

The tables are arguments of the compiled loops of `pair_features` (see `simulation.compiling`).

Dimensions: N ops, G groups, E edges between ops, F edges between groups, D devices.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

import numpy as np

from placeto_tf.encoding.grouped_graph import GroupedGraph
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.simulation.path_lengths import longest_path_us


class OpTables(NamedTuple):
  """The part of `PairTables` that does not depend on groups, for callers that regroup often.

  Attributes:
    op_us: [N, D] float64.
    rank, depth: [N] float64, see `PairTables`.
    edge_offsets: [N+1] int32 of the edges that end at each op; edge_producers [E] int32;
      edge_bytes [E] float64.
    output_offsets: [N+1] int32 of the O outputs of each op; output_bytes [O] float64.
    reader_offsets: [O+1] int32 of the ops that read each output; readers int32.
    persistent_bytes, temporary_bytes: [N] float64.
  """

  op_us: np.ndarray  # [N, D] us
  rank: np.ndarray  # [N]
  depth: np.ndarray  # [N]
  edge_offsets: np.ndarray  # [N+1]
  edge_producers: np.ndarray  # [E]
  edge_bytes: np.ndarray  # [E]
  output_offsets: np.ndarray  # [N+1]
  output_bytes: np.ndarray  # [O]
  reader_offsets: np.ndarray  # [O+1]
  readers: np.ndarray  # [data edges]
  persistent_bytes: np.ndarray  # [N]
  temporary_bytes: np.ndarray  # [N]

  @classmethod
  def build(cls, problem: PlacementProblem) -> OpTables:
    """Returns the tables of a problem, for any grouping of its ops."""
    graph, costs = problem.graph, problem.costs
    op_us = costs.compute_us[:, problem.cluster.device_kinds]
    # Paths are measured with every op on its fastest allowed device.
    fastest = np.where(problem.allowed_ops, op_us, np.inf).min(axis=1)
    remaining = longest_path_us(graph, fastest, onwards=True)
    before = longest_path_us(graph, fastest) - fastest
    longest = max(float(remaining.max()), 1e-9)  # the critical path
    # Edges in the order of their consumers, so that each op's inputs are one run.
    by_consumer = np.argsort(graph.edge_consumers, kind="stable")
    outputs = graph.edge_outputs  # -1 for control edges
    by_output = np.argsort(outputs, kind="stable")[np.count_nonzero(outputs < 0):]
    return cls(
        op_us=_writable(op_us, np.float64), rank=remaining / longest, depth=before / longest,
        edge_offsets=_offsets(graph.edge_consumers, graph.num_ops),
        edge_producers=_writable(graph.edge_producers[by_consumer], np.int32),
        edge_bytes=_writable(costs.edge_bytes(graph)[by_consumer], np.float64),
        output_offsets=_writable(graph.output_offsets, np.int32),
        output_bytes=_writable(costs.output_bytes, np.float64),
        reader_offsets=_offsets(outputs[by_output], graph.num_outputs),
        readers=_writable(graph.edge_consumers[by_output], np.int32),
        persistent_bytes=_writable(costs.persistent_bytes, np.float64),
        temporary_bytes=_writable(costs.temporary_bytes, np.float64))


class PairTables(NamedTuple):
  """A grouped graph on its cluster.

  Attributes:
    compute_us: [G, D] float64.
    allowed: [G, D] bool.
    in_offsets: [G+1] int32 runs of `in_groups`, `in_bytes` [F]: the groups that each group reads,
      and the bytes.
    out_offsets: [G+1] int32 runs of `out_groups`, `out_bytes` [F]: the groups that read each group,
      and the bytes.
    us_per_byte, latency_us: [D, D] float64 of a transfer, packing included; 0 on the diagonal.
    memory_bytes: [D] float64.
    rank, depth: [G] float64 in [0, 1]: the longest path of compute time from the group to the end,
      and from the beginning to the group, divided by the longest path of the graph.
    unit_us: the unit of times: the mean compute time of a group that may be moved.
    op_groups: [N] int32.
    ops: the tables of the problem's ops.
    movable: int32 groups with more than one allowed device, in order.
  """

  compute_us: np.ndarray  # [G, D] us
  allowed: np.ndarray  # [G, D]
  in_offsets: np.ndarray  # [G+1]
  in_groups: np.ndarray  # [F]
  in_bytes: np.ndarray  # [F]
  out_offsets: np.ndarray  # [G+1]
  out_groups: np.ndarray  # [F]
  out_bytes: np.ndarray  # [F]
  us_per_byte: np.ndarray  # [D, D]
  latency_us: np.ndarray  # [D, D] us
  memory_bytes: np.ndarray  # [D]
  rank: np.ndarray  # [G]
  depth: np.ndarray  # [G]
  unit_us: float  # us
  op_groups: np.ndarray  # [N]
  ops: OpTables
  movable: np.ndarray  # [M]

  @classmethod
  def build(cls, problem: PlacementProblem, ops: Optional[OpTables] = None) -> PairTables:
    """Builds the tables of a problem and its groups.

    Args:
      problem: in its groups.
      ops: tables of the problem's ops, if they were built before; None builds them.
    """
    ops = ops or OpTables.build(problem)
    cluster, grouping = problem.cluster, problem.grouping
    grouped = GroupedGraph.of(problem)
    g, groups = grouping.num_groups, grouping.group_of_op
    rank, depth = np.zeros(g), np.full(g, np.inf)
    # The longest path to the end from any op of the group, and the shortest to one of its ops.
    np.maximum.at(rank, groups, ops.rank)
    np.minimum.at(depth, groups, ops.depth)
    movable = np.flatnonzero(problem.allowed.sum(axis=1) > 1).astype(np.int32)
    least = np.where(problem.allowed, grouped.compute_us, np.inf).min(axis=1)
    # The mean over movable groups on their fastest devices.
    unit_us = float(least[movable].mean()) if len(movable) else 0.0
    # Edges are sorted by source; a second order by target gives each group's inputs as one run.
    by_target = np.lexsort((grouped.sources, grouped.targets))
    return cls(
        compute_us=_writable(grouped.compute_us, np.float64),
        allowed=_writable(problem.allowed, np.bool_),
        in_offsets=_offsets(grouped.targets, g),
        in_groups=_writable(grouped.sources[by_target], np.int32),
        in_bytes=_writable(grouped.edge_bytes[by_target], np.float64),
        out_offsets=_offsets(grouped.sources, g),
        out_groups=_writable(grouped.targets, np.int32),
        out_bytes=_writable(grouped.edge_bytes, np.float64),
        us_per_byte=_writable(cluster.us_per_byte, np.float64),
        latency_us=_writable(cluster.fixed_us, np.float64),
        memory_bytes=_writable(cluster.memory_bytes, np.float64),
        rank=rank, depth=depth, unit_us=max(unit_us, 1e-6),
        op_groups=_writable(groups, np.int32), ops=ops, movable=movable)


def _writable(array: np.ndarray, dtype) -> np.ndarray:
  """Returns a contiguous, writable copy, because numba would compile again for read-only arrays."""
  return np.array(array, dtype=dtype, order="C")


def _offsets(owners: np.ndarray, count: int) -> np.ndarray:
  """Returns [count+1] int32 the start of each owner's run in entries that are sorted by owner."""
  return np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=count))]).astype(np.int32)
