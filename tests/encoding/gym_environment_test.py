"""The Gymnasium environment: Gymnasium's own checker, rewards, masks, starts and budgets."""

import warnings

import numpy as np
import pytest

import graph_files
from placeto_tf.errors import PlacementError

gymnasium = pytest.importorskip("gymnasium", reason="Gymnasium, an optional extra, is missing")

from placeto_tf.encoding import gym_environment  # noqa: E402


@pytest.fixture(name="make")
def make_fixture():
  def make(**options):
    return gymnasium.make(
        f"placeto_tf.encoding.gym_environment:{gym_environment.NAME}",
        **{"graph": graph_files.meta_graph_def(), "cluster": "k80:2", "max_groups": 6, **options})

  return make


def _episode(environment, choose, **reset):
  """(return, observations, whether it was truncated) of an episode."""
  observation, _ = environment.reset(**reset)
  total, seen, over, truncated = 0.0, [observation], False, False
  while not (over or truncated):
    observation, reward, over, truncated, _ = environment.step(choose(observation))
    total += reward
    seen.append(observation)
  return total, seen, truncated


@pytest.mark.parametrize("start", gym_environment.STARTS)
def test_gymnasium_s_own_checker_passes(make, start):
  from gymnasium.utils.env_checker import check_env

  with warnings.catch_warnings():
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", message=".*render")
    check_env(make(start=start).unwrapped)


def test_the_return_is_the_fall_of_the_objective_over_that_of_the_start(make):
  environment = make(start="random")
  rng = np.random.default_rng(0)
  problem = environment.unwrapped.problem

  def allowed(observation):
    return int(rng.choice(np.flatnonzero(observation["action_mask"])))

  total, seen, _ = _episode(environment, allowed, seed=1)
  groups = problem.grouping
  first, last = problem.evaluate_ops(groups.expand(
      np.stack([seen[0]["placement"], seen[-1]["placement"]]))).objective_us
  scale_us = problem.evaluate_ops(groups.expand(
      environment.unwrapped._given[None])).objective_us[0]
  assert total == pytest.approx((first - last) / scale_us)
  assert len(seen) == problem.num_groups + 1 and seen[-1]["visited"].all()


def test_an_episode_visits_groups_in_order_and_puts_them_where_it_is_told(make):
  environment = make()
  _, seen, _ = _episode(environment, lambda observation: int(
      np.flatnonzero(observation["action_mask"])[-1]))
  order = environment.unwrapped.grouped.order.tolist()
  assert [each["current"] for each in seen[:-1]] == order
  allowed = environment.unwrapped.problem.allowed
  last = allowed.shape[1] - 1 - allowed[:, ::-1].argmax(axis=1)
  assert seen[-1]["placement"].tolist() == last.tolist()


def test_a_device_where_the_group_may_not_be_is_no_move(make):
  environment = make()
  observation, _ = environment.reset()
  before = environment.unwrapped.problem.account.evaluations
  forbidden = np.flatnonzero(observation["action_mask"] == 0)
  assert len(forbidden)  # the host
  after, reward, _, _, _ = environment.step(int(forbidden[0]))
  assert reward == 0 and environment.unwrapped.problem.account.evaluations == before
  assert after["placement"].tolist() == observation["placement"].tolist()
  assert environment.unwrapped.action_masks().dtype == bool


def test_a_budget_truncates_and_the_seed_decides_random_starts(make):
  environment = make(start="random")
  used = environment.unwrapped.problem.account.evaluations
  limited = make(start="random", max_evaluations=used + 2)
  flip = lambda observation: int(1 - observation["placement"][observation["current"]])  # noqa: E731
  *_, truncated, _ = _episode(limited, flip, seed=3)
  assert truncated
  first, again, other = (
      environment.reset(seed=seed)[0]["placement"].tolist() for seed in (3, 3, 4))
  assert first == again != other


def test_an_episode_begins_where_it_is_told(make):
  environment = make()
  given = environment.unwrapped.problem.allowed.argmax(axis=1)
  observation, _ = environment.reset(options={"start": given})
  assert observation["placement"].tolist() == given.tolist()
  with pytest.raises(PlacementError, match="expected .* devices, each allowed"):
    environment.reset(options={"start": given + 99})


@pytest.mark.parametrize("options, said", [
    ({"start": "worst"}, "expected best or random"), ({"max_evaluations": 0}, "at least 1")])
def test_wrong_arguments_are_named(make, options, said):
  with pytest.raises(PlacementError, match=said):
    make(**options)


def test_it_needs_neither_tf_agents_nor_keras():
  import subprocess
  import sys

  code = ("import sys, placeto_tf.encoding.gym_environment; "
          "print(sorted({'tf_agents', 'tensorflow_gnn', 'tf_keras'} & set(sys.modules)))")
  found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
  assert found.stdout.strip() == "[]"
