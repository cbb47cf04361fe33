"""The hierarchical placer of Mirhoseini, Goldie et al. (ICLR 2018) on the ops of one graph.

A feed-forward grouper gives each set (a colocation group of ops) a distribution over K groups. Its
inputs are learned embeddings of the set's op types, the sizes of its outputs and the numbers of
its neighbours. This implementation adds one thing to the paper: the initial groups are stretches of
equal compute time of a depth-first walk. With random initial groups, whose placements have long
steps, the policy learns to put everything on one device.

Groups are sampled, and the embedding of a group is computed from its sets. The placer, an LSTM in
both directions with an attentional decoder, places the groups in the order of their numbers. The
log probability of a placement is the sum of those of its groups and of their devices, so that one
REINFORCE update trains both networks (section 3 of the paper).

Dimensions: B placements side by side, U sets, K groups, D devices, T types of ops.
"""

from __future__ import annotations

import dataclasses
from typing import Tuple

import numpy as np

from placeto_tf.errors import check_at_least
from placeto_tf.grouping import group_ops
from placeto_tf.policies.hierarchical.groups import Parts, sample
from placeto_tf.policies.lstm import initial
from placeto_tf.policies.one_graph import OneGraphPolicy
from placeto_tf.policies.sequence_placer import PlacerConfig, SequencePlacer
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.training.one_shot import ReinforceConfig
from placeto_tf.training.one_shot_policy import OneShotPolicy

import tensorflow as tf  # isort: skip

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
  ends on one device. Neither helped here (docs/results/rivals_tuned.md).
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
    """Makes an untrained policy.

    Args:
      problem: in its colocation groups.
      config: see `HierarchicalConfig`.
      seed: of the weights.
    """
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
    table = tf.nn.log_softmax(self._group_logits()).numpy()  # [U, K]
    groups = sample(rng, table, count)
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
