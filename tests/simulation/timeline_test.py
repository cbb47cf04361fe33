
import numpy as np
import pytest
from random_cases import make_cluster, make_costs, random_case

from placeto_tf.graphs.computation_graph import CONTROL, ComputationGraph
from placeto_tf.simulation.simulator import Simulator
from placeto_tf.simulation.timeline import timeline_events, timeline_figure


def small_case(devices=2, **cluster_fields):
  # a@0-2 on /GPU:0. Control 2-2 to c, then 4 bytes 2-6 to b. c@2-3, b@6-7 on /GPU:1.
  graph = ComputationGraph.from_edges(
      ["a", "b", "c"], ["MatMul", "Relu", "NoOp"], [1, 1, 0], [(0, 0, 1), (0, CONTROL, 2)])
  costs = make_costs([2, 1, 1], [4, 2])
  result = Simulator(graph, costs, make_cluster(devices, **cluster_fields)).simulate([0, 1, 1])
  return graph, costs, result


def of_phase(events, phase):
  return [event for event in events if event["ph"] == phase]


def test_ops_and_transfers_are_slices_on_named_tracks():
  events = timeline_events(*small_case())
  tracks = {
      (event["pid"], event["tid"]): event["args"]["name"] for event in of_phase(events, "M")
      if event["name"] == "thread_name"}
  processes = {
      event["pid"]: event["args"]["name"] for event in of_phase(events, "M")
      if event["name"] == "process_name"}
  slices = sorted(
      (event["name"], processes[event["pid"]], tracks[event["pid"], event["tid"]], event["cat"],
       event["ts"], event["dur"]) for event in of_phase(events, "X"))
  assert slices == [
      ("^a", "/GPU:0", "bus", "transfer", 2, 0),
      ("a", "/GPU:0", "bus", "transfer", 2, 4),
      ("a", "/GPU:0", "compute", "op", 0, 2),
      ("b", "/GPU:1", "compute", "op", 6, 1),
      ("c", "/GPU:1", "compute", "op", 2, 1)]
  assert [event["args"] for event in of_phase(events, "X") if event["dur"] == 4] == [
      {"bytes": 4.0, "to": "/GPU:1"}]


def test_arrows_lead_from_transfers_to_their_consumers():
  events = timeline_events(*small_case())
  starts = {event["id"]: event for event in of_phase(events, "s")}
  ends = {event["id"]: event for event in of_phase(events, "f")}
  assert starts.keys() == ends.keys()
  arrows = sorted(
      (starts[i]["name"], starts[i]["pid"], starts[i]["ts"], ends[i]["pid"], ends[i]["ts"])
      for i in starts)
  assert arrows == [("^a", 1, 2, 2, 2), ("a", 1, 2, 2, 6)]
  assert all(event["bp"] == "e" for event in ends.values())
  # An arrow binds to the slice that encloses its moment on its track.
  slices = of_phase(events, "X")
  for event in [*starts.values(), *ends.values()]:
    assert any(
        (s["pid"], s["tid"]) == (event["pid"], event["tid"])
        and s["ts"] <= event["ts"] <= s["ts"] + s["dur"] for s in slices)


def test_memory_is_a_counter_that_reaches_the_peak():
  graph, costs, result = small_case()
  for d in range(2):
    counted = [
        (event["ts"], event["args"]["bytes"])
        for event in of_phase(timeline_events(graph, costs, result), "C")
        if event["pid"] == d + 1]
    assert counted == ([(0, 4), (6, 0)] if d == 0 else [(0, 0), (6, 6), (7, 0)])
    assert max(held for _, held in counted) == result.peak_memory_bytes[d]


def test_slices_of_one_track_do_not_overlap():
  for seed in range(20):
    graph, costs, cluster, placements = random_case(
        seed, max_ops=30, floats=True, sender_us_per_byte=1.0)
    result = Simulator(graph, costs, cluster).simulate(placements[0])
    tracks = {}
    for event in of_phase(timeline_events(graph, costs, result), "X"):
      tracks.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["dur"]))
    for slices in tracks.values():
      slices.sort()
      for (start, duration), (following, _) in zip(slices, slices[1:]):
        assert start + duration <= following + 1e-9


def test_a_picture_shows_the_step_before_above_on_the_same_axis():
  graph, costs, result = small_case()
  one = Simulator(graph, costs, result.cluster).simulate(np.zeros(graph.num_ops, np.int32))
  above, below, memory = timeline_figure(graph, costs, result, title="placed", before=one).axes
  assert above.get_title().startswith("before: ") and below.get_title() == "placed"
  assert memory.get_ylabel() == "GiB"
  assert [label.get_text() for label in above.get_yticklabels()] == ["/GPU:0", "bus"]
  longest_ms = max(one.step_time_us, result.step_time_us) / 1000
  assert above.get_xlim() == below.get_xlim() == pytest.approx((0, longest_ms))
