"""m-TOPO, m-ETF and m-SCT: the placers of Baechi.

Jeon et al., "Baechi: fast device placement of machine learning graphs" (SoCC 2020), sections 2 and
3. All keep within the devices' memory:

- m-TOPO fills device after device in topological order, each up to an equal quota of the memory
  that the graph needs plus the largest single need.
- m-ETF repeatedly takes the pair of a ready op and a device that can start first (Hwang et
  al. 1989).
- m-SCT is m-ETF in which every op has at most one favourite child, found by a linear program
  (Hanen and Munier 1995); a device waits for the favourite child of the op it ran last, and runs
  other ops only if they end before the child can start.

The `_links` forms plan with buses, single sends and overheads; see `list_scheduling`.

Legend: N ops, D devices, F pairs of ops with an edge.
"""

from __future__ import annotations

import heapq
from typing import List, Optional, Tuple

import numpy as np

from placeto_tf.problem.budget import Budget
from placeto_tf.problem.candidates import allowed_or_nearest, best_of, compute_devices
from placeto_tf.problem.method import AutoPart, Kind, Method, Stage, unseeded
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.search.list_scheduling import Schedule, set_memory_bytes, upward_ranks
from placeto_tf.search.sct_linear_program import favourite_children


def m_topo(problem: PlacementProblem, budget: Optional[Budget] = None) -> np.ndarray:
  """[N] devices filled one after the other in topological order, by memory."""
  graph = problem.graph
  devices = compute_devices(problem)
  need = set_memory_bytes(problem)
  quota = sum(need) / len(devices) + max(need)
  room = [min(quota, problem.cluster.memory_bytes[d]) for d in devices]
  device_of_set = np.full(graph.num_ops, -1, dtype=np.int32)
  sets = graph.colocation
  at = 0
  for op in graph.topological_order.tolist():
    s = sets[op]
    if device_of_set[s] >= 0:
      continue
    while at + 1 < len(devices) and room[at] < need[s]:
      at += 1
    room[at] -= need[s]
    device_of_set[s] = devices[at]
  return best_of(problem, allowed_or_nearest(problem, device_of_set[sets]), budget)


def m_etf(
    problem: PlacementProblem, budget: Optional[Budget] = None, *, links: bool = False
) -> np.ndarray:
  """[N] earliest task first, as published; with `links` start times include the network."""
  return best_of(problem, _plan(problem, links=links), budget)


def m_sct(
    problem: PlacementProblem, budget: Optional[Budget] = None, *, links: bool = False
) -> np.ndarray:
  """[N] small communication times, as published; with `links` start times include the network."""
  children = favourite_children(problem)
  return best_of(problem, _plan(problem, links=links, favourites=children), budget)


def _plan(
    problem: PlacementProblem, *, links: bool, favourites: Optional[List[int]] = None
) -> np.ndarray:
  """[N] devices by earliest start; `favourites` [N] is the favourite child of each op, or -1."""
  schedule = Schedule(problem, links=links)
  n = problem.graph.num_ops
  ranks = upward_ranks(schedule, problem)
  missing = [len({u for u, _, _ in inputs}) for inputs in schedule.inputs]
  queue = _EarliestFirst(schedule, ranks)
  last = [-1] * problem.num_devices  # the op each device ran last
  for op in range(n):
    if not missing[op]:
      queue.push(op)
  for _ in range(n):
    op, d, start = queue.pop(last, favourites)
    schedule.place(op, d, start)
    last[d] = op
    for v in schedule.consumers[op]:
      missing[v] -= 1
      if not missing[v]:
        queue.push(v)
  return np.array(schedule.device, dtype=np.int32)


class _EarliestFirst:
  """Ready ops by device: those whose inputs are there by upward rank, the others by arrival.

  Every pair of op and device is in one of the two heaps of the device. An entry may be stale: the
  op was placed, its set went to another device, or its inputs arrive later because the bus got
  busier. Stale entries are corrected when they reach the top.
  """

  def __init__(self, schedule: Schedule, ranks: List[float]):
    self._schedule, self._ranks = schedule, ranks
    count = len(schedule.devices)
    self._waiting: List[list] = [[] for _ in range(count)]  # (ready, -rank, op)
    self._there: List[list] = [[] for _ in range(count)]  # (-rank, op, ready)

  def push(self, op: int) -> None:
    for d in self._schedule.candidates(op):
      ready = self._schedule.data_ready_us(op, d)
      heapq.heappush(self._waiting[d], (ready, -self._ranks[op], op))

  def pop(self, last: List[int], favourites: Optional[List[int]]) -> Tuple[int, int, float]:
    """The op and device that can start first, and when; ties by rank, then by device."""
    schedule = self._schedule
    while True:
      best = None
      for d in range(len(schedule.devices)):
        free = schedule.devices[d].end_us
        found = self._head(d, free)
        if found is None:
          continue
        start, op = found
        if favourites is not None:
          start = self._after_favourite(op, d, start, last[d], favourites)
        key = (start, -self._ranks[op], d, op)
        if best is None or key < best:
          best = key
      assert best is not None  # an op that is left is on some device's heap
      start, _, d, op = best
      if d in schedule.candidates(op):
        return op, d, start
      # Its set has gone elsewhere, or memory has run out since it was pushed.
      self._drop(d, op)
      self.push(op)

  def _head(self, d: int, free: float) -> Optional[Tuple[float, int]]:
    """(start, op) of the best pair of device d, or None; leaves it in its heap."""
    schedule, waiting, there = self._schedule, self._waiting[d], self._there[d]
    while waiting and waiting[0][0] <= free:
      ready, rank, op = heapq.heappop(waiting)
      if schedule.device[op] < 0:
        heapq.heappush(there, (rank, op, ready))
    for heap, index in ((there, 1), (waiting, 2)):
      while heap:
        op = heap[0][index]
        if schedule.device[op] >= 0:
          heapq.heappop(heap)
          continue
        if schedule.links:
          ready = schedule.data_ready_us(op, d)
          known = heap[0][2] if index == 1 else heap[0][0]
          if ready > max(free, known):
            heapq.heappop(heap)
            heapq.heappush(waiting, (ready, -self._ranks[op], op))
            continue
        return (free if index == 1 else max(free, heap[0][0])), op
    return None

  def _drop(self, d: int, op: int) -> None:
    for heap, index in ((self._there[d], 1), (self._waiting[d], 2)):
      if heap and heap[0][index] == op:
        heapq.heappop(heap)
        return

  def _after_favourite(
      self, op: int, d: int, start: float, last: int, favourites: List[int]) -> float:
    """When the op may start if the device is kept for the favourite child of its last op."""
    child = favourites[last] if last >= 0 else -1
    schedule = self._schedule
    if child < 0 or child == op or schedule.device[child] >= 0:
      return start
    known = [u for u, _, _ in schedule.inputs[child] if schedule.device[u] >= 0]
    if len(known) < len(schedule.inputs[child]):
      return start  # its other inputs are not planned yet: nothing to wait for
    child_start = max(schedule.devices[d].end_us, schedule.data_ready_us(child, d))
    if start + schedule.occupied_us(op, d) <= child_start:
      return start
    return max(start, child_start + schedule.occupied_us(child, d))


METHODS = (
    Method("m_topo", Kind.CONSTRUCTION, unseeded(m_topo), rank=7),
    Method("m_etf", Kind.CONSTRUCTION, unseeded(m_etf), rank=2, start_rank=2,
           auto=AutoPart(Stage.CONSTRUCTION)),
    Method("m_etf_links", Kind.CONSTRUCTION, unseeded(m_etf, links=True), rank=6, start_rank=8,
           auto=AutoPart(Stage.CONSTRUCTION)),
    Method("m_sct", Kind.CONSTRUCTION, unseeded(m_sct), rank=8),
    Method("m_sct_links", Kind.CONSTRUCTION, unseeded(m_sct, links=True), rank=9),
)
