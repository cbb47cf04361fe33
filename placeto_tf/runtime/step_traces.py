"""A real step next to the simulated one, in one Chrome trace for Perfetto.

Each device is two processes of the trace, one after the other: the simulated step, and a traced
run, with a thread of the trace for each thread of TensorFlow. Both start at 0.
Devices on machines whose clocks differ are shifted by that difference. Tracing itself slows a step
down.
"""

from __future__ import annotations

import json
from typing import Any, Dict, List, Mapping, Tuple

from placeto_tf.costs.op_costs import OpCosts
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.runtime import session as session_lib
from placeto_tf.simulation import SimulationResult
from placeto_tf.simulation.timeline import timeline_events


def node_times_us(metadata: Any) -> List[Tuple[str, str, int, float, float]]:
  """(canonical device, node, thread, start, end) of every node of a traced run, from 0 on."""
  found = []
  for stats in metadata.step_stats.dev_stats:
    device = session_lib.local_device(stats.device)
    if device is None:  # a stream repeats its device's entries
      continue
    for node in stats.node_stats:
      start = node.all_start_nanos * 1e-3 or float(node.all_start_micros)
      spent = node.all_end_rel_nanos * 1e-3 or float(node.all_end_rel_micros)
      found.append((device, node.node_name, int(node.thread_id), start, start + spent))
  origin = min((row[3] for row in found), default=0.0)
  return [(device, node, thread, start - origin, end - origin)
          for device, node, thread, start, end in found]


def merged_events(
    graph: ComputationGraph, costs: OpCosts, simulated: SimulationResult, metadata: Any,
    devices: Mapping[str, str],
) -> List[Dict[str, Any]]:
  """Chrome trace events of a simulated and of a real step.

  Args:
    graph, costs, simulated: of the simulated step.
    metadata: RunMetadata of a traced run of the same placement.
    devices: device of the cluster -> canonical device of the runtime.
  """
  names = simulated.cluster.device_names
  events = []
  for event in timeline_events(graph, costs, simulated):
    event = {**event, "args": dict(event.get("args", {}))} if event["ph"] == "M" else event
    if event["ph"] == "M" and event["name"] == "process_name":
      event["args"]["name"] = f"{event['args']['name']} simulated"
    elif event["ph"] == "M" and event["name"] == "process_sort_index":
      event["args"]["sort_index"] *= 2
    events.append(event)
  pids = {}
  for d, name in enumerate(names):
    pid = pids[devices[name]] = len(names) + d + 1
    events.append(_meta("process_name", pid, name=f"{name} measured"))
    events.append(_meta("process_sort_index", pid, sort_index=2 * d + 1))
  known = graph.op_index
  for device, node, thread, start, end in node_times_us(metadata):
    if device in pids:
      events.append({
          "ph": "X", "name": node, "cat": "op" if node in known else "runtime",
          "pid": pids[device], "tid": thread, "ts": start, "dur": end - start,
          "args": {"op_type": graph.op_types[known[node]]} if node in known else {}})
  return events


def write_merged_trace(
    graph: ComputationGraph, costs: OpCosts, simulated: SimulationResult, metadata: Any,
    devices: Mapping[str, str], path: str,
) -> None:
  """Writes `merged_events` to a file that opens in Perfetto."""
  trace = {"traceEvents": merged_events(graph, costs, simulated, metadata, devices),
           "displayTimeUnit": "ms"}
  with open(path, "w", encoding="utf-8") as file:
    file.write(json.dumps(trace, separators=(",", ":")))


def _meta(what: str, pid: int, **args: Any) -> Dict[str, Any]:
  return {"ph": "M", "name": what, "pid": pid, "tid": 0, "ts": 0, "args": args}
