"""tf-agents' REINFORCE with Placeto's baseline, and an entropy bonus that can be lowered.

Legend: C graphs, B episodes, T steps, D devices, K groups placed in one step.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from tf_agents.agents.reinforce import reinforce_agent
from tf_agents.networks import network

from placeto_tf.training import observation as observation_lib


class StepBaseline(network.Network):
  """A value network that looks up the graph and the step: Placeto's baseline (appendix A.2).

  Attributes:
    table: variable [C, T], which no gradient changes.
  """

  def __init__(self, input_tensor_spec, num_graphs: int, num_steps: int, groups_per_step: int):
    super().__init__(input_tensor_spec, state_spec=(), name="StepBaseline")
    self._groups_per_step = groups_per_step
    self.table = tf.Variable(
        np.zeros((num_graphs, num_steps), np.float32), trainable=False, name="baseline")

  def call(self, observation, step_type=None, network_state=(), training=False):
    """Returns (values [B, T], network_state)."""
    del step_type, training
    visited = tf.reduce_sum(observation[observation_lib.VISITED], axis=-1)
    step = tf.cast(visited, tf.int32) // self._groups_per_step
    step = tf.minimum(step, self.table.shape[1] - 1)
    graph = observation[observation_lib.GRAPH][..., 0]
    return tf.gather_nd(self.table, tf.stack([graph, step], axis=-1)), network_state


class PlacetoAgent(reinforce_agent.ReinforceAgent):
  """REINFORCE; see the module.

  Where observations hold what each device would gain (`observation.GAINS`), the loss is minus the
  expected gain of a decision, which does not depend on the draw.

  Attributes:
    entropy_coefficient: variable.
  """

  def __init__(self, time_step_spec, action_spec, actor_network, **options):
    """Args: options: of `ReinforceAgent`."""
    self.entropy_coefficient = tf.Variable(0.0, trainable=False, name="entropy_coefficient")
    self._gains = None
    super().__init__(
        time_step_spec, action_spec, actor_network, normalize_returns=False,
        entropy_regularization=1.0,
        train_step_counter=tf.Variable(0, dtype=tf.int64, trainable=False), **options)

  def total_loss(self, experience, returns, weights, training=False):
    """See the base class."""
    self._gains = experience.observation.get(observation_lib.GAINS)  # [B, T, D]
    return super().total_loss(experience, returns, weights, training)

  def policy_gradient_loss(
      self, actions_distribution, actions, is_boundary, returns, num_episodes, weights=None):
    """See the base class."""
    if self._gains is None:
      return super().policy_gradient_loss(
          actions_distribution, actions, is_boundary, returns, num_episodes, weights)
    expected = tf.reduce_sum(
        actions_distribution.probs_parameter()[:, :, 0] * self._gains, axis=-1)
    return -tf.reduce_sum(expected * (1.0 if weights is None else weights)) / num_episodes

  def entropy_regularization_loss(self, actions_distribution, weights=None):
    """See the base class."""
    return self.entropy_coefficient * super().entropy_regularization_loss(
        actions_distribution, weights)
