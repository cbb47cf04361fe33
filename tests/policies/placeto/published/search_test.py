import dataclasses
import random
import types

import numpy as np
import pytest
import tensorflow as tf

from placeto_tf.policies.placeto import search as improve_lib
from placeto_tf.policies.placeto.config import PlacetoConfig
from placeto_tf.policies.placeto.network import NetworkConfig
from placeto_tf.policies.placeto.search import improve
from placeto_tf.problem.budget import Budget
from placeto_tf.training.placement_environment import EnvironmentConfig
from random_problem import random_problem

SMALL = dataclasses.replace(
    PlacetoConfig(),
    environment=dataclasses.replace(PlacetoConfig().environment, num_episodes=4),
    network=NetworkConfig(rounds=1), steps_per_update=3,
    levels=((1.0, 1.0),))


def search(evaluations=80, seed=0, problem=None, **options):
  problem = problem or random_problem()
  options.setdefault("config", SMALL)
  start = problem.allowed.argmax(axis=1)
  improve(problem, start, Budget(max_evaluations=evaluations), seed, **options)
  return problem


def start_us(problem):
  return problem.account.history[0][2]


def counting(patched, kept):
  """Has the share of groups that stayed in each update added to a list."""

  class Watched(improve_lib.PlacetoLearner):
    def update(self, *episodes, **options):
      losses = super().update(*episodes, **options)
      kept.append(self._kept(episodes[0], (0,), np.ones(episodes[0].reward.shape, bool)))
      return losses

  patched.setattr(improve_lib, "PlacetoLearner", Watched)


@pytest.fixture(name="learned", scope="module")
def learned_fixture(tmp_path_factory):
  """One search long enough to learn, for the tests that look at what it did.

  Its problem, its directory, and the share of groups that stayed in each update.
  """
  kept, directory = [], tmp_path_factory.mktemp("learned")
  with pytest.MonkeyPatch.context() as patched:
    patched.setattr(improve_lib, "_MIN_ROWS", 1)
    counting(patched, kept)
    problem = search(300, root_dir=str(directory))
  return types.SimpleNamespace(problem=problem, directory=directory, kept=kept)


@pytest.mark.parametrize("uniform", [False, True])
def test_the_problem_remembers_the_best_which_is_never_worse_than_the_start(uniform, learned):
  problem = search(uniform=True) if uniform else learned.problem
  assert problem.account.best_objective_us <= start_us(problem)
  result = problem.simulator.simulate(problem.account.best_placement)
  assert result.step_time_us == problem.account.best_objective_us


def test_a_start_of_ops_that_the_groups_cannot_express_is_where_the_search_begins():
  problem = random_problem()
  start = problem.allowed_ops.argmax(axis=1).astype(np.int32)
  movable = np.flatnonzero(problem.allowed_ops.sum(axis=1) > 1)
  labels, sizes = np.unique(problem.grouping.group_of_op[movable], return_counts=True)
  op = movable[problem.grouping.group_of_op[movable] == labels[sizes.argmax()]][0]
  mates = problem.graph.colocation == problem.graph.colocation[op]
  start[mates] = np.flatnonzero(problem.allowed_ops[op])[-1]  # a part of one group moves away
  assert (problem.grouping.expand(problem.project(start)) != start).any()
  improve(problem, start, Budget(max_evaluations=20), 0, config=SMALL, uniform=True)
  assert start_us(problem) == problem.simulator.simulate(start).step_time_us


@pytest.mark.parametrize("evaluations", [1, 2, 5, 63])
def test_the_budget_of_evaluations_is_never_exceeded(evaluations):
  assert search(evaluations, uniform=True).account.evaluations <= evaluations


def test_the_same_seed_gives_the_same_search_bit_for_bit_and_another_seed_another(
    eagerly, monkeypatch):
  config, kept = dataclasses.replace(SMALL, levels=((1.0, 0.5), (2.0, 0.5))), []
  counting(monkeypatch, kept)
  first, second = (search(32, seed=7, config=config) for _ in range(2))
  half = len(kept) // 2
  assert kept[:half] == kept[half:] and half >= 2  # in both levels
  np.testing.assert_array_equal(first.account.best_placement, second.account.best_placement)

  def improvements(problem):
    return [(evaluations, us) for evaluations, _, us in problem.account.history]

  assert improvements(first) == improvements(second)
  # Networks of two seeds differ by tests/policies/placeto/network_test.py.
  one, other = (search(32, seed=seed, config=config, uniform=True) for seed in (7, 8))
  assert improvements(one) != improvements(other)


def test_a_finer_level_starts_from_what_the_coarser_found():
  config = dataclasses.replace(SMALL, levels=((1.0, 0.5), (4.0, 0.5)))
  problem = search(200, config=config, uniform=True)
  assert problem.account.best_objective_us < start_us(problem)
  assert len(np.unique(problem.account.best_placement)) > 1


def test_the_process_keeps_its_own_random_states(eagerly):
  np.random.seed(1)
  random.seed(1)
  before = np.random.get_state()[1].tolist(), random.getstate()
  search(20)
  assert (np.random.get_state()[1].tolist(), random.getstate()) == before


def test_learning_beats_the_start_of_a_graph_that_can_be_split(learned):
  assert len(learned.kept) > 10
  assert learned.problem.account.best_objective_us < 0.9 * start_us(learned.problem)


def test_the_papers_own_choices_run(eagerly, monkeypatch):
  kept = []
  counting(monkeypatch, kept)
  paper = PlacetoConfig.paper()
  config = dataclasses.replace(paper, environment=EnvironmentConfig(num_episodes=2))
  search(20, config=config, problem=random_problem(num_ops=20, num_groups=4))
  assert len(kept) >= 2


def _tags(directory):
  tags = set()
  for path in directory.iterdir():
    for record in tf.data.TFRecordDataset(str(path)):
      tags.update(
          value.tag for value in tf.compat.v1.Event.FromString(record.numpy()).summary.value)
  return tags


def test_tensorboard_gets_step_times_return_and_losses(learned):
  assert {"StepTime/best_ms", "StepTime/current_ms", "Training/AverageReturn", "Training/loss",
          "Training/entropy"} <= _tags(learned.directory / "train")


def test_too_few_episodes_for_a_chart_are_not_written(tmp_path, monkeypatch):
  monkeypatch.setattr(improve_lib, "_MIN_ROWS", 1000)
  search(60, root_dir=str(tmp_path))
  assert _tags(tmp_path / "train") == set()


def test_the_share_of_groups_that_stay_is_held_near_what_was_asked_for(learned):
  assert 0.62 < np.mean(learned.kept[-10:]) < 0.88
