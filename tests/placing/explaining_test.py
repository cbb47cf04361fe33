"""Tests for placeto_tf.placing.explaining, on schedules worked out by hand."""

import numpy as np
import pytest

from placeto_tf.clusters import Cluster, Device
from placeto_tf.costs.op_costs import OpCosts
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.placing.explaining import explain
from placeto_tf.simulation import Simulator


def _explain(compute_us, edges, output_bytes, placement, overhead=0.0, devices=2, latency=0.0,
             executions=None, overlapped=False):
  n = len(compute_us)
  cluster = Cluster(
      tuple(Device(f"/GPU:{i}", "GPU", 10**12) for i in range(devices)),
      np.full((devices, devices), 10.0), np.full((devices, devices), latency),
      overhead, bus_gap_us=5.0, overlapped_launches=overlapped)
  graph = ComputationGraph.from_edges(
      [f"op{i}" for i in range(n)], ["Op"] * n, [1] * n, [(a, 0, b) for a, b in edges])
  costs = OpCosts(np.array(compute_us, float)[:, None], np.array(output_bytes, float),
                  np.zeros(n), np.zeros(n), executions=executions)
  return explain(graph, Simulator(graph, costs, cluster).simulate(np.array(placement, np.int32)))


def test_a_chain_on_two_devices_is_compute_and_a_transfer():
  """op0 0-100 on GPU:0, 500 bytes at 10 a us: 100-150, op1 150-200 on GPU:1."""
  found = _explain([100, 50], [(0, 1)], [500, 0], [0, 1])
  assert found.step_time_us == 200
  assert found.compute_us == {"GPU:0": 100, "GPU:1": 50}
  assert found.transfer_us == {"GPU:0 -> GPU:1": 50}
  assert found.launches_us == found.waiting_us == 0
  assert found.costliest == (("op0", "GPU:0", 100.0), ("op1", "GPU:1", 50.0))
  assert str(found) == (
      "75 % compute (GPU:0 50 %, GPU:1 25 %), 25 % transfers GPU:0 -> GPU:1; costliest: op0 (0.100 "
      "ms), op1 (0.050 ms)")


def test_an_op_that_waits_for_its_device_is_bound_by_what_ran_there():
  """Three independent ops on one device with 10 us after each: 0-20, 30-50, 60-80."""
  found = _explain([20, 20, 20], [], [0, 0, 0], [0, 0, 0], overhead=10.0)
  assert found.step_time_us == 80
  assert found.compute_us == {"GPU:0": 60} and found.launches_us == 20
  assert str(found).startswith("75 % compute of GPU:0, 25 % launches")


@pytest.mark.parametrize("overlapped, op_us, launches_us", [
    (False, 100.0, 20.0), (True, 100.0, 0.0), (True, 22.0, 22.0)])
def test_launches_between_rounds_of_a_loop_are_launches(overlapped, op_us, launches_us):
  """11 rounds with 2 us a launch; where kernels and launches overlap, the longer one counts."""
  found = _explain([op_us], [], [0], [0], overhead=2.0, executions=[11], overlapped=overlapped)
  assert found.launches_us == launches_us and sum(found.compute_us.values()) == op_us - launches_us


def test_a_transfer_takes_from_the_end_of_its_producer_with_its_wait_for_the_bus():
  """op0 and op1 end at 10 and 20 on GPU:0; their 1000 bytes each go 10-110 and, the bus being busy
  for a gap of 5 more, 115-215; op3 needs the second and runs 215-225."""
  found = _explain([10, 10, 1, 10], [(0, 2), (1, 3)], [1000, 1000, 0, 0], [0, 0, 1, 1])
  assert found.step_time_us == 225
  assert found.transfer_us == {"GPU:0 -> GPU:1": 195} and found.compute_us == {
      "GPU:0": 20, "GPU:1": 10}


def test_the_latency_of_a_transfer_is_its_own_and_decides_what_was_waited_for():
  """op0 0-100 on GPU:0, sent 100-110, there at 130; op1 0-120 on GPU:1, as is op2, 130-140."""
  found = _explain(
      [100, 120, 10], [(0, 2), (1, 2)], [100, 0, 0], [0, 1, 1], latency=20.0)
  assert found.step_time_us == 140
  assert found.transfer_us == {"GPU:0 -> GPU:1": 30}
  assert found.compute_us == {"GPU:0": 100, "GPU:1": 10}


@pytest.mark.parametrize("seed", range(30))
def test_the_parts_sum_up_to_the_step(seed):
  rng = np.random.default_rng(seed)
  n, d = int(rng.integers(1, 30)), int(rng.integers(1, 4))
  edges = [(a, b) for b in range(n) for a in range(b) if rng.random() < 0.15]
  found = _explain(
      rng.integers(0, 50, n), edges, rng.integers(0, 500, n), rng.integers(0, d, n),
      latency=float(rng.integers(0, 2) * 7), overhead=float(rng.integers(0, 8)), devices=d)
  total = (sum(found.compute_us.values()) + sum(found.transfer_us.values()) + found.launches_us
           + found.waiting_us)
  assert total == pytest.approx(found.step_time_us)
  assert found.waiting_us == pytest.approx(0)
