"""`PublishedLearner`: the agent of the published process, and its updates from episodes.

The agent is tf-agents' REINFORCE with Placeto's baseline.

Dimensions: C graphs, B episodes side by side, of some graphs one after the other, D devices, T
steps.
"""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence

import numpy as np
import tensorflow as tf
from tf_agents.agents.reinforce import reinforce_agent
from tf_agents.environments import py_environment
from tf_agents.networks import network as network_lib
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory
from tf_agents.utils import common

from placeto_tf.encoding.grouped_graph import GroupedGraph
from placeto_tf.environments import driving
from placeto_tf.environments.visit_environment import GRAPH, VISITED
from placeto_tf.policies import weight_files
from placeto_tf.policies.placeto.published.config import PublishedConfig
from placeto_tf.policies.placeto.published.network import PublishedNetwork
from placeto_tf.training.updates import WithEntropyCoefficient, adam, between

_CLIP = 1.25  # largest norm of the whole gradient, as in the authors' code
_BASELINE_UPDATES = 10  # number of a graph's updates in its baseline, as in the paper


class StepBaseline(network_lib.Network):
  """A value network that looks up the graph and the step: Placeto's baseline (appendix A.2).

  Attributes:
    table: variable [C, T], which is not trained by gradients.
  """

  def __init__(self, input_tensor_spec, num_graphs: int, num_steps: int):
    """Makes a table of zeros."""
    super().__init__(input_tensor_spec, state_spec=(), name="StepBaseline")
    self.table = tf.Variable(
        np.zeros((num_graphs, num_steps), np.float32), trainable=False, name="baseline")

  def call(self, observation, step_type=None, network_state=(), training=False):
    """Looks up the baseline of each step.

    Args:
      observation: see `environments.visit_environment`, [B, T, ...].
      step_type, training: not used.
      network_state: passed on.

    Returns:
      (values [B, T], network_state).
    """
    del step_type, training
    # The number of the step is the number of visited groups.
    visited = tf.reduce_sum(observation[VISITED], axis=-1)
    # Padding after the last step gets indices within the table.
    step = tf.minimum(tf.cast(visited, tf.int32), self.table.shape[1] - 1)
    graph = observation[GRAPH][..., 0]
    return tf.gather_nd(self.table, tf.stack([graph, step], axis=-1)), network_state


class PublishedAgent(WithEntropyCoefficient, reinforce_agent.ReinforceAgent):
  """REINFORCE with an entropy bonus that falls during training."""


class PublishedLearner:
  """The network, the agent and its updates.

  Attributes:
    agent, network, optimizer: tf-agents' agent, its network, Adam.
    logits: observation -> [B, 1, D].
  """

  def __init__(
      self, environment: py_environment.PyEnvironment, graphs: Sequence[GroupedGraph],
      config: PublishedConfig, seed: int, *,
      weights: Optional[Sequence[np.ndarray]] = None):
    """Makes network and agent.

    Args:
      environment: gives the specs.
      graphs: see `PublishedNetwork`.
      config: of the published process.
      seed: of weights.
      weights: initial weights, from a network for other graphs or another grouping.

    Raises:
      PlacetoError: the weights are of another network.
    """
    self._config = config
    time_step_spec = tensor_spec.from_spec(environment.time_step_spec())
    # With variables, before the optimizer, which makes slots for them.
    self.network = network = PublishedNetwork.made(environment, graphs, config.network, seed)
    self._num_steps = [graph.num_groups for graph in graphs]  # an episode visits every group once
    self._baseline = StepBaseline(
        time_step_spec.observation, len(graphs), max(self._num_steps))
    self.optimizer = adam(config.learning_rate, _CLIP, network.trainable_weights)
    # gamma 1: the return of a step is the sum of its reward and all later rewards.
    self.agent = PublishedAgent(
        time_step_spec, tensor_spec.from_spec(environment.action_spec()), network,
        optimizer=self.optimizer, gamma=1.0,
        value_network=self._baseline, normalize_returns=False,
        train_step_counter=tf.Variable(0, dtype=tf.int64, trainable=False))
    self.agent.initialize()
    if weights is not None:
      weight_files.assign(network.variables, weights)
    self.logits = driving.acting(network)
    self._train = common.function(self.agent.train)
    # [C, updates, T] mean returns of each graph's last updates, the latest first; NaN before them.
    self.returns = np.full(
        (len(graphs), _BASELINE_UPDATES, max(self._num_steps)), np.nan)

  @property
  def variables(self) -> List[tf.Variable]:
    """Returns all variables that an update changes."""
    return [*self.network.variables, *self.optimizer.variables]

  def update(
      self, parts: Sequence[trajectory.Trajectory], graphs: Sequence[int] = (0,),
      spent: float = 0.0) -> Dict[str, float]:
    """Learns from whole episodes.

    Args:
      parts: arrays of the episodes of each graph; episodes of smaller graphs have fewer steps.
      graphs: numbers of these graphs.
      spent: used share of the budget, in [0, 1].

    Returns:
      The loss, and the entropy of a decision.

    Raises:
      InvalidArgumentError: (TensorFlow's) the loss is infinite or not a number.
    """
    config = self._config
    # One shape for all updates, because each new length would be compiled again.
    t = max(self._num_steps)

    def padded(*values: np.ndarray) -> np.ndarray:  # -> [B, T, ...]
      return np.concatenate([
          np.pad(value, [(0, 0), (0, t - value.shape[1])] + [(0, 0)] * (value.ndim - 2))
          for value in values])

    # [B, T] weights: padding has weight 0.
    taken = padded(*(np.ones(each.reward.shape, bool) for each in parts))
    self.optimizer.learning_rate.assign(
        between(config.learning_rate, config.final_learning_rate, spent))
    entropy = between(config.entropy, config.final_entropy, spent)
    for graph, part in zip(graphs, parts):
      self._lay_baseline(part.reward, graph)
    # One gradient step from [B, T] steps.
    b = len(taken)
    # The agent sums over steps and averages over episodes. Its entropy is an average over all.
    scale = 1.0 if self._config.sum_gradients else 1.0 / taken.sum()
    self.agent.entropy_coefficient.assign(entropy * t)
    # All rows look like episodes of T steps; steps after an episode's end have weight 0.
    middle = np.full((b, t), ts.StepType.MID, dtype=np.int32)
    last = middle.copy()
    last[:, -1] = ts.StepType.LAST
    episodes = tf.nest.map_structure(padded, *parts)._replace(
        step_type=middle, next_step_type=last)
    found = self._train(
        tf.nest.map_structure(tf.constant, episodes),
        weights=tf.constant(taken * (b * scale), tf.float32)).extra
    # The bonus is minus the entropy times coefficient and weights: divided by these, it is the mean
    # entropy of a decision.
    gain, bonus = float(found.policy_gradient_loss), float(found.entropy_regularization_loss)
    return {"loss": gain + bonus,
            "entropy": -bonus / max(entropy * scale * float(taken.sum()), 1e-12)}

  def _lay_baseline(self, rewards: np.ndarray, graph: int) -> None:
    """Adds returns to the baseline of a graph, and copies it into the agent's table.

    The baseline of a step is the mean return over the last updates from its graph (Placeto,
    appendix A.2). An update counts once, by the mean over its episodes, as in the authors' code.

    Args:
      rewards: [B, T] of the graph's episodes.
      graph: number of the graph.
    """
    # Undiscounted returns: sums of rewards from each step on.
    returns = np.cumsum(rewards.T[::-1].astype(np.float64), axis=0)[::-1]  # [T, B]
    table = self._baseline.table.numpy()
    latest, t = np.roll(self.returns[graph], 1, axis=0), len(returns)
    latest[0, :t] = returns.mean(axis=1)
    self.returns[graph], table[graph, :t] = latest, np.nanmean(latest[:, :t], axis=0)
    self._baseline.table.assign(table)
