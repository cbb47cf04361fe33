"""Schedules derived by hand from the numbered rules of docs/simulator.md.

Unless a test says otherwise: bandwidth 1 byte/us, latency 0, overhead 0. In comments `a@3-5` is "a
runs from 3 to 5".
"""

import pytest
from random_cases import make_cluster, make_costs
from schedules import check

from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.simulation.simulator import Simulator


def test_chain_on_one_device_pays_the_overhead_between_ops_but_not_at_the_end():
  # a@0-2, the device is free at 3; b@3-6, free at 7; c@7-8. The overhead after c does not count.
  check({"a": (2, 0), "b": (3, 0), "c": (1, 0)}, ["a>b", "b>c"], overhead=1.0,
        starts={"a": 0, "b": 3, "c": 7}, step_us=8, sent={})


@pytest.mark.parametrize("b_us, hosts, overlapped, c, d", [
    # a@0-2 and b@0-2 end in one round: launching after both takes 2-5 and 5-8.
    (2, 1, False, 8, 8),
    # After a 2-5, so that its device is free at 6, as ever; after b 5-8, so that it waits from 7.
    (3, 1, False, 6, 8),
    # Each host has a process of its own.
    (2, 2, False, 6, 6),
    # Beside a 0-3, with the rest of the overhead to 4; beside b 3-6. A kernel of 9 hides all but
    # what is behind the launch for c, which ended before (4-7).
    (2, 1, True, 6, 6), (3, 1, True, 4, 6), (9, 1, True, 4, 10), (9, 2, True, 4, 9)])
def test_devices_of_one_host_wait_until_their_process_has_launched(b_us, hosts, overlapped, c, d):
  check({"a": (2, 0), "b": (b_us, 1), "c": (1, 0), "d": (1, 1)}, ["a>c", "b>d"], overhead=4.0,
        launch_us=3.0, hosts=hosts, overlapped_launches=overlapped,
        starts={"a": 0, "b": 0, "c": c, "d": d})


def test_chain_over_two_devices_waits_for_its_transfers():
  # a@0-2 on 0; its 4 bytes take 2-6; b@6-9 on 1, its 1 byte takes 9-10 back; c@10-11.
  check({"a": (2, 0), "b": (3, 1), "c": (1, 0)}, ["a>b", "b>c"], sizes={"a": 4},
        starts={"a": 0, "b": 6, "c": 10}, sent={"a": (2, 6), "b": (9, 10)}, step_us=11)


def test_tensor_wanted_by_two_devices_is_sent_once():
  # a@0-1, one transfer 1-4, then b on 1 and c on 2 both start.
  result = check({"a": (1, 0), "b": (1, 1), "c": (2, 2)}, ["a>b", "a>c"], sizes={"a": 3},
                 devices=3, sent={"a": (1, 4)}, starts={"a": 0, "b": 4, "c": 4})
  assert result.transfers.destinations.tolist() == [[False, True, True]]


def test_transfer_to_two_devices_takes_as_long_as_its_slowest_pair():
  # 6 bytes: 3 us to device 1 (2 bytes/us), 6 us to device 2: 1-7 on the bus, which is free at 9.
  # Latency 5 to device 1 and 1 to device 2: b may start at 12, c at 8; x's byte to device 2 takes
  # 9-10 and arrives at 11.
  check({"a": (1, 0), "b": (1, 1), "c": (2, 2), "x": (1, 0), "y": (1, 2)}, ["a>b", "a>c", "x>y"],
        sizes={"a": 6}, devices=3, bandwidth=[[1, 2, 1]] * 3, latency=[[0, 5, 1]] * 3,
        bus_gap_us=2.0, sent={"a": (1, 7), "x": (9, 10)}, starts={"b": 12, "c": 8, "y": 11})


def test_what_arrives_at_one_instant_loses_dependencies_by_producer_whatever_was_sent_first():
  # x@0-1 on 1 sends 3 bytes 1-4 to 0, where they arrive at 5; a@0-2 on 2 sends 3 bytes 2-5 without
  # a latency. Both are there at 5, and the consumer of a, first in the file, goes first.
  check({"a": (2, 2), "x": (1, 1), "y": (1, 0), "b": (1, 0)}, ["a>b", "x>y"],
        sizes={"a": 3, "x": 3}, devices=3, latency=[[0, 0, 0], [1, 0, 0], [0, 0, 0]],
        sent={"a": (2, 5), "x": (1, 4)}, starts={"b": 5, "y": 6})


def test_a_copy_is_held_from_the_transfers_end_though_its_consumer_waits_for_the_latency():
  # a's 4 bytes are sent 1-5 and arrive at 8; z@5-7 on 1 finds them there.
  check({"a": (1, 0), "b": (1, 1), "z": (2, 1), "w": (5, 1)}, ["a>b", "w>z"],
        sizes={"a": 4, "b": 1, "z": 2, "w": 1}, latency=3.0, starts={"b": 8, "z": 5}, peaks=[4, 7])


def test_bus_sends_in_the_order_of_queueing_and_pauses_for_the_gap():
  # a@0-1 and b@1-2 on 0. a's 4 bytes take 1-5, the bus is free at 7; b's byte takes 7-8. The
  # device's own overhead (none) and compute do not touch the bus.
  check({"a": (1, 0), "b": (1, 0), "c": (1, 1), "d": (1, 1)}, ["a>c", "b>d"], sizes={"a": 4},
        bus_gap_us=2.0, sent={"a": (1, 5), "b": (7, 8)}, starts={"a": 0, "b": 1, "c": 5, "d": 8})


def test_outputs_of_one_op_enter_the_bus_by_port_and_control_goes_first():
  # Rule 2. a@0-1 sends, in this order, control 1-1, port 0 (2 bytes) 1-3, port 1 (3 bytes) 3-6.
  check({"a": (1, 0), "b": (1, 1), "c": (1, 1), "d": (1, 1)}, ["a:1>b", "a>c", "a~d"],
        sizes={"a": 2, "a:1": 3}, sent={"a~": (1, 1), "a": (1, 3), "a:1": (3, 6)},
        starts={"a": 0, "d": 1, "c": 3, "b": 6})


def test_equal_times_lose_dependencies_in_the_order_of_the_producers():
  # Rule 4. a on 0 and b on 1 both end at 2. Their transfers, 1 byte each, both end at 3, on other
  # buses. On device 2 y (fed by a, the first in the file) starts first, though x stands before it.
  check({"a": (2, 0), "b": (2, 1), "x": (1, 2), "y": (1, 2)}, ["a>y", "b>x"], devices=3,
        starts={"y": 3, "x": 4})


def test_equal_times_of_one_producer_go_by_port_then_consumer():
  # Rule 4. a@0-1 on 0. Its control edge frees z, port 0 frees y, port 1 w and x, all at once: z, y,
  # w, x.
  check({"a": (1, 0), "w": (1, 0), "x": (1, 0), "y": (1, 0), "z": (1, 0)},
        ["a:1>w", "a:1>x", "a>y", "a~z"], starts={"a": 0, "z": 1, "y": 2, "w": 3, "x": 4})


def test_zero_cost_op_pays_no_overhead_and_ends_in_the_next_round():
  # Rules 1 and 4. a@0-1, device free at 2. z@2-2 has no overhead, so b@2-3 starts at once; free
  # at 4.
  check({"a": (1, 0), "z": (0, 0), "b": (1, 0)}, ["a>z", "z>b"], overhead=1.0,
        starts={"a": 0, "z": 2, "b": 2}, step_us=3)


def test_zero_cost_op_that_waits_for_the_overhead_ends_a_round_after_what_else_ends_then():
  # Rule 4. Device 0: a@0-1, free at 2; z (zero cost) starts at 2 and ends in the second round of 2.
  # Device 1: b@0-1; its byte takes 1-2 to device 0 and frees y in the first round of 2.
  # Although z's consumer x and z stand before b in the file, y queues before x: y@2, x@4.
  check({"a": (1, 0), "z": (0, 0), "x": (1, 0), "b": (1, 1), "y": (1, 0)}, ["a>z", "z>x", "b>y"],
        overhead=1.0, starts={"a": 0, "z": 2, "b": 0, "y": 2, "x": 4})


def test_control_edge_to_another_device_is_a_transfer_of_no_bytes_that_costs_latency_and_gap():
  # a@0-1. The control transfer 1-1 lets b start at 1 + 2; the bus is free at 4, and a's 2 bytes,
  # queued behind it, take 4-6 and arrive at 8.
  check({"a": (1, 0), "b": (1, 1), "c": (1, 1)}, ["a~b", "a>c"], sizes={"a": 2}, latency=2.0,
        bus_gap_us=3.0, sent={"a~": (1, 1), "a": (4, 6)}, starts={"b": 3, "c": 8})


def test_devices_of_another_kind_have_costs_of_their_own():
  graph = ComputationGraph.from_edges(["a", "b"], ["X"] * 2, [1, 1], [(0, 0, 1)])
  simulator = Simulator(graph, make_costs([[1, 10], [2, 20]], [1, 1]), make_cluster(2, kinds=2))
  assert simulator.simulate([0, 0]).step_time_us == 3
  assert simulator.simulate([1, 1]).step_time_us == 30
  assert simulator.simulate([1, 0]).step_time_us == 10 + 1 + 2


def test_output_is_held_from_its_ops_start_to_its_last_consumers_end():
  # a@0-2 holds 4; b@2-3 holds 1 (nobody consumes it); c@3-5 consumes a, holds 2.
  # 0-2: 4. 2-3: 4 + 1. 3-5: 4 + 2.
  check({"a": (2, 0), "b": (1, 0), "c": (2, 0)}, ["a>c", "a>b"], sizes={"a": 4, "b": 1, "c": 2},
        devices=1, peaks=[6])


def test_frees_go_before_allocations_of_the_same_instant():
  # a@0-1 holds 1 + 5 temporary; b@1-2 holds 1 + 1 + 5 temporary: 7, not 12, and z's 100 bytes,
  # held for no time between them, never count.
  check({"a": (1, 0), "z": (0, 0), "b": (1, 0)}, ["a>z", "a>b", "z~b"], devices=1,
        sizes={"z": 100}, temporary={"a": 5, "b": 5}, peaks=[7])


def test_copy_on_a_receiver_lives_from_the_transfers_end_to_its_last_consumer_there():
  # a@0-1 on 0 holds 4 until its transfer 1-5 has ended. On 1 the copy of 4 lives 5-8 beside b@5-6
  # (1) and c@6-8 (1, while b's output, which nobody consumes, is gone): 5.
  # On 0: 0-1: 4; d@1-5 (2) beside a's output, both until 5: 6.
  check({"a": (1, 0), "b": (1, 1), "c": (2, 1), "d": (4, 0)}, ["a>b", "a>c", "a~d"],
        sizes={"a": 4, "d": 2}, sent={"a": (1, 5)}, peaks=[6, 5])


@pytest.mark.parametrize("fetched, peak", [([], 5), (["a"], 8)])
def test_fetched_output_is_held_to_the_end(fetched, peak):
  # a@0-1 (3 bytes), b@1-2 consumes it (1 byte), c@2-3 (5 bytes). Fetched, a's bytes stay: 8.
  check({"a": (1, 0), "b": (1, 0), "c": (1, 0)}, ["a>b", "b~c"], sizes={"a": 3, "c": 5}, devices=1,
        fetched=fetched, peaks=[peak])


def test_fits_compares_each_peak_with_its_device():
  for size in (4, 5):
    assert check({"a": (1, 0)}, [], sizes={"a": size}, devices=1, memory=4).fits == (size == 4)
