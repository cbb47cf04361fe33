"""Lower bounds and optima, against every placement of small problems."""

import itertools

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from enumerated_problems import every_kind_of_problem, least_us
from exact import prove
from partial_bounds import PartialBounds
from properties import examples

from placeto_tf.problem.budget import Budget
from placeto_tf.search.lower_bounds import LowerBounds, lower_bound_us


def test_a_chain_is_bound_by_its_path_and_the_cheaper_of_overhead_and_transfer(
    make_problem, make_cluster):
  # 10 + 10 + 10 us of work; between two ops either the overhead of 5 us on one device or a
  # transfer: 200 bytes take 2 us, 1000 bytes 10 us. 10 + 2 + 10 + 5 + 10 = 37.
  cluster = make_cluster(2, bandwidth=100.0, overhead=5.0)
  problem = make_problem([10.0] * 3, [(0, 1), (1, 2)], [200, 1000, 0], cluster=cluster)
  assert LowerBounds(problem).path_us() == pytest.approx(37)


def test_ops_that_cannot_share_a_device_pay_the_transfer(make_problem, make_cluster):
  cluster = make_cluster(1, host=True, bandwidth=100.0, overhead=5.0)
  problem = make_problem([10.0] * 2, [(0, 1)], [2000, 0], cluster=cluster, host_ops=[1])
  assert LowerBounds(problem).path_us() == pytest.approx(10 + 20 + 10)


def test_independent_work_is_shared_by_equal_devices(make_problem, make_cluster):
  # 4 ops of 10 + 2 us on 2 devices: 48 us of device time, less one overhead a device.
  problem = make_problem([10.0] * 4, cluster=make_cluster(2, overhead=2.0))
  assert LowerBounds(problem).window_us() == pytest.approx(22)
  assert problem.evaluate_ops(np.array([0, 0, 1, 1])).step_time_us[0] == pytest.approx(22)


@hypothesis.given(st.integers(0, 2**32 - 1))
@examples(150)
def test_no_placement_of_many_ops_beats_the_bound(random_problem, seed):
  problem = random_problem(seed)
  bound = lower_bound_us(problem)
  rng = np.random.default_rng(seed)
  sets = problem.graph.colocation
  scores = rng.random((16, problem.graph.num_ops, problem.num_devices))
  found = problem.evaluate_ops(np.where(problem.allowed_ops, scores, -1).argmax(axis=2)[:, sets])
  assert (found.step_time_us[found.fits] >= bound).all()


def test_no_placement_at_all_beats_the_bound_on_any_kind_of_cluster():
  # tests/robustness/enumerate_bounds.py goes through many more.
  tight, count = 0, 0
  for seed in range(120):
    problem = every_kind_of_problem(seed)
    best = least_us(problem)
    if best is not None and np.isfinite(best):
      bound = lower_bound_us(problem)
      assert bound <= best, seed
      count, tight = count + 1, tight + (bound >= best * (1 - 1e-6))
  assert count > 80 and tight > 0.4 * count


def test_inputs_are_made_one_after_the_other_or_wait_for_a_transfer(make_problem, make_cluster):
  # Four inputs of 10 us, 1500 bytes each: from elsewhere the join starts at 10 + 15 at the
  # earliest, and three of the four on its own device already take 30. With 3000 bytes, 40 us.
  def joined(size):
    return make_problem(
        [10.0] * 5, [(i, 4) for i in range(4)], [size] * 5, cluster=make_cluster(
            5, bandwidth=100.0))
  assert LowerBounds(joined(1500)).path_us() == pytest.approx(25 + 10)
  assert LowerBounds(joined(2500)).path_us() == pytest.approx(35 + 10)
  assert LowerBounds(joined(9000)).path_us() == pytest.approx(40 + 10)
  assert joined(9000).evaluate_ops(np.zeros(5, int)).step_time_us[0] == pytest.approx(50)


def test_what_leads_to_an_input_that_is_late_is_late_too(make_problem, make_cluster):
  # Three chains of 10 + 10 us into a join. An end of a chain that comes from elsewhere arrives at
  # 20 + 50; its first op, from elsewhere, at 10 + 50 + 10. So all six are where the join is.
  problem = make_problem(
      [10.0] * 7, [(0, 1), (2, 3), (4, 5), (1, 6), (3, 6), (5, 6)], [5000] * 7,
      cluster=make_cluster(4, bandwidth=100.0))
  assert LowerBounds(problem).path_us() == pytest.approx(60 + 10)


def test_colocated_ops_pay_no_transfer_and_follow_one_another(make_problem, make_cluster):
  # Four inputs that share the join's device take 40 us, though a transfer would take 1.
  problem = make_problem(
      [10.0] * 5, [(i, 4) for i in range(4)], [100] * 5, colocation=np.zeros(5, dtype=np.int32),
      cluster=make_cluster(2, bandwidth=100.0))
  assert LowerBounds(problem).path_us() == pytest.approx(50)




def test_work_between_what_comes_first_and_last_has_less_time(make_problem, make_cluster):
  # 10 us, then 4 x 10 us on two devices, then 10 us; transfers take 1 us.
  edges = [(0, i) for i in range(1, 5)] + [(i, 5) for i in range(1, 5)]
  problem = make_problem(
      [10.0] * 6, edges, [100] * 6, cluster=make_cluster(2, bandwidth=100.0))
  assert LowerBounds(problem).window_us() == pytest.approx(10 + 20 + 10)


def _all_objectives(problem):
  """(bytes over memory, objective) of every placement of the groups."""
  choices = [np.flatnonzero(row) for row in problem.allowed]
  every = np.array(list(itertools.product(*choices)), dtype=np.int32)
  found = problem.evaluate(every)
  return every, np.stack([found.excess_bytes, found.objective_us], axis=1)


@pytest.mark.parametrize("seed", range(16))
def test_the_optimum_is_what_trying_everything_finds(seed, random_problem):
  problem = random_problem(seed)
  if problem.num_devices ** problem.num_groups > 70_000:
    pytest.skip("too many placements to try")
  result = prove(problem, Budget(max_evaluations=100_000))
  _, objectives = _all_objectives(problem)
  assert result.proven
  excess_bytes = problem.evaluate_ops(result.placement).excess_bytes[0]
  assert [excess_bytes, result.objective_us] == min(objectives.tolist())
  assert result.lower_bound_us == result.objective_us
  assert problem.evaluate_ops(result.placement).objective_us[0] == result.objective_us


@pytest.mark.parametrize("seed", range(12))
def test_no_completion_is_below_the_bound_of_a_partial_placement(seed, random_problem):
  problem = random_problem(seed)
  rng = np.random.default_rng(seed)
  bounds = PartialBounds(problem)
  scores = rng.random((50, problem.num_groups, problem.num_devices))
  complete = np.where(problem.allowed, scores, -1).argmax(axis=2).astype(np.int32)
  step_us = problem.evaluate(complete).step_time_us
  for hidden in (0.0, 0.5, 1.0):
    partial = np.where(rng.random(complete.shape) < hidden, -1, complete)
    assert (bounds.lower_us(partial) <= step_us).all()
