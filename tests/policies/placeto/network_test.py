"""The compiled scores are those of the tf-agents policy, and what holds of the network."""

import numpy as np
import pytest
import tensorflow as tf
from training_runs import compiled_scores

from placeto_tf.environments import move_process
from placeto_tf.environments.move_environment import MoveEnvironment
from placeto_tf.environments.problems import with_starts
from placeto_tf.environments.schedule import Schedule
from placeto_tf.policies.placeto import agent as agent_lib
from placeto_tf.policies.placeto.scorer import pretrained
from placeto_tf.problem import compiled_evaluation
from placeto_tf.problem.compiled_evaluation import CompiledEvaluations
from placeto_tf.problem.placement_problem import PlacementProblem
from random_problem import random_problem

CLUSTERS = ("k80:2", "k80:4", "v100:8", "p100:2+k80:2", "k80:1+v100:1", "a100:3", "p100:6",
            "k80:12", "v100:1+a100:2+k80:3", "h100:5")
ROUND = Schedule(rounds=(140,), several=0)


def in_a_batch(time_step):
  return tf.nest.map_structure(lambda value: tf.constant(np.asarray(value)[None]), time_step)


def test_scores_and_actions_of_the_compiled_policy_are_those_of_tf_agents():
  weights = pretrained()
  problems = [
      with_starts(random_problem(40 + 20 * i, 8 + 4 * i, devices=text, seed=i))
      for i, text in enumerate(CLUSTERS)]  # ten graphs on ten clusters
  environment = MoveEnvironment(problems, ROUND, arms=256)
  agent = agent_lib.make_agent(environment, weights, tf.keras.optimizers.Adam())
  network = agent.policy._reward_network
  score = tf.function(lambda observation: network(observation)[0])
  act = tf.function(agent.policy.action)
  rng = np.random.default_rng(0)
  for number in range(len(problems)):
    environment.begin(number, 0, np.random.default_rng(number))
    time_step = environment.reset()
    for state in range(100):
      count = int(time_step.observation["num_actions"])
      if state % 3 == 0:  # neighbours on a walk are much alike
        batched = in_a_batch(time_step)
        scores = compiled_scores(weights, time_step.observation)[:count]
        np.testing.assert_allclose(score(batched.observation)[0, :count], scores, atol=1e-5)
        # Of moves with one score, such as those to equal devices, either may be taken.
        action = int(act(batched).action[0])
        assert action == scores.argmax() or scores.max() - scores[action] < 1e-5
      time_step = environment.step(np.int32(rng.integers(count)))


@pytest.mark.parametrize("number", range(len(CLUSTERS)))
def test_tf_agents_greedy_policy_and_the_compiled_search_simulate_the_same_placements(
    number, monkeypatch):
  monkeypatch.setattr(compiled_evaluation, "FIRST_BLOCK", 1)  # a block for each evaluation
  monkeypatch.setattr(compiled_evaluation, "LONGEST_BLOCK", 1)
  found, ties = [], 0

  class Recorded(CompiledEvaluations):
    def _book(self):
      if self.evaluator.counts[0]:
        seen.append(self.evaluator.start_us[0].tobytes())
      super()._book()

  def evaluate_ops(self, placements):
    evaluation = simulated(self, placements)
    seen.extend(each.tobytes() for each in evaluation.start_us)
    return evaluation

  simulated = PlacementProblem.evaluate_ops
  monkeypatch.setattr(move_process, "CompiledEvaluations", Recorded)
  monkeypatch.setattr(PlacementProblem, "evaluate_ops", evaluate_ops)
  weights, seed = pretrained(), 5
  for compiled in (True, False):
    seen = []
    given = with_starts(random_problem(
        40 + 20 * number, 8 + 4 * number, devices=CLUSTERS[number], seed=number))
    environment = MoveEnvironment([given], Schedule(rounds=(20, 40)), max_evaluations=120)
    environment.begin(0, 0, np.random.default_rng(seed))
    seen = []  # without the starts
    time_step = environment.reset()
    process = environment.process
    if compiled:
      process.run(weights.of_process)
    else:
      agent = agent_lib.make_agent(environment, weights, tf.keras.optimizers.Adam())
      act = tf.function(agent.policy.action)
      while not time_step.is_last():
        action = int(act(in_a_batch(time_step)).action[0])
        # Scores are equal but for rounding; of moves that differ by that alone, it takes either.
        count = int(time_step.observation["num_actions"])
        scores = compiled_scores(weights, time_step.observation)[:count]
        if scores.max() - scores[action] < 1e-6:
          ties, action = ties + (action != scores.argmax()), scores.argmax()
        time_step = environment.step(np.int32(action))
    found.append((seen, process.placement.tolist()))
  assert len(found[0][0]) > 100 or process.over
  assert found[0] == found[1] and ties < 3


def test_an_episode_goes_through_levels_and_rewards_gains():
  problem = random_problem(num_ops=200, num_groups=24)
  environment = MoveEnvironment([with_starts(problem)], ROUND, arms=128)
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
