"""The tf-agents PPO agent that trains the device pointer, and its experience.

Episodes are collected with the compiled inference of `scorer`, with which the policy also runs
later, and given to the agent as trajectories.

Legend: B rows, T steps, P devices, padded.
"""

from __future__ import annotations

from typing import Sequence, Tuple

import numpy as np
import tensorflow as tf
from tf_agents.agents.ppo import ppo_clip_agent
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

from placeto_tf.environments import moves_environment as moves
from placeto_tf.policies.device_pointer.network import (
    NEVER,
    PairNetwork,
    PairValueNetwork,
)
from placeto_tf.policies.device_pointer.scorer import CAP, ScorerWeights, score


class NormKeepingAdam(tf.keras.optimizers.Adam):
  """Adam that remembers the norm of the gradients it was last given, for summaries.

  Attributes:
    gradient_norm: variable, of all gradients together, each clipped before by the agent.
  """

  def __init__(self, *args, **kwargs):
    super().__init__(*args, **kwargs)
    self.gradient_norm = tf.Variable(0.0, trainable=False, name="gradient_norm")

  def apply_gradients(self, grads_and_vars, *args, **kwargs):
    """As Adam does."""
    pairs = list(grads_and_vars)
    self.gradient_norm.assign(tf.linalg.global_norm([gradient for gradient, _ in pairs]))
    return super().apply_gradients(pairs, *args, **kwargs)


def make_agent(
    max_devices: int, *, learning_rate: float = 1e-3, epochs: int = 4, entropy: float = 0.01,
    discount: float = 0.0, gradient_clip: float = 1.0, without: Sequence[str] = (), seed: int = 0
) -> ppo_clip_agent.PPOClipAgent:
  """A PPO agent with all variables built, the optimizer's too; blind for features `without`."""
  specs = tensor_spec.from_spec(moves.observation_spec(max_devices))
  action_spec = tensor_spec.from_spec(moves.action_spec(max_devices))
  actor = PairNetwork(specs, action_spec, seed=seed, without=without)
  value = PairValueNetwork(specs, seed=seed + 1, without=without)
  actor.create_variables()
  value.create_variables()
  optimizer = NormKeepingAdam(learning_rate, epsilon=1e-7)
  # In the order in which the agent passes them.
  optimizer.build(sorted(
      actor.trainable_weights + value.trainable_weights, key=lambda variable: variable.name))
  agent = ppo_clip_agent.PPOClipAgent(
      ts.time_step_spec(specs), action_spec, optimizer=optimizer, actor_net=actor,
      value_net=value, importance_ratio_clipping=0.2, lambda_value=0.95, discount_factor=discount,
      entropy_regularization=entropy, num_epochs=epochs, use_gae=True, use_td_lambda_return=True,
      normalize_rewards=False, normalize_observations=False, gradient_clipping=gradient_clip,
      log_prob_clipping=2 * CAP,
      train_step_counter=tf.Variable(0, dtype=tf.int64, trainable=False, name="train_step"))
  agent.initialize()
  return agent


def collect(
    environment: moves.MovesEnvironment, weights: ScorerWeights, rng: np.random.Generator
) -> Tuple[trajectory.Trajectory, float]:
  """One episode of every row, actions drawn from the softmax; and the mean reward of a step."""
  steps, now = [], environment.reset()
  while True:
    observation = now.observation
    logits = np.where(
        observation[moves.MASK] > 0, scores_of(observation[moves.FEATURES], weights),
        np.float32(NEVER)).astype(np.float32)
    action = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1).astype(np.int32)
    then = environment.step(action)
    steps.append((observation, action, logits, now.step_type, then))
    now = then
    if then.is_last().all():
      break
  b = environment.batch_size
  # The agent drops the last entry of a trajectory, so one is added that holds nothing.
  zeros = np.zeros(b, np.float32)
  rows = [(each[0], each[1], each[2], each[3], each[4].step_type, each[4].reward, each[4].discount)
          for each in steps]
  rows.append((now.observation, np.zeros(b, np.int32), rows[-1][2], now.step_type,
               np.full(b, ts.StepType.FIRST, np.int32), zeros, zeros + 1))
  stacked = tf.nest.map_structure(lambda *each: np.stack(each, axis=1), *rows)
  observation, action, logits, step_type, next_type, reward, discount = stacked
  batch = trajectory.Trajectory(
      step_type=step_type.astype(np.int32), observation=observation, action=action,
      policy_info={"dist_params": {"logits": logits}}, next_step_type=next_type.astype(np.int32),
      reward=reward.astype(np.float32), discount=discount.astype(np.float32))
  return tf.nest.map_structure(tf.constant, batch), float(reward[:, :-1].mean())


def kl_divergence(experience: trajectory.Trajectory, weights: ScorerWeights) -> float:
  """KL(policy that collected || policy of the weights), mean over the steps of an experience."""
  def log_softmax(logits):
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))

  observation = {name: value.numpy()[:, :-1] for name, value in experience.observation.items()}
  before = log_softmax(experience.policy_info["dist_params"]["logits"].numpy()[:, :-1])
  after = log_softmax(np.where(
      observation[moves.MASK] > 0, scores_of(observation[moves.FEATURES], weights), NEVER))
  return float((np.exp(before) * (before - after)).sum(axis=-1).mean())


def scores_of(pairs: np.ndarray, weights: ScorerWeights) -> np.ndarray:
  """[..., P] float32 scores of pairs [..., P, F] by the compiled perceptron."""
  flat = np.array(pairs, dtype=np.float32, order="C").reshape(-1, pairs.shape[-1])
  scores = np.empty(len(flat), np.float32)
  score(flat, weights.arrays, scores)
  return scores.reshape(pairs.shape[:-1])
