from placeto_tf.costs import estimate_costs
from placeto_tf.runtime.measuring import Measurer, MeasuringConfig
from placeto_tf.runtime.step_traces import merged_events, node_times_us
from placeto_tf.runtime.workers import InProcess
from placeto_tf.simulation import Simulator


def test_each_device_shows_what_was_simulated_and_what_was_measured(graph, cluster, halves):
  maps = {device.name: f"/CPU:{i}" for i, device in enumerate(cluster.devices)}
  simulator = Simulator(graph, estimate_costs(graph, cluster, cache=False), cluster)
  simulated = simulator.simulate(halves.indices(graph, cluster))
  with InProcess(2) as runtime, Measurer(
      graph, cluster, runtime, MeasuringConfig(warmup_runs=1), device_map=maps) as measurer:
    metadata = measurer.trace(halves)
    events = merged_events(graph, simulator.costs, simulated, metadata, measurer.devices)
  names = {event["pid"]: event["args"]["name"] for event in events
           if event["ph"] == "M" and event["name"] == "process_name"}
  order = {event["pid"]: event["args"]["sort_index"] for event in events
           if event["ph"] == "M" and event["name"] == "process_sort_index"}
  first, second = cluster.device_names
  assert [names[pid] for pid in sorted(names, key=order.get)] == [
      f"{first} simulated", f"{first} measured", f"{second} simulated", f"{second} measured"]
  assert len(set(order.values())) == 4
  # Every matrix product is there twice, on the device it was placed on.
  for op, op_type in zip(graph.op_names, graph.op_types):
    if op_type == "MatMul":
      places = sorted(names[e["pid"]] for e in events if e.get("cat") == "op" and e["name"] == op)
      assert places == sorted([f"{halves[op]} measured", f"{halves[op]} simulated"])


def test_times_start_at_zero(graph, cluster, halves):
  maps = {device.name: f"/CPU:{i}" for i, device in enumerate(cluster.devices)}
  with InProcess(2) as runtime, Measurer(
      graph, cluster, runtime, MeasuringConfig(warmup_runs=1), device_map=maps) as measurer:
    times = node_times_us(measurer.trace(halves))
  assert min(row[3] for row in times) == 0.0
  assert all(end >= start for *_, start, end in times)
