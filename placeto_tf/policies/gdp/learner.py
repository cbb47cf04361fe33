"""GDP's updates: tf-agents' `PPOClipAgent`, a step of an episode for each node.

Since each node is a step, each has a probability ratio of its own, which is clipped separately
(Schulman et al. 2017, equation 7); a joint ratio of thousands of nodes would always be clipped. The
advantage of all steps of a placement is its reward, normalized by the mean and the deviation of its
batch; there is no value network. Episodes of smaller graphs are padded with steps of weight 0, and
the weights of the steps of each graph have the same sum.

Dimensions: B placements of each graph, M nodes of a graph, T steps: nodes of the largest graph.
"""

from __future__ import annotations

import dataclasses
from typing import Dict, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf
from tf_agents.agents.ppo import ppo_clip_agent
from tf_agents.networks import network
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory
from tf_agents.utils import common

from placeto_tf.errors import check_at_least
from placeto_tf.policies.gdp.policy import GRAPH, STRETCH, GdpPolicy
from placeto_tf.training.one_shot import OneShotConfig, OneShotEnvironment, OneShotLearner
from placeto_tf.training.one_shot_policy import LOG_PROBS
from placeto_tf.training.updates import WithEntropyCoefficient, between


@dataclasses.dataclass(frozen=True)
class PpoConfig(OneShotConfig):
  """The updates of GDP; the paper states the reward and the algorithm, not all sizes and rates.

  Attributes:
    epochs: gradient steps on one batch.
    clip: of the ratio of probabilities.
    entropy, final_entropy: weight of a node's mean entropy at the start and the end of training.
  """

  final_learning_rate: float = 3e-4
  epochs: int = 4
  clip: float = 0.2
  entropy: float = 0.01
  final_entropy: float = 0.0

  def __post_init__(self) -> None:
    super().__post_init__()
    check_at_least(1, self, "epochs")


class NoValues(network.Network):
  """A value network that always returns 0, because `PPOClipAgent` requires a value network."""

  def call(self, observation, step_type=None, network_state=(), training=False):
    """Returns values of zero.

    Args:
      observation: of `GdpPolicy`.
      step_type, training: not used.
      network_state: passed on.

    Returns:
      (zeros of the observation's shape, network_state).
    """
    del step_type, training
    return tf.zeros_like(observation[GRAPH], tf.float32), network_state


class GdpAgent(WithEntropyCoefficient, ppo_clip_agent.PPOClipAgent):
  """PPO with an entropy bonus that falls during training."""


class GdpLearner(OneShotLearner):
  """A policy of many graphs, and its updates by PPO."""

  config: PpoConfig

  def __init__(
      self, policy: GdpPolicy, config: PpoConfig, seed: int = 0,
      environment: Optional[OneShotEnvironment] = None, num_steps: Optional[int] = None):
    """Makes the agent.

    Args:
      policy, config, seed: see the base class.
      environment: of the policy's first graph; `update` learns from it.
      num_steps: T, for policies that have larger graphs from which they do not learn.
    """
    super().__init__(policy, environment, config, seed)
    self._num_steps = num_steps or policy.most_nodes
    specs = ts.time_step_spec(policy.input_tensor_spec)
    self._agent = GdpAgent(
        specs, policy.output_spec.sample_spec, optimizer=self.optimizer, actor_net=policy,
        # No value loss, no normalization, one epoch per call; advantages come with the steps.
        value_net=NoValues(specs.observation, (), "NoValues"),
        importance_ratio_clipping=config.clip, value_pred_loss_coef=0.0, num_epochs=1,
        normalize_rewards=False, normalize_observations=False,
        compute_value_and_advantage_in_train=False, aggregate_losses_across_replicas=False,
        train_step_counter=tf.Variable(0, dtype=tf.int64, trainable=False))
    self._train = common.function(self._agent.train)

  def learn(self, parts: Sequence[trajectory.Trajectory], spent: float) -> Dict[str, float]:
    """Makes an update from placements of some graphs; see the base class.

    Args:
      parts: the placements of each graph.
      spent: share of the training so far, for the learning rate and the entropy bonus.

    Returns:
      The loss.
    """
    config = self.config
    self.optimizer.learning_rate.assign(
        between(config.learning_rate, config.final_learning_rate, spent))
    self._agent.entropy_coefficient.assign(between(config.entropy, config.final_entropy, spent))
    # Episodes of all graphs side by side: [sum of B, T].
    made = [self._steps_of(part) for part in parts]
    steps, weights = tf.nest.map_structure(
        lambda *values: tf.constant(np.concatenate(values)), *made)
    # Each epoch is a full batch; a loss that is not finite ends the epochs, and `attempt` undoes
    # the update.
    for _ in range(config.epochs):
      loss = float(self._train(steps, weights=weights).loss)
      if not np.isfinite(loss):
        break
    return {"loss": loss}

  def _steps_of(
      self, played: trajectory.Trajectory) -> Tuple[trajectory.Trajectory, np.ndarray]:
    """Returns placements as episodes [B, T] of one step per node, and weights of steps [B, T]."""
    b, t = len(played.reward), self._num_steps
    m = played.action.shape[-1]  # nodes of this graph

    def by_step(values):  # [B, 1, M] -> [B, T]
      return np.pad(values[:, 0], [(0, 0), (0, t - m)])

    rewards = played.reward
    advantages = (rewards - rewards.mean()) / max(float(rewards.std()), 1e-8)  # [B, 1]
    ones = np.ones((b, t), np.float32)
    stretches = by_step(played.policy_info[STRETCH])
    # Padding steps get stretches of their own.
    stretches[:, m:] = np.arange(m, t)  # nodes have numbers below m
    # Only the last step ends the episode.
    middle = np.full((b, t), ts.StepType.MID, np.int32)
    ends = middle.copy()
    ends[:, -1] = ts.StepType.LAST
    steps = trajectory.Trajectory(
        step_type=middle, next_step_type=ends, discount=ones, reward=rewards * ones,
        observation={GRAPH: np.repeat(played.observation, t, axis=1), STRETCH: stretches},
        action=by_step(played.action),
        policy_info={
            "dist_params": {LOG_PROBS: by_step(played.policy_info[LOG_PROBS])},
            "value_prediction": 0 * ones, "return": rewards * ones, "advantage": advantages * ones})
    # The weights of a graph's m steps sum to T, as in the largest graph.
    weights = np.where(np.arange(t) < m, t / m, 0.0) * ones
    return steps, weights.astype(np.float32)
