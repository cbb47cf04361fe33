"""m-ETF, a placer of Baechi: earliest task first, within the devices' memory.

Jeon et al., "Baechi: fast device placement of machine learning graphs" (SoCC 2020), sections 2 and
3: among all pairs of a ready op and a device, the pair that can start first is placed; then the
next one is chosen in the same way (Hwang et al. 1989).

Dimensions: N ops, D devices.
"""

from __future__ import annotations

import heapq
from typing import List, Optional, Tuple

import numpy as np

from placeto_tf.problem.method import Kind, Method, unseeded
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.search.list_scheduling import Schedule, better_plan, upward_ranks


def plan(problem: PlacementProblem, *, links: bool) -> np.ndarray:
  """Makes a plan: repeatedly places the pair of a ready op and a device with the earliest start.

  Args:
    problem: the problem, with N ops.
    links: whether transfers queue on links; False computes times as published, without queues.

  Returns:
    [N] int32, device of each op.
  """
  schedule = Schedule(problem, links=links)
  n = problem.graph.num_ops
  ranks = upward_ranks(schedule, problem)
  # [N] producers of each op that are not placed yet.
  missing = [len({u for u, _, _ in inputs}) for inputs in schedule.inputs]
  queue = _EarliestFirst(schedule, ranks)
  for op in range(n):
    if not missing[op]:
      queue.push(op)
  # Each step places one op and makes ready the consumers that waited for that op alone.
  for _ in range(n):
    op, d, start = queue.pop()
    schedule.place(op, d, start)
    for v in schedule.consumers[op]:
      missing[v] -= 1
      if not missing[v]:
        queue.push(v)
  return np.array(schedule.device, dtype=np.int32)


class _EarliestFirst:
  """Ready ops in two heaps per device.

  One heap holds ops whose inputs are on the device, sorted by upward rank; the other holds ops
  whose inputs are still to arrive, sorted by arrival. An entry may be stale: the op was placed, its
  colocated set went to another device, or its inputs arrive later because the bus got busier. Stale
  entries are corrected when they get to the top of a heap.
  """

  def __init__(self, schedule: Schedule, ranks: List[float]):
    self._schedule, self._ranks = schedule, ranks
    count = len(schedule.devices)
    self._waiting: List[list] = [[] for _ in range(count)]  # (ready, -rank, op)
    self._there: List[list] = [[] for _ in range(count)]  # (-rank, op, ready)

  def push(self, op: int) -> None:
    """Adds the op, whose producers are placed, to the heap of each of its candidate devices."""
    for d in self._schedule.candidates(op):
      heapq.heappush(self._waiting[d], (self._schedule.data_ready_us(op, d), -self._ranks[op], op))

  def pop(self) -> Tuple[int, int, float]:
    """Returns the op and device that can start first, and the start; ties by rank, then device."""
    schedule = self._schedule
    while True:
      best = None
      # The least (start, -rank, device, op) over the heads of all devices.
      for d in range(len(schedule.devices)):
        found = self._head(d, schedule.devices[d].end_us)
        if found is None:
          continue
        start, op = found
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
    """Returns (start, op) of the best pair of device d, or None; leaves it in its heap."""
    schedule, waiting, there = self._schedule, self._waiting[d], self._there[d]
    # Ops whose inputs arrive before the device is free: among these, the rank decides.
    while waiting and waiting[0][0] <= free:
      ready, rank, op = heapq.heappop(waiting)
      if schedule.device[op] < 0:
        heapq.heappush(there, (rank, op, ready))
    # `there` first, because its ops can start at once. `index` is the op's index within an entry.
    for heap, index in ((there, 1), (waiting, 2)):
      while heap:
        op = heap[0][index]
        # Placed already: stale.
        if schedule.device[op] >= 0:
          heapq.heappop(heap)
          continue
        # The bus may have become busier since the push: sort the op in again with its new arrival.
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
    """Removes the op from the top of one of the device's heaps."""
    for heap, index in ((self._there[d], 1), (self._waiting[d], 2)):
      if heap and heap[0][index] == op:
        heapq.heappop(heap)
        return


m_etf = better_plan(plan)
METHODS = (
    Method("m_etf", Kind.CONSTRUCTION, unseeded(m_etf), rank=2, start_rank=2),
)
