"""The Gymnasium environment: Gymnasium's own checker, rewards, masks, starts and budgets."""

import pathlib
import re
import warnings

import numpy as np
import pytest

import graph_files

gymnasium = pytest.importorskip("gymnasium", reason="Gymnasium, an optional extra, is missing")

from placeto_tf.environments import gym_environment  # noqa: E402


@pytest.fixture(name="make")
def make_fixture():
  def make(**options):
    return gymnasium.make(
        f"placeto_tf.environments.gym_environment:{gym_environment.NAME}",
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


@pytest.mark.parametrize("options", [
    *({"start": start} for start in gym_environment.STARTS), {"max_evaluations": 40}])
def test_gymnasium_s_own_checker_passes(make, options):
  from gymnasium.utils.env_checker import check_env

  with warnings.catch_warnings():
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", message=".*render")
    check_env(make(**options).unwrapped)


def samples(seed=0):
  """Chooses moves that are left to be tried."""
  rng = np.random.default_rng(seed)
  return lambda observation: int(rng.choice(np.flatnonzero(observation["action_mask"])))


def test_the_return_is_the_fall_of_the_objective_over_that_of_the_start(make):
  environment = make(start="random")
  problem = environment.unwrapped.problem
  observation, info = environment.reset(seed=1)
  first_us, total, over = environment.unwrapped.process.objective_us, 0.0, False
  choose = samples()
  while not over:
    before_us = environment.unwrapped.process.objective_us
    observation, reward, over, _, info = environment.step(choose(observation))
    assert reward >= 0 and environment.unwrapped.process.objective_us <= before_us  # or undone
    total += reward
  last_us = environment.unwrapped.process.objective_us
  assert total > 0
  assert total == pytest.approx((first_us - last_us) / environment.unwrapped._scale_us)
  found = problem.evaluate_ops(environment.unwrapped.process.placement)
  assert (found.step_time_us[0], found.fits[0]) == (info["step_time_us"], info["fits"])


def test_a_masked_action_is_no_move_and_leaves_the_level(make):
  environment = make()
  observation, _ = environment.reset(seed=0)
  before = environment.unwrapped.problem.search_log.evaluations
  level = environment.unwrapped.process.level
  masked = np.flatnonzero(observation["action_mask"] == 0)
  after, reward, over, _, _ = environment.step(int(masked[0]))
  assert reward == 0
  assert over or environment.unwrapped.process.level is not level
  # a new level may look at the placement anew, but simulates no move
  assert environment.unwrapped.problem.search_log.evaluations <= before + 1
  assert environment.unwrapped.action_masks().dtype == bool


def test_the_loop_of_the_page_runs():
  page = pathlib.Path(__file__).resolve().parents[2] / "docs" / "other_rl_libraries.md"
  (code,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
  names = {}
  exec(code.replace('"zoo:rnnlm"', '"family:cifar10[0]"'), names)
  assert names["truncated"] and names["info"]["step_time_us"] < names["first_us"]
  assert len(names["placement"]) >= names["environment"].unwrapped.problem.graph.num_ops


def test_a_budget_truncates_and_the_seed_decides_random_starts(make):
  environment = make(start="random")
  limited = make(start="random", max_evaluations=3)
  for seed in (3, 4):  # each episode has the whole budget
    used = limited.unwrapped.problem.search_log.evaluations
    *_, truncated = _episode(limited, samples(), seed=seed)
    assert truncated and limited.unwrapped.problem.search_log.evaluations == used + 3
  first, again, other = (
      environment.reset(seed=seed) and environment.unwrapped.process.placement.tolist()
      for seed in (3, 3, 4))
  assert first == again != other
