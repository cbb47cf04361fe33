import types

import numpy as np
from tf_agents.environments import utils

from placeto_tf.policies.baselines.one_shot import OneShotEnvironment
from random_problem import random_problem


def evaluate(placements):
  """Group 1's device decides: 4 s on device 0; 1 s on device 1, which is too small for both."""
  return types.SimpleNamespace(
      step_time_us=np.where(placements[:, 1] == 0, 4e6, 1e6), fits=~(placements == 1).all(axis=1))


def two_groups(batch_size, allowed=((1, 1), (1, 1)), evaluate=evaluate):
  problem = types.SimpleNamespace(allowed=np.array(allowed, dtype=bool), evaluate=evaluate)
  return OneShotEnvironment(problem, batch_size=batch_size)


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

  def listed(placements):
    simulated.extend(placements.tolist())
    return evaluate(placements)

  environment = two_groups(2, [[True, False], [True, True]], listed)
  environment.reset()
  last = environment.step(np.array([[1, 0], [0, 1]], dtype=np.int32))
  np.testing.assert_allclose(last.reward, [-10.0, -1.0])
  assert simulated == [[0, 1]]
  assert np.isinf(environment.step_time_us[0])


def test_tf_agents_finds_the_environment_valid_and_the_problem_counts_the_evaluations():
  problem = random_problem()
  problem.allowed[:] = True  # an action of the validation may have any device
  environment = OneShotEnvironment(problem, batch_size=4, graph=2, num_graphs=5)
  assert environment.reset().observation.tolist() == [2] * 4
  utils.validate_py_environment(environment, episodes=3)
  assert problem.search_log.evaluations == 4  # one batch is four episodes
  assert problem.search_log.best_placement is not None
