import types

import numpy as np
import pytest

from placeto_tf.environments.visit_environment import VisitConfig
from placeto_tf.policies.placeto.published import search as improve_lib
from placeto_tf.policies.placeto.published.config import PublishedConfig
from placeto_tf.policies.placeto.published.network import NetworkConfig
from placeto_tf.policies.placeto.published.search import improve
from placeto_tf.problem.budget import Budget
from random_problem import random_problem

SMALL = PublishedConfig(
    environment=VisitConfig(num_episodes=4, start="best"), network=NetworkConfig(rounds=1))


def search(evaluations=80, seed=0, problem=None, **options):
  problem = problem or random_problem()
  options.setdefault("config", SMALL)
  start = problem.allowed.argmax(axis=1)
  improve(problem, start, Budget(max_evaluations=evaluations), seed, **options)
  return problem


def start_us(problem):
  return problem.search_log.history[0][2]


def counting(patched, losses):
  """Has the loss of each update added to a list."""

  class Watched(improve_lib.PublishedLearner):
    def update(self, *episodes, **options):
      found = super().update(*episodes, **options)
      losses.append(found["loss"])
      return found

  patched.setattr(improve_lib, "PublishedLearner", Watched)


@pytest.fixture(name="learned", scope="module")
def learned_fixture():
  """The problem of a search that is long enough to learn, and the loss of each update."""
  losses = []
  with pytest.MonkeyPatch.context() as patched:
    counting(patched, losses)
    problem = search(300)
  return types.SimpleNamespace(problem=problem, losses=losses)


@pytest.mark.parametrize("uniform", [False, True])
def test_the_problem_remembers_the_best_which_is_never_worse_than_the_start(uniform, learned):
  problem = search(uniform=True) if uniform else learned.problem
  assert problem.search_log.best_objective_us <= start_us(problem)
  result = problem.simulator.simulate(problem.search_log.best_placement)
  assert result.step_time_us == problem.search_log.best_objective_us


@pytest.mark.parametrize("evaluations", [1, 2, 5, 63])
def test_the_budget_of_evaluations_is_never_exceeded(evaluations):
  assert search(evaluations, uniform=True).search_log.evaluations <= evaluations


def test_the_same_seed_gives_the_same_search_bit_for_bit_and_another_seed_another(
    eagerly, monkeypatch):
  losses = []
  counting(monkeypatch, losses)
  first, second = (search(40, seed=7, problem=random_problem(num_ops=20, num_groups=4))
                   for _ in range(2))
  half = len(losses) // 2
  assert losses[:half] == losses[half:] and half >= 2
  np.testing.assert_array_equal(first.search_log.best_placement, second.search_log.best_placement)

  def improvements(problem):
    return [(evaluations, us) for evaluations, _, us in problem.search_log.history]

  assert improvements(first) == improvements(second)
  # Networks of two seeds differ by tests/policies/placeto/network_test.py.
  one, other = (search(32, seed=seed, uniform=True) for seed in (7, 8))
  assert improvements(one) != improvements(other)


def test_learning_beats_the_start_of_a_graph_that_can_be_split(learned):
  assert len(learned.losses) > 4
  assert learned.problem.search_log.best_objective_us < 0.9 * start_us(learned.problem)
