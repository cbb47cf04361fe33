import numpy as np
import pytest

from placeto_tf.search.baechi import m_etf
from placeto_tf.search.heft import plan, schedule_heft
from placeto_tf.search.list_scheduling import Schedule, Timeline, set_memory_bytes, upward_ranks


def test_a_timeline_finds_the_first_gap_that_is_long_enough():
  timeline = Timeline()
  timeline.book(0, 10)
  timeline.book(15, 5)
  assert timeline.earliest(0, 5) == 10
  assert timeline.earliest(0, 6) == 20
  assert timeline.earliest(12, 3) == 12
  assert timeline.earliest(12, 4) == 20
  assert timeline.earliest(30, 1) == 30


def test_bookings_never_overlap():
  rng = np.random.default_rng(0)
  timeline, taken = Timeline(), []
  for _ in range(200):
    ready, length = float(rng.integers(0, 300)), float(rng.integers(1, 9))
    start = timeline.earliest(ready, length)
    assert start >= ready
    assert all(start >= b or start + length <= a for a, b in taken)
    timeline.book(start, length)
    taken.append((start, start + length))


@pytest.fixture(name="late")
def late_fixture(make_cluster):
  """Two devices with a latency and a gap of 1 us."""
  return make_cluster(2, latency=1.0)


def _fork(make_problem, **fields):
  """Op 0 sends one tensor each to 1 and 2: outputs 0 and 1 of 500 bytes take 5 us each."""
  return make_problem([10.0] * 3, [(0, 1), (0, 2)], [500] * 3, **fields)


def test_with_links_a_tensor_is_sent_once(make_problem, late):
  schedule = Schedule(_fork(make_problem, cluster=late), links=True)
  schedule.place(0, 0, 0.0)
  assert schedule.data_ready_us(1, 1) == 16  # the latency follows the transfer
  schedule.place(1, 1, 0.0)
  assert schedule.end_us[1] == 26
  assert schedule.data_ready_us(2, 1) == 16


@pytest.mark.parametrize("transfers, same, other", [
    ("device", 17 + 5 + 1, 17 + 5 + 1), ("pair", 17 + 5 + 1, 12 + 5 + 1),
    ("unlimited", 12 + 5 + 1, 12 + 5 + 1)])
def test_with_links_the_second_tensor_waits_as_transfers_queue(
    transfers, same, other, make_problem, make_cluster):
  cluster = make_cluster(3, latency=1.0, bus_gap_us=2.0, transfers=transfers)
  problem = make_problem([10.0] * 4, [(0, 2), (1, 3)], [500] * 4, cluster=cluster)
  schedule = Schedule(problem, links=True)
  schedule.place(0, 0, 0.0)
  schedule.place(2, 1, 0.0)  # sends from 10 to 15, and the bus is free at 17
  schedule.place(1, 0, 0.0)
  schedule.end_us[1] = 12.0
  assert (schedule.data_ready_us(3, 1), schedule.data_ready_us(3, 2)) == (same, other)


def test_packing_and_unpacking_keep_devices_busy(make_problem, make_cluster):
  # Packing of 500 bytes takes 5 us of device 0, the link 5 us, unpacking 10 us of device 1.
  cluster = make_cluster(2, latency=1.0, sender_us_per_byte=0.01, receiver_us_per_byte=0.02)
  problem = _fork(make_problem, cluster=cluster)
  schedule = Schedule(problem, links=True)
  schedule.place(0, 0, 0.0)
  assert schedule.data_ready_us(1, 1) == 10 + 5 + 5 + 1 + 10
  schedule.place(1, 1, 0.0)
  assert schedule.end_us[1] == 41 and schedule.data_ready_us(2, 1) == 31  # sent once
  assert [schedule.devices[d].earliest(10, 5) for d in range(2)] == [15, 10]
  assert schedule.devices[1].earliest(20, 5) == 41
  assert upward_ranks(schedule, problem)[0] == pytest.approx(10 + 5 + 5 + 1 + 10 + 10)


def test_dear_packing_keeps_heft_on_one_device(make_problem, make_cluster):
  edges = [(u, v) for v in range(1, 40) for u in {max(0, v - 1), max(0, v - 3)}]
  cluster = make_cluster(
      4, bandwidth=1e9, sender_us_per_byte=1.0, receiver_us_per_byte=1.0)
  problem = make_problem([100.0] * 40, edges, [1000] * 40, cluster=cluster)
  assert problem.evaluate_ops(schedule_heft(problem)).step_time_us[0] == 4000


def test_colocated_ops_follow_the_first(make_problem):
  problem = make_problem([1.0] * 3, colocation=np.array([0, 1, 0], np.int32))
  schedule = Schedule(problem, links=False)
  assert schedule.candidates(2) == [0, 1]
  schedule.place(0, 1, 0.0)
  assert schedule.candidates(2) == [1] and schedule.candidates(1) == [0, 1]


def test_devices_without_room_are_no_candidates(make_problem, make_cluster):
  problem = make_problem(
      [1.0] * 3, persistent_bytes=[60, 60, 60], cluster=make_cluster(2, memory=[100, 70]))
  schedule = Schedule(problem, links=False)
  schedule.place(0, 0, 0.0)
  assert schedule.candidates(1) == [1]
  schedule.place(1, 1, 0.0)
  assert schedule.candidates(2) == [0]  # none has room; 40 bytes are left here, 10 there


def test_memory_of_sets_adds_up_to_the_peak_on_one_device(make_problem):
  problem = make_problem(
      [1.0] * 3, [(0, 1), (1, 2)], [100, 100, 100], persistent_bytes=[50, 0, 0])
  # 50 bytes throughout, and two outputs alive while op 1 or op 2 runs.
  assert sum(set_memory_bytes(problem)) == pytest.approx(250)


def test_upward_ranks_by_hand(make_problem, late):
  # Means over devices: 10 us an op, 500 bytes in 5 us plus 1 us latency.
  problem = _fork(make_problem, cluster=late)
  assert upward_ranks(Schedule(problem, links=False), problem) == pytest.approx([26, 10, 10])


def test_m_etf_starts_each_op_as_early_as_it_can(make_problem):
  # 0 and 1 start at once on one device each; 2 follows 0 there because a transfer takes longer.
  found = m_etf(make_problem([10.0, 8.0, 5.0], [(0, 2)], [1000] * 3)).tolist()
  assert found[0] != found[1] and found[2] == found[0]


def test_m_etf_leaves_a_full_device_alone(make_problem, make_cluster):
  problem = make_problem(
      [10.0, 10.0], [(0, 1)], persistent_bytes=[60, 60], cluster=make_cluster(2, memory=100))
  assert sorted(m_etf(problem).tolist()) == [0, 1]


def test_each_op_goes_where_it_is_fast(make_problem, make_cluster):
  problem = make_problem(
      [[1.0, 50.0], [50.0, 1.0]], cluster=make_cluster(2, speeds=[0, 1]))
  assert schedule_heft(problem).tolist() == [0, 1]


def test_queues_keep_the_form_with_links_from_sending_everything(make_problem):
  # One source feeds six ops with a tensor each of 20 us. As published all six can go to the other
  # device at once; the bus takes them one after the other, so half of them is better kept.
  problem = make_problem([1.0] * 6 + [30.0] * 6, [(i, i + 6) for i in range(6)], [2000] * 12)
  plain = problem.evaluate_ops(plan(problem, links=False)).step_time_us[0]
  linked = problem.evaluate_ops(plan(problem, links=True)).step_time_us[0]
  assert linked <= plain
  assert np.bincount(plan(problem, links=True), minlength=2).min() > 0
  assert problem.evaluate_ops(schedule_heft(problem)).step_time_us[0] == linked
