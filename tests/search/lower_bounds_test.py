import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from placeto_tf.search.lower_bounds import (
  earliest_ends_us,
  forced_transfer_us,
  lower_bound_us,
  work_us,
)


def test_a_chain_is_bound_by_its_path_and_the_cheaper_of_overhead_and_transfer(
    make_problem, make_cluster):
  # 10 + 10 + 10 us of work; between two ops either the overhead of 5 us on one device or a
  # transfer: 200 bytes take 2 us, 1000 bytes 10 us. 10 + 2 + 10 + 5 + 10 = 37.
  cluster = make_cluster(2, bandwidth=100.0, overhead=5.0)
  problem = make_problem([10.0] * 3, [(0, 1), (1, 2)], [200, 1000, 0], cluster=cluster)
  assert earliest_ends_us(problem).max() == pytest.approx(37)


def test_ops_that_cannot_share_a_device_pay_the_transfer(make_problem, make_cluster):
  cluster = make_cluster(1, host=True, bandwidth=100.0, overhead=5.0)
  problem = make_problem([10.0] * 2, [(0, 1)], [2000, 0], cluster=cluster, host_ops=[1])
  assert earliest_ends_us(problem).max() == pytest.approx(10 + 20 + 10)


def test_an_op_that_launches_no_kernel_pays_no_overhead(make_problem, make_cluster):
  cluster = make_cluster(1, overhead=5.0)
  problem = make_problem([10.0, 0.0, 10.0], [(0, 1), (1, 2)], cluster=cluster)
  assert earliest_ends_us(problem).max() == pytest.approx(10 + 5 + 0 + 10)


def test_independent_work_is_shared_by_equal_devices(make_problem, make_cluster):
  # 4 ops of 10 + 2 us on 2 devices: 48 us of device time, less one overhead a device.
  problem = make_problem([10.0] * 4, cluster=make_cluster(2, overhead=2.0))
  assert work_us(problem) == pytest.approx(22)
  assert problem.evaluate_ops(np.array([0, 0, 1, 1])).step_time_us[0] == pytest.approx(22)


def test_unequal_devices_share_work_by_speed(make_problem, make_cluster):
  # Every op takes 10 us on the one and 30 us on the other: 40 ops finish in 300 us at best.
  cluster = make_cluster(2, speeds=[0, 1])
  problem = make_problem(np.tile([10.0, 30.0], (40, 1)), cluster=cluster)
  assert work_us(problem) == pytest.approx(300, rel=0.02)
  assert work_us(problem) <= 300


def test_work_of_the_host_does_not_count_for_other_devices(make_problem, make_cluster):
  cluster = make_cluster(2, host=True)
  problem = make_problem([10.0] * 4 + [70.0], cluster=cluster, host_ops=[4])
  assert work_us(problem) == pytest.approx(70, rel=0.05)


@hypothesis.given(st.integers(0, 2**32 - 1))
@hypothesis.settings(deadline=None, derandomize=True, max_examples=150)
def test_no_placement_beats_the_bound(random_problem, seed):
  problem = random_problem(seed)
  bound = lower_bound_us(problem)
  rng = np.random.default_rng(seed)
  sets = problem.graph.colocation
  scores = rng.random((16, problem.graph.num_ops, problem.num_devices))
  placements = np.where(problem.allowed_ops, scores, -1).argmax(axis=2)[:, sets]
  found = problem.evaluate_ops(placements)
  assert (found.step_time_us[found.fits] >= bound).all()


def test_variables_that_fill_two_devices_force_the_cheapest_transfer(make_problem, make_cluster):
  # A chain of 3 ops of 10 us whose variables need two devices: 100 bytes a us, so cutting after
  # op 0 costs 20 us, after op 1 only 5.
  cluster = make_cluster(2, bandwidth=100.0, memory=250)
  problem = make_problem(
      [10.0] * 3, [(0, 1), (1, 2)], [2000, 500, 0], persistent_bytes=[100] * 3, cluster=cluster)
  assert earliest_ends_us(problem).max() == pytest.approx(30)
  assert forced_transfer_us(problem, earliest_ends_us(problem)) == pytest.approx(35)
  assert problem.evaluate_ops(np.array([0, 0, 1])).step_time_us[0] == pytest.approx(35)


def test_what_fits_on_one_device_forces_nothing(make_problem, make_cluster):
  cluster = make_cluster(2, bandwidth=100.0, memory=300)
  problem = make_problem(
      [10.0] * 3, [(0, 1), (1, 2)], [2000, 500, 0], persistent_bytes=[100] * 3, cluster=cluster)
  assert forced_transfer_us(problem, earliest_ends_us(problem)) == 0


def test_parts_without_an_edge_between_them_are_not_cut(make_problem, make_cluster):
  # Two chains that fill a device each: together they need both, but no tensor has to cross.
  cluster = make_cluster(2, bandwidth=100.0, memory=200)
  problem = make_problem(
      [10.0] * 4, [(0, 1), (2, 3)], [2000] * 4, persistent_bytes=[100] * 4, cluster=cluster)
  assert forced_transfer_us(problem, earliest_ends_us(problem)) == 0


def test_colocated_ops_are_not_what_is_cut(make_problem, make_cluster):
  # The cheap cut is between ops that must stay together, so the dear one counts.
  cluster = make_cluster(2, bandwidth=100.0, memory=250)
  problem = make_problem(
      [10.0] * 3, [(0, 1), (1, 2)], [2000, 500, 0], persistent_bytes=[100] * 3, cluster=cluster,
      colocation=np.array([0, 1, 1], dtype=np.int32))
  assert forced_transfer_us(problem, earliest_ends_us(problem)) == pytest.approx(10 + 20 + 20)
