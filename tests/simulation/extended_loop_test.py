"""Each extension by hand, and all of them together against the plain Python simulator.

Bandwidth 1 byte/us, latency 0, overhead 0 unless it says otherwise; `a@3-5`: a runs from 3 to 5.
"""

import dataclasses

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from executor_oracle import ExecutorOracle
from oracle import Oracle
from properties import examples
from random_cases import random_case, random_extensions
from schedules import check
from unlimited_oracle import step_time_us

from placeto_tf.simulation.engines import ExtendedEngine
from placeto_tf.simulation.simulator import Simulator


def test_one_transfer_a_destination_sends_in_the_order_of_devices_at_each_pairs_speed():
  # a@0-1 on 0. 4 bytes to device 1 at 2 bytes/us: 1-3, there at 4; to device 2 at 1: 4-8, there
  # at 13.
  result = check(
      {"a": (1, 0), "b": (1, 1), "c": (1, 2)}, ["a>c", "a>b"], sizes={"a": 4}, devices=3,
      bandwidth=[[1, 2, 1]] * 3, latency=[[0, 1, 5]] * 3, bus_gap_us=1.0,
      transfer_per_destination=True, sent=[(1, 3), (4, 8)], starts={"a": 0, "b": 4, "c": 13})
  assert result.transfers.destinations.tolist() == [[False, True, False], [False, False, True]]
  assert result.transfer_bytes == 8


@pytest.mark.parametrize("transfers, sent", [
    ("device", [(1, 5), (7, 9)]), ("pair", [(1, 3), (1, 5), (5, 7)]),
    ("unlimited", [(1, 3), (1, 5), (1, 3)])])
def test_how_transfers_queue(transfers, sent):
  # a@0-1 on 0 sends 4 bytes to devices 1 (2 bytes/us) and 2 (1 byte/us), then, from port 1, 4 bytes
  # to device 1; the gap is 2. On one bus the first goes to both at the slower pair's speed.
  check({"a": (1, 0), "b": (1, 1), "c": (1, 2), "d": (1, 1)}, ["a>b", "a>c", "a:1>d"],
        sizes={"a": 4, "a:1": 4}, devices=3, bandwidth=[[1, 2, 1]] * 3, bus_gap_us=2.0,
        transfers=transfers, sent=sent)


def test_packing_takes_compute_time_of_the_sender_before_the_bus():
  # a@0-1 on 0; b, ready since 0, @1-3. Packing (2 + 0.5 * 4 = 4 us) queues behind it: 3-7.
  # The 4 bytes take 7-11; c@11-12.
  result = check(
      {"a": (1, 0), "b": (2, 0), "c": (1, 1)}, ["a>c"], sizes={"a": 4}, sender_us_per_transfer=2.0,
      sender_us_per_byte=0.5, starts={"a": 0, "b": 1, "c": 11}, sent={"a": (7, 11)},
      jobs=[(True, 0, 3, 7)])
  assert result.busy_us.tolist() == [7, 1]


def test_unpacking_takes_compute_time_of_the_receiver_before_the_consumers():
  # a@0-1 on 0, its 4 bytes take 1-5. Device 1 is busy with b@0-6; unpacking (1 + 4) 6-11.
  # c@11-12. No overhead follows unpacking; the copy is held from 5 on.
  check({"a": (1, 0), "b": (6, 1), "c": (1, 1)}, ["a>c"], sizes={"a": 4},
        receiver_us_per_transfer=1.0, receiver_us_per_byte=1.0,
        starts={"a": 0, "b": 0, "c": 11}, jobs=[(False, 1, 6, 11)], peaks=[4, 5])


@examples(1000)
@hypothesis.given(seed=st.integers(0, 2**32 - 1), floats=st.booleans())
@hypothesis.example(seed=5947, floats=False)  # kernels of two GPUs end together
def test_extensions_agree_with_the_plain_python_simulator(seed, floats):
  graph, costs, cluster, placements = random_case(
      seed, floats=floats, max_ops=20, **random_extensions(seed))
  simulator = Simulator(graph, costs, cluster, num_threads=1)
  # Also where all extensions are off.
  simulator.engine = ExtendedEngine(simulator.tables, cluster, graph.op_types)
  oracle = Oracle(graph, costs, cluster)
  for placement in placements:
    result = simulator.simulate(placement)
    step_time_us, start_us, transfers, peak_bytes = oracle.simulate(placement)
    assert result.step_time_us == step_time_us
    assert result.start_us.tolist() == start_us
    assert sorted(transfers.values()) == sorted(
        zip(result.transfers.start_us.tolist(), result.transfers.end_us.tolist()))
    assert result.peak_memory_bytes.tolist() == pytest.approx(peak_bytes, abs=1e-6)


def check_executor(ops, edges, **expected):
  return check(ops, edges, ready_order="executor", inline_op_types=("I",), **expected)


def test_executor_goes_depth_first_into_what_was_made_ready_last():
  # a makes b, c and d ready: d is inline, c at the front of the deque. d makes e ready, which is
  # inline before them.
  check_executor({name: (1, 0) for name in "abcde"}, ["a>b", "a>c", "a>d", "d>e"], devices=1,
                 starts={"a": 0, "b": 4, "c": 3, "d": 1, "e": 2})


def test_executor_takes_what_arrives_after_all_that_was_made_ready_here():
  # d@0-2 on 0 while a@0-1 on 1 is sent 1-2. As b arrives, d makes e and f ready: f, inline, then e,
  # then b.
  check_executor(
      {"a": (1, 1), "b": (1, 0), "c": (1, 1), "d": (2, 0), "e": (1, 0), "f": (1, 0)},
      ["a>b", "d>e", "d>f", "a>c"], starts={"a": 0, "b": 4, "c": 1, "d": 0, "e": 3, "f": 2})


def test_executor_stops_an_op_for_unpacking():
  # a@0-1 on 1, sent 1-2. Unpacking 2-5 stops b@0-4 on 0, which ends at 7; c, ready since 5.
  check_executor({"a": (1, 1), "b": (4, 0), "c": (1, 0)}, ["a>c"], receiver_us_per_transfer=3.0,
                 starts={"a": 0, "b": 0, "c": 7}, jobs=[(False, 0, 2, 5)])
  # What starts meanwhile waits: b@0-2, unpacking 2-5, then d, ready since 2, and c.
  check_executor({"a": (1, 1), "b": (2, 0), "c": (1, 0), "d": (1, 0)}, ["a>c", "b>d"],
                 receiver_us_per_transfer=3.0, step_us=7)


def test_an_op_that_begins_beside_a_busy_device_takes_longer():
  # a@0-2 on 0 begins first; b on 1 takes 6 instead of 4, and c has its device alone.
  result = check_executor({"a": (2, 0), "b": (4, 1), "c": (3, 1)}, ["a>c", "b>c"],
                          busy_slowdown=0.5, starts={"a": 0, "b": 0, "c": 6}, step_us=9)
  assert result.end_us.tolist() == [2, 6, 9]


@examples(400)
@hypothesis.given(seed=st.integers(0, 2**32 - 1), floats=st.booleans())
def test_executor_agrees_with_the_plain_python_one(seed, floats):
  fields = {**random_extensions(seed), "ready_order": "executor", "inline_op_types": ("I",)}
  graph, costs, cluster, placements = random_case(seed, floats=floats, max_ops=20, **fields)
  draw = np.random.default_rng([seed, 2])
  cluster = dataclasses.replace(cluster, busy_slowdown=float(draw.integers(0, 3)) / 2)
  graph = dataclasses.replace(
      graph, op_types=tuple(draw.choice(["I", "X"], graph.num_ops).tolist()))
  simulator = Simulator(graph, costs, cluster, num_threads=1)
  oracle = ExecutorOracle(graph, costs, cluster)
  for placement in placements:
    result = simulator.simulate(placement)
    step_time_us, start_us, transfers = oracle.schedule(placement)
    assert result.step_time_us == step_time_us
    assert result.start_us.tolist() == start_us
    assert sorted(transfers.values()) == sorted(
        zip(result.transfers.start_us.tolist(), result.transfers.end_us.tolist()))


@examples(200)
@hypothesis.given(seed=st.integers(0, 2**32 - 1))
def test_without_queues_it_is_the_model_of_giph_and_doppler(seed):
  graph, costs, cluster, placements = random_case(seed, floats=True, max_ops=30)
  # No op takes no time, as in these models.
  costs = dataclasses.replace(
      costs, compute_us=costs.compute_us + np.random.default_rng(seed).random(
          costs.compute_us.shape))
  cluster = dataclasses.replace(cluster, op_overhead_us=0.0, transfers="unlimited")
  found, _ = Simulator(graph, costs, cluster, num_threads=1).simulate_many(placements)
  for placement, step_us in zip(placements, found):
    compute_us = costs.compute_us[np.arange(graph.num_ops), cluster.device_kinds[placement]]
    assert step_us == pytest.approx(step_time_us(
        graph, compute_us, costs.output_bytes, cluster.bandwidth_bytes_per_us, cluster.latency_us,
        placement), rel=1e-9)
