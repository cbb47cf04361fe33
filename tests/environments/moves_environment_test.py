import numpy as np
import pytest
from tf_agents.environments import utils

from placeto_tf.environments import moves_environment as moves
from placeto_tf.errors import PlacementError
from random_problem import random_problem


def make_environment(seed=0, rows=4, steps=6, devices=("k80:3",), max_devices=5, starts=None):
  problems = []
  for index, text in enumerate(devices):
    problem = random_problem(num_ops=80, num_groups=16, devices=text, seed=index)
    start = np.zeros((1, 16), np.int32) if starts is None else starts
    problems.append(moves.MovesProblem(problem, start))
  return moves.MovesEnvironment(
      problems, max_devices, config=moves.MovesConfig(rows=rows, steps=steps), seed=seed), problems


def test_it_is_a_valid_environment():
  environment, _ = make_environment(devices=("k80:3", "p100:2"))
  utils.validate_py_environment(environment, episodes=3)


def test_rewards_are_what_moves_gain_and_worse_moves_are_undone():
  environment, _ = make_environment(steps=40)
  environment.reset()
  rng = np.random.default_rng(0)
  gained = worse = 0
  for _ in range(39):
    before = environment.objective_us
    step = environment.step(rng.integers(0, 3, 4).astype(np.int32))
    after = environment.objective_us
    assert (after <= before).all()
    fall = moves.REWARD_SCALE * (1 - after / before)
    kept = step.reward >= 0
    np.testing.assert_allclose(
        step.reward[kept], np.minimum(fall, moves.REWARD_CLIP)[kept], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(after[~kept], before[~kept])
    gained, worse = gained + (fall > 0).sum(), worse + (~kept).sum()
  assert gained and worse


def test_staying_and_going_where_it_is_not_allowed_cost_nothing():
  environment, problems = make_environment()
  step = environment.reset()
  simulated = problems[0].problem.evaluations
  here = step.observation[moves.FEATURES][:, :, 0].argmax(axis=1)
  assert (environment.step(here.astype(np.int32)).reward == 0).all()
  for nowhere in (3, 4):  # the host, and padding
    assert (environment.step(np.full(4, nowhere, np.int32)).reward == 0).all()
  assert problems[0].problem.evaluations == simulated


def test_the_mask_is_where_the_group_may_go_and_other_rows_of_features_are_zero():
  observation = make_environment()[0].reset().observation
  np.testing.assert_array_equal(observation[moves.MASK], [[1, 1, 1, 0, 0]] * 4)
  assert not observation[moves.FEATURES][:, 3:].any()
  assert (observation[moves.FEATURES][:, :3, 0].sum(axis=1) == 1).all()  # on one device each


def test_what_was_saved_between_episodes_goes_on_alike():
  def run(environment, episodes):
    rng, seen = np.random.default_rng(5), []
    for _ in range(episodes):
      environment.reset()
      for _ in range(6):
        seen.append(environment.step(rng.integers(0, 3, 4).astype(np.int32)).reward)
    return np.array(seen)

  one, _ = make_environment(devices=("k80:3", "p100:4"), max_devices=6)
  run(one, 3)
  state = one.state_dict()
  other, _ = make_environment(seed=9, devices=("k80:3", "p100:4"), max_devices=6)
  other.load_state_dict(state)
  np.testing.assert_array_equal(run(one, 3), run(other, 3))


@pytest.mark.parametrize("options, message", [
    ({"max_devices": 3}, "4 devices, hosts included"), ({"devices": ()}, "no problem to train"),
    ({"rows": 0}, "rows is 0"), ({"devices": ("k80:1",)}, "no group of the problem can be moved")])
def test_wrong_settings_are_refused(options, message):
  with pytest.raises(PlacementError, match=message):
    make_environment(**options)
