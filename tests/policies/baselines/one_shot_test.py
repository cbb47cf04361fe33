import types

import numpy as np
import pytest
import tensorflow as tf

from placeto_tf.policies.baselines import one_shot
from placeto_tf.problem.budget import Budget
from random_problem import random_problem


class Independent(one_shot.OneShotPolicy):
  """A table of logits: what every other policy is an improvement on."""

  def __init__(self, allowed):
    super().__init__(len(allowed), allowed.shape[1] - 1, "independent")
    self.allowed = tf.constant(allowed)
    self.logits = tf.Variable(tf.zeros(allowed.shape))

  def sample(self, rng, count):
    logits = np.where(self.allowed, self.logits, -np.inf)
    return (logits + rng.gumbel(size=(count,) + logits.shape)).argmax(-1).astype(np.int32)

  def log_prob(self, decisions):
    shape = tf.concat([tf.shape(decisions)[:1], tf.shape(self.logits)], axis=0)
    return one_shot.log_prob_of(
        tf.broadcast_to(self.logits, shape), tf.broadcast_to(self.allowed, shape), decisions)


def evaluate(placements):
  """1 s, and 1 s more for every group that is not on device 1."""
  return types.SimpleNamespace(
      step_time_us=1e6 * (1 + (placements != 1).sum(axis=1)), fits=np.ones(len(placements), bool))


def learner_of(allowed, seed=0, **options):
  config = one_shot.ReinforceConfig(**options)
  return one_shot.ReinforceLearner(Independent(allowed), config, seed), (
      types.SimpleNamespace(allowed=allowed, evaluate=evaluate))


def steps_of(learner, problem):
  return learner.policy.play(problem, learner.rng, learner.config.batch_size).steps


def test_the_reward_is_minus_the_root_of_the_seconds_or_a_constant_for_what_cannot_run():
  """Group 1's device decides: 4 s on device 0; 1 s on device 1, which is too small for both."""
  simulated = []

  def evaluate(placements):
    simulated.extend(placements.tolist())
    return types.SimpleNamespace(
        step_time_us=np.where(placements[:, 1] == 0, 4e6, 1e6), fits=~(placements == 1).all(axis=1))

  problem = types.SimpleNamespace(
      allowed=np.array([[True, True, False], [True] * 3]), evaluate=evaluate)
  placed = np.int32([[0, 0], [0, 1], [1, 1], [2, 0]])  # group 0 may not be on device 2
  played = one_shot.play(problem, placed, placed, graph=2)
  assert played.steps.is_last().all() and (played.steps.observation == 2).all()
  np.testing.assert_allclose(played.steps.reward, [[-2.0], [-1.0], [-10.0], [-10.0]])
  np.testing.assert_allclose(played.step_time_us, [4e6, 1e6, 1e6, np.inf])
  assert simulated == [[0, 0], [0, 1], [1, 1]]


def test_reinforce_by_hand(eagerly):
  # Two groups on two devices, all probabilities 1/2: log probabilities are -ln 2 each. Rewards of
  # -1, -1, -2: less the batch's mean 1/3, 1/3, -2/3, which sum to nothing, so that the loss is 0;
  # the gradient of a logit is minus the mean of advantage times (drawn - 1/2). Advantages are over
  # the rewards' deviation, the root of 2 over 3.
  learner, problem = learner_of(
      np.ones((2, 2), bool), batch_size=3, baseline="batch", learning_rate=0.1)
  steps = steps_of(learner, problem)
  steps.reward[:, 0] = [-1, -1, -2]
  steps.action[:, 0] = [[1, 1], [1, 0], [0, 0]]
  given = []
  apply = learner.optimizer.apply_gradients
  learner.optimizer.apply_gradients = lambda pairs: (given.extend(pairs), apply(given))[1]
  assert learner.learn([steps], 0.0)["loss"] == pytest.approx(0.0, abs=1e-6)
  # Group 0: (-1/3 - 1/3 - 2/3) / 2 / 3 for device 0; group 1: (-1/3 + 1/3 - 2/3) / 2 / 3.
  expected = np.array([[4 / 18, -4 / 18], [2 / 18, -2 / 18]]) / (np.sqrt(2) / 3)
  np.testing.assert_allclose(given[0][0], expected, atol=1e-6)


def test_the_baseline_is_the_average_before_the_batch(eagerly):
  learner, problem = learner_of(np.ones((2, 2), bool), batch_size=2)
  steps, seen, train = steps_of(learner, problem), [], learner._train
  learner._train = lambda steps: (seen.append(steps.reward), train(steps))[1]
  for rewards in ([-3.0, -1.0], [-2.0, 0.0]):  # their deviations are 1
    steps.reward[:, 0] = rewards
    learner.learn([steps], 0.0)
  np.testing.assert_allclose(seen[0][:, 0], [-1.0, 1.0])
  np.testing.assert_allclose(seen[1][:, 0], [0.0, 2.0])
  np.testing.assert_allclose(learner.average, -1.9)  # 0.9 * -2 + 0.1 * -1


@pytest.mark.parametrize("baseline", ["moving_average", "batch"])
def test_every_variant_learns_what_a_group_at_a_time_can_tell(baseline):
  allowed = np.ones((4, 3), dtype=bool)
  allowed[3] = [True, False, False]
  learner, problem = learner_of(
      allowed, batch_size=16, learning_rate=0.1, final_learning_rate=0.1, baseline=baseline)
  for _ in range(60):
    learner.update(problem, 16)
  rewards = steps_of(learner, problem).reward
  assert rewards.mean() > -1.6  # the best is -sqrt(2): one group cannot go to device 1
  assert learner.policy.logits.numpy()[:3].argmax(axis=1).tolist() == [1, 1, 1]
  np.testing.assert_array_equal(learner.policy.logits.numpy()[3], 0.0)


def test_updates_that_are_no_numbers_leave_weights_and_baseline_alone(eagerly):
  learner, problem = learner_of(np.ones((2, 2), dtype=bool), batch_size=4)
  learner.update(problem, 4)
  before = [variable.numpy() for variable in learner.variables]
  steps = steps_of(learner, problem)
  learner.policy.play = lambda *_: types.SimpleNamespace(
      steps=steps._replace(reward=steps.reward * np.nan))
  learner.update(problem, 4)
  assert learner.losses == {}
  for variable, value in zip(learner.variables, before):
    np.testing.assert_array_equal(variable, value)


@pytest.mark.parametrize("evaluations", [1, 5, 8, 50])
def test_a_search_stays_within_its_budget_and_the_problem_remembers_the_best(evaluations):
  problem = random_problem()
  learner = one_shot.ReinforceLearner(
      Independent(problem.allowed), one_shot.ReinforceConfig(batch_size=8, learning_rate=0.1))
  one_shot.search(problem, learner, Budget(max_evaluations=evaluations))
  assert problem.search_log.evaluations == evaluations - evaluations % min(8, evaluations)
  step_time_us = problem.simulator.simulate(problem.search_log.best_placement).step_time_us
  assert step_time_us == problem.search_log.best_objective_us
