import numpy as np

from placeto_tf.environments import driving
from placeto_tf.environments.visit_environment import VisitConfig, VisitEnvironment
from random_problem import grouped_graph, random_problem


def environment():
  problem = random_problem()
  return VisitEnvironment(
      problem, grouped_graph(problem), problem.allowed.argmax(axis=1),
      config=VisitConfig(num_episodes=4))


def preferring(device, odds):
  """Logits that prefer one of four devices; the last takes no group."""
  logits = np.zeros(4)
  logits[device] = np.log(odds)
  logits[3] = -np.inf
  return lambda observation: np.broadcast_to(logits, observation["current"].shape + (4,))


def test_an_episode_in_each_row_is_played_to_its_end():
  each = environment()
  seen = []
  steps = driving.play(each, driving.drawing(preferring(1, 2.0), None), [seen.append])
  assert steps.reward.shape == (4, 12) and len(seen) == 12
  assert (steps.action == 1).all()
  assert steps.is_last()[:, -1].all() and not steps.is_last()[:, :-1].any()
  first = each._grouped.order[0]  # the group that is placed first
  np.testing.assert_array_equal(steps.observation["placement"][:, 1:, first], 1)


def test_samples_follow_the_probabilities_and_the_generator_alone():
  each, sampled = environment(), []
  for seed in (0, 0, 1):
    act = driving.drawing(preferring(2, 3.0), np.random.default_rng(seed))
    sampled.append(np.concatenate([driving.play(each, act).action.ravel() for _ in range(10)]))
  np.testing.assert_array_equal(sampled[0], sampled[1])
  assert (sampled[0] != sampled[2]).any() and sampled[0].max() < 3
  assert abs((sampled[0] == 2).mean() - 3 / 5) < 0.05
