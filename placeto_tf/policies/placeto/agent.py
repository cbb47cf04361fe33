"""Placeto's agent and its experience: tf-agents' bandit whose arms are option edges.

The agent is `GreedyRewardPredictionAgent` with a feature vector for each arm: it learns by
regression to predict the gains of the moves that its own episodes simulated. Without messages the
experience of a step is the chosen arm; with messages it is the whole observation, because an arm's
score then depends on other option edges.

Dimensions: S steps, B steps of a batch.
"""

from __future__ import annotations

from typing import Any, List, Sequence

import numpy as np
import tensorflow as tf
from tf_agents.bandits.agents import greedy_reward_prediction_agent
from tf_agents.bandits.policies import policy_utilities
from tf_agents.drivers import py_driver
from tf_agents.policies import py_policy
from tf_agents.replay_buffers import tf_uniform_replay_buffer
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import policy_step, trajectory

from placeto_tf.policies.placeto import environment as environment_lib
from placeto_tf.policies.placeto.environment import ARM, PlacetoEnvironment
from placeto_tf.policies.placeto.network import PlacetoNetwork
from placeto_tf.policies.placeto.scorer import ScorerWeights
from placeto_tf.policies.saved_policy import unwrapped

_ROWS = 16  # steps that enter the buffer at once


def make_agent(
    environment: PlacetoEnvironment, given: ScorerWeights, optimizer: tf.keras.optimizers.Optimizer
) -> greedy_reward_prediction_agent.GreedyRewardPredictionAgent:
  """Makes the agent of an environment.

  Args:
    environment: gives the specs.
    given: the initial weights.
    optimizer: of the regression.

  Returns:
    tf-agents' agent; with messages it learns from whole observations, else from single arms.
  """
  time_step_spec = tensor_spec.from_spec(environment.time_step_spec())
  return greedy_reward_prediction_agent.GreedyRewardPredictionAgent(
      time_step_spec, tensor_spec.from_spec(environment.action_spec()),
      PlacetoNetwork(given), optimizer,
      # With messages, arms are not independent.
      accepts_per_arm_features=not given.messages, enable_summaries=False,
      train_step_counter=tf.Variable(0, dtype=tf.int64, trainable=False))


class CollectPolicy(py_policy.PyPolicy):
  """Takes the move with the best score, or one sampled uniformly.

  The policy is epsilon-greedy over compiled scores, which equal those of the agent's policy.
  Samples come from a NumPy generator: with TensorFlow's global seed, a run would depend on earlier
  runs in the process.
  """

  def __init__(
      self, environment: PlacetoEnvironment, weights: ScorerWeights, epsilon: float,
      rng: np.random.Generator):
    """Makes the policy of an environment.

    Args:
      environment: the policy gets its time steps.
      weights: weights of the scorer.
      epsilon: share of moves that are sampled uniformly.
      rng: of the samples.
    """
    self._by_arm = not weights.messages
    features = environment.time_step_spec().observation[ARM]
    super().__init__(
        environment.time_step_spec(), environment.action_spec(),
        info_spec=self._info(policy_utilities.create_chosen_arm_features_info_spec(
            {ARM: tensor_spec.from_spec(features)}) if self._by_arm else None))
    self._environment, self._weights, self._epsilon, self._rng = environment, weights, epsilon, rng
    # The state of the process that was scored last, and its scores [M, D].
    self._scored, self._scores = -1, np.zeros(0, np.float32)

  def _info(self, features: Any) -> Any:
    """Returns the policy's info: the chosen arm's features, or nothing with messages."""
    if not self._by_arm:
      return policy_utilities.PolicyInfo()
    return policy_utilities.PerArmPolicyInfo(chosen_arm_features=features)

  def _action(self, time_step, policy_state, seed=None):
    """Returns the policy step for an observation: the best arm, or a random arm."""
    observation = time_step.observation
    arms, count = observation[ARM], int(observation[environment_lib.NUM_ACTIONS])
    # Epsilon-greedy, over the first `count` arms, the open moves.
    if self._rng.random() < self._epsilon:
      action = int(self._rng.integers(count))
    else:
      groups, devices = (arms[name] for name in (environment_lib.GROUP, environment_lib.DEVICE))
      assert self._environment.process is not None
      if self._environment.process.states != self._scored:  # the placement has changed
        self._scored = self._environment.process.states
        flow = observation.get(environment_lib.GLOBAL)
        # [M, D] scores by (group, device): the order of arms changes when moves close.
        self._scores = np.zeros((groups.max() + 1, devices.max() + 1), np.float32)
        self._scores[groups, devices] = self._weights.scores(
            arms[environment_lib.PAIR], np.stack([groups, devices], axis=1), flow)
      action = int(self._scores[groups[:count], devices[:count]].argmax())
    # The chosen arm's features, for the buffer.
    chosen = {name: value[action] for name, value in arms.items()}
    return policy_step.PolicyStep(np.int32(action), policy_state, self._info(chosen))


def play(
    environment: PlacetoEnvironment, policy: CollectPolicy, *, by_arm: bool
) -> trajectory.Trajectory:
  """Plays an episode with tf-agents' driver.

  Args:
    environment: in any state.
    policy: the policy that acts.
    by_arm: whether the arms of observations are left out of the result.

  Returns:
    [S, ...] steps, as the agent learns from them.
  """
  steps: List[trajectory.Trajectory] = []

  def keep(step: trajectory.Trajectory) -> None:
    # The policy's info has the chosen arm; with all arms the buffer would be too large.
    if by_arm:
      step = step._replace(observation={
          name: value for name, value in step.observation.items() if name != ARM})
    steps.append(step)

  py_driver.PyDriver(
      environment, policy, [keep], max_episodes=1, end_episode_on_boundary=False).run(
          environment.reset())
  return concatenated([
      tf.nest.map_structure(lambda value: np.asarray(value)[None], each) for each in steps])


def concatenated(parts: Sequence[trajectory.Trajectory]) -> trajectory.Trajectory:
  """Concatenates the steps of all parts.

  Args:
    parts: [any, ...] each.

  Returns:
    [S, ...].
  """
  return tf.nest.map_structure(lambda *values: np.concatenate(values), *parts)


class Experience:
  """The steps to learn from, in a replay buffer of tf-agents.

  Attributes:
    buffer: of tf-agents; `add` puts steps in, `all` reads them.
  """

  def __init__(
      self, agent: greedy_reward_prediction_agent.GreedyRewardPredictionAgent, capacity: int):
    """Makes an empty buffer.

    Args:
      agent: gives the spec of its training data.
      capacity: least number of steps that are kept; the oldest steps are overwritten.
    """
    self.buffer = tf_uniform_replay_buffer.TFUniformReplayBuffer(
        agent.training_data_spec, batch_size=_ROWS, max_length=-(-capacity // _ROWS))

  def add(self, steps: trajectory.Trajectory, rng: np.random.Generator) -> None:
    """Adds steps in random order; a few are dropped, so that all rows get equally many.

    Args:
      steps: [S, ...].
      rng: of the order.
    """
    count = len(steps.reward)
    # Rows of the buffer take _ROWS steps at a time.
    for chosen in rng.permutation(count)[:count - count % _ROWS].reshape(-1, _ROWS):
      self.buffer.add_batch(tf.nest.map_structure(lambda value: value[chosen], steps))  # noqa: B023

  def all(self) -> trajectory.Trajectory:
    """Returns all steps as arrays, [_ROWS, S / _ROWS, ...]."""
    return tf.nest.map_structure(lambda value: value.numpy(), unwrapped(self.buffer.gather_all()))


def sampled(
    steps: trajectory.Trajectory, count: int, rng: np.random.Generator) -> trajectory.Trajectory:
  """Samples a batch uniformly.

  Args:
    steps: of `Experience.all`.
    count: B.
    rng: of the samples; the buffer's own samples would use TensorFlow's global generator.

  Returns:
    [B, 1, ...] tensors, as the agent takes them.
  """
  rows, places = (rng.integers(size, size=count) for size in steps.reward.shape[:2])  # [B] both
  return tf.nest.map_structure(
      lambda value: tf.constant(value[rows, places][:, None]), steps)
