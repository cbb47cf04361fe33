"""Explains the time of a simulated step by its critical path, in one line.

The path is followed back from the op that ends last. An op begins when its device is free and its
last input has arrived; a transfer begins when its producer has ended and the bus is free. So each
microsecond of the step belongs to computing, sending, launching or waiting.

Dimensions: N ops, D devices, T transfers.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import Dict, Mapping, Optional, Tuple

import numpy as np

from placeto_tf.clusters.device_names import short_name
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.grouping.contraction import topological_rank
from placeto_tf.simulation import SimulationResult

_SHOWN = 3  # most devices, links or ops to name


LEAST_US = 1.0  # shorter step times are counted as this time


def ms_text(us: float, digits: int = 1) -> str:
  """Returns a time in ms as text; times below 1 ms have three decimals.

  Args:
    us: the time in microseconds.
    digits: number of decimals of times of at least 1 ms.

  Returns:
    A text such as "12.3 ms".
  """
  if 0 < us < LEAST_US:
    return f"less than {LEAST_US / 1e3:.3f} ms"
  return f"{us / 1e3:,.{3 if us < 1e3 else digits}f} ms"


@dataclasses.dataclass(frozen=True)
class Explanation:
  """The times on the critical path of a step, by cause; their sum is the step time.

  Attributes:
    step_time_us: of the step.
    compute_us: device -> time.
    transfer_us: "device -> device" -> time, including latencies and packing.
    launches_us: launch overheads after ops.
    waiting_us: the rest.
    costliest: (op, device, us) of the ops that take longest on the path.
    bound_us: a lower bound of the step time of all placements; None if unknown.
  """

  step_time_us: float
  compute_us: Mapping[str, float]
  transfer_us: Mapping[str, float]
  launches_us: float
  waiting_us: float
  costliest: Tuple[Tuple[str, str, float], ...]
  bound_us: Optional[float] = None

  def __str__(self) -> str:
    if not self.bound_us or not self.step_time_us:
      return self.causes
    over = 100 * (self.step_time_us / self.bound_us - 1)
    return self.causes + ("; the best possible" if over < 0.05 else (
        f"; at most {over:.{int(over < 10)}f} % above the best possible"))

  @property
  def causes(self) -> str:
    """Returns the causes of the step time as text, without the lower bound."""
    if not self.step_time_us:
      return "nothing takes time"
    parts = []
    # Leave out causes below half a percent of the step.
    for what, times in (("compute", self.compute_us), ("transfers", self.transfer_us)):
      shown = sorted(times, key=lambda name: -times[name])
      named = ", ".join(f"{name} {self._share(times[name])}" for name in shown[:_SHOWN])
      if times and sum(times.values()) >= 0.005 * self.step_time_us:
        parts.append((sum(times.values()), f"{what} ({named})" if len(shown) > 1 else (
            f"{what} of {shown[0]}" if what == "compute" else f"{what} {shown[0]}")))
    parts += [(self.launches_us, "launches"), (self.waiting_us, "waiting")]
    parts.sort(key=lambda part: -part[0])
    line = ", ".join(f"{self._share(us)} {text}" for us, text in parts
                     if us >= 0.005 * self.step_time_us)
    if self.costliest:
      line += "; costliest: " + ", ".join(
          f"{op} ({ms_text(us, 2)})" for op, _, us in self.costliest)
    return line

  def _share(self, us: float) -> str:
    return f"{100 * us / self.step_time_us:.0f} %"


def explain(
    graph: ComputationGraph, simulated: SimulationResult, bound_us: Optional[float] = None
) -> Explanation:
  """Explains the time of a step by its critical path.

  Args:
    graph: N ops.
    simulated: the simulated step.
    bound_us: a lower bound of the step time of all placements.

  Returns:
    The step time by its causes.
  """
  names = [short_name(name) for name in simulated.cluster.device_names]
  path = _Path(simulated.cluster.num_devices)
  path.follow(graph, simulated)
  ops = sorted(path.op_us, key=lambda op: -path.op_us[op])[:_SHOWN]
  return Explanation(
      simulated.step_time_us,
      {names[d]: us for d, us in enumerate(path.compute_us) if us > 0},
      {f"{names[a]} -> {names[b]}": us for (a, b), us in path.transfer_us.items() if us > 0},
      path.launches_us, path.waiting_us,
      tuple((graph.op_names[op], names[simulated.placement[op]], path.op_us[op]) for op in ops
            if path.op_us[op] > 0), bound_us)


class _Path:
  """The times on the critical path of a step."""

  def __init__(self, num_devices: int):
    self.compute_us = [0.0] * num_devices
    self.transfer_us: Dict[Tuple[int, int], float] = collections.defaultdict(float)
    self.op_us: Dict[int, float] = {}
    self.launches_us = self.waiting_us = 0.0

  def follow(self, graph: ComputationGraph, step: SimulationResult) -> None:
    """Follows the path from the op that ends last to the beginning of the step.

    Items are the ops, 0 to N - 1, followed by the transfers. The item before another one on the
    path is the one that ended last: its last input, or the item before it on its device or bus.

    Args:
      graph: N ops.
      step: the simulated step.
    """
    num_ops, place, sent = graph.num_ops, step.placement, step.transfers
    if not num_ops:
      return
    start_us = np.concatenate([step.start_us, sent.start_us])  # [N + T]
    end_us = np.concatenate([step.end_us, sent.end_us])
    rank = topological_rank(graph)
    # [N + T] the item before each on its device or bus.
    before = _previous(  # devices and buses are numbered together
        np.concatenate([place, step.cluster.num_devices + _buses(step)]), start_us, end_us,
        np.concatenate([rank, rank[sent.ops]]))
    # (op, output port, destination) -> item of its transfer.
    transfer_of = {
        (op, port, d): num_ops + t
        for t, (op, port) in enumerate(zip(sent.ops.tolist(), sent.ports.tolist()))
        for d in np.flatnonzero(sent.destinations[t]).tolist()}
    edges = np.argsort(graph.edge_consumers, kind="stable")  # of op i: edges[first[i]:first[i + 1]]
    first = np.searchsorted(graph.edge_consumers[edges], np.arange(num_ops + 1))

    item = int(np.argmax(step.end_us))
    to = int(place[item])  # the device that the item runs on or sends to
    seen = set()
    while item not in seen:  # a cycle is possible only among items of zero duration
      seen.add(item)
      # Count the item's own time, then the gap before it.
      took_us = float(end_us[item] - start_us[item])
      if item < num_ops:
        launches_us = float(step.launches_us[item])  # between the runs of an op in a loop
        self.launches_us += launches_us
        self.compute_us[to] += took_us - launches_us
        self.op_us[item] = took_us
        # Inputs: a producer on this device, or the transfer that brings its output here.
        came = [producer if place[producer] == to else transfer_of[producer, port, to]
                for producer, port in zip(
                    graph.edge_producers[edges[first[item]:first[item + 1]]].tolist(),
                    graph.edge_ports[edges[first[item]:first[item + 1]]].tolist())]
      else:
        source = int(sent.sources[item - num_ops])
        self.transfer_us[source, to] += took_us
        came = [int(sent.ops[item - num_ops])]
      # A transfer arrives its link's latency after its end.
      there_us = [end_us[other] if other < num_ops else end_us[other] + step.cluster.latency_us[
          sent.sources[other - num_ops], to] for other in came]
      # The input that arrived last; -1 without inputs.
      last = came[int(np.argmax(there_us))] if came else -1
      prior = int(before[item])
      # The device was busy longer than the last input took to arrive.
      if prior >= 0 and (last < 0 or max(there_us) < end_us[prior] <= start_us[item]):
        last = prior
      if last < 0:
        break
      # The gap between the item and the one before it; the types of both give the cause.
      gap_us = float(start_us[item] - end_us[last])
      if item >= num_ops:  # packing, or the gap between two transfers of a bus
        self.transfer_us[source, to] += gap_us
      elif last >= num_ops:  # latency, delivery and unpacking
        self.transfer_us[int(sent.sources[last - num_ops]), to] += gap_us
      else:  # the device may have been in the overhead of the op that ended before, or of others
        launch_us = gap_us if step.cluster.launch_us else min(gap_us, step.cluster.op_overhead_us)
        self.launches_us += launch_us
        self.waiting_us += gap_us - launch_us
      if last < num_ops:
        to = int(place[last])
      elif not sent.destinations[last - num_ops][to]:  # the bus was busy with a transfer elsewhere
        to = int(np.flatnonzero(sent.destinations[last - num_ops])[0])
      item = last
    # The first item of the path may begin after 0.
    self.waiting_us += float(start_us[item])


def _buses(step: SimulationResult) -> np.ndarray:
  """Returns [T], the bus of each transfer: of its source, of its link, or a bus of its own."""
  sent = step.transfers
  if step.cluster.transfers == "unlimited":
    return np.arange(len(sent))
  buses = sent.sources.astype(np.int64)
  if step.cluster.transfers == "pair":
    buses = buses * step.cluster.num_devices + sent.destinations.argmax(axis=1)
  return buses


def _previous(
    owners: np.ndarray, start_us: np.ndarray, end_us: np.ndarray, rank: np.ndarray) -> np.ndarray:
  """Returns [N], the item before each on its device or bus; -1 for the first.

  `rank` is topological, so that among items of zero duration at the same time, an item comes after
  its inputs.
  """
  # Sort by owner, then start, end and rank: the item before has the same owner.
  order = np.lexsort((rank, end_us, start_us, owners))
  found = np.full(len(owners), -1)
  same = owners[order[1:]] == owners[order[:-1]]
  found[order[1:][same]] = order[:-1][same]
  return found
