"""`PlacetoLearner`: Placeto's agent, and its updates from episodes.

Legend: P graphs, B episodes side by side (B / P of each graph, graph after graph), D devices, K
groups placed in one step, T steps.
"""

from __future__ import annotations

import collections
import functools
from typing import Any, Deque, Dict, List, Optional, Sequence

import numpy as np
import tensorflow as tf
from tf_agents.environments import py_environment
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory
from tf_agents.utils import common

from placeto_tf.encoding.grouped_graph import GroupedGraph
from placeto_tf.errors import PlacetoError
from placeto_tf.policies.placeto import agent as agent_lib
from placeto_tf.policies.placeto.config import PlacetoConfig
from placeto_tf.policies.placeto.network import PlacetoNetwork
from placeto_tf.training import driving
from placeto_tf.training import observation as observation_lib
from placeto_tf.training.schedules import between
from placeto_tf.training.updates import adam, optimizer_variables

_CLIP = 1.25  # largest norm of the whole gradient, as in the authors' code
_BASELINE_UPDATES = 10  # of a graph, as in the paper


class PlacetoLearner:
  """Acts and learns.

  Attributes:
    agent, network, optimizer: tf-agents' agent, its network, Adam.
    logits: observation -> [B, K, D].
  """

  def __init__(
      self, environment: py_environment.PyEnvironment, graphs: Sequence[GroupedGraph],
      config: PlacetoConfig, seed: int, *,
      weights: Optional[Sequence[np.ndarray]] = None, max_groups: Optional[int] = None,
      compiled: bool = False):
    """Makes network and agent.

    Args:
      environment: whose specs they follow.
      graphs, max_groups: see `PlacetoNetwork`.
      config: how it learns.
      seed: of weights.
      weights: to start from, of a network for other graphs or another grouping.
      compiled: whether updates are compiled, which takes seconds and pays after dozens of updates;
        they are then padded to one size.

    Raises:
      PlacetoError: the weights are of another network.
    """
    self._config = config
    time_step_spec = tensor_spec.from_spec(environment.time_step_spec())
    action_spec = tensor_spec.from_spec(environment.action_spec())
    observation_spec = time_step_spec.observation
    self.network = network = PlacetoNetwork(
        observation_spec, action_spec, graphs, max_groups=max_groups, config=config.network,
        seed=seed)
    network.create_variables()
    k = int(action_spec.shape[0])
    self._num_steps = [-(-graph.num_groups // k) for graph in graphs]
    baseline = agent_lib.StepBaseline(observation_spec, len(graphs), max(self._num_steps), k)
    self.optimizer = adam(config.learning_rate, _CLIP, network.trainable_weights)
    self.agent = agent_lib.PlacetoAgent(
        time_step_spec, action_spec, network, optimizer=self.optimizer,
        gamma=1.0 if config.credit == "returns" else 0.0,
        value_network=baseline if config.credit == "returns" else None)
    self.agent.initialize()
    if weights is not None:
      self._assign(weights)
    self._allowed = [graph.allowed for graph in graphs]
    self._compiled = compiled
    self.logits = driving.acting(network)
    self._train = common.function(self.agent.train) if compiled else self.agent.train
    self._baseline = baseline
    self._returns: List[List[Deque[float]]] = [  # of each graph's steps, in its last updates
        [collections.deque(maxlen=_BASELINE_UPDATES) for _ in range(steps)]
        for steps in self._num_steps]

  @property
  def weights(self) -> List[np.ndarray]:
    """The present weights of the network."""
    return [variable.numpy() for variable in self.network.variables]

  @property
  def variables(self) -> List[tf.Variable]:
    """All that an update changes."""
    return list(self.network.variables) + optimizer_variables(self.optimizer)

  def update(
      self, episodes: trajectory.Trajectory, graphs: Sequence[int] = (0,), spent: float = 0.0
  ) -> Dict[str, float]:
    """Learns from episodes; the loss of the last step, and the entropy of a decision.

    Args:
      episodes: [B, T, ...] arrays.
      graphs: [P] what the episodes are of, in the order of their rows.
      spent: share of the budget that is used up, in [0, 1].

    Raises:
      InvalidArgumentError: of TensorFlow: the loss is infinite or not a number.
    """
    config = self._config
    steps = np.repeat([self._num_steps[graph] for graph in graphs],
                      len(episodes.reward) // len(graphs))
    # Episodes of smaller graphs are over before those of the largest.
    taken = np.arange(episodes.reward.shape[1]) < steps[:, None]  # [B, T]
    self.optimizer.learning_rate.assign(
        between(config.learning_rate, config.final_learning_rate, spent))
    entropy = between(config.entropy, config.final_entropy, spent)
    if config.credit == "returns":
      self._lay_baselines(episodes.reward, graphs)
    elif config.credit == "gains":
      gains = self._compared(episodes.observation, graphs, taken)
      episodes = episodes._replace(
          observation={**episodes.observation, observation_lib.GAINS: gains})
    t = episodes.reward.shape[1]
    at_once = min(config.steps_per_update or t, t)
    if self._compiled:
      at_once = min(config.steps_per_update or max(self._num_steps), max(self._num_steps))
    for first in range(0, t, at_once):
      if taken[:, first:first + at_once].any():
        part = functools.partial(_part, first=first, length=at_once)
        losses = self._step(tf.nest.map_structure(part, episodes), part(taken), entropy)
    if config.hold_keep:
      self.network.hold_keep(self._kept(episodes, graphs, taken))
    return losses

  def state_dict(self) -> Dict[str, Any]:
    """The state between episodes besides the agent's variables, for JSON."""
    return {"baselines": [[list(of_step) for of_step in each] for each in self._returns]}

  def load_state_dict(self, state: Dict[str, Any]) -> None:
    """Restores a `state_dict`."""
    for each, stored in zip(self._returns, state["baselines"]):
      for of_step, values in zip(each, stored):
        of_step.extend(values)

  def _step(
      self, episodes: trajectory.Trajectory, taken: np.ndarray, entropy: float) -> Dict[str, float]:
    """One step along the gradient, from steps [B, T] of which `taken` [B, T] count."""
    b, t = taken.shape
    if self._config.credit == "ranks":
      moved = taken & _moved(episodes).any(axis=-1)
      episodes = episodes._replace(reward=_ranks(episodes.reward, moved))
    # The agent sums over steps and averages over episodes. Its entropy is an average over all.
    scale = 1.0 if self._config.sum_gradients else 1.0 / taken.sum()
    self.agent.entropy_coefficient.assign(entropy * t)
    middle = np.full((b, t), ts.StepType.MID, dtype=np.int32)
    last = middle.copy()
    last[:, -1] = ts.StepType.LAST  # without discounts a part of an episode is as good as a whole
    episodes = episodes._replace(step_type=middle, next_step_type=last)
    found = self._train(
        tf.nest.map_structure(tf.constant, episodes),
        weights=tf.constant(taken * (b * scale), tf.float32)).extra
    gain, bonus = float(found.policy_gradient_loss), float(found.entropy_regularization_loss)
    return {"loss": gain + bonus,
            "entropy": -bonus / max(entropy * scale * float(taken.sum()), 1e-12)}

  def _assign(self, weights: Sequence[np.ndarray]) -> None:
    variables = self.network.variables
    found, expected = [tuple(w.shape) for w in weights], [tuple(v.shape) for v in variables]
    if found != expected:
      raise PlacetoError(
          f"the weights are of another network: shapes {found}, expected {expected}; train them "
          "for as many devices and with the same network options")
    for variable, value in zip(variables, weights):
      variable.assign(value)

  def _lay_baselines(self, rewards: np.ndarray, graphs: Sequence[int]) -> None:
    """Takes returns into the baselines of the graphs, and these into the agent's table.

    The baseline of a step is the mean return over the last updates from its graph (Placeto,
    appendix A.2). An update counts once, by the mean over its episodes, as in the authors' code.
    """
    returns = np.cumsum(rewards.T[::-1].astype(np.float64), axis=0)[::-1]  # [T, B]
    table = self._baseline.table.numpy()
    for graph, part in zip(graphs, np.split(returns, len(graphs), axis=1)):
      for t, (of_step, found) in enumerate(zip(self._returns[graph], part)):
        of_step.append(float(np.mean(found)))
        table[graph, t] = np.mean(of_step)
    self._baseline.table.assign(table)

  def _compared(
      self, observation: Dict[str, np.ndarray], graphs: Sequence[int], taken: np.ndarray
  ) -> np.ndarray:
    """[B, T, D] gains less their mean over the allowed devices, over their deviation."""
    gains = observation[observation_lib.GAINS]
    allowed = self._of_current(self._allowed, observation, graphs)[:, :, 0]
    mean = (gains * allowed).sum(axis=2, keepdims=True) / allowed.sum(axis=2, keepdims=True)
    compared = np.where(allowed, gains - mean, 0.0)
    return (compared / max(float(compared[taken].std()), 1e-8)).astype(np.float32)

  def _kept(
      self, episodes: trajectory.Trajectory, graphs: Sequence[int], taken: np.ndarray) -> float:
    """Share of the groups, of those that had a choice, that actions left in place."""
    choice = self._of_current(
        [allowed.sum(axis=1) > 1 for allowed in self._allowed], episodes.observation, graphs)
    choice &= taken[:, :, None]
    return float((~_moved(episodes))[choice].mean()) if choice.any() else 1.0

  def _of_current(
      self, tables: Sequence[np.ndarray], observation: Dict[str, np.ndarray],
      graphs: Sequence[int]) -> np.ndarray:
    """[B, T, K, ...] rows of the graphs' tables [G, ...] for the current groups."""
    current = np.split(observation[observation_lib.CURRENT], len(graphs))
    return np.concatenate([tables[graph][part] for graph, part in zip(graphs, current)])


def _moved(episodes: trajectory.Trajectory) -> np.ndarray:
  """[B, T, K] bool: groups that actions put on another device."""
  observation = episodes.observation
  here = np.take_along_axis(
      observation[observation_lib.PLACEMENT], observation[observation_lib.CURRENT], axis=2)
  return here != episodes.action


def _part(value: np.ndarray, first: int, length: int) -> np.ndarray:
  """[B, length, ...] of [B, T, ...] from a step on, filled up with zeros."""
  part = value[:, first:first + length]
  pads = [(0, 0)] * value.ndim
  pads[1] = (0, length - part.shape[1])
  return np.pad(part, pads)


def _ranks(values: np.ndarray, chosen: np.ndarray) -> np.ndarray:
  """The chosen ones' ranks, evenly from -1 to 1, equals alike; 0 for all others."""
  ranks = np.zeros(values.shape, np.float32)
  if chosen.sum() > 1:
    _, inverse, counts = np.unique(values[chosen], return_inverse=True, return_counts=True)
    below = np.cumsum(counts) - counts
    ranks[chosen] = (2 * below + counts - chosen.sum())[inverse.reshape(-1)] / (chosen.sum() - 1)
  return ranks
