"""The compiled scores are those of the tf-agents policy, and what holds of the network."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from placeto_tf.encoding.move_process import ProcessConfig
from placeto_tf.policies.placeto import agent as agent_lib
from placeto_tf.policies.placeto.environment import PlacetoEnvironment
from placeto_tf.policies.placeto.scorer import ScorerWeights, pretrained
from placeto_tf.training.problems import with_starts
from random_problem import random_problem

CLUSTERS = ("k80:2", "k80:4", "v100:8", "p100:2+k80:2", "k80:1+v100:1", "a100:3", "p100:6",
            "k80:12", "v100:1+a100:2+k80:3", "h100:5")
PROCESS = ProcessConfig(rounds=1, evaluations=20)


def with_messages(seed):
  """Random weights, messages that say something among them."""
  rng = np.random.default_rng(seed)
  weights = ScorerWeights.untrained(seed, 16, rounds=2)
  return dataclasses.replace(weights, bias_1=rng.normal(size=16), messages=tuple(
      rng.normal(0, 0.2, each.shape) for each in weights.messages))


@pytest.mark.parametrize("weights, states", [(pretrained(), 100), (with_messages(0), 10)])
def test_scores_and_actions_of_the_compiled_policy_are_those_of_tf_agents(weights, states):
  problems = [
      with_starts(random_problem(40 + 20 * i, 8 + 4 * i, devices=text, seed=i))
      for i, text in enumerate(CLUSTERS)]  # ten graphs on ten clusters
  environment = PlacetoEnvironment(
      problems, PROCESS, arms=256, messages=bool(weights.messages))
  agent = agent_lib.make_agent(environment, weights, tf.keras.optimizers.Adam())
  network = agent.policy._reward_network
  score = tf.function(lambda observation: network(observation)[0])
  act = tf.function(agent.policy.action)
  rng = np.random.default_rng(0)
  for number in range(len(problems)):
    environment.begin(number, 0, np.random.default_rng(number))
    time_step = environment.reset()
    for state in range(states):
      count = int(time_step.observation["num_actions"])
      if state % 3 == 0:  # neighbours on a walk are much alike
        arms, batched = time_step.observation["per_arm"], tf.nest.map_structure(
            lambda value: tf.constant(np.asarray(value)[None]), time_step)
        scores = weights.scores(
            arms["pair"], np.stack([arms["group"], arms["device"]], axis=1),
            time_step.observation.get("global"))[:count]
        np.testing.assert_allclose(score(batched.observation)[0, :count], scores, atol=1e-5)
        # Of moves with one score, such as those to equal devices, either may be taken.
        action = int(act(batched).action[0])
        assert action == scores.argmax() or scores.max() - scores[action] < 1e-5
      time_step = environment.step(np.int32(rng.integers(count)))


def test_messages_that_begin_as_nothing_leave_scores_as_they_are():
  plain = ScorerWeights.untrained(3, 16)
  more = ScorerWeights.untrained(3, 16, rounds=2)
  more = dataclasses.replace(plain, messages=more.messages)
  pairs = np.random.default_rng(0).normal(size=(12, 32)).astype(np.float32)
  ends = np.stack([np.arange(12) // 3, np.arange(12) % 3], axis=1)
  flow = np.array([[0, 1], [1, 3]])
  np.testing.assert_allclose(more.scores(pairs, ends, flow), plain.scores(pairs), atol=1e-5)


def test_an_episode_goes_through_levels_and_rewards_gains():
  problem = random_problem(num_ops=200, num_groups=24)
  environment = PlacetoEnvironment([with_starts(problem)], PROCESS, arms=128)
  time_step, seen = environment.reset(), []
  start_us, total = environment.process.objective_us, 0.0
  rng = np.random.default_rng(0)
  while not time_step.is_last():
    seen.append(environment.process.level.num_groups)
    before_us = environment.process.objective_us
    time_step = environment.step(np.int32(rng.integers(time_step.observation["num_actions"])))
    fall = np.log(before_us / environment.process.objective_us)
    assert float(time_step.reward) == pytest.approx(np.sqrt(min(50 * fall, 2)), abs=1e-5)
    total += fall
  assert seen == sorted(seen) and len(set(seen)) > 3  # coarse to fine
  assert total == pytest.approx(np.log(start_us / environment.process.objective_us))
  assert total > 0 and environment.process.over
