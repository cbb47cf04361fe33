import numpy as np
import pytest

from placeto_tf.errors import PlacementError
from placeto_tf.training.cost import SimulatedCost
from placeto_tf.training.placement_environment import EnvironmentConfig, PlacementEnvironment
from random_problem import grouped_graph, random_problem

# Us of every placement of two groups on two devices.
TABLE = {(0, 0): 100.0, (1, 0): 80.0, (0, 1): 120.0, (1, 1): 50.0}


def table_cost(placements):
  return np.array([TABLE[tuple(p)] for p in placements.tolist()]), {}


def two_groups(allowed=None, cost=table_cost, origin=(0, 0), **rules):
  rules.setdefault("num_episodes", 1)
  allowed = np.ones((2, 2), dtype=bool) if allowed is None else np.array(allowed)
  return PlacementEnvironment(
      allowed, cost, np.array(origin), config=EnvironmentConfig(**rules))


def play(environment, devices):
  """Rewards [T] of one episode alone."""
  environment.reset()
  assert len(devices) == environment.num_groups
  return [float(environment.step(np.full((1, 1), device, np.int32))[1][0]) for device in devices]


def simulated(**rules):
  problem = random_problem()
  grouped = grouped_graph(problem)
  return PlacementEnvironment(
      problem.allowed, SimulatedCost(problem, grouped), problem.allowed.argmax(axis=1),
      config=EnvironmentConfig(num_episodes=4, **rules), seed=3)


def test_a_faster_placement_earns_its_share_of_the_start_and_a_slower_one_costs_it():
  assert play(two_groups(), [1, 0]) == pytest.approx([0.2, 0.0])
  assert play(two_groups(), [0, 1]) == pytest.approx([0.0, -0.2])


def test_the_last_group_is_placed_too():
  environment = two_groups()
  assert play(environment, [1, 1]) == pytest.approx([0.2, 0.3])
  assert environment._state.placement.tolist() == [[1, 1]]
  assert environment.best_placement.tolist() == [1, 1]


def test_the_final_reward_is_minus_the_last_objective():
  assert play(two_groups(reward="final"), [1, 1]) == pytest.approx([0.0, -0.5])


@pytest.mark.parametrize("rules", [
    {}, {"order": "random"}, {"start": "random"}])
def test_returns_add_up_to_the_fall_of_the_objective(rules):
  environment = simulated(**rules)
  rng = np.random.default_rng(0)
  environment.reset()
  before, returns = environment.objective_us, np.zeros(4)
  for _ in range(environment.num_groups):
    action = rng.integers(0, 3, (4, 1)).astype(np.int32)
    returns += environment.step(action)[1]
  np.testing.assert_allclose(
      returns, (before - environment.objective_us) / environment.scale_us, atol=1e-5)


def test_a_device_that_is_not_allowed_is_no_move():
  environment = two_groups(allowed=[[True, False], [True, True]])
  assert play(environment, [1, 0]) == [0.0, 0.0]
  assert environment._state.placement.tolist() == [[0, 0]]


def test_only_what_changed_is_evaluated():
  rows = []

  def cost(placements):
    rows.append(len(placements))
    return table_cost(placements)

  environment = two_groups(cost=cost, num_episodes=3)
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
  _, reward = environment.step(np.array([[1], [1]], dtype=np.int32))
  assert environment._state.placement.tolist() == [[1, 1], [0, 1]]
  np.testing.assert_allclose(reward, [0.3, -0.2], atol=1e-6)


@pytest.mark.parametrize("rules,message", [
    ({"order": "alphabetical"}, "order is 'alphabetical'; expected one of"),
    ({"num_episodes": 0}, "num_episodes is 0")])
def test_wrong_rules_are_named(rules, message):
  with pytest.raises(PlacementError, match=message):
    EnvironmentConfig(**rules)


def test_a_start_on_a_device_that_is_not_allowed_names_the_group():
  with pytest.raises(PlacementError, match="group 1 on device 1"):
    two_groups(allowed=[[True, True], [True, False]], origin=(0, 1))
