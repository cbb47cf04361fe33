"""Earliest start of each op, and least time from the op to the end, on each class of devices.

The starts of its predecessors bound the start of op v on device d from below, after Papadimitriou
and Yannakakis, "Towards an architecture-independent analysis of parallel algorithms" (1990).
Suppose that v starts at x or before. A predecessor whose output would arrive later than x from
every other device is *late*: it must run on d too. The same holds for predecessors of late ops. All
late ops share d: they run one after the other, none before its own earliest start, and each before
its late consumers. This is scheduling on one machine; the shortest preemptive schedule (Jackson's
rule) bounds the start of v. If that bound is later than x, then v starts after x. Bisection looks
for the largest x that is refuted in this way.

An op keeps its device *busy* for its compute time and the overhead after it; the next op on the
device starts no earlier. A consumer on another device starts no earlier than the compute time and
the transfer allow, as if the bus were free. So the bound holds for any order of queues.

The time that must pass after an op is the same in the reversed graph.

Dimensions: N ops, E pairs of an op and one of its consumers, C classes of equal devices.
"""

from __future__ import annotations

import functools
from typing import NamedTuple, Tuple

import numpy as np

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.simulation.compiling import compiled, part

MOST_LATE = 64  # late ops that are considered for one start; more gave no higher bounds
_PROBES = 12  # values of x that are tried for one start


class Direction(NamedTuple):
  """The graph in the direction of one of the two passes: forward, or reversed."""

  order: np.ndarray  # [N] int64, every op after its sources
  first: np.ndarray  # [N+1] int64, the index of each op's first pair
  sources: np.ndarray  # [E] int64, the op of the pair that the other op waits for
  size_bytes: np.ndarray  # [E] float64, all bytes that are sent between the two ops
  work_us: np.ndarray  # [E] float64, packing and unpacking, and gaps between transfers
  slowness: np.ndarray  # [C, C] us per byte from a source's class to another class, or inf
  latency: np.ndarray  # [C, C] us, likewise
  reversed: bool


class Paths(NamedTuple):
  """Input of the bounds of one problem.

  Attributes:
    members: [C] devices in each class.
    busy_us: [N, C] compute time plus the overhead after it.
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
      classes: [D] for each device the first device equal to it, by `interchangeable`.

    Returns:
      Busy times, allowed classes and edges of the bounds.
    """
    graph, cluster, tables = problem.graph, problem.cluster, problem.simulator.tables
    first_devices, members = np.unique(classes, return_counts=True)
    compute_us = np.ascontiguousarray(tables.compute_us[:, cluster.device_kinds[first_devices]])
    overhead_us = cluster.pause_us(compute_us, first_devices)
    slowness, latency = _between_classes(cluster, classes, first_devices)
    # All edges between two ops, data or control, make one pair; E pairs in all.
    n = graph.num_ops
    size_bytes = tables.segment_bytes[tables.segment_of_edge]
    pairs, pair = np.unique(
        graph.edge_consumers.astype(np.int64) * n + graph.edge_producers, return_inverse=True)
    pair = pair.reshape(-1)
    consumers, producers = pairs // n, pairs % n
    # [E] packing and unpacking take at least as long as for the pair's smallest tensor.
    least_bytes = np.full(len(pairs), np.inf)
    np.minimum.at(least_bytes, pair, size_bytes)
    work_us = (
        cluster.sender_us_per_transfer + cluster.receiver_us_per_transfer
        + (cluster.sender_us_per_byte + cluster.receiver_us_per_byte) * least_bytes)
    sent_bytes = np.zeros(len(pairs))
    if cluster.transfers == "unlimited":  # all tensors between two ops are sent side by side
      np.maximum.at(sent_bytes, pair, size_bytes)
    else:
      np.add.at(sent_bytes, pair, size_bytes)
      # One after the other on one bus, with a gap between two.
      work_us += cluster.bus_gap_us * (np.bincount(pair, minlength=len(pairs)) - 1.0)
    order = np.argsort(graph.depths, kind="stable").astype(np.int64)

    def direction(ends, sources, order, slowness, latency, is_reversed):
      """Sorts the pairs for one pass over the graph.

      Args:
        ends: [E] int64, the op of each pair that waits for the other.
        sources: [E] int64, the other op.
        order: [N] int64, every op after its sources.
        slowness, latency: [C, C] from a source's class to another class.
        is_reversed: True for the pass that computes tails.
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
      allowed: [N, C] bool, classes on which each op may run.
      together: [N] int64, equal for ops that share a device.
      most: the most late ops that are considered for one start.

    Returns:
      [N, C] float64 us; inf where the op may not run.
    """
    return self._earliest(self.forward, np.zeros(self.busy_us.shape), allowed, together, most)

  def tails_us(self, allowed: np.ndarray, together: np.ndarray, most: int) -> np.ndarray:
    """Returns the least time from each op to the end of the step on a device of each class.

    Args:
      allowed, together, most: as for `heads_us`.

    Returns:
      [N, C] float64 us, counted from the end of the op's busy time; inf where the op may not run.
      The value is minus the op's overhead where the step may end with the op.
    """
    return self._earliest(self.backward, -self.overhead_us, allowed, together, most)

  def _earliest(
      self, direction: Direction, start_us: np.ndarray, allowed: np.ndarray, together: np.ndarray,
      most: int) -> np.ndarray:
    """Fills in the starts [N, C] of one direction; ops without inputs keep theirs."""
    n, whole = len(start_us), functools.partial(np.empty, dtype=np.int64)
    scratch = _Scratch(
        whole(n), np.zeros(n, np.int64), whole(n), np.empty(n), np.empty(n), whole(most),
        whole(most), np.empty(n), whole(most), np.empty((3, most)), whole(most))
    scratch.rank[direction.order] = np.arange(n)
    arrives_us = np.empty((len(direction.sources), start_us.shape[1]))
    _fill_starts(
        direction, start_us, self.busy_us, self.overhead_us, allowed, together, arrives_us,
        np.zeros(1, np.int64), scratch)
    return start_us


def interchangeable(cluster: Cluster, allowed: np.ndarray) -> np.ndarray:
  """Returns for each device the first device with equal speed, memory, links and allowed ops.

  Args:
    cluster: of D devices.
    allowed: [..., D] bool.

  Returns:
    [D] int64 indices.
  """
  d = cluster.num_devices
  equals = np.arange(d)
  for b in range(d):
    for a in range(b):
      # Two devices are equal if swapping them leaves links, and all else, as they were.
      swap = np.arange(d)
      swap[[a, b]] = b, a
      if (
          equals[a] == a
          and cluster.device_kinds[a] == cluster.device_kinds[b]
          and cluster.memory_bytes[a] == cluster.memory_bytes[b]
          and (allowed[:, a] == allowed[:, b]).all()
          and all(
              (links[np.ix_(swap, swap)] == links)[~np.eye(d, dtype=bool)].all()
              for links in (cluster.bandwidth_bytes_per_us, cluster.latency_us))):
        equals[b] = a
        break
  return equals


def _between_classes(
    cluster: Cluster, classes: np.ndarray, first_devices: np.ndarray
) -> Tuple[np.ndarray, np.ndarray]:
  """Returns us per byte, and latency in us, between devices of two classes, both [C, C]."""
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
  """Buffers for the search of one start, with L entries for late ops."""

  rank: np.ndarray  # [N] int64, position of each op in the order
  seen: np.ndarray  # [N] int64, the last probe that met the op
  place: np.ndarray  # [N] int64, the op's index among the late ops, or -1
  after_us: np.ndarray  # [N] least time from the end of the op's busy time to the start of v
  arrival_us: np.ndarray  # [N] the op is late for any start of v before this
  open: np.ndarray  # [L] int64, ascending ranks of late ops whose producers are to be visited
  late: np.ndarray  # [L] int64, late ops, the last in the order first
  ready_us: np.ndarray  # [N] earliest start of a late op among late ops
  sorted_ops: np.ndarray  # [L] int64, late ops by `ready_us`
  machine_us: np.ndarray  # [3, L] ready time, busy time and tail of each sorted op
  waiting: np.ndarray  # [L] int64, indices into `sorted_ops` of the ready ops


@part
def _one_machine_us(count, ready_us, left_us, after_us, waiting):
  """Computes the end of the shortest preemptive schedule of one machine (Jackson's rule).

  Args:
    count: number of jobs.
    ready_us: ascending times at which jobs become ready.
    left_us: processing time of each job; changed in place.
    after_us: tail of each job: time that follows it without the machine.
    waiting: int64 buffer for `count` indices.

  Returns:
    The end in us, tails included; -inf without jobs.
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
    # The job ends before the next one is ready, or is interrupted at that time.
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
  """Bounds the start of op v, supposing that v starts at x or before on a device of class k.

  Returns:
    The earliest start of v under that supposition, -inf if no op has to share its device; and the
    least start above x at which some op is no longer late.
  """
  size, count = np.int64(0), np.int64(0)  # not 0, which numba gives a literal's type
  ends, change = -np.inf, np.inf
  w, passed_us = v, 0.0  # an op on v's device, and the time from its start to v's
  while True:
    # Producers of w whose outputs would arrive after x from another device are late, too.
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
      # The output arrives in time even from another device: the producer is not late.
      if arrival <= x:
        continue
      s.arrival_us[u] = max(s.arrival_us[u], arrival)
      if not allowed[u, k]:
        ends = np.inf  # it is not possible
        change = min(change, arrival)
      elif s.place[u] < 0 and count < len(s.late):
        s.place[u] = count
        count += 1
        # Insertion into ascending ranks: at most L entries are shifted.
        at = size
        while at > 0 and s.open[at - 1] > s.rank[u]:
          s.open[at] = s.open[at - 1]
          at -= 1
        s.open[at] = s.rank[u]
        size += 1
    if size == 0:
      break
    size -= 1
    w = direction.order[s.open[size]]  # all late ops later in the order are known
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
    ends = _one_machine_us(count, s.machine_us[0], s.machine_us[1], s.machine_us[2], s.waiting)
  return ends, change


@part
def _start_us(v, k, arrives_us, direction, start_us, busy_us, allowed, together, probes, s):
  """Returns a lower bound on the start of op v on a device of class k."""
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
    if ends > x:  # until `change`, larger x have the same late ops, and so the same `ends`
      low = max(low, min(ends, change))
      high = min(high, ends)
    else:
      high = x
    if high < np.inf and high - low <= 1e-5 * abs(high):
      break
    x = low if turn == 0 or high == np.inf else 0.5 * (low + high)
  return low


@compiled(_nrt=False)
def _fill_starts(
    direction, start_us, busy_us, overhead_us, allowed, together, arrives_us, probes, s):
  """Computes heads or tails of `Paths` in place.

  Args:
    direction: `Direction`.
    start_us: [N, C] float64, of ops without inputs at first.
    busy_us, overhead_us, allowed: of `Paths`.
    together: [N] int64, equal for ops that share a device.
    arrives_us: [E, C] float64, filled with the least arrival from another device.
    probes: [1] int64, the number of probes over all ops, for `_Scratch.seen`.
    s: `_Scratch`.
  """
  n, c = busy_us.shape
  for i in range(n):
    # Ops after their sources, so that the sources' starts are final.
    v = direction.order[i]
    for pair in range(direction.first[v], direction.first[v + 1]):
      u = direction.sources[pair]
      for k in range(c):
        arrives_us[pair, k] = np.inf
        for e in range(c):
          if allowed[u, e] and direction.slowness[e, k] < np.inf and together[u] != together[v]:
            # The sending op's overhead passes while its output is being transferred.
            overhead = overhead_us[v, k] if direction.reversed else overhead_us[u, e]
            arrives_us[pair, k] = min(arrives_us[pair, k], (
                start_us[u, e] + busy_us[u, e] - overhead + direction.work_us[pair]
                + direction.size_bytes[pair] * direction.slowness[e, k]
                + direction.latency[e, k]))
    for k in range(c):
      start_us[v, k] = _start_us(
          v, k, arrives_us, direction, start_us, busy_us, allowed, together, probes, s) if (
              allowed[v, k]) else np.inf
