import numpy as np
import pytest
from tf_agents.drivers import py_driver
from tf_agents.environments import utils
from tf_agents.policies import random_py_policy
from tf_agents.specs import array_spec

from placeto_tf.errors import PlacetoError
from placeto_tf.training.cost import SimulatedCost
from placeto_tf.training.family_environment import FamilyEnvironment
from placeto_tf.training.placement_environment import EnvironmentConfig, PlacementEnvironment
from random_problem import grouped_graph, random_problem


def single(num_groups, devices="k80:3", **rules):
  problem = random_problem(num_ops=30, num_groups=num_groups, devices=devices, seed=num_groups)
  return PlacementEnvironment(
      problem.allowed, SimulatedCost(problem, grouped_graph(problem)),
      problem.allowed.argmax(axis=1), config=EnvironmentConfig(num_episodes=2, **rules))


def play(environment, seed=0):
  """Observations and rewards of an episode of random devices."""
  rng, seen = np.random.default_rng(seed), []
  environment.reset()
  for _ in range(getattr(environment, "num_steps", None) or environment.num_groups):
    found = environment.step(rng.integers(0, 3, (2, 1)).astype(np.int32))
    seen.append((found.observation, found.reward) if hasattr(found, "reward") else found)
  return seen


@pytest.mark.parametrize("rules", [
    {}, {"order": "random"}, {"reward": "final", "start": "random"}, {"start": "best"}])
def test_tf_agents_finds_the_environment_valid(rules):
  utils.validate_py_environment(
      FamilyEnvironment([single(4, **rules), single(6, **rules)]), episodes=2)


def test_every_time_step_a_driver_sees_is_as_the_spec_says():
  environment = FamilyEnvironment([single(4)])
  spec = array_spec.add_outer_dims_nest(environment.time_step_spec(), (2,))
  seen = []

  def observe(transition):
    time_step, _, next_time_step = transition
    for step in (time_step, next_time_step):
      assert array_spec.check_arrays_nest(step, spec)
    seen.append(next_time_step)

  policy = random_py_policy.RandomPyPolicy(
      environment.time_step_spec(), environment.action_spec(), seed=0)
  driver = py_driver.PyDriver(
      environment, policy, observers=[], transition_observers=[observe], max_episodes=4)
  driver.run(environment.reset())
  assert sum(int(step.is_last().all()) for step in seen) == 2


def test_an_episode_is_that_of_the_chosen_graph_padded_and_named():
  family = FamilyEnvironment([single(4), single(6)], max_groups=7)
  for graph, size in ((1, 6), (0, 4)):
    family.choose([graph])
    padded, alone = play(family), play(single(size))
    assert len(padded) == len(alone) == size
    for (observation, reward), (plain, plain_reward) in zip(padded, alone):
      np.testing.assert_array_equal(reward, plain_reward)
      assert (observation["graph"] == graph).all()
      np.testing.assert_array_equal(observation["current"], plain["current"])
      for name in ("placement", "visited", "start"):
        np.testing.assert_array_equal(observation[name][:, :size], plain[name])
        assert (observation[name][:, size:] == 0).all()


def test_episodes_of_several_graphs_run_side_by_side_and_the_shorter_ones_stand_still_at_the_end():
  family = FamilyEnvironment([single(4), single(6)], side_by_side=2)
  family.choose([1, 0])
  rng, time_step, rewards = np.random.default_rng(0), family.reset(), []
  longer, shorter = single(6), single(4)
  longer.reset()
  shorter.reset()
  while not time_step.is_last().all():
    active, action = len(rewards) < 4, rng.integers(0, 3, (4, 1)).astype(np.int32)
    time_step = family.step(action)
    rewards.append(time_step.reward)
    expected = longer.step(action[:2])[1].tolist() + (
        shorter.step(action[2:])[1].tolist() if active else [0.0, 0.0])
    assert time_step.reward.tolist() == expected
    assert time_step.observation["graph"][:, 0].tolist() == [1, 1, 0, 0]
  assert len(rewards) == 6
  np.testing.assert_array_equal(family.objectives[2:], shorter.objective_us / shorter.scale_us)


def test_a_graph_is_not_chosen_twice():
  with pytest.raises(PlacetoError, match="graphs .0, 0. were chosen; expected 2 different ones"):
    FamilyEnvironment([single(4), single(6)], side_by_side=2).choose([0, 0])


def test_episodes_that_begin_alike_are_alike_whatever_was_before():
  def fresh():
    return FamilyEnvironment([single(4, start="best", order="random")])

  played, other = fresh(), fresh()
  play(played, seed=1)
  best = [each.best_placement for each in played.chosen]
  for environment in (played, other):
    environment.begin([0], 7, best)
  for (a, reward_a), (b, reward_b) in zip(play(played, seed=2), play(other, seed=2)):
    np.testing.assert_array_equal(reward_a, reward_b)
    np.testing.assert_array_equal(a["placement"], b["placement"])


def test_a_graph_larger_than_the_room_is_refused():
  with pytest.raises(PlacetoError, match="graph 1 has 6 groups, there is room for 5"):
    FamilyEnvironment([single(4), single(6)], max_groups=5)


def test_clusters_of_other_sizes_are_refused():
  with pytest.raises(PlacetoError, match="graph 1 has 3 devices"):
    FamilyEnvironment([single(4), single(4, devices="k80:2")])


def test_episodes_end_with_the_step_after_which_they_may_not_go_on():
  left = [True, True, False]
  family = FamilyEnvironment([single(6)], go_on=lambda: left.pop(0))
  family.reset()
  last = [family.step(np.zeros((2, 1), np.int32)).is_last().all() for _ in range(3)]
  assert last == [False, False, True]
