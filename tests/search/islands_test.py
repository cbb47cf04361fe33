"""Islands: several runs of a search that exchange their best placements."""

import threading

import numpy as np
import pytest

from placeto_tf.errors import PlacementError
from placeto_tf.placing import registry, running
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.executor import Executor
from placeto_tf.search import islands

ISLAND_METHODS = [method.name for method in registry.methods() if method.islands]


def _on(count):
  return islands.Islands(count, Executor(cores=4))


def _run(problem, count, name, budget=None, seed=0):
  placement = running.run(
      problem, registry.find(name), budget or Budget(max_evaluations=400), seed,
      islands=_on(count))
  return (placement.tolist(), problem.account.evaluations, problem.account.best_objective_us,
          [(turn, objective_us) for turn, _, objective_us in problem.account.history])


@pytest.mark.parametrize("name", [*ISLAND_METHODS, "auto"])
def test_the_result_depends_on_the_seed_and_the_number_of_islands_alone(name, sixty_ops):
  first = _run(sixty_ops(), 3, name)
  assert _run(sixty_ops(), 3, name) == first
  assert first[1] <= 400 and min(us for _, us in first[3]) == first[2]
  turns = [turn for turn, _ in first[3]]
  assert turns == sorted(turns) and turns[-1] <= first[1]


def test_slow_islands_do_not_change_the_result(sixty_ops, monkeypatch):
  """Whoever arrives first at an exchange waits for the others."""
  expected = _run(sixty_ops(), 2, "annealing")
  meet, second_arrived = islands.Exchange.meet, threading.Event()

  def late(self, island, *arguments):
    if island == 0:
      assert second_arrived.wait(300)
    else:
      second_arrived.set()
    return meet(self, island, *arguments)

  monkeypatch.setattr(islands.Exchange, "meet", late)
  assert _run(sixty_ops(), 2, "annealing") == expected


@pytest.mark.parametrize("name", ISLAND_METHODS)
def test_one_island_is_the_search_itself(name, sixty_ops):
  problem = sixty_ops()
  running.prepare(problem, registry.find(name), Budget(max_evaluations=400))
  registry.find(name).load()(problem, Budget(max_evaluations=400), 0)
  account = problem.account
  assert _run(sixty_ops(), 1, name)[1:3] == (account.evaluations, account.best_objective_us)


def test_a_budget_smaller_than_the_islands_is_kept(sixty_ops):
  problem = sixty_ops()
  _run(problem, 8, "annealing", Budget(max_evaluations=9))
  assert problem.account.evaluations <= 9


@pytest.mark.usefixtures("clock_of_looks")
def test_in_limited_time_there_are_no_more_islands_than_cores(sixty_ops):
  problem = sixty_ops()
  _run(problem, 8, "annealing", Budget(max_seconds=0.3))
  assert len(problem.account.of_islands) == 4
  problem = sixty_ops()
  _run(problem, 8, "annealing", Budget(max_evaluations=400))
  assert len(problem.account.of_islands) == 8


@pytest.mark.usefixtures("clock_of_looks")
def test_islands_end_at_a_target_and_in_time(sixty_ops):
  problem = sixty_ops()
  _run(problem, 2, "annealing", Budget(max_seconds=600, target_us=1e9))
  assert problem.account.evaluations < 100
  problem = sixty_ops()
  _run(problem, 2, "annealing", Budget(max_seconds=0.3))
  assert problem.account.seconds < 20 and problem.account.best_fits


def test_the_worse_half_goes_on_from_the_best(sixty_ops):
  exchange, account = islands.Exchange(islands.Rules(3, False, None)), sixty_ops().account
  for island, objective_us in ((0, 5.0), (1, 3.0)):  # no island is worse than these yet
    answer = exchange.meet(island, 0, np.full(60, island), objective_us, account)
    assert answer.objective_us >= 3.0 and not answer.stopped
  answer = exchange.meet(2, 0, np.full(60, 2), 9.0, account)
  assert answer.placement.tolist() == [1] * 60 and answer.objective_us == 3.0


def test_an_island_that_is_run_once_more_gets_the_answers_it_got(sixty_ops):
  exchange, account = islands.Exchange(islands.Rules(2, True, None)), sixty_ops().account
  answers = {}

  def meet(number):
    answers[number] = exchange.meet(0, number, np.full(60, 0), 9.0 - number, account)

  for number in range(2):
    thread = threading.Thread(target=meet, args=(number,))
    thread.start()
    exchange.meet(1, number, np.full(60, 1), 5.0 - number, account)
    thread.join()
  for number in range(2):
    again = exchange.meet(0, number, np.full(60, 7), 99.0, account)
    assert again.objective_us == answers[number].objective_us == 5.0 - number
    assert again.placement is answers[number].placement


def test_without_waiting_an_island_that_is_run_once_more_goes_on_from_what_it_had(sixty_ops):
  exchange = islands.Exchange(islands.Rules(2, False, None))
  problem, budget = sixty_ops(), Budget(max_seconds=600)
  problem.evaluate_ops(problem.allowed_ops.argmax(axis=1))

  def dies(view, budget, seed, island):
    island.exchange(registry.find("metis").load()(view, budget, seed), 1.0)
    raise KeyError("its machine")

  def goes_on(view, budget, seed, island):
    return view.account.best_known

  with pytest.raises(KeyError):
    islands.run_island(Executor().share(problem), dies, 1, budget, 0, exchange, False)
  found = exchange.accounts()[1]
  again = islands.run_island(Executor().share(problem), goes_on, 1, budget, 0, exchange, False)
  assert again.evaluations == found.evaluations > problem.account.evaluations == 1
  assert again.best_objective_us == found.best_objective_us < problem.account.best_objective_us
  assert again.improvements == found.improvements


def test_an_interrupt_ends_all_islands_and_keeps_what_they_found(sixty_ops):
  problem = sixty_ops()

  def observe():
    if problem.account.evaluations > 50:
      raise KeyboardInterrupt

  problem.evaluate_ops(problem.allowed_ops.argmax(axis=1))
  problem.account.observer = observe
  before = threading.enumerate()  # of which some, of other tests, may end meanwhile
  with pytest.raises(KeyboardInterrupt):
    islands.search_on_islands(
        problem, registry.find("annealing").load(), Budget(max_seconds=600), islands=_on(2))
  problem.account.observer = None
  assert set(threading.enumerate()) <= set(before)
  account = problem.account
  assert account.evaluations > 50 and account.history[-1][2] == account.best_objective_us


def test_an_error_on_an_island_is_raised_and_ends_the_others(sixty_ops):
  def search(problem, budget, seed, island):
    if island.number == 1:
      raise PlacementError("found on the second island")
    while not problem.account.exhausted(budget):
      island.exchange(problem.allowed_ops.argmax(axis=1), 1.0)
    return problem.allowed_ops.argmax(axis=1)

  problem = sixty_ops()
  problem.evaluate_ops(problem.allowed_ops.argmax(axis=1))
  with pytest.raises(PlacementError, match="second island"):
    islands.search_on_islands(problem, search, Budget(max_seconds=600), islands=_on(2))


def test_a_number_of_islands_below_one_is_refused():
  with pytest.raises(PlacementError, match="islands is 0"):
    islands.check_islands(0)
  islands.check_islands(None)
