"""Explains the time of a simulated step by its critical path; simulates it with ops elsewhere.

A result is a `PlacingResult`. Its class is not imported, because the class uses this module.

The path is followed back from the op that ends last. An op begins when its device is free and its
last input has arrived. So each microsecond of the step belongs to computing, sending, launching or
waiting.

Dimensions: N ops, D devices.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import operator
from typing import Any, Dict, List, Mapping, Sequence, Tuple

import numpy as np

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.clusters.constraints import allowed_devices
from placeto_tf.clusters.device_names import short_name
from placeto_tf.clusters.pins import device_index, matching_ops
from placeto_tf.costs.op_costs import OpCosts
from placeto_tf.errors import PlacementError, counted, listed
from placeto_tf.graphs.computation_graph import CONTROL, ComputationGraph
from placeto_tf.graphs.traversal import neighbours
from placeto_tf.replication.dataflow import closure
from placeto_tf.simulation import SimulationResult, Simulator
from placeto_tf.simulation.memory import size_text

_SHOWN = 3  # most devices, links or ops to name
_SMALL = 0.5  # least share of launch overhead in a step that is too small for several devices
LEAST_US = 1.0  # shorter step times are counted as this time


def three_digits(value: float) -> str:
  """Returns three significant digits, and at most three decimals: "264,000", "12.3"."""
  rounded = float(f"{value:.3g}")
  decimals = 2 - math.floor(math.log10(abs(rounded) or 1.0))
  return f"{rounded:,.{min(3, max(0, decimals))}f}"


def ms_text(us: float) -> str:
  """Returns a time as text, such as "12.3 ms" or "1,230 ms"."""
  least = f"less than {LEAST_US / 1e3:.3f} ms"
  return least if 0 < us < LEAST_US else f"{three_digits(us / 1e3)} ms"


@dataclasses.dataclass(frozen=True)
class Explanation:
  """The times on the critical path of a step, by cause; their sum is the step time.

  Attributes:
    step_time_us: of the step.
    compute_us: device -> time.
    transfer_us: "device -> device" -> time, including waits for a bus, latencies and packing.
    launches_us: launch overheads after ops.
    waiting_us: the rest.
    costliest: (op, device, us) of the ops that take longest on the path.
  """

  step_time_us: float
  compute_us: Mapping[str, float]
  transfer_us: Mapping[str, float]
  launches_us: float
  waiting_us: float
  costliest: Tuple[Tuple[str, str, float], ...]

  def __str__(self) -> str:
    if not self.step_time_us:
      return "nothing takes time"
    parts = []
    for one, many, times in (("compute of", "compute", self.compute_us),
                             ("transfers", "transfers", self.transfer_us)):
      names = sorted(times, key=lambda name: -times[name])
      shares = ", ".join(f"{name} {self._share(times[name])}" for name in names[:_SHOWN])
      parts.append((sum(times.values()), f"{many} ({shares})" if len(names) > 1 else (
          f"{one} {''.join(names)}")))
    parts += [(self.launches_us, "launches"), (self.waiting_us, "waiting")]
    parts.sort(key=lambda part: -part[0])
    # Leave out causes below half a percent of the step.
    line = ", ".join(f"{self._share(us)} {text}" for us, text in parts
                     if us >= 0.005 * self.step_time_us)
    if self.costliest:
      line += "; costliest: " + ", ".join(
          f"{op} ({ms_text(us)})" for op, _, us in self.costliest)
    return line

  def _share(self, us: float) -> str:
    return f"{100 * us / self.step_time_us:.0f} %"


def explain(graph: ComputationGraph, simulated: SimulationResult) -> Explanation:
  """Explains the time of a step by its critical path.

  The op before another one on the path is the one for which it waited longest: the producer of its
  last input, or the op before it on its device. A transfer takes from the end of its producer until
  its consumer begins; so it includes the wait for a bus, latencies, packing and unpacking.
  """
  cluster, place, end_us = simulated.cluster, simulated.placement, simulated.end_us
  names = [short_name(name) for name in cluster.device_names]
  inputs, before = _inputs(graph, simulated), _before(graph, simulated)
  compute_us: Dict[str, float] = collections.defaultdict(float)
  transfer_us: Dict[str, float] = collections.defaultdict(float)
  took_us: Dict[int, float] = {}  # op of the path -> its time
  launches_us = waiting_us = 0.0
  op = int(np.argmax(end_us)) if graph.num_ops else -1
  while op >= 0:
    start_us, between_us = float(simulated.start_us[op]), float(simulated.launches_us[op])
    took_us[op] = float(end_us[op]) - start_us
    launches_us += between_us  # between the rounds of a loop
    compute_us[names[place[op]]] += took_us[op] - between_us
    arrived_us, last = max(inputs[op], key=operator.itemgetter(0), default=(-1.0, -1))
    # The device was busy longer than the last input took to arrive.
    if before[op] >= 0 and arrived_us < end_us[before[op]] <= start_us:
      last = int(before[op])
    # The gap between both ops, or before the first op of the path.
    gap_us = start_us - (float(end_us[last]) if last >= 0 else 0.0)
    if last >= 0 and place[last] != place[op]:
      transfer_us[f"{names[place[last]]} -> {names[place[op]]}"] += gap_us
    else:  # the device may have been in the overhead of an op that ended before
      overhead_us = 0.0 if last < 0 else gap_us if cluster.launch_us else min(
          gap_us, cluster.op_overhead_us)
      launches_us += overhead_us
      waiting_us += gap_us - overhead_us
    op = last

  costliest = sorted(took_us, key=lambda op: (-took_us[op], op))[:_SHOWN]
  return Explanation(
      simulated.step_time_us, {name: us for name, us in compute_us.items() if us > 0},
      {pair: us for pair, us in transfer_us.items() if us > 0}, launches_us, waiting_us,
      tuple((graph.op_names[op], names[place[op]], took_us[op]) for op in costliest
            if took_us[op] > 0))


def _inputs(
    graph: ComputationGraph, step: SimulationResult) -> List[List[Tuple[float, int]]]:
  """Returns the inputs of each op: (when the input is on the op's device in us, producer)."""
  place, sent, carriers = step.placement, step.transfers, step.transfers.of_edges()
  found: List[List[Tuple[float, int]]] = [[] for _ in range(graph.num_ops)]
  for producer, port, consumer in graph.edges:
    here, there = int(place[producer]), int(place[consumer])
    # A transfer arrives a latency after its end.
    found[consumer].append((
        float(step.end_us[producer]) if here == there else
        float(sent.end_us[carriers[producer, port, there]] + step.cluster.latency_us[here, there]),
        producer))
  return found


def _before(graph: ComputationGraph, step: SimulationResult) -> np.ndarray:
  """Returns [N], the op before each on its device; -1 for the first.

  Among ops of zero duration at one instant, the topological rank puts an op after its inputs.
  """
  order = np.lexsort((graph.topological_rank, step.end_us, step.start_us, step.placement))
  found = np.full(graph.num_ops, -1)
  same = step.placement[order[1:]] == step.placement[order[:-1]]
  found[order[1:][same]] = order[:-1][same]
  return found


@dataclasses.dataclass(frozen=True)
class WhatIf:
  """The simulation of a changed placement.

  Attributes:
    moved: names of the moved ops, including ops that are colocated with them.
    fits: whether the changed placement fits in memory.
    before, after: the step times before and after the change, explained.
    peak_memory_bytes: device -> (peak before, peak after the change).
    slots: names of the moved variables of optimizers, which follow the variables that they update.
    stayed: names of matching ops that stay, because they have no kernel on the device.
  """

  moved: Tuple[str, ...]
  fits: bool
  before: Explanation
  after: Explanation
  peak_memory_bytes: Mapping[str, Tuple[float, float]]
  slots: Tuple[str, ...] = ()
  stayed: Tuple[str, ...] = ()

  def __str__(self) -> str:
    before_us, after_us = self.before.step_time_us, self.after.step_time_us
    stay = "" if not self.stayed else (
        f"; {counted(len(self.stayed), 'op')} without a kernel there stay ({listed(self.stayed)})")
    if not self.moved:
      return f"{ms_text(before_us)}: these ops are there already{stay}"
    ratio = after_us / before_us if before_us else 1.0
    slots = f", with {counted(len(self.slots), 'slot')} of their optimizer" if self.slots else ""
    memory = ", ".join(
        f"{device} {size_text(after)} instead of {size_text(before)}"
        for device, (before, after) in self.peak_memory_bytes.items() if before != after)
    return (
        f"{ms_text(after_us)} a step instead of {ms_text(before_us)} ({ratio:.2f} "
        f"times as long) with {counted(len(self.moved), 'op')} moved ({listed(self.moved)}{slots})"
        f"{stay}{'' if self.fits else '; it does not fit in memory'}\n"
        f"  memory: {memory or 'as before'}\n  now:  {self.before}\n  then: {self.after}")


def what_if(result: Any, changes: Mapping[str, str]) -> WhatIf:
  """Simulates a placement with some ops on other devices.

  Args:
    result: the result of `place`.
    changes: regex -> device; ops whose whole name matches are moved to the device, together with
      ops that are colocated with them, and with the slots and updates of variables among them. If
      several expressions match an op, the last one applies. Ops without a kernel there stay.

  Returns:
    Both step times and peaks of memory, and explanations of the times.

  Raises:
    PlacementError: an expression is invalid or matches no op, a device is not in the cluster, or
      none of the ops has a kernel on the device.
  """
  graph, cluster = result.graph, result.cluster
  able, placement = allowed_devices(graph, cluster), result.indices.copy()
  slots, stayed = np.zeros((2, graph.num_ops), dtype=bool)
  for regex, device in changes.items():
    column = device_index(cluster, device)
    rows = _with_colocated(graph, matching_ops(regex, graph.op_names))
    stuck = rows & ~able[:, column]
    if (rows == stuck).all():
      first = int(np.flatnonzero(stuck)[0])
      names = [name for name, may in zip(cluster.device_names, able[first]) if may]
      raise PlacementError(
          f"op {graph.op_names[first]!r} has no kernel on {device} (or an op it is colocated "
          f"with has none); it can be moved to {listed(names, most=4)}")
    stayed |= stuck
    following = _of_optimizer(graph, result.costs, rows & ~stuck) & able[:, column]
    slots |= following & (result.costs.persistent_bytes > 0) & ~rows
    placement[rows & ~stuck | following] = column
  after = Simulator(graph, result.costs, cluster).simulate(placement)

  def named(ops: np.ndarray) -> Tuple[str, ...]:
    return tuple(graph.op_names[op] for op in np.flatnonzero(ops))

  return WhatIf(
      named(placement != result.indices), bool(after.fits), result.explanation,
      explain(graph, after), {short_name(name): (float(old), float(new)) for name, old, new in zip(
          cluster.device_names, result.simulated.peak_memory_bytes, after.peak_memory_bytes)},
      named(slots & (placement != result.indices)), named(stayed))


def _of_optimizer(graph: ComputationGraph, costs: OpCosts, rows: np.ndarray) -> np.ndarray:
  """Returns the slots of the variables among `rows` [N], and the ops from slots to updates, [N].

  A slot is a variable of the same size all of whose readers serve the updates of that variable.
  """
  data = graph.edge_ports != CONTROL
  readers = neighbours(graph.edge_producers[data], graph.edge_consumers[data], graph.num_ops)
  sets, held = graph.colocation, costs.persistent_bytes
  holders = np.flatnonzero((held > 0) & (np.array(graph.op_types) != "Const")).tolist()
  moved = [op for op in holders if rows[op]]
  sizes, found = {float(held[op]) for op in moved}, np.zeros(graph.num_ops, dtype=bool)
  labels, awaited = {int(sets[op]) for op in moved}, set(graph.edge_producers.tolist())
  for op in holders:
    if rows[op] or float(held[op]) not in sizes:
      continue
    # From the slot up to ops that nothing waits for, or that are with one of the variables.
    after = closure({op}, readers, lambda at: int(sets[at]) not in labels)
    ends = {int(sets[at]) for at in after if at not in awaited or int(sets[at]) in labels}
    if ends & labels and ends <= labels | {int(sets[op])}:
      found |= _with_colocated(graph, sorted(after))
  return found


def _with_colocated(graph: ComputationGraph, ops: Sequence[int]) -> np.ndarray:
  """Returns [N] bool, the given ops and all ops that are colocated with them."""
  return np.isin(graph.colocation, graph.colocation[list(ops)])


def _elsewhere(result: Any, ops: Sequence[int]) -> Dict[str, SimulationResult]:
  """Simulates the step with all given ops on one device, for each device with their kernels."""
  rows = _with_colocated(result.graph, ops)
  able = allowed_devices(result.graph, result.cluster)[rows].all(axis=0)
  simulator = Simulator(result.graph, result.costs, result.cluster)
  # Other ops keep their devices; devices that change nothing are left out.
  return {
      result.cluster.device_names[d]: simulator.simulate(np.where(rows, d, result.indices))
      for d in np.flatnonzero(able).tolist() if (result.indices[rows] != d).any()}


def small_step(explanation: Explanation, cluster: Cluster) -> str:
  """Returns a remark if several devices cannot speed up a step much, because its kernels are small.

  Returns:
    Words for a sentence on the step; "" if launches take less than half of the step, or if there is
    one device.
  """
  share = explanation.launches_us / max(explanation.step_time_us, 1e-9)
  if share < _SMALL or sum(not device.host for device in cluster.devices) < 2:
    return ""
  return (f"too small for several devices: {share:.0%} of it are launches of kernels, which one "
          "process makes for all devices (a larger batch helps, or XLA instead of placing)")


def why(result: Any) -> List[Dict[str, Any]]:
  """Explains the devices of the largest variables and of the costliest ops, for a report.

  Returns:
    For each op a JSON-able dict: `op`, `device`, and `elsewhere`: device -> `step_time_us`, `fits`,
    for the other devices on which the op has a kernel.
  """
  graph, held = result.graph, result.costs.persistent_bytes
  # Ops without variables hold 0 bytes and are left out.
  ops = [op for op in np.argsort(-held, kind="stable")[:_SHOWN].tolist() if held[op] > 0]
  ops += [graph.op_index[name] for name, _, _ in result.explanation.costliest]
  return [{
      "op": graph.op_names[op], "device": result.cluster.device_names[result.indices[op]],
      "elsewhere": {device: {"step_time_us": step.step_time_us, "fits": bool(step.fits)}
                    for device, step in _elsewhere(result, [op]).items()}}
          for op in dict.fromkeys(ops)]


def why_lines(result: Any, regex: str) -> List[str]:
  """Returns the lines of `place.py --why`: devices of matching ops, and step times elsewhere.

  Args:
    result: the result of `place`.
    regex: regular expression that matches whole names.

  Returns:
    A line for each device that has some of the ops, and a line for each device that could have all;
    the fastest of these has an explanation.

  Raises:
    PlacementError: the expression is invalid, or matches no op.
  """
  names, ops = result.cluster.device_names, matching_ops(regex, result.graph.op_names)
  lines = []
  for d in np.unique(result.indices[ops]).tolist():
    found = [result.graph.op_names[op] for op in ops if result.indices[op] == d]
    lines.append(f"{listed(found)} {'is' if len(found) == 1 else 'are'} on {short_name(names[d])}: "
                 f"{ms_text(result.step_time_us)} a step")
  steps = _elsewhere(result, ops)
  best = min(steps, key=lambda device: steps[device].step_time_us, default="")
  lines += [f"All {len(ops):,} on {short_name(device)}: {ms_text(step.step_time_us)} a step"
            f"{'' if step.fits else ' (does not fit)'}"
            f"{f'; {explain(result.graph, step)}' if device == best else ''}"
            for device, step in steps.items()]
  return lines
