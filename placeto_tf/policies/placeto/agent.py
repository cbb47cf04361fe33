"""tf-agents' REINFORCE with what Placeto needs: a decaying entropy bonus and given advantages.

The agent is fed single decisions, each as an episode of one step whose reward is its advantage:
returns and baselines are worked out over whole episodes beforehand (`training.returns`), so that a
loss over 128 steps of a big graph can be taken in pieces.

Legend: M decisions, K groups placed in one step.
"""

from __future__ import annotations

from typing import Dict

import numpy as np
import tensorflow as tf
from tf_agents.agents.reinforce import reinforce_agent
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory


class PlacetoAgent(reinforce_agent.ReinforceAgent):
  """REINFORCE whose `entropy_coefficient` is a variable, to be lowered while it learns.

  Attributes:
    entropy_coefficient, learning_rate: variables.
    gradient_norm: variable, the norm of the last update's whole gradient before clipping.
  """

  def __init__(
      self, time_step_spec, action_spec, actor_network, *, learning_rate: float,
      entropy_coefficient: float, gradient_clipping: float, clip_globally: bool = False):
    """Args: clip_globally: the whole gradient's norm, where else each variable's is clipped."""
    self.entropy_coefficient = tf.Variable(
        entropy_coefficient, dtype=tf.float32, trainable=False, name="entropy_coefficient")
    # Built here, or the first update would be traced twice: once making Adam's slots, once not.
    actor_network.create_variables()
    optimizer = tf.keras.optimizers.Adam(learning_rate, epsilon=1e-8)
    optimizer.build(actor_network.trainable_weights)
    self.learning_rate = optimizer.learning_rate
    self.gradient_norm = tf.Variable(0.0, trainable=False, name="gradient_norm")
    self._clip, self._clip_globally = gradient_clipping, clip_globally
    super().__init__(
        time_step_spec, action_spec, actor_network, optimizer=optimizer,
        normalize_returns=False,
        train_step_counter=tf.Variable(0, dtype=tf.int64, trainable=False))

  @property
  def optimizer(self) -> tf.keras.optimizers.Optimizer:
    """Adam, with its slots."""
    return self._optimizer

  def _train(self, experience, weights=None):
    # The parent's step, of which each episode here is one decision: its return is its reward.
    with tf.GradientTape() as tape:
      info = self.total_loss(experience, experience.reward, weights=weights, training=True)
      tf.debugging.check_numerics(info.loss, "Loss is inf or nan")
    variables = self._actor_network.trainable_weights
    gradients = [
        tf.zeros_like(variable) if gradient is None else gradient
        for gradient, variable in zip(tape.gradient(info.loss, variables), variables)]
    norm = tf.linalg.global_norm(gradients)
    self.gradient_norm.assign(norm)
    tf.debugging.check_numerics(norm, "Gradient is inf or nan")
    if self._clip_globally:
      gradients, _ = tf.clip_by_global_norm(gradients, self._clip, use_norm=norm)
    else:
      gradients = [tf.clip_by_norm(gradient, self._clip) for gradient in gradients]
    self._optimizer.apply_gradients(zip(gradients, variables))
    self.train_step_counter.assign_add(1)
    return tf.nest.map_structure(tf.identity, info)

  def entropy_regularization_loss(self, actions_distribution, weights=None):
    """Minus the mean entropy of a decision, times the coefficient."""
    entropy = actions_distribution.entropy()  # [M, 1, K]
    return -self.entropy_coefficient * tf.reduce_mean(
        tf.reduce_sum(entropy, axis=-1) * (1.0 if weights is None else weights))


def decisions(
    observation: Dict[str, np.ndarray], action: np.ndarray,
    advantage: np.ndarray) -> trajectory.Trajectory:
  """M decisions as M complete episodes of one step.

  Args:
    observation: arrays [M, ...].
    action: [M, K] int32.
    advantage: [M].
  """
  m = len(action)
  ones = np.ones((m, 1), dtype=np.float32)
  return tf.nest.map_structure(tf.constant, trajectory.Trajectory(
      step_type=np.full((m, 1), ts.StepType.FIRST, dtype=np.int32),
      observation={name: value[:, None] for name, value in observation.items()},
      action=action[:, None],
      policy_info=(),
      next_step_type=np.full((m, 1), ts.StepType.LAST, dtype=np.int32),
      reward=advantage.astype(np.float32)[:, None],
      discount=ones))
