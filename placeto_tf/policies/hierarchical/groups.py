"""The grouper's inputs (colocation groups), and the placer's features of the resulting groups.

A set is a colocation group: ops that must share a device. Sets that may use only one device are
not grouped, because there is nothing to decide.

Dimensions: B groupings side by side, N ops, U sets, K groups, T types of ops, E edges between
sets, D devices.
"""

from __future__ import annotations

from typing import Tuple

import numpy as np

from placeto_tf.encoding.grouped_graph import OUTPUT_DIMS, GroupedGraph, output_shapes
from placeto_tf.policies import op_features
from placeto_tf.problem.candidates import fallback_devices
from placeto_tf.problem.placement_problem import PlacementProblem

_SIZES, _NEIGHBOURS = 6, 6  # outputs of a set, and its producers and consumers, in its features


class Parts:
  """The colocation groups of a problem (the grouper's inputs) and their features.

  Attributes:
    features: [U, S] float32, the grouper's inputs besides types: sizes of outputs, neighbours by
      `op_features.walk_numbers` (both standardized) and waves of `share`.
    share: [U] float32, for each set the share of the compute time of all movable sets that comes
      before it in the walk, including half of its own.
    type_counts: [U, T] float32, number of ops by type.
    movable: [U] bool, whether a set may use more than one device.
  """

  def __init__(self, problem: PlacementProblem):
    """Computes the features of the sets.

    Args:
      problem: its groups are the sets of ops that must share a device.
    """
    graph, group_of_op = problem.graph, problem.grouping.group_of_op
    u = problem.num_groups
    # [N, 1 + 4]
    of_ops = op_features.shape_features(*output_shapes(graph, np.arange(graph.num_ops)))
    self._shapes = np.zeros((u, of_ops.shape[1]))
    # A set's shape features are sums over its ops.
    np.add.at(self._shapes, group_of_op, of_ops)
    self.type_counts = op_features.type_counts(graph, group_of_op, u)
    grouped = GroupedGraph.of(problem)
    self._sources, self._targets = grouped.sources, grouped.targets
    # [U] position in the depth-first walk.
    number = op_features.walk_numbers(self._sources, self._targets, u)
    # Neighbours by walk number: [number] brings rows back into the sets' order.
    near = op_features.neighbours(
        number[self._sources], number[self._targets], u, _NEIGHBOURS)[number]
    sizes = op_features.output_sizes(graph, problem.costs, group_of_op, u, _SIZES)
    known = op_features.standardized(np.concatenate([sizes, near], axis=1))
    # [U] bytes of all outputs.
    self._bytes = np.bincount(group_of_op, problem.costs.made_bytes(graph), minlength=u)
    self.movable = problem.allowed.sum(axis=1) > 1
    # [D] devices that any movable set may use: groups may use these.
    self._common = problem.allowed[self.movable].any(axis=0)
    # A problem without movable sets still needs devices for its groups.
    if not self.movable.any():
      self._common = problem.allowed.any(axis=0)
    first = np.unique(group_of_op, return_index=True)[1]  # [U] first op of each set
    fallback = fallback_devices(problem.cluster, problem.allowed_ops)[first]
    devices = np.arange(problem.num_devices)
    # [U, D] a set goes to the wanted device where allowed, else to its fallback.
    self._nearest = np.where(problem.allowed, devices, fallback[:, None]).astype(np.int32)
    op_us = problem.costs.compute_us.min(axis=1) + problem.cluster.op_overhead_us
    # [U] us, 0 for sets that cannot move.
    weight = np.bincount(group_of_op, op_us, minlength=u) * self.movable
    self.share = op_features.shares_before(number, weight)
    self.features = np.concatenate([known, op_features.waves(self.share)], axis=1)
    # Edges of sets that are not grouped do not count as edges between groups.
    both = self.movable[self._sources] & self.movable[self._targets]
    self._sources, self._targets = self._sources[both], self._targets[both]
    # The nonzero entries of the counts alone: most sets have one type.
    self._typed_parts, self._types = np.nonzero(self.type_counts * self.movable[:, None])

  def num_features(self, num_groups: int) -> int:
    """Returns the number of features of a group.

    Args:
      num_groups: K.

    Returns:
      F of `group_inputs`.
    """
    return self.type_counts.shape[1] + 2 + 1 + OUTPUT_DIMS + 2 * num_groups

  def group_inputs(self, groups: np.ndarray, num_groups: int) -> Tuple[np.ndarray, np.ndarray]:
    """Builds the placer's inputs for groupings.

    Args:
      groups: [B, U] group of each set.
      num_groups: K.

    Returns:
      [B, K, F] float32 features: the number of ops of each type, the bytes of their outputs, a flag
      for groups with sets, sums of shape features, and the number of edges from and to each group
      (numbers and bytes as logarithms); and [B, K, D] bool, the devices that groups may use. An
      empty group has one device, because there is nothing to decide.
    """
    b, k, t = len(groups), num_groups, self.type_counts.shape[1]
    rows = np.arange(b)[:, None]  # [B, 1]
    features = np.zeros((b, k, self.num_features(k)), dtype=np.float32)
    # Index of each nonzero count's cell (b, k, t) in a flat [B K T] table.
    typed = (rows * k + groups[:, self._typed_parts]) * t + self._types
    counts = np.tile(self.type_counts[self._typed_parts, self._types], b)
    features[:, :, :t] = np.log1p(
        np.bincount(typed.reshape(-1), counts, minlength=b * k * t)).reshape(b, k, t)
    # Index of each movable set's cell (b, k) in a flat [B K] table.
    chosen = groups[:, self.movable]
    cells = (rows * k + chosen).reshape(-1)
    size = np.bincount(cells, np.tile(self._bytes[self.movable], b), minlength=b * k)
    present = np.bincount(cells, minlength=b * k).reshape(b, k) > 0
    features[:, :, t] = np.log1p(size).reshape(b, k) / 20  # bytes
    features[:, :, t + 1] = present  # 1 for a group with sets
    # Sums of the shape features, a column at a time.
    for i, column in enumerate(self._shapes[self.movable].T):
      total = np.bincount(cells, np.tile(column, b), minlength=b * k).reshape(b, k)
      features[:, :, t + 2 + i] = np.log1p(total)
    first = t + 2 + self._shapes.shape[1]  # where the edges' features begin
    sources, targets = groups[:, self._sources], groups[:, self._targets]
    # [B, K, K] edges from group to group.
    edges = np.bincount(
        ((rows * k + sources) * k + targets).reshape(-1), minlength=b * k * k).reshape(b, k, k)
    edges[:, np.arange(k), np.arange(k)] = 0  # within a group
    shown = np.log1p(edges)
    # Incoming edges first, then outgoing ones.
    features[:, :, first:first + k] = np.swapaxes(shown, 1, 2)
    features[:, :, first + k:] = shown
    # Empty groups may use the first common device only, so that their log probability is 0.
    only = np.arange(len(self._common)) == self._common.argmax()
    return features, np.where(present[..., None], self._common, only)

  def placements(self, groups: np.ndarray, devices: np.ndarray) -> np.ndarray:
    """Puts each set on its group's device, or on its fallback if it may not use that device.

    Args:
      groups: [B, U] group of each set.
      devices: [B, K] device of each group.

    Returns:
      [B, U] int32 devices.
    """
    wanted = np.take_along_axis(devices, groups, axis=1)
    return self._nearest[np.arange(len(self.movable)), wanted]


def sample(rng: np.random.Generator, log_probs: np.ndarray, count: int) -> np.ndarray:
  """Samples columns of a table of distributions.

  Args:
    rng: the source of randomness.
    log_probs: [U, K] normalized by row.
    count: B.

  Returns:
    [B, U] int32 columns.
  """
  u, k = log_probs.shape
  # Inverse transform: the first column whose cumulative probability exceeds a uniform number.
  ends = np.cumsum(np.exp(log_probs.astype(np.float64)), axis=1)
  ends /= ends[:, -1:]  # rows end with 1 to the bit
  # Row numbers added to the probabilities sort the whole table: one search serves all rows.
  starts = np.arange(u)
  found = np.searchsorted((ends + starts[:, None]).reshape(-1), rng.random((count, u)) + starts,
                          side="right")
  # Rounding at the end of a row may give an index in the next row.
  return np.minimum(found - starts * k, k - 1).astype(np.int32)
