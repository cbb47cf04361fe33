"""Simulates the step with some ops on other devices.

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
from placeto_tf.simulation import SimulationResult, Simulator

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
  """

  moved: Tuple[str, ...]
  step_time_us: float
  changed_us: float
  fits: bool
  before: Explanation
  after: Explanation

  def __str__(self) -> str:
    if not self.moved:
      return f"{ms_text(self.step_time_us)}: these ops are there already"
    ratio = self.changed_us / self.step_time_us if self.step_time_us else 1.0
    return (
        f"{ms_text(self.changed_us)} a step instead of {ms_text(self.step_time_us)} ({ratio:.2f} "
        f"times as long) with {counted(len(self.moved), 'op')} moved ({listed(self.moved)})"
        f"{'' if self.fits else '; it does not fit in memory'}\n"
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
    rows = _with_colocated(graph, matching_ops(regex, graph.op_names))
    stuck = np.flatnonzero(rows & ~able[:, column])
    if len(stuck):
      names = [name for name, may in zip(cluster.device_names, able[stuck[0]]) if may]
      raise PlacementError(
          f"op {graph.op_names[stuck[0]]!r} has no kernel on {device} (or an op it is colocated "
          f"with has none); it can be moved to {listed(names, most=4)}")
    placement[rows] = column
  after = Simulator(graph, result.costs, cluster).simulate(placement)
  return WhatIf(
      tuple(graph.op_names[op] for op in np.flatnonzero(placement != result.indices)),
      result.simulated.step_time_us, after.step_time_us, bool(after.fits),
      explain(graph, result.simulated), explain(graph, after))


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


def why(result: Any) -> List[Dict[str, Any]]:
  """Explains the devices of the largest variables and of the costliest ops, for a report.

  Returns:
    For each op a JSON-able dict: `op`, `device`, and `elsewhere`: device -> `step_time_us`, `fits`,
    for the other devices on which the op has a kernel.
  """
  graph, held = result.graph, result.costs.persistent_bytes
  # Ops without variables hold 0 bytes and are left out.
  ops = [op for op in np.argsort(-held, kind="stable")[:_REPORTED].tolist() if held[op] > 0]
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
    A line for each device that has some of the ops, and a line for each device that could have all.

  Raises:
    PlacementError: the expression is invalid, or matches no op.
  """
  names, ops = result.cluster.device_names, matching_ops(regex, result.graph.op_names)
  lines = []
  for d in np.unique(result.indices[ops]).tolist():
    found = [result.graph.op_names[op] for op in ops if result.indices[op] == d]
    lines.append(f"{listed(found)} {'is' if len(found) == 1 else 'are'} on {short_name(names[d])}: "
                 f"{ms_text(result.step_time_us)} a step")
  lines += [
      f"All {len(ops):,} on {short_name(device)}: {ms_text(step.step_time_us)} a step"
      f"{'' if step.fits else ' (does not fit)'}; {explain(result.graph, step).causes}"
      for device, step in _elsewhere(result, ops).items()]
  return lines
