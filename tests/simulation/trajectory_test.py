import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from random_cases import make_cluster, make_costs, random_case

from placeto_tf.errors import PlacementError
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.simulation.simulator import Simulator
from placeto_tf.simulation.trajectory import Trajectory


@hypothesis.settings(max_examples=400, deadline=None, derandomize=True, database=None)
@hypothesis.given(seed=st.integers(0, 2**32 - 1), floats=st.booleans(), streams=st.integers(1, 2))
def test_moves_are_simulated_to_the_bit(seed, floats, streams):
  graph, costs, cluster, placements = random_case(
      seed, floats=floats, max_ops=50, compute_streams=streams)
  random = np.random.default_rng(seed)
  simulator = Simulator(graph, costs, cluster, num_threads=1)
  trajectory = Trajectory(simulator, placements[0], num_snapshots=int(random.integers(0, 12)))
  for _ in range(6):
    ops = random.integers(0, graph.num_ops, 2)
    device = int(random.integers(0, cluster.num_devices))
    placement = trajectory.placement.copy()
    placement[ops] = device
    step_time_us, peak_bytes = trajectory.move(ops, device)
    expected = simulator.simulate(placement)
    assert step_time_us == expected.step_time_us
    assert peak_bytes.tolist() == expected.peak_memory_bytes.tolist()
    if random.random() < 0.5:
      trajectory.accept()
      assert trajectory.placement.tolist() == placement.tolist()
      assert trajectory.step_time_us == expected.step_time_us
      assert trajectory.start_us.tolist() == expected.start_us.tolist()
      assert trajectory.peak_memory_bytes.tolist() == expected.peak_memory_bytes.tolist()


def chain(n=100):
  graph = ComputationGraph.from_edges(
      [f"op{i}" for i in range(n)], ["X"] * n, [1] * n, [(i, 0, i + 1) for i in range(n - 1)])
  return Simulator(graph, make_costs(np.ones(n), np.ones(n)), make_cluster(2))


def test_late_move_reuses_what_was_before_it_and_an_early_one_does_not():
  trajectory = Trajectory(chain(), np.zeros(100, dtype=np.int32), num_snapshots=9)
  # op 95 becomes ready when op 94 ends; the last of nine snapshots before is at 90 or so.
  assert trajectory.move([95], 1)[0] == 102  # there and back
  assert trajectory.reused > 0.85
  assert trajectory.move([0], 1)[0] == 101
  assert trajectory.reused == 0


def test_move_leaves_the_trajectory_as_it_is_until_it_is_accepted():
  trajectory = Trajectory(chain(), np.zeros(100, dtype=np.int32))
  trajectory.move([99], 1)
  assert trajectory.step_time_us == 100
  assert trajectory.placement.sum() == 0
  trajectory.accept()
  assert trajectory.step_time_us == 101
  assert trajectory.placement.tolist() == [0] * 99 + [1]


def test_change_takes_any_other_placement():
  trajectory = Trajectory(chain(), np.zeros(100, dtype=np.int32))
  assert trajectory.change(np.ones(100, dtype=np.int32))[0] == 100
  assert trajectory.change([0] * 50 + [1] * 50)[0] == 101


def test_ops_and_devices_that_do_not_exist_are_refused():
  trajectory = Trajectory(chain(), np.zeros(100, dtype=np.int32))
  with pytest.raises(PlacementError, match="cannot move op 100"):
    trajectory.move([100], 0)
  with pytest.raises(PlacementError, match="to device 2; the cluster has devices 0 to 1"):
    trajectory.move([1], 2)
  with pytest.raises(PlacementError, match="each of the 100 ops"):
    trajectory.change(np.zeros(99, dtype=np.int32))
