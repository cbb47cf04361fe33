"""Features of groups for one-shot policies: op types, output sizes, adjacency, position.

Sizes of outputs are used in place of shapes, because graphs of all formats have sizes.

Dimensions: N ops, G groups, T types of ops in the graph, O outputs of all ops together, S sizes, W
waves.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph

from placeto_tf.costs.op_costs import OpCosts
from placeto_tf.graphs.computation_graph import ComputationGraph

NUM_WAVES = 6


def type_counts(graph: ComputationGraph, group_of_op: np.ndarray, num_groups: int) -> np.ndarray:
  """Counts the ops of each type in each group.

  Args:
    graph: of the N ops.
    group_of_op: [N] ints.
    num_groups: G.

  Returns:
    [G, T] float32, the types in alphabetical order.
  """
  types, type_of_op = np.unique(np.array(graph.op_types), return_inverse=True)
  # [N] index of each op's cell (group, type) in a flat [G T] table.
  counts = np.bincount(
      group_of_op.astype(np.int64) * len(types) + type_of_op.reshape(-1),
      minlength=num_groups * len(types))
  return counts.reshape(num_groups, len(types)).astype(np.float32)


def output_sizes(
    graph: ComputationGraph, costs: OpCosts, group_of_op: np.ndarray, num_groups: int,
    num_sizes: int) -> np.ndarray:
  """Returns the sizes of each group's largest outputs, squashed.

  A size of b bytes becomes log(1 + b) / 20: 0.3 for a scalar, 1 for half a gigabyte.

  Args:
    graph, costs: of the N ops.
    group_of_op: [N] ints.
    num_groups: G.
    num_sizes: S.

  Returns:
    [G, S] float32 in falling order; 0 where a group has fewer outputs.
  """
  group = np.repeat(group_of_op, np.diff(graph.output_offsets))  # [O] group of each output
  order = np.lexsort((-costs.output_bytes, group))  # by group, the largest first
  group = group[order]
  # A sorted run's first index, subtracted, gives each entry's place within its group.
  place = np.arange(len(group)) - np.searchsorted(group, group)
  sizes = np.zeros((num_groups, num_sizes), dtype=np.float32)
  near = place < num_sizes
  sizes[group[near], place[near]] = np.log1p(costs.output_bytes[order][near]) / 20
  return sizes


def shape_features(rank: np.ndarray, dims: np.ndarray) -> np.ndarray:
  """Encodes shapes: 1 if the shape is known, then 1 + the logarithm of each dimension.

  Args:
    rank: [G] number of dimensions; -1 if the shape is not known.
    dims: [G, K] the last K dimensions, last one first; 0 for missing dimensions.

  Returns:
    [G, 1 + K] float32.
  """
  # A dimension of 1 becomes 1, so that it differs from a missing dimension, 0.
  logs = np.where(dims > 0, 1.0 + np.log(np.maximum(dims, 1)), 0.0)
  return np.concatenate([(rank >= 0)[:, None], logs], axis=1).astype(np.float32)


def adjacency(sources: np.ndarray, targets: np.ndarray, num_groups: int) -> np.ndarray:
  """Returns rows of the adjacency matrix and of its transpose, side by side.

  Args:
    sources, targets: [E] groups.
    num_groups: G.

  Returns:
    [G, 2 G] float32: 1 for the groups that a group reads, then 1 for the groups that read it.
  """
  rows = np.zeros((num_groups, 2 * num_groups), dtype=np.float32)
  rows[targets, sources] = 1  # producers
  rows[sources, num_groups + targets] = 1  # consumers
  return rows


def neighbours(
    sources: np.ndarray, targets: np.ndarray, num_groups: int, count: int) -> np.ndarray:
  """Returns the numbers, divided by G, of the first producers and consumers of each group.

  Args:
    sources, targets: [E] groups.
    num_groups: G.
    count: number of producers, and of consumers.

  Returns:
    [G, 2 count] float32; -1 for missing neighbours.
  """
  rows = np.full((num_groups, 2 * count), -1.0, dtype=np.float32)
  # Producers fill the first `count` columns, consumers the last.
  for first, own, other in ((0, targets, sources), (count, sources, targets)):
    order = np.lexsort((other, own))
    own, other = own[order], other[order]
    place = np.arange(len(own)) - np.searchsorted(own, own)
    near = place < count  # neighbours with the lowest numbers
    rows[own[near], first + place[near]] = other[near] / num_groups
  return rows


def standardized(features: np.ndarray) -> np.ndarray:
  """Scales features to mean 0 and deviation 1 over groups.

  Args:
    features: [G, F].

  Returns:
    [G, F] float32; columns that are constant become 0.
  """
  deviation = features.std(axis=0)
  centred = features - features.mean(axis=0)
  # A constant column is divided by 1.
  return (centred / np.where(deviation > 0, deviation, 1)).astype(np.float32)


def walk_numbers(sources: np.ndarray, targets: np.ndarray, num_groups: int) -> np.ndarray:
  """Numbers groups by a depth-first walk from the end of the graph, against the dataflow.

  Groups of one branch have numbers close together, whereas topological numbers interleave branches.

  Args:
    sources, targets: [E] groups.
    num_groups: G.

  Returns:
    [G] int64 number of each group.
  """
  ends = np.setdiff1d(np.arange(num_groups), sources)  # groups that no other reads
  rows = np.concatenate([targets, np.full(len(ends), num_groups)])  # a root that reads all ends
  columns = np.concatenate([sources, ends])
  # Rows are consumers, columns producers; the root is not a group and is dropped.
  walk = csgraph.depth_first_order(
      sparse.csr_matrix((np.ones(len(rows)), (rows, columns)), shape=(num_groups + 1,) * 2),
      num_groups, return_predecessors=False)[1:]
  rest = np.setdiff1d(np.arange(num_groups), walk)  # cycles of groups that no other group reads
  number = np.empty(num_groups, dtype=np.int64)
  number[np.concatenate([walk, rest])] = np.arange(num_groups)  # the inverse: group -> place
  return number


def shares_before(numbers: np.ndarray, weights: np.ndarray) -> np.ndarray:
  """Returns the share of all weights before each group, including half of the group's own weight.

  Args:
    numbers: [G] position of each group.
    weights: [G] such as compute times.

  Returns:
    [G] float32 in [0, 1].
  """
  # [G] weights up to each group, its own included.
  ends = np.cumsum(weights[np.argsort(numbers)])[numbers]
  return ((ends - weights / 2) / max(ends.max(), 1e-9)).astype(np.float32)


def waves(share: np.ndarray) -> np.ndarray:
  """Encodes shares by sines and cosines, the longest wave 1 and the shortest 1 / 32 long.

  Args:
    share: [G] numbers in [0, 1].

  Returns:
    [G, 2 W] float32.
  """
  # [G, W], frequencies 1, 2, 4, ..., 32.
  phase = 2 * np.pi * share[:, None] * 2.0 ** np.arange(NUM_WAVES)
  return np.concatenate([np.sin(phase), np.cos(phase)], axis=1).astype(np.float32)
