import pytest

from placeto_tf.search.baechi import m_etf, m_sct, m_topo
from placeto_tf.search.sct_linear_program import favourite_children


def test_m_topo_fills_devices_in_topological_order(make_problem, make_cluster):
  # 4 x 100 bytes on two devices: a quota of 200 + 100 each.
  problem = make_problem(
      [1.0] * 4, [(i, i + 1) for i in range(3)], persistent_bytes=[100] * 4,
      cluster=make_cluster(2))
  assert m_topo(problem).tolist() == [0, 0, 0, 1]


def test_m_topo_keeps_to_what_a_device_has(make_problem, make_cluster):
  problem = make_problem(
      [1.0] * 4, [(i, i + 1) for i in range(3)], persistent_bytes=[100] * 4,
      cluster=make_cluster(2, memory=250))
  assert m_topo(problem).tolist() == [0, 0, 1, 1]


def test_m_etf_starts_each_op_as_early_as_it_can(make_problem):
  # 0 and 1 start at once on one device each; 2 follows 0 there because a transfer takes longer.
  problem = make_problem([10.0, 8.0, 5.0], [(0, 2)], [1000] * 3)
  found = m_etf(problem).tolist()
  assert found[0] != found[1] and found[2] == found[0]


def test_m_etf_leaves_a_full_device_alone(make_problem, make_cluster):
  problem = make_problem(
      [10.0, 10.0], [(0, 1)], persistent_bytes=[60, 60], cluster=make_cluster(2, memory=100))
  assert sorted(m_etf(problem).tolist()) == [0, 1]


def test_an_op_has_one_favourite_child_and_is_that_of_one_op(make_problem):
  problem = make_problem(
      [10.0] * 4, [(0, 2), (0, 3), (1, 3)], [5000, 100, 0, 0])
  children = favourite_children(problem)
  chosen = [child for child in children if child >= 0]
  assert len(chosen) == len(set(chosen))
  assert children[2] == children[3] == -1


def test_the_favourite_is_the_child_on_the_longest_path(make_problem):
  # 0 feeds 1 (50 us) and 2 (1 us) over links of 10 us: staying with 1 shortens the schedule.
  problem = make_problem([10.0, 50.0, 1.0], [(0, 1), (0, 2)], [1000, 0, 0])
  assert favourite_children(problem)[0] == 1


def test_m_sct_keeps_the_device_for_the_favourite_child(make_problem):
  # When 0 ends, 3 could start on its device at once, but would hold up the favourite child 2
  # of 0, which waits for 1 until 12: m-SCT keeps 2 with 0.
  problem = make_problem(
      [10.0, 12.0, 50.0, 30.0], [(0, 2), (1, 2), (1, 3)], [3000, 10, 0, 10])
  found = m_sct(problem)
  assert found[2] == found[0]


@pytest.mark.parametrize("placer", [m_etf, m_sct])
def test_ops_without_a_kernel_are_scheduled_on_the_host(placer, make_problem, make_cluster):
  problem = make_problem(
      [1.0] * 4, [(0, 1), (1, 2), (2, 3)], cluster=make_cluster(2, host=True), host_ops=[1])
  found = placer(problem).tolist()
  assert found[1] == 2 and 2 not in found[:1] + found[2:]
