"""The common part of list schedulers: a plan, which places ops one by one and keeps their times.

`links` chooses one of two models of time:

- As published: a tensor that crosses devices arrives `bytes / bandwidth + latency` (and packing)
  after its producer ended, however many other tensors are being transferred.
- With links: depending on the cluster's transfers, a tensor is sent once, through the sender's bus,
  or once to each device. The bus is busy during the transfer and the gap after it, and the consumer
  waits for the latency; devices are busy for the overhead after each op, for packing before a
  transfer and for unpacking after it. The simulator has the same costs, but another order of its
  queues: a plan books slots, the simulator serves first come, first served.

Colocated ops follow the first op of their set that is placed; that op may only use devices that all
ops of the set may use. The memory of a set is the set's part of the peak that the simulator finds
with everything on one device.

Dimensions: N ops, D devices, C colocated sets.
"""

from __future__ import annotations

import bisect
import collections
from typing import Any, Callable, Dict, List, Optional, Tuple

import numpy as np

from placeto_tf.graphs.computation_graph import CONTROL
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.candidates import best_of, bytes_at_peaks, on_one_device
from placeto_tf.problem.placement_problem import PlacementProblem


class Timeline:
  """Busy intervals of a device or a bus, in order; finds and books the first gap."""

  def __init__(self) -> None:
    self._starts: List[float] = []
    self._ends: List[float] = []

  def earliest(self, ready_us: float, length_us: float) -> float:
    """Returns the earliest start of a gap that is long enough.

    Args:
      ready_us: the start is not before this, in us.
      length_us: the gap is at least this long, in us.
    """
    starts, ends = self._starts, self._ends
    # Skip intervals that end before `ready_us`; later gaps are tried in order.
    i = bisect.bisect_right(ends, ready_us)
    start = ready_us
    while i < len(starts) and starts[i] < start + length_us:
      start = max(start, ends[i])
      i += 1
    return start

  def book(self, start_us: float, length_us: float) -> None:
    """Makes an interval busy; an interval of length 0 is not booked.

    Args:
      start_us: start of the interval, as `earliest` returned it.
      length_us: its length.

    Returns:
      None.
    """
    if length_us <= 0:
      return
    i = bisect.bisect_right(self._starts, start_us)
    # Slots that touch become one, so that the list is as short as the number of gaps.
    if i and self._ends[i - 1] >= start_us:
      self._ends[i - 1] = start_us + length_us
      i -= 1
    else:
      self._starts.insert(i, start_us)
      self._ends.insert(i, start_us + length_us)
    # Merge with the next interval where the two now touch.
    if i + 1 < len(self._starts) and self._starts[i + 1] <= self._ends[i]:
      self._ends[i] = max(self._ends[i], self._ends[i + 1])
      del self._starts[i + 1], self._ends[i + 1]

  @property
  def end_us(self) -> float:
    """Returns the end of the last interval in us; 0 if there is none."""
    return self._ends[-1] if self._ends else 0.0


class Schedule:
  """A plan in the making.

  Attributes:
    device: [N] device of each op that has been placed, else -1.
    end_us: [N] end of each op in the plan.
    compute_us: [N][D] lists; inputs, consumers: [N] lists (see `_edges`).
    devices: [D] timelines.
  """

  def __init__(self, problem: PlacementProblem, *, links: bool):
    graph, cluster = problem.graph, problem.cluster
    n, d = graph.num_ops, cluster.num_devices
    self.links = links
    compute_us = problem.costs.compute_us[:, cluster.device_kinds]  # [N, D]
    self.compute_us: List[List[float]] = compute_us.tolist()
    self._busy_us = (
        compute_us + (cluster.pause_us(compute_us, np.arange(d)) if links else 0.0)).tolist()
    self.inputs, self.consumers = _edges(problem)
    self.device = [-1] * n
    self.end_us = [0.0] * n
    self.devices = [Timeline() for _ in range(d)]
    self._buses: Dict[Tuple[int, int], Timeline] = collections.defaultdict(Timeline)
    self._queued = cluster.transfers != "unlimited"
    self._paired = cluster.transfers == "pair"
    self._to_each = cluster.transfer_per_destination or cluster.transfers != "device"
    self._gap_us = cluster.bus_gap_us
    self._us_per_byte = (1 / cluster.bandwidth_bytes_per_us).tolist()
    self._latency_us = cluster.latency_us.tolist()
    # (per transfer, per byte) of the compute queues of the sender and of the receiver.
    self._pack = cluster.sender_us_per_transfer, cluster.sender_us_per_byte
    self._unpack = cluster.receiver_us_per_transfer, cluster.receiver_us_per_byte
    # (producer, port, device) -> arrival there; device -1 -> end of one transfer to all devices.
    self._sent_us: Dict[Tuple[int, int, int], float] = {}
    self._set = graph.colocation.tolist()
    # Set -> the device of its first placed op.
    self._set_device: Dict[int, int] = {}
    self._allowed = [np.flatnonzero(row).tolist() for row in problem.allowed_ops]
    # [N] bytes by label of the set, and [D] bytes that are still free.
    self._need = set_memory_bytes(problem)
    self._left_bytes = cluster.memory_bytes.tolist()

  def candidates(self, op: int) -> List[int]:
    """Returns devices for an op: its set's device, or else the allowed ones with enough memory.

    If no allowed device has enough memory for the set, the one with most memory left is returned.

    Args:
      op: index.

    Returns:
      One or more device indices.
    """
    s = self._set[op]
    if s in self._set_device:
      return [self._set_device[s]]
    allowed, left, need = self._allowed[op], self._left_bytes, self._need[s]
    return [d for d in allowed if left[d] >= need] or [max(allowed, key=left.__getitem__)]

  def data_ready_us(self, op: int, d: int) -> float:
    """Returns the earliest time at which all inputs of an op can be on a device.

    The producers of the inputs have been placed.

    Returns:
      The instant in us; nothing is booked.
    """
    planned: Dict[Timeline, float] = {}  # ends of the transfers that this op would add
    return max((self._arrives_us(*each, d, planned) for each in self.inputs[op]), default=0.0)

  def _arrives_us(
      self, u: int, tensor: int, size: float, d: int,
      planned: Optional[Dict[Timeline, float]] = None) -> float:
    """Returns when device d has a tensor of op u; books its transfer if `planned` is None."""
    e, end = self.device[u], self.end_us[u]
    if e == d:
      return end
    pack_us, unpack_us = (each + size * byte for each, byte in (self._pack, self._unpack))
    length, latency_us = size * self._us_per_byte[e][d], self._latency_us[e][d]
    if not self.links:
      # As published: bytes over bandwidth plus latency, without a queue.
      return end + pack_us + length + latency_us + unpack_us
    # A tensor that is on its way to this device already is not sent again.
    known = self._sent_us.get((u, tensor, d))
    if known is not None:
      return known

    def take(timeline: Any, ready_us: float, length_us: float, gap_us: float = 0.0) -> float:
      """Returns the end of the first gap of a timeline, after the op's own other transfers."""
      start = timeline.earliest(ready_us, length_us)
      if planned is None:
        timeline.book(start, length_us + gap_us)
      else:
        start = max(start, planned.get(timeline, 0.0))
        planned[timeline] = start + length_us + gap_us
      return start + length_us

    sent = None if self._to_each else self._sent_us.get((u, tensor, -1))
    if sent is None:
      sent = take(self.devices[e], end, pack_us) if pack_us else end
      # -1: one bus for all transfers of device e.
      sent = take(self._buses[e, d if self._paired else -1], sent, length, self._gap_us) if (
          self._queued) else sent + length
    arrival = sent + latency_us
    if unpack_us:
      arrival = take(self.devices[d], arrival, unpack_us)
    if planned is None:
      self._sent_us[u, tensor, d] = arrival
      if not self._to_each:
        self._sent_us[u, tensor, -1] = sent
    return arrival

  def occupied_us(self, op: int, d: int) -> float:
    """Returns the time for which an op keeps a device busy.

    Returns:
      Compute time and overhead in us; 0 for an op without cost.
    """
    return self._busy_us[op][d]

  def place(self, op: int, d: int, start_us: float) -> None:
    """Puts an op on a device; books the transfers of its inputs and its time slot.

    Args:
      op, d: op and device indices.
      start_us: the op does not start before this time.

    Returns:
      None.
    """
    if self.links:
      start_us = max([start_us, *(self._arrives_us(*each, d) for each in self.inputs[op])])
    # Then the first gap of the device that holds op and overhead.
    start_us = self.devices[d].earliest(start_us, self.occupied_us(op, d))
    self.devices[d].book(start_us, self.occupied_us(op, d))
    self.device[op], self.end_us[op] = d, start_us + self.compute_us[op][d]
    s = self._set[op]
    # The first op of a set takes memory for the whole set.
    if s not in self._set_device:
      self._set_device[s] = d
      self._left_bytes[d] -= self._need[s]


def _edges(
    problem: PlacementProblem) -> Tuple[List[List[Tuple[int, int, float]]], List[List[int]]]:
  """Returns the inputs (producer, port, bytes) and the consumers (each once) of every op."""
  graph = problem.graph
  n = graph.num_ops
  size = problem.costs.edge_bytes(graph)
  inputs: List[List[Tuple[int, int, float]]] = [[] for _ in range(n)]
  consumers: List[List[int]] = [[] for _ in range(n)]
  for u, port, v, data in zip(
      graph.edge_producers.tolist(), graph.edge_ports.tolist(), graph.edge_consumers.tolist(),
      np.where(graph.edge_ports == CONTROL, 0.0, size).tolist()):
    inputs[v].append((u, port, data))
    # Edges of one producer are together, so most duplicates are among the last; the rest below.
    if v not in consumers[u][-3:]:
      consumers[u].append(v)
  return inputs, [list(dict.fromkeys(found)) for found in consumers]


def set_memory_bytes(problem: PlacementProblem) -> List[float]:
  """Returns the bytes that each colocated set holds at the peak of a step on one device, [N].

  A set's bytes are at the index of its label.
  """
  graph = problem.graph
  held = bytes_at_peaks(problem, on_one_device(problem))[1]
  return np.bincount(graph.colocation, held, minlength=graph.num_ops).tolist()


def better_plan(plan: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
  """Returns the placer that evaluates a scheduler's plans in both models of time.

  Args:
    plan: function from a problem, and `links` by keyword, to devices of ops, [N].

  Returns:
    A function from a problem and a budget to the better plan's placement, [N] int32.
  """

  def place(problem: PlacementProblem, budget: Optional[Budget] = None) -> np.ndarray:
    plans = [plan(problem, links=links) for links in (True, False)]
    return best_of(problem, np.stack(plans), budget)

  return place


def upward_ranks(schedule: Schedule, problem: PlacementProblem) -> List[float]:
  """Returns the longest path from each op to the end, in mean times over devices and links.

  Topcuoglu et al. 2002, equation 8.

  Args:
    schedule: gives the inputs of the ops.
    problem: of N ops.

  Returns:
    [N] us, the op's own mean compute time included.
  """
  cluster, allowed = problem.cluster, problem.allowed_ops
  compute_us = problem.costs.compute_us[:, cluster.device_kinds]
  # Means over the devices that each op may use.
  mean_us = ((compute_us * allowed).sum(axis=1) / allowed.sum(axis=1)).tolist()
  # Means over pairs of devices; `fixed_us` has the gap, for which no consumer waits.
  off = ~np.eye(cluster.num_devices, dtype=bool)
  us_per_byte, latency_us = (
      float(np.mean(each[off])) if off.any() else 0.0
      for each in (cluster.us_per_byte, cluster.fixed_us - cluster.bus_gap_us))
  ranks = list(mean_us)
  behind = [0.0] * len(ranks)
  # Consumers first: `behind` is the longest path from an op's end to the end of the step.
  for op in problem.graph.topological_order[::-1].tolist():
    ranks[op] += behind[op]
    for u, _, size in schedule.inputs[op]:
      behind[u] = max(behind[u], ranks[op] + size * us_per_byte + latency_us)
  return ranks
