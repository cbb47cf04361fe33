"""What bounds a simulated step: its critical path, told in one line.

The path is followed back from the op that ends last. An op began when its device was free, or when
its last input was there, whichever was later; a transfer began when its producer ended or the bus
was free. So each microsecond of the step belongs to computing, sending, launching or waiting.

Legend: N ops, D devices, T transfers.
"""

from __future__ import annotations

import dataclasses
from typing import Dict, Mapping, Optional, Tuple

import numpy as np

from placeto_tf.clusters.device_names import short_name
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.grouping.contraction import topological_rank
from placeto_tf.simulation import SimulationResult

_SHOWN = 3  # devices, links and ops that are named
_Pair = Tuple[int, int]


def ms_text(us: float, digits: int = 1) -> str:
  """A time in ms with so many decimals; below 1 ms, where small steps are, with three."""
  return f"{us / 1e3:,.{3 if us < 1e3 else digits}f} ms"


@dataclasses.dataclass(frozen=True)
class Explanation:
  """Where the time of a step goes, along its critical path; the times sum up to the step.

  Attributes:
    step_time_us: of the step.
    compute_us: device -> time.
    transfer_us: "device -> device" -> time, latencies and packing included.
    launches_us: overheads after ops.
    waiting_us: what is none of these.
    alone_us: how long one device works, at the beginning, before any other can.
    alone: that device; "" where the cluster has one only.
    costliest: (op, device, us) of the ops that take longest on the path.
    bound_us: no placement is faster; None where it is not known.
  """

  step_time_us: float
  compute_us: Mapping[str, float]
  transfer_us: Mapping[str, float]
  launches_us: float
  waiting_us: float
  alone_us: float
  alone: str
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
    """What takes the time, and which ops most, without how much faster a step could be."""
    if not self.step_time_us:
      return "nothing takes time"
    parts = []
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
    if self.alone and 0.05 * self.step_time_us <= self.alone_us < self.step_time_us:
      line += f"; {self.alone} works {ms_text(self.alone_us)} before anything runs beside it"
    if self.costliest:
      line += "; costliest: " + ", ".join(
          f"{op} ({ms_text(us, 2)})" for op, _, us in self.costliest)
    return line

  def _share(self, us: float) -> str:
    return f"{100 * us / self.step_time_us:.0f} %"


def explain(
    graph: ComputationGraph, simulated: SimulationResult, bound_us: Optional[float] = None
) -> Explanation:
  """What bounds a step.

  Args:
    graph: N ops.
    simulated: the step.
    bound_us: the lower bound of any placement's step.
  """
  names = [short_name(name) for name in simulated.cluster.device_names]
  path = _Path(graph, simulated)
  path.follow()
  ops = sorted(path.op_us, key=lambda op: -path.op_us[op])[:_SHOWN]
  alone, alone_us = _alone(simulated)
  return Explanation(
      simulated.step_time_us,
      {names[d]: us for d, us in enumerate(path.compute_us) if us > 0},
      {f"{names[a]} -> {names[b]}": us for (a, b), us in path.transfer_us.items() if us > 0},
      path.launches_us, path.waiting_us, alone_us, names[alone] if len(names) > 1 else "",
      tuple((graph.op_names[op], names[simulated.placement[op]], path.op_us[op]) for op in ops
            if path.op_us[op] > 0), bound_us)


class _Path:
  """The critical path of a step, and what its time was spent on."""

  def __init__(self, graph: ComputationGraph, simulated: SimulationResult):
    self.compute_us = [0.0] * simulated.cluster.num_devices
    self.transfer_us: Dict[_Pair, float] = {}
    self.op_us: Dict[int, float] = {}
    self.launches_us = self.waiting_us = 0.0
    self._graph, self._step = graph, simulated
    self._place = simulated.placement
    sent = simulated.transfers
    self._transfer_of = {
        (op, port, d): t for t, (op, port) in enumerate(zip(sent.ops.tolist(), sent.ports.tolist()))
        for d in np.flatnonzero(sent.destinations[t]).tolist()}
    rank = topological_rank(graph)
    self._before_op = _previous(self._place, simulated.start_us, simulated.end_us, rank)
    # Transfers of one bus; of unlimited ones each has its own.
    buses = sent.sources.astype(np.int64) * (simulated.cluster.num_devices + 1)
    if simulated.cluster.transfers != "device":
      buses += sent.destinations.argmax(axis=1) + 1
    if simulated.cluster.transfers == "unlimited":
      buses = np.arange(len(sent))
    self._before_transfer = _previous(buses, sent.start_us, sent.end_us, rank[sent.ops])
    order = np.argsort(graph.edge_consumers, kind="stable")
    self._edges = order
    self._first_edge = np.searchsorted(
        graph.edge_consumers[order], np.arange(graph.num_ops + 1))

  def follow(self) -> None:
    """Goes back from the op that ends last to the beginning of the step."""
    step = self._step
    if not len(step.end_us):
      return
    op, transfer = int(np.argmax(step.end_us)), -1
    seen = set()
    while (op, transfer) not in seen:
      seen.add((op, transfer))
      op, transfer = (
          self._through_transfer(op, transfer) if transfer >= 0 else self._through_op(op))
      if op < 0:
        return
    # Only what takes no time could go round; what is left of the step was before that.
    self.waiting_us += float(step.start_us[op])

  def _through_op(self, op: int) -> _Pair:
    """Counts an op; returns what it waited for: an op, or the op that a transfer was for."""
    step, d = self._step, int(self._place[op])
    took = float(step.end_us[op] - step.start_us[op])
    launches = float(step.launches_us[op])  # between the runs of an op in a loop
    self.launches_us += launches
    self.compute_us[d] += took - launches
    self.op_us[op] = took
    best, found = -1.0, (-1, -1)
    graph = self._graph
    for edge in self._edges[self._first_edge[op]:self._first_edge[op + 1]].tolist():
      producer, port = int(graph.edge_producers[edge]), int(graph.edge_ports[edge])
      if self._place[producer] == d:
        came, item = float(step.end_us[producer]), (producer, -1)
      else:
        t = self._transfer_of[producer, port, d]
        latency_us = step.cluster.latency_us[self._place[producer], d]
        came, item = float(step.transfers.end_us[t] + latency_us), (op, t)
      if came > best:
        best, found = came, item
    start = float(step.start_us[op])
    before = int(self._before_op[op])
    if before >= 0 and step.end_us[before] > best:
      gap = start - float(step.end_us[before])
      launch = min(gap, self._step.cluster.op_overhead_us)
      self.launches_us += launch
      self.waiting_us += gap - launch
      return before, -1
    if found[0] < 0:
      self.waiting_us += start
      return found
    if found[1] >= 0:  # what comes after a transfer's end is unpacking and delivery
      sent_us = float(step.transfers.end_us[found[1]])
      self._add_transfer(int(step.transfers.sources[found[1]]), d, start - sent_us)
      return found
    # The device may have been in the overhead of an op that ended before.
    launch = min(start - best, self._step.cluster.op_overhead_us)
    self.launches_us += launch
    self.waiting_us += start - best - launch
    return found

  def _through_transfer(self, op: int, transfer: int) -> _Pair:
    """Counts a transfer to an op; returns what it waited for."""
    sent, step = self._step.transfers, self._step
    source, target = int(sent.sources[transfer]), int(self._place[op])
    start = float(sent.start_us[transfer])
    self._add_transfer(source, target, float(sent.end_us[transfer]) - start)
    producer, before = int(sent.ops[transfer]), int(self._before_transfer[transfer])
    ended = float(step.end_us[producer])
    if before >= 0 and sent.end_us[before] > ended:  # the bus was busy
      self._add_transfer(source, target, start - float(sent.end_us[before]))
      to = np.flatnonzero(sent.destinations[before])[0]
      return self._consumer(before, int(to)), before
    self._add_transfer(source, target, start - ended)
    return producer, -1

  def _consumer(self, transfer: int, device: int) -> int:
    """An op on a device that a transfer is for."""
    sent, graph = self._step.transfers, self._graph
    out = (graph.edge_producers == sent.ops[transfer]) & (
        graph.edge_ports == sent.ports[transfer])
    to = graph.edge_consumers[out]
    return int(to[self._place[to] == device][0])

  def _add_transfer(self, source: int, target: int, us: float) -> None:
    self.transfer_us[source, target] = self.transfer_us.get((source, target), 0.0) + us


def _previous(
    owners: np.ndarray, start_us: np.ndarray, end_us: np.ndarray, rank: np.ndarray) -> np.ndarray:
  """[N] what its device or bus did before each item; -1 for the first.

  Of items that take no time at the same moment, none comes before what it waits for: `rank` is
  topological.
  """
  order = np.lexsort((rank, end_us, start_us, owners))
  found = np.full(len(owners), -1)
  same = owners[order[1:]] == owners[order[:-1]]
  found[order[1:][same]] = order[:-1][same]
  return found


def _alone(simulated: SimulationResult) -> Tuple[int, float]:
  """The device that begins, and until when no other computes."""
  works = np.flatnonzero(simulated.end_us > simulated.start_us)
  if not len(works):
    return 0, 0.0
  first = int(simulated.placement[works[np.argmin(simulated.start_us[works])]])
  others = works[simulated.placement[works] != first]
  until = simulated.start_us[others].min() if len(others) else simulated.step_time_us
  return first, float(until)
