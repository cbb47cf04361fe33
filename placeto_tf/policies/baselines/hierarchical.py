"""The hierarchical placer of Mirhoseini, Goldie et al. (ICLR 2018) on the ops of one graph.

A feed-forward grouper gives each set (a colocation group of ops) a distribution over K groups. Its
inputs are learned embeddings of the set's op types, the sizes of its outputs and the numbers of
its neighbours (`Parts`). This implementation adds one thing to the paper: the initial groups are
stretches of equal compute time of a depth-first walk. With random initial groups, whose placements
have long steps, the policy learns to put everything on one device. Sets that may use only one
device are not grouped, because there is nothing to decide.

Groups are sampled, and the embedding of a group is computed from its sets. The placer, an LSTM in
both directions with an attentional decoder, places the groups in the order of their numbers. The
log probability of a placement is the sum of those of its groups and of their devices, so that one
REINFORCE update trains both networks (section 3 of the paper).

Dimensions: B placements side by side, N ops, U sets, K groups, D devices, T types of ops, E edges
between sets.
"""

from __future__ import annotations

import dataclasses
from typing import Tuple

import numpy as np

from placeto_tf.encoding.grouped_graph import OUTPUT_DIMS, GroupedGraph, output_shapes
from placeto_tf.errors import check_at_least
from placeto_tf.grouping import group_ops
from placeto_tf.policies.baselines import op_features
from placeto_tf.policies.baselines.one_shot import OneGraphPolicy, OneShotPolicy, ReinforceConfig
from placeto_tf.policies.baselines.sequence_placer import PlacerConfig, SequencePlacer, initial
from placeto_tf.problem.candidates import fallback_devices
from placeto_tf.problem.placement_problem import PlacementProblem

import tensorflow as tf  # isort: skip

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
    """Returns the number of features of a group."""
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
    cells = (rows * k + groups[:, self.movable]).reshape(-1)
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
    return self._nearest[np.arange(len(self.movable)), np.take_along_axis(devices, groups, axis=1)]


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


_TYPE_SCALE = 0.3  # of the initial embeddings of op types; the paper does not give its value


@dataclasses.dataclass(frozen=True)
class HierarchicalConfig:
  """Settings of the hierarchical placer, with the paper's values where defaults differ.

  num_groups: the largest K; 256 in the paper.
  groups_a_device: the largest ratio of K to the number of devices; 20 in the authors' code.
  grouper_hidden: width of the grouper's hidden layer; 64 in the paper.
  type_width: width of an op type's embedding; 20 in the paper.
  grouper_scale: scale of the initial weights of the grouper's last layer.
  stretches: how closely group k starts as the stretch from k / K to (k + 1) / K of `Parts.share`;
    0, as in the paper, starts with sets spread over all groups.
  placer: network in two directions; 256 hidden units in the paper.
  training: settings of REINFORCE.

  The authors' code bounds logits by a tanh and adds noise to them at first, so that not everything
  ends on one device. Neither helped here (docs/results/what_did_not_help.md).
  """

  num_groups: int = 128
  groups_a_device: int = 32
  grouper_hidden: int = 64
  type_width: int = 20
  grouper_scale: float = 1.0
  stretches: float = 100.0
  placer: PlacerConfig = PlacerConfig(hidden=64, bidirectional=True)
  training: ReinforceConfig = ReinforceConfig(
      baseline="batch", learning_rate=1e-2, final_learning_rate=4e-3)

  def __post_init__(self) -> None:
    check_at_least(1, self, "num_groups", "groups_a_device", "grouper_hidden", "type_width")


class HierarchicalPolicy(OneShotPolicy):
  """The policy of one problem, whose groups are its colocation groups ("sets")."""

  def __init__(self, problem: PlacementProblem, config: HierarchicalConfig, seed: int = 0):
    """Makes an untrained policy."""
    parts = Parts(problem)
    num_groups = min(config.num_groups, config.groups_a_device * problem.num_devices)
    # Decisions: a group below K for each set, then a device below D for each group.
    super().__init__(
        problem.num_groups + num_groups, np.repeat(
            [num_groups - 1, problem.num_devices - 1], [problem.num_groups, num_groups]),
        "hierarchical")
    rng = np.random.default_rng(seed)
    self._supernodes, self.num_groups = parts, num_groups
    self._counts = tf.constant(np.log1p(parts.type_counts))  # [U, T]
    self._known = tf.constant(parts.features)  # [U, S]
    self._movable = tf.constant(parts.movable.astype(np.float32))  # [U], 1 or 0
    hidden, k = config.grouper_hidden, num_groups
    # Grouper: [U, width] -> hidden, ReLU -> K logits.
    width = config.type_width + parts.features.shape[1]
    self._types = tf.Variable(  # [T, type_width]
        initial(rng, (parts.type_counts.shape[1], config.type_width), _TYPE_SCALE),
        name="types")
    # [width, hidden]
    self._hidden = tf.Variable(initial(rng, (width, hidden)), name="grouper_hidden")
    self._hidden_bias = tf.Variable(np.zeros(hidden, np.float32), name="grouper_hidden_bias")
    self._groups = tf.Variable(  # [hidden, K]
        initial(rng, (hidden, k), config.grouper_scale), name="grouper_groups")
    self._groups_bias = tf.Variable(np.zeros(k, np.float32), name="grouper_groups_bias")
    # Minus the squared distance to the middle of each stretch, without the term common to all.
    middle = (np.arange(k) + 0.5) / k
    sharpness = config.stretches * k ** 2
    self._share = tf.constant(parts.share)
    # [K], trained.
    self._stretch = tf.Variable(2 * sharpness * middle, dtype=tf.float32, name="stretch")
    self._stretch_bias = tf.constant(-sharpness * middle ** 2, tf.float32)  # [K]
    # Placer: group features [B, K, F] -> devices [B, K].
    self.placer = SequencePlacer(
        parts.num_features(k), problem.num_devices, config.placer, rng)
    self._group_logits = tf.function(self.group_logits, autograph=False)
    self._sample_devices = tf.function(self.placer.sample, autograph=False)

  def group_logits(self) -> tf.Tensor:
    """Returns [U, K] logits of the groups of each set."""
    inputs = tf.concat([tf.matmul(self._counts, self._types), self._known], axis=1)  # [U, width]
    hidden = tf.nn.relu(tf.matmul(inputs, self._hidden) + self._hidden_bias)  # [U, hidden]
    stretches = self._share[:, None] * self._stretch + self._stretch_bias  # [U, K]
    return tf.matmul(hidden, self._groups) + self._groups_bias + stretches

  def sample(self, rng: np.random.Generator, count: int) -> np.ndarray:
    """Samples groups of sets, then devices of groups; see the base class.

    Args:
      rng: the source of randomness.
      count: number of samples.

    Returns:
      [count, U + K] decisions.
    """
    # From a table [U, K].
    groups = sample(rng, tf.nn.log_softmax(self._group_logits()).numpy(), count)
    features, allowed = self._inputs_of(groups)
    noise = rng.gumbel(size=allowed.shape).astype(np.float32)  # [count, K, D]
    devices = self._sample_devices(*map(tf.constant, (features, allowed, noise))).numpy()
    return np.concatenate([groups, devices], axis=1)

  def placements(self, decisions: np.ndarray) -> np.ndarray:
    """Returns the placements of decisions: each set on its group's device, or on its fallback.

    Args:
      decisions: [B, U + K].

    Returns:
      [B, U] int32 devices.
    """
    return self._supernodes.placements(*self._split(decisions))

  def log_prob(self, decisions: tf.Tensor) -> tf.Tensor:
    """Returns the log probabilities of the sets' groups, then of the groups' devices.

    Args:
      decisions: [B, U + K] int32.

    Returns:
      [B, U + K] float32; 0 for the groups of sets that cannot move.
    """
    groups, devices = self._split(decisions)
    table = tf.nn.log_softmax(self.group_logits())
    # [B, U] log probability of each set's group.
    chosen = tf.transpose(tf.gather(table, tf.transpose(groups), batch_dims=1))
    # Group features are counts over sampled groups, so no gradient flows through them.
    features, allowed = tf.numpy_function(self._inputs_of, [groups], [tf.float32, tf.bool])
    features.set_shape([None, self.num_groups, self._supernodes.num_features(self.num_groups)])
    allowed.set_shape([None, self.num_groups, self.placer.num_devices])
    return tf.concat(
        # Sets that cannot move have no decision, and so a log probability of 0.
        [chosen * self._movable, self.placer.log_prob(features, allowed, devices)], axis=1)

  def _split(self, decisions):
    """Returns groups [B, U] and devices [B, K] of decisions [B, U + K]."""
    return decisions[:, :-self.num_groups], decisions[:, -self.num_groups:]

  def _inputs_of(self, groups: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """Returns the features and allowed devices of groups, for groupings [B, U]."""
    return self._supernodes.group_inputs(groups, self.num_groups)


def hierarchical_policy(
    problem: PlacementProblem, config: HierarchicalConfig, seed: int
) -> Tuple[PlacementProblem, HierarchicalPolicy]:
  """Makes an untrained policy for a problem.

  Args:
    problem: its own groups are not used.
    config: see `HierarchicalConfig`.
    seed: of the weights.

  Returns:
    The problem, whose groups are its colocation groups, and the policy.
  """
  parts = problem.regrouped(
      group_ops(problem.graph, problem.costs, problem.allowed_ops, method="none"))
  return parts, HierarchicalPolicy(parts, config, seed)


POLICY = OneGraphPolicy(HierarchicalConfig(), hierarchical_policy)
