"""Timelines of a simulated step: a Chrome trace for Perfetto, and a picture.

The trace is a JSON object `{"traceEvents": [...], "displayTimeUnit": "ms"}` in the Trace Event
Format that chrome://tracing and ui.perfetto.dev read; times are in microseconds. A device is a
process (`pid`, device index + 1), its compute and its bus are threads (`tid`):

  "M"       names and the order of processes and threads
  "X"       an op, a transfer, or the packing or unpacking of one, with `ts` and `dur`
  "s", "f"  an arrow from a transfer to each op that waited for it
  "C"       bytes held by the device, from this moment to the next

Dimensions: D devices.
"""

from __future__ import annotations

import io
import json
from typing import Any, Dict, List, Optional

import numpy as np

from placeto_tf.costs.op_costs import OpCosts
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.simulation.memory import GIB, Lifetimes
from placeto_tf.simulation.schedule import SimulationResult

COMPUTE, BUS = 1, 2  # threads
_MS = 1000.0  # us; axes are in ms
_BARS = 5000  # of the time axis, about four for each pixel: shorter bars, and gaps, are not drawn
_MAX_PICTURED_DEVICES = 32  # a picture of thousands of devices would be too long and take minutes


def timeline_events(
    graph: ComputationGraph, costs: OpCosts, result: SimulationResult) -> List[Dict[str, Any]]:
  """Returns the events of a Chrome trace.

  Returns:
    JSON-able dicts; `ts` and `dur` are in us.
  """
  cluster = result.cluster
  events: List[Dict[str, Any]] = []
  # Names and order of devices and of their threads.
  for d, name in enumerate(cluster.device_names):
    events.append(_meta("process_name", d + 1, 0, name=name))
    events.append(_meta("process_sort_index", d + 1, 0, sort_index=d))
    for tid, label in ((COMPUTE, "compute"), (BUS, "bus")):
      events.append(_meta("thread_name", d + 1, tid, name=label))
      events.append(_meta("thread_sort_index", d + 1, tid, sort_index=tid))

  # A slice for each op, then for each transfer, then for each job.
  rows = zip(
      graph.op_names, graph.op_types, result.placement.tolist(),
      result.start_us.tolist(), result.end_us.tolist())
  for name, op_type, d, start, end in rows:
    events.append(_slice(name, "op", d + 1, COMPUTE, start, end, op_type=op_type))

  labels = _transfer_labels(graph, result)
  sent = result.transfers
  for t, label in enumerate(labels):
    to = [cluster.device_names[d] for d in np.flatnonzero(sent.destinations[t])]
    events.append(_slice(
        label, "transfer", int(sent.sources[t]) + 1, BUS, float(sent.start_us[t]),
        float(sent.end_us[t]), bytes=float(sent.sizes_bytes[t]), to=", ".join(to)))
  jobs = result.jobs
  for j in range(len(jobs)):
    what = "pack" if jobs.packing[j] else "unpack"
    events.append(_slice(
        f"{what} {labels[jobs.transfers[j]]}", what, int(jobs.devices[j]) + 1,
        COMPUTE, float(jobs.start_us[j]), float(jobs.end_us[j])))
  events.extend(_arrows(graph, result, labels))

  # A counter of the bytes held: one event at each moment at which they change.
  lifetimes = Lifetimes.of(graph, costs, result)
  for d in range(cluster.num_devices):
    for ts, held in zip(*(column.tolist() for column in lifetimes.usage(d))):
      events.append({"ph": "C", "name": "memory", "pid": d + 1, "tid": 0, "ts": ts,
                     "args": {"bytes": held}})
  return events


def write_timeline(
    graph: ComputationGraph, costs: OpCosts, result: SimulationResult, path: str) -> None:
  """Writes `timeline.json`, which opens in Perfetto.

  Args:
    graph, costs: of the step.
    result: its schedule.
    path: the file to write.
  """
  trace = {"traceEvents": timeline_events(graph, costs, result), "displayTimeUnit": "ms"}
  with open(path, "w", encoding="utf-8") as file:
    file.write(json.dumps(trace, separators=(",", ":")))  # ten times as fast as json.dump


def _meta(what: str, pid: int, tid: int, **args: Any) -> Dict[str, Any]:
  return {"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": 0, "args": args}


def _slice(
    name: str, category: str, pid: int, tid: int, start: float, end: float, **args: Any
) -> Dict[str, Any]:
  return {"ph": "X", "name": name, "cat": category, "pid": pid, "tid": tid, "ts": start,
          "dur": end - start, "args": args}


def _transfer_labels(graph: ComputationGraph, result: SimulationResult) -> List[str]:
  """Returns tensor names in TensorFlow's notation for inputs: "op", "op:1", "^op" for control."""
  labels = []
  for op, port in zip(result.transfers.ops.tolist(), result.transfers.ports.tolist()):
    name = graph.op_names[op]
    labels.append(f"^{name}" if port < 0 else f"{name}:{port}" if port else name)
  return labels


def _arrows(
    graph: ComputationGraph, result: SimulationResult, labels: List[str]
) -> List[Dict[str, Any]]:
  """Adds an arrow from every transfer to each op for which it carries an input."""
  events: List[Dict[str, Any]] = []
  sent, place, carriers = result.transfers, result.placement, result.transfers.of_edges()
  for number, (producer, port, consumer) in enumerate(graph.edges):
    d = int(place[consumer])
    if d == place[producer]:
      continue
    # An arrow begins at the transfer's slice and ends at the consumer's ("bp": "e", the enclosing).
    t = carriers[producer, port, d]
    common = {"name": labels[t], "cat": "dataflow", "id": number}
    events.append({
        **common, "ph": "s", "pid": int(place[producer]) + 1, "tid": BUS,
        "ts": float(sent.start_us[t])})
    events.append({
        **common, "ph": "f", "bp": "e", "pid": d + 1, "tid": COMPUTE,
        "ts": float(result.start_us[consumer])})
  return events


def timeline_figure(
    graph: ComputationGraph, costs: OpCosts, result: SimulationResult, *, title: str,
    before: Optional[SimulationResult] = None):
  """Draws a lane for each device and each bus, and the memory of devices.

  Args:
    graph, costs: of the step.
    result: the step to draw.
    title: above the lanes.
    before: another step, drawn above on the same time axis, with the devices that compute in it.
  """
  from matplotlib.backends.backend_agg import FigureCanvasAgg  # slow to import, rarely needed
  from matplotlib.figure import Figure
  shown = _pictured_devices(result)
  panels = [(result, shown, title)]
  # Panels from top to bottom; a step to compare with is drawn above.
  if before is not None:
    used = [d for d in _pictured_devices(before) if before.busy_us[d] > 0]
    panels.insert(0, (before, used or shown, f"before: {before.step_time_us / _MS:,.4g} ms"))
  # Inches: each device has two lanes, the title takes the rest; memory has a panel of its own.
  heights = [*(0.55 * len(devices) + 0.6 for _, devices, _ in panels), 1.8]
  figure = Figure(figsize=(10, sum(heights) + 0.4 * len(heights) + 0.4), dpi=120)
  FigureCanvasAgg(figure)
  axes = figure.subplots(
      len(heights), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
  longest_us = max(1e-6, *(step.step_time_us for step, _, _ in panels))
  for lanes, (step, devices, text) in zip(axes, panels):
    _draw_lanes(lanes, step, devices, longest_us / _BARS)
    lanes.set_title(text, fontsize=13)
  axes[0].set_xlim(0, longest_us / _MS)
  lifetimes = Lifetimes.of(graph, costs, result)
  for lane, d in enumerate(shown):
    times_us, held = lifetimes.usage(d)
    axes[-1].step(times_us / _MS, held / GIB, where="post", color=f"C{lane % 10}",
                  label=result.cluster.device_names[d], linewidth=1)
  axes[-1].set_ylabel("GiB")
  axes[-1].set_ylim(bottom=0)
  axes[-1].legend(fontsize=9, loc="upper right")
  axes[-1].set_xlabel("ms")
  figure.tight_layout()
  return figure


def _draw_lanes(
    axes: Any, result: SimulationResult, devices: List[int], unit_us: float) -> None:
  """Draws the ops and transfers of some devices, two lanes a device, in multiples of a unit."""
  names, sent, jobs = result.cluster.device_names, result.transfers, result.jobs
  for lane, d in enumerate(devices):
    for mask, start_us, end_us, height, low, colour in (
        (result.placement == d, result.start_us, result.end_us, 0.5, 0.0, f"C{lane % 10}"),
        (jobs.devices == d, jobs.start_us, jobs.end_us, 0.5, 0.0, "0.2"),
        (sent.sources == d, sent.start_us, sent.end_us, 0.28, 0.55, "0.55")):
      mask &= end_us > start_us  # bars without a duration are left out
      # [2, bars] first and last units that a bar covers, each pair once, in ms.
      first, last = unit_us / _MS * np.unique(np.stack(
          [start_us[mask] // unit_us, -(-end_us[mask] // unit_us)]), axis=1)
      axes.broken_barh(np.column_stack([first, last - first]), (lane + low, height),
                       color=colour, linewidth=0)
  axes.set_yticks(
      [lane + y for lane in range(len(devices)) for y in (0.25, 0.69)],
      [label for d in devices for label in (names[d], "bus")], fontsize=8)
  axes.tick_params(labelsize=9)
  # Upside down, so that the first device is at the top.
  axes.set_ylim(len(devices), -0.15)
  if len(names) > _MAX_PICTURED_DEVICES and len(devices) == _MAX_PICTURED_DEVICES:
    axes.text(1.0, 1.01, f"the {len(devices)} busiest of {len(names):,} devices", fontsize=9,
              ha="right", va="bottom", transform=axes.transAxes)


def _pictured_devices(result: SimulationResult) -> List[int]:
  """Returns the devices to show: all devices or, of many, the busiest ones."""
  # A stable sort: of equally busy devices, the ones with lower indices are shown.
  return sorted(np.argsort(-result.busy_us, kind="stable")[:_MAX_PICTURED_DEVICES].tolist())


def timeline_png(*step: Any, **options: Any) -> bytes:
  """Draws `timeline_figure` as a PNG file.

  Args:
    *step: graph, costs and schedule, as for `timeline_figure`.
    **options: of `timeline_figure`.

  Returns:
    The content of the file.
  """
  content = io.BytesIO()
  timeline_figure(*step, **options).savefig(content, format="png")
  return content.getvalue()
