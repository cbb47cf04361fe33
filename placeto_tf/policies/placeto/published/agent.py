"""tf-agents' REINFORCE with Placeto's baseline, and an entropy bonus that falls during training.

Dimensions: C graphs, B episodes, T steps.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from tf_agents.agents.reinforce import reinforce_agent
from tf_agents.networks import network

from placeto_tf.training import observation as observation_lib
from placeto_tf.training.updates import WithEntropyCoefficient


class StepBaseline(network.Network):
  """A value network that looks up the graph and the step: Placeto's baseline (appendix A.2).

  Attributes:
    table: variable [C, T], which is not trained by gradients.
  """

  def __init__(self, input_tensor_spec, num_graphs: int, num_steps: int):
    """Makes a table of zeros.

    Args:
      input_tensor_spec: of the observations.
      num_graphs: C.
      num_steps: T.
    """
    super().__init__(input_tensor_spec, state_spec=(), name="StepBaseline")
    self.table = tf.Variable(
        np.zeros((num_graphs, num_steps), np.float32), trainable=False, name="baseline")

  def call(self, observation, step_type=None, network_state=(), training=False):
    """Looks up the baseline of each step.

    Args:
      observation: see `training.observation`, [B, T, ...].
      step_type, training: not used.
      network_state: passed on.

    Returns:
      (values [B, T], network_state).
    """
    del step_type, training
    # The number of the step is the number of visited groups.
    visited = tf.reduce_sum(observation[observation_lib.VISITED], axis=-1)
    # Padding after the last step gets indices within the table.
    step = tf.minimum(tf.cast(visited, tf.int32), self.table.shape[1] - 1)
    graph = observation[observation_lib.GRAPH][..., 0]
    return tf.gather_nd(self.table, tf.stack([graph, step], axis=-1)), network_state


class PublishedAgent(WithEntropyCoefficient, reinforce_agent.ReinforceAgent):
  """REINFORCE with an entropy bonus that falls during training."""
