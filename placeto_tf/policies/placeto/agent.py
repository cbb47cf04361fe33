"""Placeto's agent and its experience: tf-agents' bandit whose arms are option edges.

The agent is `GreedyRewardPredictionAgent` with a feature vector for each arm: it learns by
regression to predict the gains of the moves that its own episodes simulated. The experience of a
step is the chosen arm.

Dimensions: S steps, B steps of a batch.
"""

from __future__ import annotations

from typing import Sequence

import numpy as np
import tensorflow as tf
from tf_agents.bandits.agents import greedy_reward_prediction_agent
from tf_agents.bandits.policies import greedy_reward_prediction_policy, policy_utilities
from tf_agents.replay_buffers import tf_uniform_replay_buffer
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

from placeto_tf.environments import driving
from placeto_tf.environments import move_environment as environment_lib
from placeto_tf.environments.move_environment import ARM, MoveEnvironment
from placeto_tf.policies.placeto.network import PlacetoNetwork
from placeto_tf.policies.placeto.scorer import ScorerWeights
from placeto_tf.policies.saved_policy import unwrapped

_ROWS = 16  # steps that enter the buffer at once


def make_agent(
    environment: MoveEnvironment, given: ScorerWeights, optimizer: tf.keras.optimizers.Optimizer
) -> greedy_reward_prediction_agent.GreedyRewardPredictionAgent:
  """Makes the agent of an environment."""
  time_step_spec = tensor_spec.from_spec(environment.time_step_spec())
  return greedy_reward_prediction_agent.GreedyRewardPredictionAgent(
      time_step_spec, tensor_spec.from_spec(environment.action_spec()),
      PlacetoNetwork(given), optimizer,
      accepts_per_arm_features=True, enable_summaries=False,
      train_step_counter=tf.Variable(0, dtype=tf.int64, trainable=False))


def greedy_policy(
    weights: ScorerWeights, arms: int = environment_lib.ARMS
) -> greedy_reward_prediction_policy.GreedyRewardPredictionPolicy:
  """Makes the policy that takes the arm with the best score.

  Unlike the agent's policy it does not return the chosen arm's features, which it could not where
  there is no arm: tf-agents' loader of saved policies tries an observation of zeros.

  Args:
    weights: of the network.
    arms: A.
  """
  observation, action = tensor_spec.from_spec((
      environment_lib.observation_spec(arms, dataflow=False),
      environment_lib.action_spec(arms)))
  return greedy_reward_prediction_policy.GreedyRewardPredictionPolicy(
      ts.time_step_spec(observation), action, PlacetoNetwork(weights))


def exploring(weights: ScorerWeights, temperature: float, rng: np.random.Generator) -> driving.Act:
  """Returns a function that takes K moves: half with the best noisy scores, the others sampled.

  The scores are compiled, and equal those of the agent's policy.
  Samples come from a NumPy generator: with TensorFlow's global seed, a run would depend on earlier
  runs in the process.

  Args:
    weights: weights of the scorer.
    temperature: scale of the Gumbel noise that is added to scores.
    rng: of the samples.

  Returns:
    [K, ...] equal observations -> K arms, and the chosen arms' features.
  """

  def act(observations):
    moves = len(observations[environment_lib.NUM_ACTIONS])
    # All K observations are of one placement.
    observation = tf.nest.map_structure(lambda value: value[0], observations)
    arms, count = observation[ARM], int(observation[environment_lib.NUM_ACTIONS])
    scores = weights.scores(arms[environment_lib.PAIR])[:count]  # open moves are the first arms
    best = np.argsort(-(scores + temperature * rng.gumbel(size=count)))[:moves // 2]
    action = np.append(best, rng.integers(count, size=moves - len(best))).astype(np.int32)
    # The chosen arms' features, for the buffer; the process's preferences are no part of a gain.
    chosen = {name: value[action] for name, value in arms.items()}
    chosen[environment_lib.PREFERENCE] = np.zeros(moves, np.float32)
    return action, policy_utilities.PerArmPolicyInfo(chosen_arm_features=chosen)

  return act


def play(environment: MoveEnvironment, act: driving.Act) -> trajectory.Trajectory:
  """Plays an episode.

  Args:
    environment: in any state.
    act: takes the moves.

  Returns:
    [S, ...] steps, as the agent learns from them: observations without arms.
  """
  # The policy's info has the chosen arm; with all arms the buffer would be too large.
  return concatenated([step._replace(observation={
      name: value for name, value in step.observation.items() if name != ARM})
      for step in driving.steps_of(environment, act)])


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
