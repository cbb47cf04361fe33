import numpy as np
from tf_agents.environments import utils

from placeto_tf.training.cost import SimulatedCost
from placeto_tf.training.one_shot_environment import OneShotEnvironment
from random_problem import random_problem


def table_cost(placements):
  """Group 1's device decides: 4 s on device 0; 1 s on device 1, which is too small for both."""
  step_time_us = np.where(placements[:, 1] == 0, 4e6, 1e6)
  fits = ~(placements == 1).all(axis=1)
  return step_time_us + 5e6 * ~fits, {"step_time_us": step_time_us, "fits": fits}


def two_groups(batch_size, allowed=None, **options):
  allowed = np.ones((2, 2), dtype=bool) if allowed is None else np.array(allowed)
  return OneShotEnvironment(allowed, table_cost, batch_size=batch_size, **options)


def test_the_reward_is_minus_the_root_of_the_seconds_and_a_constant_for_what_does_not_fit():
  environment = two_groups(3)
  environment.reset()
  last = environment.step(np.array([[0, 0], [0, 1], [1, 1]], dtype=np.int32))
  assert last.is_last().all()
  np.testing.assert_allclose(last.reward, [-2.0, -1.0, -10.0])
  assert environment.fits.tolist() == [True, True, False]
  np.testing.assert_allclose(environment.step_time_us, [4e6, 1e6, 1e6])


def test_a_device_that_is_not_allowed_earns_the_constant_and_nothing_is_simulated():
  simulated = []

  def cost(placements):
    simulated.extend(placements.tolist())
    return table_cost(placements)

  environment = OneShotEnvironment(
      np.array([[True, False], [True, True]]), cost, batch_size=2)
  environment.reset()
  last = environment.step(np.array([[1, 0], [0, 1]], dtype=np.int32))
  np.testing.assert_allclose(last.reward, [-10.0, -1.0])
  assert simulated == [[0, 1]]
  assert np.isinf(environment.step_time_us[0])


def test_tf_agents_finds_the_environment_valid_and_the_problem_counts_the_evaluations():
  problem = random_problem()
  environment = OneShotEnvironment(
      np.ones_like(problem.allowed), SimulatedCost(problem), batch_size=4, graph=2, num_graphs=5)
  assert environment.reset().observation.tolist() == [2] * 4
  utils.validate_py_environment(environment, episodes=3)
  assert problem.search_log.evaluations == 4  # one batch is four episodes
  assert problem.search_log.best_placement is not None
