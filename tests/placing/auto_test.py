"""`auto`: who runs when, and when it stops."""

import numpy as np
import pytest

from placeto_tf.placing import auto, registry
from placeto_tf.placing.auto import run_auto
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.method import Kind, Method, plain
from placeto_tf.search.lower_bounds import lower_bound_us


def _auto(problem, budget, seed=0, *, policy=None, **options):
  """Runs auto, with a policy of the test's or none; returns the problem's log."""
  if policy is None:
    run_auto(problem, budget, seed, learned=False, **options)
  else:
    with pytest.MonkeyPatch.context() as patch:
      patch.setattr(registry, "search_of_auto", lambda learned: policy)
      run_auto(problem, budget, seed, **options)
  return problem.search_log


def _rows(log):
  return {row.name: row for row in log.method_runs}


def _policy(placer):
  return Method("policy", Kind.POLICY, plain(placer))


def _wide(make_problem, make_cluster, count=60, gpus=3, **fields):
  """A graph whose bound is not met: layers of ops of all sizes that exchange data."""
  rng = np.random.default_rng(0)
  edges = [(u, v) for v in range(count) for u in range(max(0, v - 9), v) if rng.random() < 0.2]
  return make_problem(
      rng.integers(5, 50, count).astype(float), edges, rng.integers(100, 5000, count),
      cluster=make_cluster(gpus), max_groups=30, method="heavy_edge", **fields)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("evaluations", [1, 7, 150])
def test_evaluations_are_limited_for_all_together(seed, evaluations, random_problem):
  problem = random_problem(seed)
  log = _auto(problem, Budget(max_evaluations=evaluations), seed)
  placement = log.best_known
  assert problem.search_log.evaluations <= evaluations
  assert sum(row.evaluations for row in log.method_runs) == problem.search_log.evaluations
  assert problem.allowed_ops[np.arange(problem.graph.num_ops), placement].all()
  assert (placement == placement[problem.graph.colocation]).all()


def test_a_seed_gives_the_same_placement_and_contributions_again(make_problem, make_cluster):
  found = []
  for _ in range(2):
    log = _auto(_wide(make_problem, make_cluster), Budget(max_evaluations=900), 5)
    placement = log.best_known.tolist()
    found.append((placement, [
        (row.name, row.evaluations, row.gain_us) for row in log.method_runs]))
  assert found[0] == found[1]


def test_the_policy_gets_what_references_and_constructions_leave(make_problem, make_cluster):
  problem = _wide(make_problem, make_cluster)
  seen = []

  def policy(problem, budget, seed):
    seen.append((problem.search_log.evaluations, budget.max_evaluations))
    return problem.search_log.best_placement

  log = _auto(problem, Budget(max_evaluations=2000), policy=_policy(policy))
  assert seen == [(log.evaluations, 2000)] and 7 < log.evaluations < 400
  assert _rows(log)["policy"].evaluations == 0
  assert _rows(log)["policy"].start_us == log.best_objective_us


@pytest.mark.parametrize("evaluations", [20, 100])
def test_a_start_takes_one_evaluation_where_there_are_few(evaluations, make_problem, make_cluster):
  log = _auto(_wide(make_problem, make_cluster, gpus=4), Budget(max_evaluations=evaluations))
  starts = [row.evaluations for name, row in _rows(log).items() if name != "annealing"]
  assert len(starts) == 7 and max(starts) <= max(1, evaluations / 50)
  assert _rows(log)["annealing"].evaluations == evaluations - sum(starts)


@pytest.mark.parametrize("compute_us", [10.0, 0.0])
def test_it_stops_when_the_bound_is_met(compute_us, make_problem, make_cluster):
  problem = make_problem([compute_us] * 30, cluster=make_cluster(3), max_groups=30)
  called = []
  log = _auto(problem, Budget(max_evaluations=5000), policy=_policy(lambda *_: called))
  assert problem.search_log.best_objective_us == pytest.approx(lower_bound_us(problem))
  assert log.proven and not called and problem.search_log.evaluations < 100
  assert _rows(log)["policy"].placement is None
  assert set(_rows(log)) >= {method.name for method in registry.references()}


def test_it_stops_once_twice_the_search_gains_less_than_was_asked_for(
    make_problem, make_cluster, monkeypatch):
  monkeypatch.setattr(auto, "FIRST_EVALUATIONS", 100)
  used = {}
  for within in (None, 0.001, 0.9):
    log = _auto(_wide(make_problem, make_cluster), Budget(max_evaluations=4000, stop_within=within))
    used[within] = log.evaluations, log.saturated
  assert used[None] == (4000, False)
  # An eighth, then as much again: the gain of the second eighth is below 90 %.
  assert used[0.9][1] and 1000 < used[0.9][0] < 1200
  assert used[0.9][0] <= used[0.001][0]


def test_a_used_up_budget_leaves_rows_that_say_so(make_problem, make_cluster):
  rows = _rows(_auto(_wide(make_problem, make_cluster), Budget(max_evaluations=2),
                     policy=_policy(lambda *_: None)))
  assert [rows[method.name].evaluations for method in registry.references()] == [1, 1, 0, 0]
  assert rows["metis"].placement is None and rows["policy"].placement is None


def test_groups_that_fit_nowhere_get_the_placement_that_exceeds_least(make_problem, make_cluster):
  problem = make_problem(
      [5.0] * 4, [(0, 1)], persistent_bytes=[100] * 4, cluster=make_cluster(2, memory=150))
  log = _auto(problem, Budget(max_evaluations=500))
  placement = log.best_known
  assert not log.best_fits and not log.proven
  assert sorted(np.bincount(placement)) == [2, 2]


def test_disconnected_parts_are_spread(make_problem, make_cluster):
  edges = [(6 * part + i, 6 * part + i + 1) for part in range(4) for i in range(5)]
  problem = make_problem([10.0] * 24, edges, [3000] * 24, cluster=make_cluster(4))
  run_auto(problem, Budget(max_evaluations=5000), 0, learned=False)
  assert problem.search_log.best_objective_us == 60


def test_a_target_ends_it_without_a_claim_to_be_optimal(make_problem, make_cluster):
  log = _auto(_wide(make_problem, make_cluster), Budget(max_evaluations=5000, target_us=1e9))
  assert log.evaluations < 100 and not log.proven
