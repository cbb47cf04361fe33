"""tf-agents' REINFORCE with what Placeto needs: a decaying entropy bonus and given advantages.

The agent is fed single decisions, each as an episode of one step whose reward is its advantage:
returns and baselines are worked out over whole episodes beforehand (`training.returns`), so that a
loss over 128 steps of a big graph can be taken in pieces.

Legend: M decisions, K groups placed in one step.
"""

from __future__ import annotations

from typing import Dict

import numpy as np

from placeto_tf.encoding.legacy_keras import check_legacy_keras

check_legacy_keras()

import tensorflow as tf  # noqa: E402  the check must come first
from tf_agents.agents.reinforce import reinforce_agent  # noqa: E402
from tf_agents.trajectories import time_step as ts  # noqa: E402
from tf_agents.trajectories import trajectory  # noqa: E402


class PlacetoAgent(reinforce_agent.ReinforceAgent):
  """REINFORCE whose `entropy_coefficient` is a variable, to be lowered while it learns."""

  def __init__(
      self, time_step_spec, action_spec, actor_network, *, learning_rate: float,
      entropy_coefficient: float, gradient_clipping: float):
    self.entropy_coefficient = tf.Variable(
        entropy_coefficient, dtype=tf.float32, trainable=False, name="entropy_coefficient")
    # Built here, or the first update would be traced twice: once making Adam's slots, once not.
    actor_network.create_variables()
    optimizer = tf.keras.optimizers.Adam(learning_rate, epsilon=1e-8)
    optimizer.build(actor_network.trainable_weights)
    self.learning_rate = optimizer.learning_rate
    super().__init__(
        time_step_spec, action_spec, actor_network, optimizer=optimizer,
        normalize_returns=False, gradient_clipping=gradient_clipping,
        train_step_counter=tf.Variable(0, dtype=tf.int64, trainable=False))

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
