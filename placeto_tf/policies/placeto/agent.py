"""tf-agents' REINFORCE with what Placeto needs: a decaying entropy bonus and given advantages.

The agent is fed single decisions, each as an episode of one step whose reward is its advantage:
returns and baselines are computed over whole episodes before (`training.returns`), so that a loss
over all steps of big graphs can be taken in pieces.

Legend: R rows of decisions, T decisions in each, K groups placed in one step.
"""

from __future__ import annotations

from typing import Any, Dict, List

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
      entropy_coefficient: float, gradient_clipping: float, clip_globally: bool = False,
      pieces: int = 1):
    """Args: clip_globally: clips the norm of the whole gradient, not of each variable's; pieces:
    into how many an update is divided along T, to need less memory."""
    self.entropy_coefficient = tf.Variable(
        entropy_coefficient, dtype=tf.float32, trainable=False, name="entropy_coefficient")
    # Built here; otherwise the first update is traced twice, with and without making Adam's slots.
    actor_network.create_variables()
    optimizer = tf.keras.optimizers.Adam(learning_rate, epsilon=1e-8)
    optimizer.build(actor_network.trainable_weights)
    self.learning_rate = optimizer.learning_rate
    self.gradient_norm = tf.Variable(0.0, trainable=False, name="gradient_norm")
    self._clip, self._clip_globally, self._pieces = gradient_clipping, clip_globally, pieces
    super().__init__(
        time_step_spec, action_spec, actor_network, optimizer=optimizer,
        normalize_returns=False,
        train_step_counter=tf.Variable(0, dtype=tf.int64, trainable=False))

  @property
  def optimizer(self) -> tf.keras.optimizers.Optimizer:
    """Adam, with its slots."""
    return self._optimizer

  def _train(self, experience, weights=None, values=None):
    """Args: values: [R, T, D] reward of each device, if that is known; the loss is then the
    expected one, independent of the draw."""
    # The parent's step, of which each episode here is one decision: its return is its reward.
    if weights is None:
      weights = tf.ones_like(experience.reward)
    variables = self._actor_network.trainable_weights
    returns = experience.reward if values is None else values
    batch = (experience, weights, returns)
    split = [tf.split(x, self._pieces, axis=1) for x in tf.nest.flatten(batch)]
    infos: List[Any] = []
    gradients: List[Any] = []
    for part in zip(*split):
      with tf.control_dependencies(gradients):  # one piece after the other
        part, part_weights, part_returns = tf.nest.pack_sequence_as(
            batch, [tf.identity(x) for x in part])
      with tf.GradientTape() as tape:
        info = self.total_loss(part, part_returns, weights=part_weights, training=True)
        tf.debugging.check_numerics(info.loss, "Loss is inf or nan")
      found = [
          tf.zeros_like(variable) if gradient is None else tf.convert_to_tensor(gradient)
          for gradient, variable in zip(tape.gradient(info.loss, variables), variables)]
      infos.append(info)
      gradients = [a + b for a, b in zip(gradients, found)] if gradients else found
    gradients = [gradient / self._pieces for gradient in gradients]
    info = tf.nest.map_structure(lambda *values: tf.add_n(values) / self._pieces, *infos)
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

  def policy_gradient_loss(
      self, actions_distribution, actions, is_boundary, returns, num_episodes, weights=None):
    """The parent's loss; with returns [R, T, D] per device, minus the mean expected return."""
    if returns.shape.rank == 2:
      return super().policy_gradient_loss(
          actions_distribution, actions, is_boundary, returns, num_episodes, weights)
    expected = tf.reduce_sum(actions_distribution.probs_parameter()[:, :, 0] * returns, axis=-1)
    return -tf.reduce_mean(expected * (1.0 if weights is None else weights))

  def entropy_regularization_loss(self, actions_distribution, weights=None):
    """Minus the mean entropy of a decision, times the coefficient."""
    entropy = actions_distribution.entropy()  # [M, 1, K]
    return -self.entropy_coefficient * tf.reduce_mean(
        tf.reduce_sum(entropy, axis=-1) * (1.0 if weights is None else weights))


def decisions(
    observation: Dict[str, np.ndarray], action: np.ndarray,
    advantage: np.ndarray) -> trajectory.Trajectory:
  """R rows of T decisions, each a complete episode of one step.

  Args:
    observation: arrays [R, T, ...].
    action: [R, T, K] int32.
    advantage: [R, T].
  """
  shape = advantage.shape
  return tf.nest.map_structure(tf.constant, trajectory.Trajectory(
      step_type=np.full(shape, ts.StepType.FIRST, dtype=np.int32),
      observation=observation,
      action=action,
      policy_info=(),
      next_step_type=np.full(shape, ts.StepType.LAST, dtype=np.int32),
      reward=advantage.astype(np.float32),
      discount=np.ones(shape, dtype=np.float32)))
