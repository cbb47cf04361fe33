import numpy as np
import tensorflow as tf

from placeto_tf.environments import moves_environment as moves
from placeto_tf.policies.device_pointer import agent as agent_lib
from random_problem import random_problem


def make_environment(rows=8, steps=12):
  problem = random_problem(num_ops=120, num_groups=24, devices="k80:3")
  one = moves.MovesProblem(problem, np.zeros((1, 24), np.int32))
  return moves.MovesEnvironment(
      [one], 5, config=moves.MovesConfig(rows=rows, steps=steps))


def test_a_trajectory_holds_every_step_and_one_entry_that_counts_for_nothing():
  environment, agent = make_environment(), agent_lib.make_agent(5)
  batch, mean_reward = agent_lib.collect(
      environment, agent.actor_net.weights_for_scoring(), np.random.default_rng(0))
  assert batch.reward.shape == (8, 13) and batch.observation[moves.FEATURES].shape[:2] == (8, 13)
  np.testing.assert_allclose(mean_reward, batch.reward.numpy()[:, :-1].mean())
  assert batch.is_first().numpy()[:, 0].all() and not batch.is_first().numpy()[:, 1:].any()
  assert batch.is_boundary().numpy()[:, -1].all() and not batch.is_boundary().numpy()[:, :-1].any()
  assert (batch.action.numpy()[:, :-1] < 3).all()  # neither the host nor the padding


def test_training_makes_moves_from_one_device_pay():
  environment, agent = make_environment(rows=16, steps=16), agent_lib.make_agent(
      5, learning_rate=3e-3)
  train, rng = tf.function(agent.train, autograph=False), np.random.default_rng(0)
  rewards = []
  for _ in range(25):
    batch, reward = agent_lib.collect(environment, agent.actor_net.weights_for_scoring(), rng)
    assert np.isfinite(train(batch).loss.numpy())
    rewards.append(reward)
  assert np.mean(rewards[-5:]) > np.mean(rewards[:5]) + 0.05
