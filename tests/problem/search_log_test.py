import functools

import pytest


def _everything_on(problem, device):
  def place():
    placement = problem.grouping.expand(problem.allowed.argmax(axis=1)) * 0 + device
    problem.evaluate_ops(placement)
    return placement.astype("int32")
  return place


def _half(problem):
  """Two independent ops apart."""
  problem.evaluate([[0, 1]])
  return problem.grouping.expand([0, 1])


def test_the_first_gains_nothing_and_later_ones_what_they_take_off_their_start(make_problem):
  problem = make_problem([7.0, 5.0])
  problem.search_log.run("one", _everything_on(problem, 0))
  problem.search_log.run("half", functools.partial(_half, problem))  # 12 us, then 7
  problem.search_log.run("other", _everything_on(problem, 1))
  records = problem.search_log.method_runs
  assert [(each.name, each.evaluations, each.gain_us, each.start_us) for each in records] == [
      ("one", 1, 0.0, None), ("half", 1, 5.0, 12.0), ("other", 1, 0.0, 7.0)]
  assert records[1].placement.tolist() == [0, 1]


def test_a_method_that_runs_twice_has_one_record(make_problem):
  problem = make_problem([7.0, 5.0])
  problem.search_log.run("one", _everything_on(problem, 0))
  problem.search_log.run("half", functools.partial(_half, problem))
  problem.search_log.run("one", _everything_on(problem, 1))
  records = problem.search_log.method_runs
  assert [(each.name, each.evaluations) for each in records] == [("one", 2), ("half", 1)]
  assert records[0].placement.tolist() == [1, 1] and records[0].start_us is None


def test_an_interrupted_method_keeps_its_record(make_problem):
  problem = make_problem([7.0, 5.0])
  problem.search_log.run("one", _everything_on(problem, 0))

  def interrupted():
    _half(problem)
    raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    problem.search_log.run("half", interrupted)
  assert problem.search_log.method_runs[1].gain_us == 5.0
  assert problem.search_log.method_runs[1].placement.tolist() == [0, 1]


def test_of_placements_that_do_not_fit_the_one_that_lacks_least_memory_is_best(
    make_problem, make_cluster):
  # On one device 180 bytes and outputs are too much, apart 80 and outputs, which takes longer.
  problem = make_problem(
      [5.0] * 3, [(0, 1), (1, 2)], [20] * 3, persistent_bytes=[100] * 3,
      cluster=make_cluster(2, memory=120, overhead=0.0))
  evaluation = problem.evaluate_ops([[0, 0, 0], [0, 1, 0]])
  assert evaluation.objective_us[0] < evaluation.objective_us[1]
  assert evaluation.best() == 1 and problem.search_log.best_placement.tolist() == [0, 1, 0]
  assert not problem.search_log.best_fits
