"""The hierarchical placer of Mirhoseini, Goldie et al. (ICLR 2018) on the ops of one graph.

A feed-forward grouper gives each unit (the ops that must share a device) a distribution over K
groups from the embeddings of its ops' types (learned), the sizes of its outputs and the numbers of
its neighbours. One thing is added to the paper: the grouper starts with stretches of a depth-first
walk of equal compute time. Starting with groups of random ops, which are slow to place, the policy
learns to put everything on one device. Groups are drawn. Their contents make the embeddings of
groups, which the placer, an LSTM in both directions with an attentional decoder, places in the
order of their numbers. The log
probability of a placement is that of its groups plus that of their devices, so that one REINFORCE
update teaches both (section 3 of the paper).

Legend: B placements side by side, U units, K groups, D devices, T types of ops.
"""

from __future__ import annotations

import dataclasses
from typing import Tuple

import numpy as np

from placeto_tf.errors import check_at_least
from placeto_tf.policies.hierarchical.groups import Units, draw
from placeto_tf.policies.lstm import initial
from placeto_tf.policies.sequence_placer import PlacerConfig, SequencePlacer
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.training.one_shot_policy import OneShotPolicy

import tensorflow as tf  # isort: skip

@dataclasses.dataclass(frozen=True)
class HierarchicalConfig:
  """Attributes, with the paper's values where the default departs from them.

  num_groups: the largest K; 256 in the paper.
  groups_a_device: the largest K over the number of devices; 20 in the authors' code.
  grouper_hidden: 64.
  type_width: of an op type's embedding; 20.
  type_scale: of the initial values of those embeddings; the paper's is not known.
  grouper_scale: of the initial weights of the grouper's last layer.
  stretches: how sharply group k starts as the stretch from k / K to (k + 1) / K of `Units.share`;
    0, as in the paper, starts with units spread over all groups.
  disturbance: deviation of the noise that draws add to the placer's logits, over the root of their
    mean square, until `disturbed_draws` batches have been drawn; 0.5 in the authors' code.
  placer: in two directions; 256 hidden in the paper. The authors' code bounds its logits by a tanh
    at 1, so that not everything ends on one device (docs/results/rivals_tuned.md).
  """

  num_groups: int = 128
  groups_a_device: int = 32
  grouper_hidden: int = 64
  type_width: int = 20
  type_scale: float = 0.3
  grouper_scale: float = 1.0
  stretches: float = 100.0
  disturbance: float = 0.0
  disturbed_draws: int = 750
  counts: bool = True
  shapes: bool = True
  placer: PlacerConfig = PlacerConfig(hidden=64, bidirectional=True)

  def __post_init__(self) -> None:
    check_at_least(1, self, "num_groups", "groups_a_device", "grouper_hidden", "type_width")


class HierarchicalPolicy(OneShotPolicy):
  """The policy of one problem whose groups are units: ops that must share a device."""

  def __init__(self, problem: PlacementProblem, config: HierarchicalConfig, seed: int = 0):
    """Args: seed: of the weights."""
    units = Units(problem, config.counts, config.shapes)
    num_groups = min(config.num_groups, config.groups_a_device * problem.num_devices)
    super().__init__(
        units.num_units + num_groups,
        np.repeat([num_groups - 1, problem.num_devices - 1], [units.num_units, num_groups]),
        "hierarchical")
    rng = np.random.default_rng(seed)
    self.config, self._units, self.num_groups = config, units, num_groups
    self._counts = tf.constant(np.log1p(units.type_counts))
    self._known = tf.constant(units.features)
    self._movable = tf.constant(units.movable.astype(np.float32))
    hidden, k = config.grouper_hidden, num_groups
    width = config.type_width + units.features.shape[1]
    self._types = tf.Variable(
        initial(rng, (units.type_counts.shape[1], config.type_width), config.type_scale),
        name="types")
    self._hidden = tf.Variable(initial(rng, (width, hidden)), name="grouper_hidden")
    self._hidden_bias = tf.Variable(np.zeros(hidden, np.float32), name="grouper_hidden_bias")
    self._groups = tf.Variable(
        initial(rng, (hidden, k), config.grouper_scale), name="grouper_groups")
    self._groups_bias = tf.Variable(np.zeros(k, np.float32), name="grouper_groups_bias")
    # Minus the squared distance from the middle of each stretch, without the term all groups share.
    middle = (np.arange(k) + 0.5) / k
    sharpness = config.stretches * k ** 2
    self._share = tf.constant(units.share)
    self._stretch = tf.Variable(2 * sharpness * middle, dtype=tf.float32, name="stretch")
    self._stretch_bias = tf.constant(-sharpness * middle ** 2, tf.float32)
    self.placer = SequencePlacer(
        units.num_features(k), problem.num_devices, config.placer, rng)
    self._group_logits = tf.function(self.group_logits, autograph=False)
    # A variable, so that checkpoints hold it.
    self._draws = tf.Variable(0, dtype=tf.int64, trainable=False, name="draws")
    self._draw_devices = tf.function(self.placer.sample, autograph=False)

  def group_logits(self) -> tf.Tensor:
    """[U, K]."""
    inputs = tf.concat([tf.matmul(self._counts, self._types), self._known], axis=1)
    hidden = tf.nn.relu(tf.matmul(inputs, self._hidden) + self._hidden_bias)
    stretches = self._share[:, None] * self._stretch + self._stretch_bias
    return tf.matmul(hidden, self._groups) + self._groups_bias + stretches

  def draw(self, rng: np.random.Generator, count: int) -> np.ndarray:
    """[count, U + K] the groups of units, then the devices of groups; see the base class."""
    table = tf.nn.log_softmax(self._group_logits()).numpy()
    groups = draw(rng, table, count)
    inputs = self._units.group_inputs(groups, self.num_groups)
    noise = rng.gumbel(size=inputs.allowed.shape).astype(np.float32)
    disturbance = None
    if self.config.disturbance and int(self._draws) < self.config.disturbed_draws:
      disturbance = tf.constant(
          self.config.disturbance * rng.normal(size=noise.shape), tf.float32)
    self._draws.assign_add(1)
    devices = self._draw_devices(
        tf.constant(inputs.features), tf.constant(inputs.allowed), tf.constant(noise),
        disturbance).numpy()
    return np.concatenate([groups, devices], axis=1)

  def placements(self, decisions: np.ndarray) -> np.ndarray:
    """[B, U] each unit on its group's device, or where it must go."""
    return self._units.placements(*self._split(decisions))

  def log_prob(self, decisions: tf.Tensor) -> tf.Tensor:
    """[B, U + K] of the units' groups, then of the groups' devices."""
    groups, devices = self._split(decisions)
    table = tf.nn.log_softmax(self.group_logits())
    chosen = tf.transpose(tf.gather(table, tf.transpose(groups), batch_dims=1))
    features, allowed = tf.numpy_function(self._inputs_of, [groups], [tf.float32, tf.bool])
    features.set_shape([None, self.num_groups, self._units.num_features(self.num_groups)])
    allowed.set_shape([None, self.num_groups, self.placer.num_devices])
    return tf.concat(
        [chosen * self._movable, self.placer.log_prob(features, allowed, devices)], axis=1)

  def _split(self, decisions):
    """Groups [B, U] and devices [B, K]."""
    return decisions[:, :self._units.num_units], decisions[:, self._units.num_units:]

  def _inputs_of(self, groups: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    inputs = self._units.group_inputs(groups, self.num_groups)
    return inputs.features, inputs.allowed
