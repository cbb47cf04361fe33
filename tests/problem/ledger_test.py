import pytest

from placeto_tf.problem.budget import Budget
from placeto_tf.problem.ledger import NO_BUDGET, Ledger
from placeto_tf.search.metis import partition_ops

NONE = Budget()


def _everything_on(device):
  def placer(problem, budget, seed):
    placement = problem.grouping.expand(problem.allowed.argmax(axis=1)) * 0 + device
    problem.evaluate_ops(placement)
    return placement.astype("int32")
  return placer


def _half(problem, budget, seed):
  """Two independent ops apart."""
  problem.evaluate([[0, 1]])
  return problem.grouping.expand([0, 1])


def test_the_first_gains_nothing_and_later_ones_what_they_take_off(make_problem):
  ledger = Ledger(make_problem([7.0, 5.0]))
  assert ledger.run("one", _everything_on(0), NONE, 0) == 0.0
  assert ledger.run("half", _half, NONE, 0) == 5.0  # 12 us, then 7
  assert ledger.run("other", _everything_on(1), NONE, 0) == 0.0
  assert [(row.name, row.evaluations, row.gain_us) for row in ledger.entries] == [
      ("one", 1, 0.0), ("half", 1, 5.0), ("other", 1, 0.0)]
  assert ledger.entries[1].placement.tolist() == [0, 1]


def test_a_placer_that_runs_twice_has_one_row(make_problem):
  ledger = Ledger(make_problem([7.0, 5.0]))
  ledger.run("one", _everything_on(0), NONE, 0)
  ledger.run("half", _half, NONE, 0)
  ledger.run("one", _everything_on(1), NONE, 0)
  assert [(row.name, row.evaluations) for row in ledger.entries] == [("one", 2), ("half", 1)]
  assert ledger.entries[0].placement.tolist() == [1, 1]


def test_what_found_the_budget_used_up_says_so(make_problem):
  problem = make_problem([7.0, 5.0])
  ledger = Ledger(problem)
  ledger.run("single", _everything_on(0), Budget(max_evaluations=1), 0)
  ledger.run("metis", partition_ops, Budget(max_evaluations=1), 0)
  row = ledger.entries[1]
  assert (row.placement, row.evaluations, row.skipped) == (None, 0, NO_BUDGET)


def test_an_interrupted_placer_keeps_its_row(make_problem):
  ledger = Ledger(make_problem([7.0, 5.0]))
  ledger.run("one", _everything_on(0), NONE, 0)

  def interrupted(problem, budget, seed):
    _half(problem, budget, seed)
    raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    ledger.run("half", interrupted, NONE, 0)
  assert ledger.entries[1].gain_us == 5.0
  assert ledger.entries[1].placement.tolist() == [0, 1]
