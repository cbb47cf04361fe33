"""`auto`: who runs when, and when it stops."""

import numpy as np
import pytest

from placeto_tf.errors import SetupError
from placeto_tf.placing import auto, registry, running
from placeto_tf.placing.auto import EXACT_GROUPS, Auto, run_auto
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.ledger import NO_BUDGET
from placeto_tf.problem.method import AutoPart, Kind, Method, Stage, plain
from placeto_tf.search.exact import prove
from placeto_tf.search.local_search import search_locally
from placeto_tf.search.lower_bounds import lower_bound_us


def _rows(run):
  return {row.name: row for row in run.ledger.entries}


def _policy(placer, share=0.2, **part):
  return Method("policy", Kind.POLICY, plain(placer), auto=AutoPart(Stage.POLICY, share, **part))


def _wide(make_problem, make_cluster, count=60, gpus=3, **fields):
  """A graph whose bound is not met: layers of ops of all sizes that exchange data."""
  rng = np.random.default_rng(0)
  edges = [(u, v) for v in range(count) for u in range(max(0, v - 9), v) if rng.random() < 0.2]
  return make_problem(
      rng.integers(5, 50, count).astype(float), edges, rng.integers(100, 5000, count),
      cluster=make_cluster(gpus), max_groups=30, method="heavy_edge", **fields)


def _skip_annealing(monkeypatch):
  """Has annealing do nothing; returns a list of the starts [N], or None, that it gets."""
  began, run_method = [], running.run

  def run(problem, method, budget, seed, **own):
    if method.name == "annealing":
      began.append(own.get("start"))
      return problem.account.best_known
    return run_method(problem, method, budget, seed, **own)

  monkeypatch.setattr(auto.running, "run", run)
  return began


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("evaluations", [1, 7, 150])
def test_evaluations_are_limited_for_all_together(seed, evaluations, random_problem):
  problem = random_problem(seed)
  run = Auto(problem, Budget(max_evaluations=evaluations), seed, policies=())
  placement = run.run()
  assert problem.account.evaluations <= evaluations
  assert sum(row.evaluations for row in run.ledger.entries) == problem.account.evaluations
  ops = np.arange(problem.graph.num_ops)
  assert problem.allowed_ops[ops, placement].all()
  assert (placement == placement[problem.graph.colocation]).all()


def test_a_seed_gives_the_same_placement_and_contributions_again(make_problem, make_cluster):
  found = []
  for _ in range(2):
    problem = _wide(make_problem, make_cluster)
    run = Auto(problem, Budget(max_evaluations=900), 5, policies=())
    placement = run.run().tolist()
    found.append((placement, [
        (row.name, row.evaluations, row.gain_us) for row in run.ledger.entries]))
  assert found[0] == found[1]


def test_gains_add_up_from_the_first_placement_to_the_best(make_problem, make_cluster):
  problem = _wide(make_problem, make_cluster)
  run = Auto(problem, Budget(max_evaluations=900), 0, policies=())
  run.run()
  first_us = problem.account.history[0][2]
  gained = sum(row.gain_us for row in run.ledger.entries)
  assert first_us - gained == pytest.approx(problem.account.best_objective_us)
  assert _rows(run)["annealing"].gain_us > 0


def test_the_searches_and_the_policy_all_get_their_share(make_problem, make_cluster):
  problem = _wide(make_problem, make_cluster)
  seen = []

  def policy(problem, budget, seed):
    seen.append((problem.account.evaluations, budget.max_evaluations))
    start = problem.project(problem.account.best_placement)
    # It is handed groups that the best so far keeps to.
    assert (problem.grouping.expand(start) == problem.account.best_placement).all()
    problem.evaluate(start)
    return problem.account.best_placement

  run = Auto(problem, Budget(max_evaluations=2000), 0, policies=[_policy(policy)])
  run.run()
  rows = _rows(run)
  before, limit = seen[0]
  assert limit - before == np.ceil((2000 - before) / 5)
  assert rows["policy"].evaluations == 1
  assert problem.account.evaluations == 2000
  assert rows["annealing"].evaluations > rows["local_search"].evaluations > 0
  assert rows["refine"].evaluations > 0


@pytest.mark.parametrize("evaluations, anew", [(1500, False), (9000, True)])
def test_annealing_begins_where_policies_began_if_much_is_left(
    make_problem, make_cluster, monkeypatch, evaluations, anew):
  problem = _wide(make_problem, make_cluster)
  began, at_policy = _skip_annealing(monkeypatch), []

  def policy(problem, budget, seed):
    at_policy.append(problem.account.best_known.copy())
    return search_locally(problem, budget, seed)

  Auto(problem, Budget(max_evaluations=evaluations), policies=(_policy(policy),)).run()
  assert not np.array_equal(at_policy[0], problem.account.best_known)
  assert (began[0] is not None) == anew and began[1:] == [None] * len(began[1:])
  if anew:
    np.testing.assert_array_equal(began[0], at_policy[0])


@pytest.mark.parametrize("better", [0, 1])
def test_policies_and_annealing_begin_where_a_trial_gets_further(
    make_problem, make_cluster, monkeypatch, better):
  problem = _wide(make_problem, make_cluster)
  starts, limits, at_policy, began = [], [], [], _skip_annealing(monkeypatch)

  def policy(problem, budget, seed, start=None):
    if start is None:
      at_policy.append(problem.account.best_known.copy())
      return search_locally(problem, budget, seed)
    starts.append(start)
    limits.append(budget.max_evaluations - problem.account.evaluations)
    if len(starts) - 1 == better:
      return search_locally(problem, budget, seed)
    return problem.account.best_known

  run = Auto(problem, Budget(max_evaluations=9000), policies=(_policy(policy, trial=400),))
  run.run()
  reference, best = starts
  references = [_rows(run)[method.name].placement for method in registry.references()
                if method.name in _rows(run)]
  objectives = problem.renewed().evaluate_ops(np.array(references)).objective_us
  np.testing.assert_array_equal(reference, references[objectives.argmin()])
  assert not np.array_equal(reference, best)
  assert limits == [400, 400]
  np.testing.assert_array_equal(began[0], starts[better])
  assert not np.array_equal(at_policy[0], best)  # the policy goes on from what the trial found


def test_without_another_start_there_is_no_trial(make_problem, make_cluster, monkeypatch):
  parts_of_auto, starts = registry.parts_of_auto, []

  def policy(problem, budget, seed, start=None):
    starts.append(start)
    return problem.account.best_known

  monkeypatch.setattr(auto.registry, "parts_of_auto", lambda stage: (
      () if stage is Stage.CONSTRUCTION else parts_of_auto(stage)))
  Auto(_wide(make_problem, make_cluster), Budget(max_evaluations=300),
       policies=(_policy(policy, trial=25),)).run()
  assert starts == [None]


@pytest.mark.parametrize("evaluations", [40, 300])
def test_a_trial_gets_a_small_part_of_what_is_left(make_problem, make_cluster, evaluations):
  problem, used = _wide(make_problem, make_cluster), []

  def policy(problem, budget, seed, start=None):
    if start is not None:
      now = problem.account.evaluations
      used.append((evaluations - now, budget.max_evaluations - now))
    return search_locally(problem, budget, seed)

  Auto(problem, Budget(evaluations), policies=(_policy(policy, trial=1000),)).run()
  assert len(used) == 2
  assert all(part == np.ceil(auto.TRIAL_SHARE * left) for left, part in used)


def test_it_stops_when_the_bound_is_met(make_problem, make_cluster):
  problem = make_problem([10.0] * 30, cluster=make_cluster(3), max_groups=30)
  called = []
  policy = _policy(lambda *_: called)
  run = Auto(problem, Budget(max_evaluations=5000), 0, policies=[policy])
  run.run()
  assert problem.account.best_objective_us == pytest.approx(lower_bound_us(problem))
  assert run.proven and not called and problem.account.evaluations < 100
  assert _rows(run)["policy"].skipped == "nothing was left to gain"
  assert set(_rows(run)) >= {method.name for method in registry.references()}


def test_it_stops_once_twice_the_search_gains_less_than_was_asked_for(
    make_problem, make_cluster, monkeypatch):
  monkeypatch.setattr(auto, "FIRST_EVALUATIONS", 100)
  used = {}
  for within in (None, 0.001, 0.9):
    problem = _wide(make_problem, make_cluster)
    run = Auto(problem, Budget(max_evaluations=4000, stop_within=within), policies=())
    run.run()
    used[within] = problem.account.evaluations, run.ledger.no_more
  assert used[None] == (4000, False)
  # An eighth, then as much again: the gain of the second eighth is below 90 %.
  assert used[0.9][1] and 1000 < used[0.9][0] < 1200
  assert used[0.9][0] < used[0.001][0]


@pytest.mark.parametrize("within, evaluations, doublings", [
    (None, 10**6, 0), (0.01, 3999, 0), (0.01, 4000, 1), (0.01, 10**6, 3)])
def test_the_search_is_divided_only_as_often_as_its_first_part_is_long_enough(
    within, evaluations, doublings, make_problem, make_cluster):
  run = Auto(_wide(make_problem, make_cluster),
             Budget(max_evaluations=evaluations, stop_within=within), policies=())
  assert run._doublings() == doublings


def test_it_stops_when_the_optimum_is_proven(make_problem, make_cluster):
  rng = np.random.default_rng(2)
  edges = [(u, v) for v in range(9) for u in range(v) if rng.random() < 0.4]

  def make():
    return make_problem(
        np.arange(3.0, 12.0), edges, [300] * 9, cluster=make_cluster(2), max_groups=9)

  optimum = prove(make(), Budget(max_evaluations=10**6))
  problem = make()
  run = Auto(problem, Budget(max_evaluations=10**6), 0, policies=())
  run.run()
  assert optimum.proven and run.proven
  assert problem.account.best_objective_us == optimum.objective_us > lower_bound_us(problem) * 1.01
  assert problem.account.evaluations < 10**5


def test_a_proof_for_groups_that_could_be_split_does_not_stop_it(make_problem, make_cluster):
  edges = [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (3, 5), (4, 6), (5, 6)]
  problem = make_problem(
      [9.0, 7.0, 8.0, 6.0, 7.0, 5.0, 4.0], edges, [60] * 7, cluster=make_cluster(2),
      max_groups=3, method="heavy_edge")
  run = Auto(problem, Budget(max_evaluations=600), 0, policies=())
  run.run()
  assert problem.num_groups == 3 and "exact" in _rows(run)
  assert not run.proven and "annealing" in _rows(run)


def test_exact_is_not_tried_on_many_groups(make_problem, make_cluster):
  problem = _wide(make_problem, make_cluster)
  assert problem.num_groups > EXACT_GROUPS
  run = Auto(problem, Budget(max_evaluations=300), 0, policies=())
  run.run()
  assert "exact" not in _rows(run)


def test_a_policy_that_is_not_installed_is_left_out(make_problem, make_cluster):
  def policy(problem, budget, seed):
    raise SetupError("a part is not installed")

  run = Auto(_wide(make_problem, make_cluster), Budget(max_evaluations=300), 0,
             policies=[_policy(policy)])
  run.run()
  assert _rows(run)["policy"].skipped == "a part is not installed"
  assert _rows(run)["annealing"].evaluations > 0


@pytest.mark.usefixtures("clock_of_looks")
def test_a_policy_is_not_started_where_it_would_get_nothing_done(make_problem, make_cluster):
  called = []
  problem = _wide(make_problem, make_cluster)
  slow = _policy(lambda *_: called.append(1), setup_seconds=7.0)
  run = Auto(problem, Budget(max_seconds=0.5), 0, policies=[slow])
  run.run()
  assert not called and _rows(run)["policy"].skipped == "there was too little time"
  assert 0.4 < problem.account.seconds < 2


def test_a_used_up_budget_leaves_rows_that_say_so(make_problem, make_cluster):
  run = Auto(_wide(make_problem, make_cluster), Budget(max_evaluations=2), 0,
             policies=[_policy(lambda *_: None)])
  run.run()
  rows = _rows(run)
  assert [rows[method.name].evaluations for method in registry.references()] == [1, 1, 0, 0]
  assert rows["metis"].skipped == rows["policy"].skipped == NO_BUDGET


def test_small_budgets_leave_evaluations_for_more_than_metis(make_problem, make_cluster):
  problem = _wide(make_problem, make_cluster)
  run = Auto(problem, Budget(max_evaluations=40), 0, policies=())
  run.run()
  assert _rows(run)["annealing"].evaluations >= 8


@pytest.mark.usefixtures("clock_of_looks")
def test_an_op_on_one_device_is_answered_at_once(make_problem, make_cluster):
  problem = make_problem([5.0], cluster=make_cluster(1))
  assert run_auto(problem, Budget(max_seconds=30), 0, policies=()).tolist() == [0]
  assert problem.account.seconds < 5


@pytest.mark.usefixtures("clock_of_looks")
def test_one_device_is_answered_at_once(make_problem, make_cluster):
  problem = make_problem(
      [5.0] * 6, [(0, 1), (0, 2), (2, 5)], [10] * 6,
      cluster=make_cluster(1, overhead=3.0, bus_gap_us=2.0))
  run_auto(problem, Budget(max_seconds=30), 0, policies=())
  assert problem.account.seconds < 5


def test_more_devices_than_groups(make_problem, make_cluster):
  problem = make_problem([5.0, 4.0], [(0, 1)], [10, 10], cluster=make_cluster(5))
  run_auto(problem, Budget(max_evaluations=200), 0, policies=())
  assert problem.account.best_objective_us == 9


def test_groups_that_fit_nowhere_get_the_placement_that_exceeds_least(make_problem, make_cluster):
  problem = make_problem(
      [5.0] * 4, [(0, 1)], persistent_bytes=[100] * 4, cluster=make_cluster(2, memory=150))
  run = Auto(problem, Budget(max_evaluations=500), 0, policies=())
  placement = run.run()
  assert not problem.account.best_fits and not run.proven
  assert sorted(np.bincount(placement)) == [2, 2]


def test_disconnected_parts_are_spread(make_problem, make_cluster):
  edges = [(6 * part + i, 6 * part + i + 1) for part in range(4) for i in range(5)]
  problem = make_problem([10.0] * 24, edges, [3000] * 24, cluster=make_cluster(4))
  run_auto(problem, Budget(max_evaluations=5000), 0, policies=())
  assert problem.account.best_objective_us == 60


def test_a_target_ends_it_without_a_claim_to_be_optimal(make_problem, make_cluster):
  problem = _wide(make_problem, make_cluster)
  run = Auto(problem, Budget(max_evaluations=5000, target_us=1e9), 0, policies=())
  run.run()
  assert problem.account.evaluations < 100 and not run.proven
