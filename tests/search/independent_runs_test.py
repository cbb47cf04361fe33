"""Several runs of a search side by side, of which the best is kept."""

import itertools
import threading
import types

import numpy as np
import pytest

from placeto_tf.errors import PlacementError
from placeto_tf.placing import registry, running
from placeto_tf.problem import compiled_evaluation
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.executors import InProcess
from placeto_tf.problem.method import Kind
from placeto_tf.search.independent_runs import Runs, run_independently, run_seed

REPEATING = [method.name for method in registry.methods() if method.repeats]


def _runs(count):
  executor = InProcess()
  executor.cores = 4
  return Runs(count, executor)


def _run(problem, count, name, budget=None, seed=0):
  placement = running.run(
      problem, registry.find(name), budget or Budget(max_evaluations=400), seed, runs=_runs(count))
  return (placement.tolist(), problem.search_log.evaluations, problem.search_log.best_objective_us,
          [(turn, objective_us) for turn, _, objective_us in problem.search_log.history])


@pytest.mark.parametrize("name", [*REPEATING, "auto"])
def test_the_result_depends_on_the_seed_and_the_number_of_runs_alone(name, sixty_ops):
  first = _run(sixty_ops(), 3, name)
  assert _run(sixty_ops(), 3, name) == first
  assert first[1] <= 400 and min(us for _, us in first[3]) == first[2]
  turns = [turn for turn, _ in first[3]]
  assert turns == sorted(turns) and turns[-1] <= first[1]


def test_the_best_of_single_runs_with_the_same_seeds_is_kept(sixty_ops):
  start, search = sixty_ops().allowed_ops.argmax(axis=1), registry.find("annealing").load()

  def alone(seed):
    problem = sixty_ops()
    problem.evaluate_ops(start)
    search(problem, Budget(max_evaluations=201), seed)
    return problem.search_log.best_objective_us

  problem = sixty_ops()
  problem.evaluate_ops(start)
  run_independently(problem, search, Budget(max_evaluations=601), 5, _runs(3))
  assert problem.search_log.best_objective_us == min(alone(run_seed(5, i)) for i in range(3))
  assert problem.search_log.evaluations == 601


@pytest.mark.parametrize("name", REPEATING)
def test_one_run_is_the_search_itself(name, sixty_ops):
  problem = sixty_ops()
  running.prepare(problem, registry.find(name), Budget(max_evaluations=400))
  registry.find(name).load()(problem, Budget(max_evaluations=400), 0)
  search_log = problem.search_log
  assert _run(sixty_ops(), 1, name)[1:3] == (search_log.evaluations, search_log.best_objective_us)


@pytest.mark.usefixtures("clock_of_looks")
def test_in_limited_time_there_are_no_more_runs_than_cores(sixty_ops):
  for budget, expected in ((Budget(max_seconds=0.3), 4), (Budget(max_evaluations=400), 8)):
    seeds = []

    def search(problem, budget, seed, seeds=seeds):
      seeds.append(seed)
      return registry.find("single").load()(problem, budget)

    run_independently(sixty_ops(), search, budget, 5, _runs(8))
    assert sorted(seeds) == sorted(run_seed(5, i) for i in range(expected))


@pytest.mark.usefixtures("clock_of_looks")
def test_runs_end_at_a_target_and_in_time(sixty_ops):
  problem = sixty_ops()
  _run(problem, 2, "annealing", Budget(max_seconds=600, target_us=1e9))
  assert problem.search_log.evaluations < 100
  problem = sixty_ops()
  _run(problem, 2, "annealing", Budget(max_seconds=0.3))
  assert problem.search_log.seconds < 20 and problem.search_log.best_fits


def test_an_interrupt_ends_all_runs_and_keeps_what_they_found(sixty_ops):
  problem = sixty_ops()

  def observe(_):
    if problem.search_log.evaluations > 50:
      raise KeyboardInterrupt

  problem.evaluate_ops(problem.allowed_ops.argmax(axis=1))
  problem.search_log.observer = observe
  before = threading.enumerate()  # of which some, of other tests, may end meanwhile
  with pytest.raises(KeyboardInterrupt):
    run_independently(
        problem, registry.find("annealing").load(), Budget(max_seconds=600), runs=_runs(2))
  problem.search_log.observer = None
  assert set(threading.enumerate()) <= set(before)
  search_log = problem.search_log
  assert search_log.evaluations > 50 and search_log.history[-1][2] == search_log.best_objective_us


def test_an_error_of_one_run_is_raised_and_ends_the_others(sixty_ops):
  second = run_seed(0, 1)

  def search(problem, budget, seed):
    if seed == second:
      raise PlacementError("found in the second run")
    while not problem.search_log.exhausted(budget):
      problem.evaluate_ops(problem.allowed_ops.argmax(axis=1))
    return problem.search_log.best_known

  problem = sixty_ops()
  problem.evaluate_ops(np.asarray(problem.allowed_ops.argmax(axis=1)))
  with pytest.raises(PlacementError, match="second run"):
    run_independently(problem, search, Budget(max_seconds=600), runs=_runs(2))


METHODS = ["auto_unlearned", "placeto", *(
    method.name for method in registry.methods() if method.kind is Kind.SEARCH)]


@pytest.mark.parametrize("name", METHODS)
def test_the_length_of_compiled_blocks_changes_nothing(name, sixty_ops, monkeypatch):
  """Blocks grow on a clock that stands still, and are of one evaluation where each takes long."""
  found = []
  for clock in (lambda: 0.0, itertools.count().__next__):
    monkeypatch.setattr(
        compiled_evaluation, "time", types.SimpleNamespace(perf_counter=clock))
    problem = sixty_ops()
    placement = running.run(problem, registry.find(name), Budget(max_evaluations=500), 3)
    found.append((placement.tolist(), problem.search_log.evaluations, [
        (turn, objective_us) for turn, _, objective_us in problem.search_log.history]))
  assert found[0] == found[1]
