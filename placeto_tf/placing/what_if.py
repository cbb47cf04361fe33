"""Explains the device of an op, and simulates the step with the op on another device.

A result is a `PlacingResult`. Its class is not imported, because the class uses this module.

Dimensions: N ops, D devices.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Mapping, Sequence, Tuple

import numpy as np

from placeto_tf.clusters.constraints import allowed_devices
from placeto_tf.clusters.device_names import short_name
from placeto_tf.clusters.pins import device_index, matching_ops
from placeto_tf.errors import PlacementError, counted, listed
from placeto_tf.graphs import ComputationGraph
from placeto_tf.placing.explaining import Explanation, explain, ms_text
from placeto_tf.simulation import SimulationResult, Simulator, memory_report

_MOST_SETS = 5  # most sets of colocated ops that get lines of their own
_SMALL = 0.5  # least share of launch overhead in a step that is too small for several devices
_REPORTED = 3  # of the largest variables, and of the costliest ops, in a report


@dataclasses.dataclass(frozen=True)
class WhatIf:
  """The simulation of a changed placement.

  Attributes:
    moved: names of the moved ops, including ops that are colocated with them.
    step_time_us, changed_us: step times before and after the change.
    fits: whether the changed placement fits in memory.
    before, after: explanations of the step times.
    problem: the devices with too little memory, or "".
  """

  moved: Tuple[str, ...]
  step_time_us: float
  changed_us: float
  fits: bool
  before: Explanation
  after: Explanation
  problem: str = ""

  def __str__(self) -> str:
    if not self.moved:
      return f"{ms_text(self.step_time_us)}: these ops are there already"
    ratio = self.changed_us / self.step_time_us if self.step_time_us else 1.0
    return (
        f"{ms_text(self.changed_us)} a step instead of {ms_text(self.step_time_us)} ({ratio:.2f} "
        f"times as long) with {counted(len(self.moved), 'op')} moved ({listed(self.moved)})"
        f"{f'; it does not fit: {self.problem}' if self.problem else ''}\n"
        f"  now:  {self.before.causes}\n  then: {self.after.causes}")


def what_if(result: Any, changes: Mapping[str, str]) -> WhatIf:
  """Simulates a placement with some ops on other devices.

  Args:
    result: the result of `place`.
    changes: regex -> device; ops whose whole name matches are moved to the device, together with
      ops that are colocated with them. If several expressions match an op, the last one applies.

  Returns:
    Both step times, and explanations of them.

  Raises:
    PlacementError: an expression is invalid or matches no op, a device is not in the cluster, or
      one of the ops has no kernel on the device.
  """
  graph, cluster = result.graph, result.cluster
  able, placement = allowed_devices(graph, cluster), result.indices.copy()
  for regex, device in changes.items():
    column = device_index(cluster, device)
    # [N] bool: the ops that match, and the ops that are colocated with them.
    rows = np.isin(graph.colocation, graph.colocation[matching_ops(regex, graph.op_names)])
    stuck = np.flatnonzero(rows & ~able[:, column])
    if len(stuck):
      names = [name for name, may in zip(cluster.device_names, able[stuck[0]]) if may]
      raise PlacementError(
          f"op {graph.op_names[stuck[0]]!r} has no kernel on {device} (or an op it is colocated "
          f"with has none); it can be moved to {listed(names, most=4)}")
    placement[rows] = column
  return _compared(result, placement)


def _compared(result: Any, placement: np.ndarray) -> WhatIf:
  """Simulates a changed placement [N]."""
  graph = result.graph
  after = Simulator(graph, result.costs, result.cluster).simulate(placement)
  return WhatIf(
      tuple(graph.op_names[op] for op in np.flatnonzero(placement != result.indices)),
      result.simulated.step_time_us, after.step_time_us, bool(after.fits),
      explain(graph, result.simulated), explain(graph, after),
      "; ".join(memory_report(graph, result.costs, after)))


def why(result: Any, ops: Sequence[int]) -> List[Dict[str, Any]]:
  """Explains the devices of some ops: simulates the step with each op on each other device.

  Args:
    result: the result of `place`.
    ops: indices of ops; colocated ops have one entry.

  Returns:
    For each op a JSON-able dict: `op`, `device`, `colocated` (the number of ops that move with it),
    and `elsewhere`: device -> `step_time_us`, `fits`, for the devices on which the op has a kernel.
  """
  graph, cluster = result.graph, result.cluster
  able = allowed_devices(graph, cluster)
  simulator = Simulator(graph, result.costs, cluster)
  found = []
  # The first op of each colocation group, in the order of `ops`.
  _, first = np.unique(graph.colocation[list(ops)], return_index=True)
  for op in (ops[k] for k in sorted(first)):
    mates = graph.colocation == graph.colocation[op]
    elsewhere = {}
    for d in np.flatnonzero(able[op]).tolist():
      if d != result.indices[op]:
        # Move the op and the ops colocated with it to device d; other ops keep their devices.
        step: SimulationResult = simulator.simulate(np.where(mates, d, result.indices))
        elsewhere[cluster.device_names[d]] = {
            "step_time_us": step.step_time_us, "fits": bool(step.fits)}
    found.append({
        "op": graph.op_names[op], "device": cluster.device_names[result.indices[op]],
        "colocated": int(mates.sum()) - 1, "elsewhere": elsewhere})
  return found


def small_step_note(graph: ComputationGraph, simulated: SimulationResult) -> str:
  """Returns a note if several devices cannot speed up a step much, because its kernels are small.

  Args:
    graph: the graph.
    simulated: its simulated step.

  Returns:
    A sentence; "" if launches take less than half of the step, or if there is one device.
  """
  share = explain(graph, simulated).launches_us / max(simulated.step_time_us, 1e-9)
  if share < _SMALL or sum(not device.host for device in simulated.cluster.devices) < 2:
    return ""
  return (
      f"launches of kernels are {share:.0%} of the step: its kernels are too small for several "
      "devices, because one process launches all of them; a larger batch helps, or fewer kernels")


def notable(result: Any) -> List[int]:
  """Returns the ops that a report explains: the largest variables, and the costliest ops."""
  held = result.costs.persistent_bytes
  # Ops without variables hold 0 bytes and are left out.
  largest = [op for op in np.argsort(-held, kind="stable")[:_REPORTED].tolist() if held[op] > 0]
  index = result.graph.op_index
  return largest + [index[name] for name, _, _ in result.explanation.costliest if name in index]


def why_lines(result: Any, regex: str) -> List[str]:
  """Returns the lines of `place.py --why`: devices of matching ops, and step times elsewhere.

  Args:
    result: the result of `place`.
    regex: regular expression that matches whole names.

  Returns:
    A line for each set of colocated ops, and a line for each device that all of them may use.

  Raises:
    PlacementError: the expression is invalid, or matches no op.
  """
  graph, cluster, lines = result.graph, result.cluster, []
  ops = matching_ops(regex, graph.op_names)
  # [D]: devices on which all of them have kernels.
  able = allowed_devices(graph, cluster)[ops].all(axis=0)
  for each in why(result, ops)[:_MOST_SETS]:
    others = ", ".join(
        f"{short_name(name)} {ms_text(found['step_time_us'])}"
        f"{'' if found['fits'] else ' (does not fit)'}"
        for name, found in each["elsewhere"].items())
    mates = f" with {counted(each['colocated'], 'op')} colocated" if each["colocated"] else ""
    lines.append(
        f"{each['op']} is on {short_name(each['device'])}{mates}: " + (
            f"{ms_text(result.simulated.step_time_us)} a step; if it moved: {others}" if others else
            "it has a kernel nowhere else, or cannot be moved"))
  for d in np.flatnonzero(able).tolist():
    placement = result.indices.copy()
    # All matching ops together on one device.
    placement[np.isin(graph.colocation, graph.colocation[ops])] = d
    if (placement != result.indices).any():
      lines.append(f"All {len(ops):,} on {short_name(cluster.device_names[d])}: "
                   f"{_compared(result, placement)}")
  return lines
