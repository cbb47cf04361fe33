"""Lower bounds: step times that no placement can beat, whatever the order of queues.

`earliest_starts` gives each op on each class of devices a head (how early it can start) and a
tail (the time from its end to the end of the step). The bound is the largest of four bounds:

- Path. The step is no shorter than the sum of the head, the busy time and the tail of any op, on
  the class of devices where that sum is least.
- Work in a window (Fernandez and Bussell, "Bounds on the number of processors and time for
  multiprocessor optimal schedules", 1973). Ops with heads of at least a and tails of at least b
  run after the first a and before the last b of the step. For weights y >= 0 of devices that add up
  to 1, the step is at least a + b + the sum over colocated sets of min_d y_d work(set, d): the dual
  of the linear program that spreads the work over the devices. Any y gives a true bound;
  multiplicative weights look for a good one.
- Buses. If an op may run on one device only and its consumer may not run there, no placement avoids
  the transfer. These transfers are jobs of one machine, the bus of that device.
- Forced transfers, for placements that fit. If no device may hold all ops of a connected part of
  the graph, or none has enough memory for its variables, then one of the part's edges crosses
  devices. The step is no shorter than the path through the edge where the crossing costs least.

Dimensions: N ops, E edges, D devices, C classes of equal devices, S colocated sets.
"""

from __future__ import annotations

from typing import Iterator

import numpy as np

from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.search.earliest_starts import MOST_LATE, Paths, interchangeable, one_machine_us
from placeto_tf.simulation.compiling import compiled

_ROUNDS = 200
_MOST_WINDOWS = 1000  # the largest number of heads at which windows begin
_ROUNDING = 1 - 1e-9  # so that rounding never lifts a bound above a true step time


def lower_bound_us(problem: PlacementProblem) -> float:
  """Computes a lower bound on the step time of all placements that fit, in us."""
  bounds = LowerBounds(problem)
  return max(
      bounds.path_us(), bounds.window_us(), bounds.bus_us(), bounds.forced_transfer_us()
  ) * _ROUNDING


class LowerBounds:
  """The four bounds of one problem, before they are multiplied by `_ROUNDING`."""

  def __init__(self, problem: PlacementProblem):
    self._problem = problem
    graph = problem.graph
    # [D] for each device the first device equal to it; one class stands for all its devices.
    classes = interchangeable(problem.cluster, problem.allowed_ops)
    self._paths = paths = Paths.of(problem, classes)
    self._class = np.unique(classes, return_inverse=True)[1].reshape(-1)  # [D]
    # Ops of one colocated set share a device, so they need no transfers between them.
    together = graph.colocation.astype(np.int64)
    heads = paths.heads_us(paths.allowed, together, MOST_LATE)
    tails = paths.tails_us(paths.allowed, together, MOST_LATE)
    # [N] each, on the class of devices where the sum of head, busy time and tail is least.
    self._through_us = (heads + paths.busy_us + tails).min(axis=1)
    self._heads_us, self._tails_us = heads.min(axis=1), tails.min(axis=1)
    self._ends_us = (heads + paths.busy_us - paths.overhead_us).min(axis=1)
    self._rest_us = (paths.busy_us + tails).min(axis=1)

  def path_us(self) -> float:
    """Returns the bound by paths."""
    return float(self._through_us.max())

  def window_us(self) -> float:
    """Returns the bound by the work in windows."""
    sets = np.unique(self._problem.graph.colocation, return_inverse=True)[1].reshape(-1)
    # Windows begin where some op can start; of too many starts, evenly spread ones are taken.
    begins_us = np.unique(self._heads_us)
    if len(begins_us) > _MOST_WINDOWS:
      begins_us = begins_us[np.linspace(0, len(begins_us) - 1, _MOST_WINDOWS).astype(np.int64)]
    by_tail = np.argsort(-self._tails_us, kind="stable")
    paths, best = self._paths, 0.0
    # Every y gives a true bound: take the largest.
    for y in self._weights(sets):
      work_us = np.where(paths.allowed, paths.busy_us * y, np.inf)
      best = max(best, _window_us(
          begins_us, self._heads_us, self._tails_us, by_tail, sets, work_us))
    return best

  def _weights(self, sets: np.ndarray) -> Iterator[np.ndarray]:
    """Yields weights y [C], one per device of each class; `sets` [N] are the colocated sets."""
    paths, cluster = self._paths, self._problem.cluster
    # [C] a device of each class.
    first = np.array([int(np.argmax(self._class == c)) for c in range(len(paths.members))])
    hosts = np.array([cluster.devices[d].host for d in first])
    # Simple weights: all devices alike, all but hosts, only hosts; the sum over devices is 1.
    for y in (np.ones(len(hosts)), (~hosts).astype(float), hosts.astype(float)):
      if y.any():
        yield y / (y * paths.members).sum()
    # Other weights are searched for only if some op has a choice between kinds of devices.
    kinds = cluster.device_kinds[first]
    if not any(len(np.unique(kinds[row])) > 1 for row in np.unique(paths.allowed, axis=0)):
      return
    work = np.zeros((int(sets.max()) + 1, len(hosts)))  # [S, C]
    np.add.at(work, sets, paths.busy_us)
    allowed = np.zeros(work.shape, dtype=bool)
    allowed[sets] = paths.allowed
    # Multiplicative weights: each set takes its cheapest device, and loaded ones grow dearer.
    y = np.where(hosts, 1e-3, 1.0)
    best, found = 0.0, y
    for step in range(_ROUNDS):
      y = y / (y * paths.members).sum()
      cost = np.where(allowed, work * y, np.inf)
      choice = cost.argmin(axis=1)
      value = cost[np.arange(len(work)), choice].sum()
      if value > best:
        best, found = value, y
      load = np.bincount(choice, work[np.arange(len(work)), choice], len(y))
      # The price of loaded devices rises; devices of one kind share a price, as in the best y.
      mean_load = (np.bincount(kinds, load) / np.maximum(
          1, np.bincount(kinds, paths.members)))[kinds]
      if not mean_load.max() > 0:
        break
      # Step sizes shrink with the square root of the round, which the method needs to converge.
      y = y * np.exp(2.0 / np.sqrt(step + 4) * mean_load / mean_load.max())
    yield found

  def bus_us(self) -> float:
    """Returns the bound by unavoidable transfers; 0 if there are none, or if there are no buses."""
    if self._problem.cluster.transfers != "device":
      return 0.0
    graph, paths, tables = self._problem.graph, self._paths, self._problem.simulator.tables
    u, v = graph.edge_producers, graph.edge_consumers
    segments = tables.segment_of_edge
    best = 0.0
    # Only classes of a single device: its bus carries all these transfers.
    for c in np.flatnonzero(paths.members == 1):
      # Ops that must run on this device, and edges from them to ops that may not run there.
      only = paths.allowed[:, c] & (paths.allowed.sum(axis=1) == 1)
      edges = np.flatnonzero(only[u] & ~paths.allowed[v, c])
      if not len(edges):
        continue
      # [edges, C] us to each class; the fastest class where the consumer may run counts.
      there = paths.allowed[v[edges]]
      slowness = np.where(there, paths.forward.slowness[c], np.inf).min(axis=1)
      transfer_us = tables.segment_bytes[segments[edges]] * slowness
      latency_us = np.where(there, paths.forward.latency[c], np.inf).min(axis=1)
      # One consumer represents each output, because the output is sent at least once.
      by_value = np.argsort(
          -(transfer_us + latency_us + self._rest_us[v[edges]]), kind="stable")
      _, first = np.unique(segments[edges][by_value], return_index=True)
      sent = by_value[first]
      # Jobs sorted by release time, as `one_machine_us` requires.
      sent = sent[np.argsort(self._ends_us[u[edges[sent]]], kind="stable")]
      rest_us = latency_us[sent] + self._rest_us[v[edges[sent]]]
      # A gap follows each transfer on the bus, but not on the way to the consumer.
      best = max(best, one_machine_us(
          len(sent), self._ends_us[u[edges[sent]]], transfer_us[sent] + tables.bus_gap_us,
          rest_us - tables.bus_gap_us, np.empty(len(sent), np.int64)))
    return float(best)

  def forced_transfer_us(self) -> float:
    """Returns the bound by forced transfers; 0 where one device can hold every connected part."""
    graph, cluster, costs = self._problem.graph, self._problem.cluster, self._problem.costs
    u, v = graph.edge_producers, graph.edge_consumers
    part = _connected_parts(graph.num_ops, u, v)
    count = int(part.max()) + 1
    held_bytes = np.bincount(part, costs.persistent_bytes, minlength=count)
    # [parts, D] bool: devices that may run all ops of the part and have memory for its variables.
    whole = np.ones((count, cluster.num_devices), dtype=bool)
    np.logical_and.at(whole, part, self._problem.allowed_ops)
    whole &= held_bytes[:, None] <= cluster.memory_bytes
    # Parts that no device can hold: at least one edge between colocated sets crosses.
    too_large = ~np.any(whole, axis=1)
    crossing = too_large[part[u]] & (graph.colocation[u] != graph.colocation[v])
    if not crossing.any() or cluster.num_devices == 1:
      return 0.0
    apart = ~np.eye(cluster.num_devices, dtype=bool)
    # [E] least time of each edge over the best link of the cluster.
    transfer_us = (costs.edge_bytes(graph) / cluster.bandwidth_bytes_per_us[apart].max()
                   + cluster.latency_us[apart].min())
    through_us = (self._ends_us[u] + transfer_us + self._rest_us[v])[crossing]
    # The cheapest edge of each part bounds the step; the largest of these bounds counts.
    least_us = np.full(count, np.inf)
    np.minimum.at(least_us, part[u[crossing]], through_us)
    return float(least_us[np.isfinite(least_us)].max())


def _connected_parts(count: int, u: np.ndarray, v: np.ndarray) -> np.ndarray:
  """Returns [N] number of the weakly connected part of each op."""
  leader = np.arange(count)
  while True:
    # Every root takes the least root that an edge connects it with; then ops follow their roots.
    a, b = leader[u], leader[v]
    if (a == b).all():
      return np.unique(leader, return_inverse=True)[1].reshape(-1)
    np.minimum.at(leader, a, b)
    np.minimum.at(leader, b, a)
    while (leader[leader] != leader).any():
      leader = leader[leader]


@compiled()
def _window_us(begins_us, heads_us, tails_us, by_tail, sets, work_us):
  """Returns the largest bound by the work of ops with late heads and long tails.

  Args:
    begins_us: heads at which windows begin, in us.
    heads_us, tails_us: [N] float64.
    by_tail: [N] int64, ops sorted by falling tail.
    sets: [N] int64, the colocated set of each op.
    work_us: [N, C] weighted busy time on each class, inf where an op may not run.

  Returns:
    The bound in us.
  """
  best = 0.0
  n, c = work_us.shape
  # For each set: its weighted work on each class so far, and the least of them over classes.
  of_set_us, least_us = np.empty((n, c)), np.empty(n)
  for begin_us in begins_us:
    of_set_us[:] = 0.0
    least_us[:] = 0.0
    total_us = 0.0
    # Adding ops by falling tails keeps b, the least tail of the window, at the last op's tail.
    for i in by_tail:
      if heads_us[i] >= begin_us:
        least = np.inf
        for k in range(c):
          of_set_us[sets[i], k] += work_us[i, k]
          least = min(least, of_set_us[sets[i], k])
        # Only the increase of the set's least work counts.
        total_us += least - least_us[sets[i]]
        least_us[sets[i]] = least
        best = max(best, begin_us + total_us + tails_us[i])
  return best
