import types

import numpy as np
import pytest
from tf_agents.environments import utils

from placeto_tf.environments.visit_environment import VisitConfig, VisitEnvironment
from random_problem import grouped_graph, random_problem

# Us of every placement of two groups on two devices.
TABLE = {(0, 0): 100.0, (1, 0): 80.0, (0, 1): 120.0, (1, 1): 50.0}


def by_table(placements):
  return np.array([TABLE[tuple(p)] for p in placements.tolist()])


def made(allowed, objective, **options):
  """An environment whose problem has one op a group, and evaluates by a function."""
  def evaluate(placements):
    us = objective(placements)
    return types.SimpleNamespace(
        objective_us=us, step_time_us=us, start_us=np.zeros(placements.shape))

  allowed = np.array(allowed, dtype=bool)
  groups = np.arange(len(allowed))
  return VisitEnvironment(
      types.SimpleNamespace(allowed=allowed, evaluate=evaluate),
      types.SimpleNamespace(order=groups, main_op=groups), 0 * groups, **options)


def two_groups(allowed=((1, 1), (1, 1)), objective=by_table, **rules):
  rules.setdefault("num_episodes", 1)
  return made(allowed, objective, config=VisitConfig(**rules))


def play(environment, devices):
  """Rewards [T] of one episode alone."""
  environment.reset()
  assert len(devices) == environment.num_groups
  return [float(environment.step(np.full((1, 1), device, np.int32)).reward[0])
          for device in devices]


def simulated(**rules):
  problem = random_problem()
  return VisitEnvironment(
      problem, grouped_graph(problem), problem.allowed.argmax(axis=1),
      config=VisitConfig(num_episodes=4, **rules), seed=3)


def test_a_faster_placement_earns_its_share_of_the_start_and_a_slower_one_costs_it():
  assert play(two_groups(), [1, 0]) == pytest.approx([0.2, 0.0])
  assert play(two_groups(), [0, 1]) == pytest.approx([0.0, -0.2])


def test_the_last_group_is_placed_too():
  environment = two_groups()
  assert play(environment, [1, 1]) == pytest.approx([0.2, 0.3])
  assert environment._state.placement.tolist() == [[1, 1]]
  assert environment.best[0].tolist() == [1, 1]


@pytest.mark.parametrize("rules", [
    {}, {"order": "random"}, {"start": "random"}])
def test_returns_add_up_to_the_fall_of_the_objective(rules):
  environment = simulated(**rules)
  rng = np.random.default_rng(0)
  environment.reset()
  before, returns = environment.objective_us, np.zeros(4)
  for _ in range(environment.num_groups):
    action = rng.integers(0, 3, (4, 1)).astype(np.int32)
    returns += environment.step(action).reward
  np.testing.assert_allclose(
      returns, (before - environment.objective_us) / environment.scale_us, atol=1e-5)


def test_a_device_that_is_not_allowed_is_no_move():
  environment = two_groups(allowed=[[True, False], [True, True]])
  assert play(environment, [1, 0]) == [0.0, 0.0]
  assert environment._state.placement.tolist() == [[0, 0]]


def test_only_what_changed_is_evaluated():
  rows = []

  def objective(placements):
    rows.append(len(placements))
    return by_table(placements)

  environment = two_groups(objective=objective, num_episodes=3)
  environment.reset()
  environment.step(np.array([[1], [0], [1]], dtype=np.int32))
  assert rows == [1, 2]  # the start once for all, then the two episodes that moved


@pytest.mark.parametrize("start,expected", [("given", [0, 0]), ("best", [1, 1])])
def test_the_next_episode_starts_where_the_rules_say(start, expected):
  environment = two_groups(start=start)
  play(environment, [1, 1])
  environment.reset()
  assert environment._state.placement.tolist() == [expected]


def test_episodes_side_by_side_do_not_touch_each_other():
  environment = two_groups(num_episodes=2)
  environment.reset()
  environment.step(np.array([[1], [0]], dtype=np.int32))
  reward = environment.step(np.array([[1], [1]], dtype=np.int32)).reward
  assert environment._state.placement.tolist() == [[1, 1], [0, 1]]
  np.testing.assert_allclose(reward, [0.3, -0.2], atol=1e-6)


@pytest.mark.parametrize("rules", [
    {}, {"order": "random"}, {"reward": "final", "start": "random"}, {"start": "best"}])
def test_tf_agents_finds_the_environment_valid(rules):
  utils.validate_py_environment(simulated(**rules), episodes=2)


def test_observations_are_padded_and_name_their_graph():
  alone, padded = two_groups(), made(
      np.ones((2, 2)), by_table, graph=3, num_graphs=5, max_groups=4,
      config=VisitConfig(num_episodes=1))
  for action in (None, 1, 0):
    steps = [each.reset() if action is None else each.step(np.full((1, 1), action, np.int32))
             for each in (alone, padded)]
    assert (steps[1].observation["graph"] == 3).all()
    for name in ("placement", "visited", "start"):
      small, large = (step.observation[name] for step in steps)
      np.testing.assert_array_equal(large, np.pad(small, ((0, 0), (0, 2))))


def test_episodes_that_begin_alike_are_alike_whatever_was_before():
  environments = [simulated(start="best", order="random") for _ in range(2)]
  action = np.ones((4, 1), np.int32)
  for _ in range(3):
    environments[0].step(action)
  best, played = environments[0].best[0], []
  for environment in environments:
    environment.begin([7, 0], best)
    played.append([environment.step(action) for _ in range(3)])
  for one, other in zip(*played):
    np.testing.assert_array_equal(one.reward, other.reward)
    for name, value in one.observation.items():
      np.testing.assert_array_equal(value, other.observation[name])


def test_a_group_starts_when_its_main_op_does():
  environment = simulated()
  observed = environment.reset().observation
  problem, grouped = environment._problem, environment._grouped
  found = problem.simulator.simulate(problem.grouping.expand(observed["placement"][0]))
  np.testing.assert_allclose(
      observed["start"][0], found.start_us[grouped.main_op] / found.step_time_us, rtol=1e-6)


def test_episodes_end_with_the_step_after_which_they_may_not_go_on():
  left = [True, False]
  environment = made(
      np.ones((4, 2)), lambda placements: 100.0 + placements.sum(axis=1),
      go_on=lambda: left.pop(0), config=VisitConfig(num_episodes=2))
  environment.reset()
  last = [environment.step(np.zeros((2, 1), np.int32)).is_last().all() for _ in range(2)]
  assert last == [False, True]
