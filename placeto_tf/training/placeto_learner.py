"""`PlacetoLearner`: Placeto's agent, what it has seen since its last update, and its updates.

It serves one graph, whose placement is improved while it learns, and a family of them.

Legend: B episodes side by side, D devices, K groups placed in one step, T steps since the last
update, M decisions (T * B).
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence

import numpy as np
import tensorflow as tf
from tf_agents.environments import py_environment
from tf_agents.specs import tensor_spec
from tf_agents.utils import common

from placeto_tf.encoding.grouped_graph import GroupedGraph
from placeto_tf.errors import PlacetoError
from placeto_tf.policies.placeto import agent as agent_lib
from placeto_tf.policies.placeto.network import PlacetoNetwork
from placeto_tf.training import runs
from placeto_tf.training.placeto_config import PlacetoConfig
from placeto_tf.training.returns import StepBaseline, discounted_returns
from placeto_tf.training.schedules import between


class PlacetoLearner:
  """Acts, remembers and learns.

  Attributes:
    agent, network: the tf-agents agent and its network.
    updates, skipped: how many were made, and how many of them gave NaN and were left out.
    losses: of the last update, by name, with the entropy and the gradient's norm.
  """

  def __init__(
      self, environment: py_environment.PyEnvironment, graphs: Sequence[GroupedGraph],
      scales_us: Sequence[float], config: PlacetoConfig, seed: int, *,
      weights: Optional[Sequence[np.ndarray]] = None, max_groups: Optional[int] = None,
      compiled: bool = False):
    """Makes network and agent.

    Args:
      environment: whose specs they follow.
      graphs, scales_us, max_groups: see `PlacetoNetwork`.
      config: how it learns.
      seed: of weights and of which decisions are learned from.
      weights: of a network for other graphs, or another grouping, to go on with.
      compiled: whether updates are compiled, which takes seconds and pays after dozens of them;
        they are then filled up to one size.

    Raises:
      PlacetoError: the weights are of another network.
    """
    self._config = config
    time_step_spec = tensor_spec.from_spec(environment.time_step_spec())
    action_spec = tensor_spec.from_spec(environment.action_spec())
    self.network = network = PlacetoNetwork(
        time_step_spec.observation, action_spec, graphs, scales_us=scales_us,
        max_groups=max_groups, config=config.network, seed=seed)
    self.agent = agent_lib.PlacetoAgent(
        time_step_spec, action_spec, network, learning_rate=config.learning_rate,
        entropy_coefficient=config.entropy, gradient_clipping=config.gradient_clip,
        clip_globally=config.clip_globally)
    self.agent.initialize()
    if weights is not None:
      self._assign(weights)
    self._rng = np.random.default_rng(seed)
    self._choices = [graph.allowed.sum(axis=1) > 1 for graph in graphs]

    @tf.function(autograph=False)
    def act(observation):
      distribution, _ = network(observation)
      return distribution.logits

    self._act = act
    self._train = common.function(self.agent.train) if compiled else self.agent.train
    k = min(config.environment.groups_per_step, min(graph.num_groups for graph in graphs))
    num_steps = [-(-graph.num_groups // k) for graph in graphs]
    self._filled = config.environment.num_episodes * max(num_steps) if compiled else None
    self._baselines = [StepBaseline(steps, config.baseline_episodes) for steps in num_steps]
    self._num_steps = num_steps
    self._first_step = 0
    self._seen: List[Any] = []
    self.updates, self.skipped = 0, 0
    self.losses: Dict[str, float] = {}

  @property
  def weights(self) -> List[np.ndarray]:
    """Of the network now."""
    return [variable.numpy() for variable in self.network.variables]

  @property
  def variables(self) -> List[tf.Variable]:
    """All that an update changes."""
    return list(self.network.variables) + runs.optimizer_variables(self.agent.optimizer)

  def logits(self, observation) -> np.ndarray:
    """[B, K, D]."""
    return self._act(
        {name: tf.constant(value) for name, value in observation.items()}).numpy()

  def observe(self, observation, action, reward) -> None:
    """Remembers a step of all episodes."""
    self._seen.append((observation, action, reward))

  def ready(self, last: bool) -> bool:
    """Whether an update is due; `last` after the last step of an episode."""
    return last or len(self._seen) == self._config.steps_per_update

  def update(self, spent: float, graph: int = 0) -> None:
    """One update from the steps since the last one, all of one graph.

    Args:
      spent: share of the budget that is used up, in [0, 1].
      graph: its number.
    """
    config, t = self._config, len(self._seen)
    returns = discounted_returns(
        np.stack([reward for _, _, reward in self._seen]).astype(np.float64), config.discount)
    first = self._first_step
    self._first_step = (first + t) % self._num_steps[graph]
    if config.learn:
      advantages = returns - self._baseline(graph, first, returns)
      self._learn(advantages.reshape(-1), spent)
      if config.hold_keep:
        self.network.hold_keep(self._kept(graph))
    self._seen = []
    self.updates += 1

  def state_dict(self) -> Dict[str, Any]:
    """What a resume needs beside the agent's variables, as JSON takes it; between episodes."""
    return {
        "rng": self._rng.bit_generator.state,
        "baselines": [baseline.state() for baseline in self._baselines]}

  def load_state_dict(self, state: Dict[str, Any]) -> None:
    """Goes back to a `state_dict`."""
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

  def _baseline(self, graph: int, first: int, returns: np.ndarray):
    if self._config.baseline == "none":
      return 0.0
    if self._config.baseline == "moves":
      moved = np.stack([
          (np.take_along_axis(seen[0]["placement"], seen[0]["current"], axis=1) != seen[1]).any(-1)
          for seen in self._seen])  # [T, B]
      return np.where(moved, returns[moved].mean() if moved.any() else 0.0, returns)
    if self._config.baseline == "batch":
      return returns.mean(axis=1, keepdims=True)
    self._baselines[graph].update(first, returns)
    return self._baselines[graph](first, len(returns))

  def _kept(self, graph: int) -> float:
    """Share of the groups, of those that had a choice, that the last actions left in place."""
    kept = np.stack([
        np.take_along_axis(seen[0]["placement"], seen[0]["current"], axis=1) == seen[1]
        for seen in self._seen])
    choice = self._choices[graph][np.stack([seen[0]["current"] for seen in self._seen])]
    return float(kept[choice].mean()) if choice.any() else 1.0

  def _learn(self, advantages: np.ndarray, spent: float) -> None:
    config = self._config
    if config.advantages == "ranks":
      advantages = _ranks(advantages)
    elif config.advantages == "normalized":
      advantages = advantages / max(float(advantages.std()), 1e-8)
    chosen = np.arange(len(advantages))
    if config.decisions_per_update is not None and len(chosen) > config.decisions_per_update:
      # What taught nothing is drawn rarely; dividing by the odds keeps the gradient's expectation.
      odds = np.abs(advantages) + 0.1 * np.abs(advantages).mean() + 1e-9
      odds /= odds.sum()
      chosen = self._rng.choice(chosen, config.decisions_per_update, p=odds)
      advantages = advantages / (odds * len(advantages))
    observations = {
        name: np.concatenate([seen[0][name] for seen in self._seen])[chosen]
        for name in self._seen[0][0]}
    actions = np.concatenate([seen[1] for seen in self._seen])[chosen]
    advantages, weights = advantages[chosen], None
    if self._filled is not None and config.decisions_per_update is None:
      # Copies of the first decision that count for nothing, so that all updates have one shape.
      fill = np.concatenate([
          np.arange(len(chosen)), np.zeros(self._filled - len(chosen), dtype=np.int64)])
      observations = {name: value[fill] for name, value in observations.items()}
      actions, advantages = actions[fill], advantages[fill]
      weights = np.zeros((self._filled, 1), dtype=np.float32)
      weights[:len(chosen)] = self._filled / len(chosen)
    self.agent.learning_rate.assign(
        between(config.learning_rate, config.final_learning_rate, spent))
    fall = spent if config.entropy_until is None else min(1.0, spent / config.entropy_until)
    decay = _geometric if config.entropy_decay == "exponential" else between
    self.agent.entropy_coefficient.assign(decay(config.entropy, config.final_entropy, fall))
    experience = agent_lib.decisions(observations, actions, advantages)
    try:
      loss = (self._train(experience) if weights is None
              else self._train(experience, weights=tf.constant(weights)))
    except tf.errors.InvalidArgumentError:  # the agent found its loss infinite or not a number
      self.skipped += 1
      self.losses = {}
      return
    coefficient = float(self.agent.entropy_coefficient)
    self.losses = {
        "loss": float(loss.loss),
        "policy_gradient_loss": float(loss.extra.policy_gradient_loss),
        "entropy_loss": float(loss.extra.entropy_regularization_loss),
        "entropy": -float(loss.extra.entropy_regularization_loss) / max(coefficient, 1e-12),
        "gradient_norm": float(self.agent.gradient_norm),
    }


def _ranks(advantages: np.ndarray) -> np.ndarray:
  """Advantages that are not 0, by rank, evenly from -1 to 1, equals alike; what is 0 stays 0."""
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
