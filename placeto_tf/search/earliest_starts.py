"""Earliest start of each op, and least time from the op to the end, on each class of devices.

The start of op v on device d is bounded from below by those of its predecessors, after
Papadimitriou and Yannakakis, "Towards an architecture-independent analysis of parallel algorithms"
(1990). Suppose that v starts at x or before. A predecessor that would arrive later than x from
every other device is *late*: it must be on d too. So must a predecessor of a late op that would be
late there, and so on. All late ops share d, one after the other, each from its own earliest start
and each before what it leads to: one machine, whose shortest preemptive schedule (Jackson's rule)
bounds the start of v. If that is later than x, then v starts after x. Bisection looks for the
largest x for which this is so.

An op, with the overhead after it, is *busy* from its start; ops that share a device follow one
another by that much. Ops on different devices follow one another by compute time and transfer, as
if the bus were free. So the bound holds for any order of queues.

The time that must pass after an op is the same in the reversed graph.

Dimensions: N ops, E pairs of an op and one of its consumers, C classes of devices that are equal.
"""

from __future__ import annotations

from typing import NamedTuple, Tuple

import numpy as np

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.simulation.compiling import compiled, part

MOST_LATE = 64  # late ops that are looked at for one start; more gave no higher bounds
_PROBES = 12  # of x, for one start


class Direction(NamedTuple):
  """The graph as one of the two passes goes through it."""

  order: np.ndarray  # [N] int64, ops after those that they wait for
  first: np.ndarray  # [N+1] int64, where the pairs of each op begin
  sources: np.ndarray  # [E] int64, the op that is waited for
  size_bytes: np.ndarray  # [E] float64, of all that is sent between the two
  work_us: np.ndarray  # [E] float64, packing and unpacking, and gaps between transfers
  slowness: np.ndarray  # [C, C] us a byte from a source's device to another, or inf
  latency: np.ndarray  # [C, C] us, likewise
  reversed: bool


class Paths(NamedTuple):
  """Input of the bounds of one problem.

  Attributes:
    members: [C] devices in each class.
    busy_us: [N, C] compute time, and the overhead after it.
    overhead_us: [N, C].
    allowed: [N, C] bool.
    forward, backward: the two directions.
  """

  members: np.ndarray
  busy_us: np.ndarray
  overhead_us: np.ndarray
  allowed: np.ndarray
  forward: Direction
  backward: Direction

  @classmethod
  def of(cls, problem: PlacementProblem, classes: np.ndarray) -> Paths:
    """Prepares both directions of a problem's graph.

    Args:
      problem: of N ops.
      classes: [D] the first device that is equal to each, by `interchangeable`.

    Returns:
      Busy times, allowed classes and edges of the bounds.
    """
    graph, cluster, tables = problem.graph, problem.cluster, problem.simulator.tables
    first_devices, members = np.unique(classes, return_counts=True)
    compute_us = np.ascontiguousarray(tables.compute_us[:, cluster.device_kinds[first_devices]])
    overhead_us = cluster.op_overhead_us * (compute_us > 0)
    slowness, latency = _between_classes(cluster, classes, first_devices)
    # All edges between two ops, of tensors or control, are one pair; E pairs in all.
    n = graph.num_ops
    size_bytes = tables.segment_bytes[tables.segment_of_edge]
    pairs, pair = np.unique(
        graph.edge_consumers.astype(np.int64) * n + graph.edge_producers, return_inverse=True)
    pair = pair.reshape(-1)
    consumers, producers = pairs // n, pairs % n
    # [E] work of packing and unpacking: at least that of the pair's smallest tensor.
    least_bytes = np.full(len(pairs), np.inf)
    np.minimum.at(least_bytes, pair, size_bytes)
    work_us = (
        cluster.sender_us_per_transfer + cluster.receiver_us_per_transfer
        + (cluster.sender_us_per_byte + cluster.receiver_us_per_byte) * least_bytes)
    sent_bytes = np.zeros(len(pairs))
    if cluster.transfers == "unlimited":  # all that is sent between two ops is sent side by side
      np.maximum.at(sent_bytes, pair, size_bytes)
    else:
      np.add.at(sent_bytes, pair, size_bytes)
      # One after the other on one bus, with a gap between two.
      work_us += cluster.bus_gap_us * (np.bincount(pair, minlength=len(pairs)) - 1.0)
    order = np.argsort(graph.depths, kind="stable").astype(np.int64)

    def direction(ends, sources, order, slowness, latency, is_reversed):
      """Sorts the pairs for one pass over the graph.

      Args:
        ends: [E] int64, the op of each pair that waits.
        sources: [E] int64, the op that is waited for.
        order: [N] int64, ops after those that they wait for.
        slowness, latency: [C, C] from a source's class to another.
        is_reversed: whether this is the pass for tails.

      Returns:
        The `Direction`.
      """
      by_end = np.argsort(ends, kind="stable")
      return Direction(
          np.ascontiguousarray(order), np.searchsorted(ends[by_end], np.arange(n + 1)),
          sources[by_end],
          sent_bytes[by_end], work_us[by_end],
          np.ascontiguousarray(slowness), np.ascontiguousarray(latency), is_reversed)

    return cls(
        members, compute_us + overhead_us, overhead_us,
        np.ascontiguousarray(problem.allowed_ops[:, first_devices]),
        direction(consumers, producers, order, slowness, latency, False),
        direction(producers, consumers, order[::-1], slowness.T, latency.T, True))

  def heads_us(self, allowed: np.ndarray, together: np.ndarray, most: int) -> np.ndarray:
    """Returns the earliest start of each op on a device of each class.

    Args:
      allowed: [N, C] bool, where each op may run.
      together: [N] int64, equal for ops that share a device.
      most: late ops that are looked at for one start.

    Returns:
      [N, C] float64 us; inf where the op may not run.
    """
    return _earliest(
        self.forward, np.zeros(self.busy_us.shape), self.busy_us, self.overhead_us, allowed,
        together, most)

  def tails_us(self, allowed: np.ndarray, together: np.ndarray, most: int) -> np.ndarray:
    """Returns the least time from each op to the end of the step on a device of each class.

    Args:
      allowed, together, most: as for `heads_us`.

    Returns:
      [N, C] float64 us, counted from the end of the op's busy time: below 0 by its overhead where
      the step may end with the op; inf where the op may not run.
    """
    return _earliest(
        self.backward, -self.overhead_us, self.busy_us, self.overhead_us, allowed, together, most)


def interchangeable(cluster: Cluster, allowed: np.ndarray) -> np.ndarray:
  """Returns the first device equal to each in speed, memory, links and allowed ops.

  Args:
    cluster: of D devices.
    allowed: [..., D] bool.

  Returns:
    [D] int64 indices.
  """
  d = cluster.num_devices
  twins = np.arange(d)
  for b in range(d):
    for a in range(b):
      # Two devices are equal if swapping them leaves links, and all else, as they were.
      swap = np.arange(d)
      swap[[a, b]] = b, a
      if (
          twins[a] == a
          and cluster.device_kinds[a] == cluster.device_kinds[b]
          and cluster.memory_bytes[a] == cluster.memory_bytes[b]
          and (allowed[:, a] == allowed[:, b]).all()
          and all(
              (links[np.ix_(swap, swap)] == links)[~np.eye(d, dtype=bool)].all()
              for links in (cluster.bandwidth_bytes_per_us, cluster.latency_us))):
        twins[b] = a
        break
  return twins


def _between_classes(
    cluster: Cluster, classes: np.ndarray, first_devices: np.ndarray
) -> Tuple[np.ndarray, np.ndarray]:
  """Returns us a byte and latency between devices of two classes, both [C, C]."""
  c = len(first_devices)
  slowness, latency = np.full((c, c), np.inf), np.zeros((c, c))
  for i, a in enumerate(first_devices):
    for j, b in enumerate(first_devices):
      others = np.flatnonzero((classes == b) & (np.arange(len(classes)) != a))
      if len(others):
        slowness[i, j] = 1 / cluster.bandwidth_bytes_per_us[a, others[0]]
        latency[i, j] = cluster.latency_us[a, others[0]]
  return slowness, latency


class _Scratch(NamedTuple):
  """Buffers for the search of one start; L places for late ops."""

  rank: np.ndarray  # [N] int64, position of each op in the order
  seen: np.ndarray  # [N] int64, the last probe that met the op
  place: np.ndarray  # [N] int64, its place among the late ops, or -1
  after_us: np.ndarray  # [N] least time from the end of its busy time to the start
  arrival_us: np.ndarray  # [N] the start at and after which it is not late
  open: np.ndarray  # [L] int64, ranks of late ops to go on from, ascending
  late: np.ndarray  # [L] int64, late ops, the last in the order first
  ready_us: np.ndarray  # [N] earliest start of a late op among late ops
  sorted_ops: np.ndarray  # [L] int64, late ops by `ready_us`
  machine_us: np.ndarray  # [3, L] ready time, busy time and tail of each sorted op
  waiting: np.ndarray  # [L] int64, places of sorted ops that are ready


@compiled()
def one_machine_us(count, ready_us, left_us, after_us, waiting):
  """Computes the end of the shortest preemptive schedule of one machine (Jackson's rule).

  Args:
    count: number of jobs.
    ready_us: when each is ready; ascending.
    left_us: how long each takes; used up.
    after_us: the time that follows each job, not on the machine.
    waiting: int64, room for as many.

  Returns:
    The end in us, the time after the last job included; -inf without jobs.
  """
  now, end = -np.inf, -np.inf
  coming, size = 0, 0
  # Preemptive: of the jobs that are ready, the one with the longest tail runs.
  while coming < count or size > 0:
    if size == 0:
      now = max(now, ready_us[coming])
    while coming < count and ready_us[coming] <= now:
      waiting[size] = coming
      size += 1
      coming += 1
    chosen = 0
    for k in range(1, size):
      if after_us[waiting[k]] > after_us[waiting[chosen]]:
        chosen = k
    job = waiting[chosen]
    until = ready_us[coming] if coming < count else np.inf
    # It ends before the next job comes, or is interrupted then.
    if now + left_us[job] <= until:
      now += left_us[job]
      end = max(end, now + after_us[job])
      size -= 1
      # Order among waiting jobs does not matter: the last one fills the hole.
      waiting[chosen] = waiting[size]
    else:
      left_us[job] -= until - now
      now = until
  return end


@part
def _probe(v, k, x, arrives_us, direction, start_us, busy_us, allowed, together, probe, s):
  """Bounds the starts of other ops if op v starts at x or before on a device of class k.

  Returns:
    When v starts at the earliest then, -inf if nothing has to share its device; and the least
    start above x at which some op is no longer late.
  """
  size, count = np.int64(0), np.int64(0)  # of a type that is not a literal's
  ends, change = -np.inf, np.inf
  w, passed_us = v, 0.0  # an op on v's device, and the time from its start to v's
  while True:
    # Producers of w that would arrive after x from another device are late too.
    for pair in range(direction.first[w], direction.first[w + 1]):
      u = direction.sources[pair]
      # A new probe begins with fresh entries, without clearing arrays of length N.
      if s.seen[u] != probe:
        s.seen[u] = probe
        s.place[u] = -1
        s.after_us[u] = passed_us
        s.arrival_us[u] = -np.inf
      s.after_us[u] = max(s.after_us[u], passed_us)
      arrival = np.inf if together[u] == together[v] else arrives_us[pair, k] + passed_us
      # In time from elsewhere: may be on any device.
      if arrival <= x:
        continue
      s.arrival_us[u] = max(s.arrival_us[u], arrival)
      if not allowed[u, k]:
        ends = np.inf  # it is not possible
        change = min(change, arrival)
      elif s.place[u] < 0 and count < len(s.late):
        s.place[u] = count
        count += 1
        # Sorted, the last in the order at the end: at most L entries are shifted.
        at = size
        while at > 0 and s.open[at - 1] > s.rank[u]:
          s.open[at] = s.open[at - 1]
          at -= 1
        s.open[at] = s.rank[u]
        size += 1
    if size == 0:
      break
    size -= 1
    w = direction.order[s.open[size]]  # all late ops after it are known
    s.late[count - size - 1] = w
    passed_us = busy_us[w, k] + s.after_us[w]
  for i in range(count - 1, -1, -1):  # in order, so that late ops wait for one another
    u = s.late[i]
    change = min(change, s.arrival_us[u])
    ready = start_us[u, k]
    for pair in range(direction.first[u], direction.first[u + 1]):
      source = direction.sources[pair]
      if s.seen[source] == probe and s.place[source] >= 0:
        ready = max(ready, s.ready_us[source] + busy_us[source, k])
    s.ready_us[u] = ready
    at = count - 1 - i
    # Insertion sort by readiness; late ops are few.
    while at > 0 and s.ready_us[s.sorted_ops[at - 1]] > ready:
      s.sorted_ops[at] = s.sorted_ops[at - 1]
      at -= 1
    s.sorted_ops[at] = u
  if count > 0 and ends < np.inf:
    for i in range(count):
      u = s.sorted_ops[i]
      s.machine_us[0, i] = s.ready_us[u]
      s.machine_us[1, i] = busy_us[u, k]
      s.machine_us[2, i] = s.after_us[u]
    ends = one_machine_us(count, s.machine_us[0], s.machine_us[1], s.machine_us[2], s.waiting)
  return ends, change


@part
def _start_us(v, k, arrives_us, direction, start_us, busy_us, allowed, together, probes, s):
  """Returns how early op v can start on a device of class k."""
  # Simple bound: each producer is on the same device, or its tensor arrives.
  low = start_us[v, k]
  for pair in range(direction.first[v], direction.first[v + 1]):
    u = direction.sources[pair]
    near = start_us[u, k] + busy_us[u, k] if allowed[u, k] else np.inf
    low = max(low, min(near, arrives_us[pair, k]))
  # `low` is a proven bound; bounds above `high` cannot be proven.
  high, x = np.inf, low
  for turn in range(_PROBES):
    if low == np.inf or len(s.late) == 0:
      break
    probes[0] += 1
    ends, change = _probe(
        v, k, x, arrives_us, direction, start_us, busy_us, allowed, together, probes[0], s)
    if ends > x:  # the late ops stay the same, and so does `ends`, until one is no longer late
      low = max(low, min(ends, change))
      high = min(high, ends)
    else:
      high = x
    if high < np.inf and high - low <= 1e-5 * abs(high):
      break
    x = low if turn == 0 or high == np.inf else 0.5 * (low + high)
  return low


@compiled()
def _earliest(direction, base_us, busy_us, overhead_us, allowed, together, most):
  """Computes heads or tails of `Paths`, [N, C]; base_us [N, C] holds for ops without inputs."""
  n, c = busy_us.shape
  start_us = base_us.copy()
  arrives_us = np.empty((len(direction.sources), c))  # the least, from another device
  # Numbers the probes over all ops, for `seen`.
  probes = np.zeros(1, np.int64)
  s = _Scratch(
      np.empty(n, np.int64), np.zeros(n, np.int64), np.empty(n, np.int64), np.empty(n),
      np.empty(n), np.empty(most, np.int64), np.empty(most, np.int64), np.empty(n),
      np.empty(most, np.int64), np.empty((3, most)), np.empty(most, np.int64))
  for i in range(n):
    s.rank[direction.order[i]] = i
  for i in range(n):
    # Ops after their sources, so that the sources' starts are final.
    v = direction.order[i]
    for pair in range(direction.first[v], direction.first[v + 1]):
      u = direction.sources[pair]
      for k in range(c):
        arrives_us[pair, k] = np.inf
        for e in range(c):
          if allowed[u, e] and direction.slowness[e, k] < np.inf and together[u] != together[v]:
            # The overhead of the op that sends passes while the transfer is on its way.
            overhead = overhead_us[v, k] if direction.reversed else overhead_us[u, e]
            arrives_us[pair, k] = min(arrives_us[pair, k], (
                start_us[u, e] + busy_us[u, e] - overhead + direction.work_us[pair]
                + direction.size_bytes[pair] * direction.slowness[e, k]
                + direction.latency[e, k]))
    for k in range(c):
      start_us[v, k] = _start_us(
          v, k, arrives_us, direction, start_us, busy_us, allowed, together, probes, s) if (
              allowed[v, k]) else np.inf
  return start_us
