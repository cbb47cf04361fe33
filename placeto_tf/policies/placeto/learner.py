"""`PlacetoLearner`: Placeto's agent, the steps since its last update, and its updates.

It serves one graph, whose placement is improved while it learns, and a family of graphs, several of
which it may learn from in one update.

Legend: P graphs, B episodes side by side (B / P of each graph, graph after graph), D devices, K
groups placed in one step, T steps since the last update, M decisions (T * B).
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence

import numpy as np
import tensorflow as tf
from tf_agents.environments import py_environment
from tf_agents.specs import tensor_spec
from tf_agents.utils import common

from placeto_tf.encoding.grouped_graph import GroupedGraph
from placeto_tf.errors import PlacetoError
from placeto_tf.policies.placeto import agent as agent_lib
from placeto_tf.policies.placeto.config import PlacetoConfig
from placeto_tf.policies.placeto.network import PlacetoNetwork
from placeto_tf.training import observation as observation_lib
from placeto_tf.training import runs
from placeto_tf.training.returns import StepBaseline, discounted_returns
from placeto_tf.training.schedules import between

# Rows (decisions x groups x candidate devices) for which an update holds all activations at once:
# about 2 GB at the paper's 8 rounds.
_ROWS_AT_ONCE = 200_000


class PlacetoLearner:
  """Acts, remembers and learns.

  Attributes:
    agent, network: the tf-agents agent and its network.
    updates, skipped: how many were made, and how many of them gave NaN and were left out.
    losses: of the last update, by name, with the entropy and the gradient's norm.
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
      seed: of weights and of which decisions are learned from.
      weights: to start from, of a network for other graphs or another grouping.
      compiled: whether updates are compiled, which takes seconds and pays after dozens of updates;
        they are then padded to one size.

    Raises:
      PlacetoError: the weights are of another network.
    """
    self._config = config
    time_step_spec = tensor_spec.from_spec(environment.time_step_spec())
    action_spec = tensor_spec.from_spec(environment.action_spec())
    self.network = network = PlacetoNetwork(
        time_step_spec.observation, action_spec, graphs, max_groups=max_groups,
        config=config.network, seed=seed)
    k = min(config.environment.groups_per_step, min(graph.num_groups for graph in graphs))
    self._num_steps = [-(-graph.num_groups // k) for graph in graphs]
    self._family = observation_lib.GRAPH in time_step_spec.observation
    filled, pieces = max(self._num_steps), 1
    if self._family and compiled:
      filled = min(filled, config.steps_per_update or filled)
      rows = environment.batch_size * filled * network.rows_per_decision
      pieces = -(-rows // _ROWS_AT_ONCE)
      filled = -(-filled // pieces) * pieces
    self._filled = filled if compiled else None
    self.agent = agent_lib.PlacetoAgent(
        time_step_spec, action_spec, network, learning_rate=config.learning_rate,
        entropy_coefficient=config.entropy, gradient_clipping=config.gradient_clip,
        clip_globally=config.clip_globally, pieces=pieces)
    self.agent.initialize()
    if weights is not None:
      self._assign(weights)
    self._rng = np.random.default_rng(seed)
    self._allowed = [graph.allowed for graph in graphs]
    self._choices = [allowed.sum(axis=1) > 1 for allowed in self._allowed]
    self._logits = acting(network)
    self._train = common.function(self.agent.train) if compiled else self.agent.train
    self._baselines = [StepBaseline(steps, config.baseline_updates) for steps in self._num_steps]
    self._first_step = 0
    self._seen: List[Any] = []
    self.updates, self.skipped = 0, 0
    self.losses: Dict[str, float] = {}

  @property
  def weights(self) -> List[np.ndarray]:
    """The present weights of the network."""
    return [variable.numpy() for variable in self.network.variables]

  @property
  def variables(self) -> List[tf.Variable]:
    """All that an update changes."""
    return list(self.network.variables) + runs.optimizer_variables(self.agent.optimizer)

  def logits(self, observation) -> np.ndarray:
    """[B, K, D]."""
    return self._logits(observation)

  def observe(self, observation, action, reward, values: Optional[np.ndarray] = None) -> None:
    """Remembers a step of all episodes; values [B, D] where devices not taken were tried too."""
    self._seen.append((observation, action, reward, values))

  def ready(self, last: bool) -> bool:
    """Whether an update is due; `last` after the last step of an episode."""
    return last or len(self._seen) == self._config.steps_per_update

  def update(self, spent: float, graphs: Sequence[int] = (0,)) -> None:
    """One update from the steps since the last one.

    Args:
      spent: share of the budget that is used up, in [0, 1].
      graphs: [P] what the episodes are of, in the order of their rows.
    """
    config, t = self._config, len(self._seen)
    rewards = np.stack([seen[2] for seen in self._seen]).astype(np.float64)  # [T, B]
    returns = discounted_returns(rewards, config.discount)
    steps = np.repeat([self._num_steps[graph] for graph in graphs], rewards.shape[1] // len(graphs))
    first = self._first_step
    # Episodes of smaller graphs are over before those of the largest.
    taken = first + np.arange(t)[:, None] < steps  # [T, B]
    self._first_step = (first + t) % int(steps.max())
    if config.learn:
      if self._seen[0][3] is not None:
        advantages = self._compared(np.stack([seen[3] for seen in self._seen]), graphs)
        advantages *= taken[:, :, None]
      else:
        advantages = (returns - self._baseline(graphs, first, returns)) * taken
      self._learn(advantages, taken, spent)
      if config.hold_keep:
        self.network.hold_keep(self._kept(graphs))
    self._seen = []
    self.updates += 1

  def state_dict(self) -> Dict[str, Any]:
    """The state between episodes besides the agent's variables, for JSON."""
    return {
        "rng": self._rng.bit_generator.state,
        "baselines": [baseline.state() for baseline in self._baselines]}

  def load_state_dict(self, state: Dict[str, Any]) -> None:
    """Restores a `state_dict`."""
    self._rng.bit_generator.state = state["rng"]
    for baseline, stored in zip(self._baselines, state["baselines"]):
      baseline.load_state(stored)

  def _assign(self, weights: Sequence[np.ndarray]) -> None:
    variables = self.network.variables
    found, expected = [tuple(w.shape) for w in weights], [tuple(v.shape) for v in variables]
    if found != expected:
      raise PlacetoError(
          f"the weights are of another network: shapes {found}, expected {expected}; train them "
          "for as many devices and with the same network options")
    for variable, value in zip(variables, weights):
      variable.assign(value)

  def _baseline(self, graphs: Sequence[int], first: int, returns: np.ndarray):
    """The baseline of returns [T, B]: an array that broadcasts to them."""
    if self._config.baseline == "none":
      return 0.0
    if self._config.baseline == "moves":
      moved = np.stack([
          (np.take_along_axis(seen[0]["placement"], seen[0]["current"], axis=1) != seen[1]).any(-1)
          for seen in self._seen])  # [T, B]
      return np.where(moved, returns[moved].mean() if moved.any() else 0.0, returns)
    by_graph = np.split(returns, len(graphs), axis=1)
    if self._config.baseline == "batch":
      return np.concatenate([
          np.broadcast_to(part.mean(axis=1, keepdims=True), part.shape) for part in by_graph], 1)
    found = np.zeros_like(returns)
    for part, graph, of_graph in zip(np.split(found, len(graphs), axis=1), graphs, by_graph):
      count = min(len(returns), self._num_steps[graph] - first)
      if count > 0:
        self._baselines[graph].update(first, of_graph[:count])
        part[:count] = self._baselines[graph](first, count)
    return found

  def _compared(self, values: np.ndarray, graphs: Sequence[int]) -> np.ndarray:
    """[T, B, D] values less their mean over the allowed devices, 0 for the others."""
    current = np.stack([seen[0][observation_lib.CURRENT][:, 0] for seen in self._seen])  # [T, B]
    allowed = np.concatenate([
        self._allowed[graph][part]
        for graph, part in zip(graphs, np.split(current, len(graphs), axis=1))], axis=1)
    mean = (values * allowed).sum(axis=2, keepdims=True) / allowed.sum(axis=2, keepdims=True)
    return np.where(allowed, values - mean, 0.0)

  def _kept(self, graphs: Sequence[int]) -> float:
    """Share of the groups, of those that had a choice, that the last actions left in place."""
    kept = np.stack([
        np.take_along_axis(seen[0]["placement"], seen[0]["current"], axis=1) == seen[1]
        for seen in self._seen])  # [T, B, K]
    current = np.stack([seen[0]["current"] for seen in self._seen])
    choice = np.concatenate([
        self._choices[graph][part]
        for graph, part in zip(graphs, np.split(current, len(graphs), axis=1))], axis=1)
    return float(kept[choice].mean()) if choice.any() else 1.0

  def _learn(self, advantages: np.ndarray, taken: np.ndarray, spent: float) -> None:
    """Args: advantages [T, B], or of each device [T, B, D]; taken [T, B] bool, which count."""
    config = self._config
    if config.advantages == "ranks":
      advantages = _ranks(advantages.reshape(-1)).reshape(advantages.shape)
    elif config.advantages == "normalized":
      advantages = advantages / max(float(advantages[taken].std()), 1e-8)
    self.agent.learning_rate.assign(
        between(config.learning_rate, config.final_learning_rate, spent))
    fall = spent if config.entropy_until is None else min(1.0, spent / config.entropy_until)
    decay = _geometric if config.entropy_decay == "exponential" else between
    self.agent.entropy_coefficient.assign(decay(config.entropy, config.final_entropy, fall))
    # A family's episodes are complete: they are divided into as many parts as one graph's would
    # have updates.
    at_once = (config.steps_per_update if self._family else None) or len(self._seen)
    for first in range(0, len(self._seen), at_once):
      part = slice(first, first + at_once)
      if taken[part].any():
        self._step(self._seen[part], advantages[part], taken[part])

  def _step(self, seen: List[Any], advantages: np.ndarray, taken: np.ndarray) -> None:
    """One step along the gradient. Args: seen: T steps; advantages, taken: as in `_learn`."""
    config = self._config
    observations = {name: np.stack([step[0][name] for step in seen]) for name in seen[0][0]}
    actions = np.stack([step[1] for step in seen])
    weights = taken / taken.mean()
    if self._family:  # a row for each episode, of one graph
      def by_episode(value):
        return _filled(np.swapaxes(value, 0, 1), self._filled)

      observations = {name: by_episode(value) for name, value in observations.items()}
      actions, advantages, weights = map(by_episode, (actions, advantages, weights))
      weights *= weights.shape[1] / len(seen)
    else:  # a row for each decision
      observations = {
          name: value.reshape((-1, 1) + value.shape[2:]) for name, value in observations.items()}
      actions = actions.reshape((-1, 1) + actions.shape[2:])
      chosen, advantages = self._choose(advantages.reshape(-1))
      room = self._filled * taken.shape[1] if self._filled and len(chosen) == taken.size else None
      weights = _filled(np.ones((1, len(chosen))), room)[0][:, None]
      weights *= len(weights) / len(chosen)
      chosen = np.concatenate([chosen, np.zeros(len(weights) - len(chosen), dtype=np.int64)])
      observations = {name: value[chosen] for name, value in observations.items()}
      actions, advantages = actions[chosen], advantages[chosen][:, None]
    if config.sum_gradients:
      weights = weights * taken.shape[1]
    values = {}
    if advantages.ndim == 3:
      values, advantages = {"values": tf.constant(advantages, tf.float32)}, advantages[:, :, 0]
    experience = agent_lib.decisions(observations, actions, advantages)
    try:
      loss = self._train(experience, weights=tf.constant(weights, tf.float32), **values)
    except tf.errors.InvalidArgumentError:  # the agent found its loss infinite or not a number
      self.skipped += 1
      self.losses = {}
      return
    coefficient = float(self.agent.entropy_coefficient)
    workers = taken.shape[1] if config.sum_gradients else 1
    self.losses = {
        "loss": float(loss.loss),
        "policy_gradient_loss": float(loss.extra.policy_gradient_loss),
        "entropy_loss": float(loss.extra.entropy_regularization_loss),
        "entropy": -float(loss.extra.entropy_regularization_loss) / (
            workers * max(coefficient, 1e-12)),
        "gradient_norm": float(self.agent.gradient_norm),
    }

  def _choose(self, advantages: np.ndarray):
    """The decisions to learn from, and all M advantages divided by the probability of that."""
    every, count = np.arange(len(advantages)), self._config.decisions_per_update
    if count is None or len(every) <= count:
      return every, advantages
    # Decisions that teach nothing are drawn rarely; the division keeps the gradient's expectation.
    odds = np.abs(advantages) + 0.1 * np.abs(advantages).mean() + 1e-9
    odds /= odds.sum()
    return self._rng.choice(every, count, p=odds), advantages / (odds * len(advantages))


def acting(network: PlacetoNetwork) -> Callable[[Dict[str, np.ndarray]], np.ndarray]:
  """The network as a function, observation -> logits [B, K, D]."""

  @tf.function(autograph=False)
  def act(observation):
    distribution, _ = network(observation)
    return distribution.logits

  return lambda observation: act(
      {name: tf.constant(value) for name, value in observation.items()}).numpy()


def _filled(values: np.ndarray, length: Optional[int]) -> np.ndarray:
  """[B, T, ...] with copies of the first step's observations, or zeros, to [B, length, ...]."""
  if length is None or values.shape[1] == length:
    return values
  pads = [(0, 0)] * values.ndim
  pads[1] = (0, length - values.shape[1])
  return np.pad(values, pads)


def _ranks(advantages: np.ndarray) -> np.ndarray:
  """Nonzero advantages by rank, evenly from -1 to 1, equals alike; 0 stays 0."""
  ranks = np.zeros_like(advantages)
  taught = np.flatnonzero(advantages)
  if len(taught) > 1:
    _, inverse, counts = np.unique(advantages[taught], return_inverse=True, return_counts=True)
    below = np.cumsum(counts) - counts
    ranks[taught] = (2 * below + counts - len(taught))[inverse.reshape(-1)] / (len(taught) - 1)
  return ranks


def _geometric(first: float, last: float, share: float) -> float:
  """From first to last, both above 0, by the same factor each time."""
  return first * (last / first) ** share
