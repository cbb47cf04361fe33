"""The simulator against the oracle and against what must hold for any schedule."""

import dataclasses

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from oracle import Oracle
from properties import examples
from random_cases import make_cluster, make_costs, random_case

from placeto_tf.costs.op_costs import OpCosts
from placeto_tf.errors import CostError, PlacementError
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.simulation.path_lengths import longest_path_us
from placeto_tf.simulation.simulator import Simulator

SEEDS = st.integers(0, 2**32 - 1)


@examples(1500)
@hypothesis.given(seed=SEEDS, floats=st.booleans(), large=st.booleans())
@hypothesis.example(seed=6421, floats=False, large=True)  # kernels of two GPUs end together
def test_agrees_with_the_oracle(seed, floats, large):
  graph, costs, cluster, placements = random_case(
      seed, floats=floats, max_ops=50 if large else 12)
  oracle, simulator = Oracle(graph, costs, cluster), Simulator(graph, costs, cluster, num_threads=1)
  start_us = np.empty(placements.shape)
  step_time_us, peak_bytes = simulator.simulate_many(placements, start_us=start_us)
  for b, placement in enumerate(placements):
    expected_step, expected_start, transfers, expected_peak = oracle.simulate(placement)
    assert step_time_us[b] == expected_step
    assert start_us[b].tolist() == expected_start
    assert peak_bytes[b].tolist() == pytest.approx(expected_peak, abs=1e-6)
  result = simulator.simulate(placements[-1])
  assert result.step_time_us == step_time_us[-1]
  assert result.start_us.tolist() == start_us[-1].tolist()
  assert result.peak_memory_bytes.tolist() == peak_bytes[-1].tolist()
  assert list(zip(result.transfers.start_us.tolist(), result.transfers.end_us.tolist())) == [
      transfers[key] for key in sorted(transfers)]


@examples(200)
@hypothesis.given(seed=SEEDS)
def test_permuting_devices_of_one_kind_permutes_the_result(seed):
  # With costs that are real numbers no two things end at once, so that rule 4, the one place
  # where devices have an order, has nothing to decide. Links are alike, too, on one host.
  graph, costs, cluster, placements = random_case(seed, floats=True, max_ops=30, hosts=1)
  random = np.random.default_rng(seed)
  compute_us = np.repeat(
      random.exponential(1.0, (graph.num_ops, 1)) + 0.1, costs.num_kinds, axis=1)
  costs = OpCosts(
      compute_us, random.exponential(1.0, graph.num_outputs), costs.persistent_bytes,
      costs.temporary_bytes)
  d = cluster.num_devices
  cluster = dataclasses.replace(
      cluster, bandwidth_bytes_per_us=np.full((d, d), 1.7), latency_us=np.full((d, d), 0.3))
  simulator = Simulator(graph, costs, cluster, num_threads=1)
  permutation = random.permutation(d).astype(np.int32)
  step_time_us, peak_bytes = simulator.simulate_many(placements)
  permuted_step_time_us, permuted_peak_bytes = simulator.simulate_many(permutation[placements])
  assert permuted_step_time_us == pytest.approx(step_time_us)
  assert permuted_peak_bytes[:, permutation] == pytest.approx(peak_bytes)


@examples(200)
@hypothesis.given(seed=SEEDS)
def test_scaling_all_times_scales_the_schedule(seed):
  graph, costs, cluster, placements = random_case(seed, max_ops=30)
  factor = 4.0  # a power of two, so that ties stay ties
  scaled_costs = OpCosts(
      costs.compute_us * factor, costs.output_bytes, costs.persistent_bytes, costs.temporary_bytes)
  scaled_cluster = dataclasses.replace(
      cluster, bandwidth_bytes_per_us=cluster.bandwidth_bytes_per_us / factor,
      latency_us=cluster.latency_us * factor, op_overhead_us=cluster.op_overhead_us * factor,
      bus_gap_us=cluster.bus_gap_us * factor, launch_us=cluster.launch_us * factor)
  result = Simulator(graph, costs, cluster).simulate(placements[0])
  scaled = Simulator(graph, scaled_costs, scaled_cluster).simulate(placements[0])
  assert scaled.step_time_us == factor * result.step_time_us
  assert scaled.start_us.tolist() == (factor * result.start_us).tolist()
  assert scaled.peak_memory_bytes.tolist() == result.peak_memory_bytes.tolist()


@examples(200)
@hypothesis.given(seed=SEEDS, floats=st.booleans())
def test_no_step_is_shorter_than_the_critical_path_or_the_work_of_all_devices(seed, floats):
  graph, costs, cluster, placements = random_case(seed, floats=floats, max_ops=30)
  step_time_us, _ = Simulator(graph, costs, cluster, num_threads=1).simulate_many(placements)
  op_us = costs.compute_us[:, cluster.device_kinds].min(axis=1)
  overhead_us = cluster.op_overhead_us  # after every op that launches a kernel but the last
  least = cluster.first_of_kind[costs.compute_us.argmin(axis=1)]
  work_us = (op_us + cluster.pause_us(op_us, least)).sum() / cluster.num_devices
  slack = 1e-9
  assert (step_time_us >= longest_path_us(graph, op_us).max() - slack).all()
  assert (step_time_us >= work_us - overhead_us - slack).all()


def layered_case(n=2000, devices=4, seed=0):
  random = np.random.default_rng(seed)
  edges = [(max(0, i - 1 - int(random.geometric(0.1))), 0, i) for i in range(1, n) for _ in "ab"]
  graph = ComputationGraph.from_edges([f"op{i}" for i in range(n)], ["X"] * n, [1] * n, edges)
  costs = make_costs(random.exponential(10.0, n), random.integers(1, 1000, n))
  return graph, costs, make_cluster(devices, bandwidth=100.0, latency=1.0, overhead=2.0)


def test_results_do_not_depend_on_threads_or_on_what_else_is_in_the_batch():
  graph, costs, cluster = layered_case()
  placements = np.random.default_rng(1).integers(0, 4, (33, graph.num_ops)).astype(np.int32)
  alone = Simulator(graph, costs, cluster, num_threads=1)
  together = Simulator(graph, costs, cluster, num_threads=3)
  start_us = np.full(placements.shape, np.nan)
  step_time_us, peak_bytes = together.simulate_many(placements, start_us=start_us)
  for b in (0, 17, 32):
    result = alone.simulate(placements[b])
    assert step_time_us[b] == result.step_time_us
    assert start_us[b].tolist() == result.start_us.tolist()
    assert peak_bytes[b].tolist() == result.peak_memory_bytes.tolist()


def test_placements_are_left_as_they_are_and_may_be_of_any_integer_type():
  graph, costs, cluster = layered_case(100)
  simulator = Simulator(graph, costs, cluster)
  placement = np.arange(100, dtype=np.int64) % 4
  placement.flags.writeable = False
  result = simulator.simulate(placement)
  assert simulator.simulate_many(placement)[0].tolist() == [result.step_time_us]
  assert simulator.simulate(placement.tolist()).step_time_us == result.step_time_us
  assert placement.tolist() == (np.arange(100) % 4).tolist()


# a -> b -> d, a -> c -> d.
DIAMOND = ComputationGraph.from_edges(
    list("abcd"), ["X"] * 4, [1] * 4, [(0, 0, 1), (0, 0, 2), (1, 0, 3), (2, -1, 3)])


def test_paths_end_and_start_with_each_op():
  op_us = np.array([1.0, 2.0, 5.0, 1.0])
  assert longest_path_us(DIAMOND, op_us).tolist() == [1, 3, 6, 7]
  assert longest_path_us(DIAMOND, op_us, onwards=True).tolist() == [7, 3, 6, 1]


GRAPH = ComputationGraph.from_edges(["op0", "op1", "op2"], ["X"] * 3, [1] * 3, [])


def simulator(ops=3, devices=2, **fields):
  return Simulator(GRAPH, make_costs([1] * ops, [1] * ops), make_cluster(devices, **fields))


@pytest.mark.parametrize("call, error, words", [
    (lambda: simulator().simulate([0, 0]), PlacementError, "shape .2,.*each of the 3 ops"),
    (lambda: simulator().simulate([0, 2, 0]), PlacementError,
     "'op1' is on device 2; the cluster has devices 0 to 1"),
    (lambda: simulator().simulate([0.0, 1.0, 0.0]), PlacementError, "type float64; expected int32"),
    (lambda: simulator().simulate_many(np.array([[0, 0, 0], [0, 7, 0]])), PlacementError,
     "'op1' is on device 7"),
    (lambda: simulator().simulate_many(
        np.zeros((1, 3), np.int32), start_us=np.empty((1, 3), np.float32)), PlacementError,
     "start_us is float32"),
    (lambda: simulator(ops=2), CostError, "2 ops with 2 outputs, the graph has 3 with 3"),
    (lambda: simulator(kinds=2), CostError, "1 kinds of devices, the cluster has 2"),
])
def test_what_does_not_fit_is_named(call, error, words):
  with pytest.raises(error, match=words):
    call()
