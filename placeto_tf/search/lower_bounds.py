"""Lower bounds: step times that no placement can beat.

The bound is the largest of three:

- Critical path. Let start(v, d) bound the start of op v from below when it runs on device d. For
  a producer u on device e, v waits for the end of u and then at least for the transfer of its
  bytes (e != d), or for the device to be free again (e == d, the overhead of u if it launches a
  kernel). u's own device is not known, so the least over its allowed devices counts; every op's
  device is minimised by itself, which only lowers the bound.
- Work. If no step is longer than T, then every stream of device d has run ops for at most T plus
  one overhead (that of its last op). For any weights y >= 0 that add up to 1, T is at least
  sum_i min_d y_d work(i, d) - sum_d y_d overhead, the minimum over op i's allowed devices: the
  dual of the linear program that spreads the work over the devices. Any y gives a true bound;
  multiplicative weights look for a good one.
- Forced transfers, for placements that fit. If no device may hold all ops of a connected part of
  the graph, or none has room for its variables, then one of the part's edges crosses devices. The
  step is then no shorter than the path through the edge for which that costs least: to its
  producer's earliest end, the transfer, and what must come after its consumer starts.

Legend: N ops, D devices, S colocated sets.
"""

from __future__ import annotations

from typing import Tuple

import numpy as np

from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.simulation.compiling import compiled
from placeto_tf.simulation.path_lengths import fastest_us, remaining_path_us

_ROUNDS = 200
_ROUNDING = 1 - 1e-9  # so that rounding never lifts a bound above a true step time


def lower_bound_us(problem: PlacementProblem) -> float:
  """A lower bound on the step time of all placements that fit, in microseconds."""
  end_us = earliest_ends_us(problem)
  return max(
      float(end_us.max()), work_us(problem), forced_transfer_us(problem, end_us)) * _ROUNDING


def forced_transfer_us(problem: PlacementProblem, end_us: np.ndarray) -> float:
  """The bound by forced transfers; 0 where one device can hold every connected part.

  Args:
    problem: whose step times are bounded.
    end_us: [N], from `earliest_ends_us`.
  """
  graph, cluster = problem.graph, problem.cluster
  u, v = graph.edge_producers, graph.edge_consumers
  part = _connected_parts(graph.num_ops, u, v)
  count = int(part.max()) + 1
  held_bytes = np.bincount(part, problem.costs.persistent_bytes, minlength=count)
  whole = np.ones((count, cluster.num_devices), dtype=bool)
  np.logical_and.at(whole, part, problem.allowed_ops)
  whole &= held_bytes[:, None] <= cluster.memory_bytes
  cut = ~np.any(whole, axis=1)
  crossing = cut[part[u]] & (graph.colocation[u] != graph.colocation[v])
  if not crossing.any() or cluster.num_devices == 1:
    return 0.0
  apart = ~np.eye(cluster.num_devices, dtype=bool)
  transfer_us = problem.costs.edge_bytes(graph) / cluster.bandwidth_bytes_per_us[apart].max()
  rest_us = remaining_path_us(graph, fastest_us(problem.costs, cluster, problem.allowed_ops))
  through_us = (end_us[u] + transfer_us + rest_us[v])[crossing]
  least_us = np.full(count, np.inf)
  np.minimum.at(least_us, part[u[crossing]], through_us)
  return float(least_us[np.isfinite(least_us)].max())


def _connected_parts(count: int, u: np.ndarray, v: np.ndarray) -> np.ndarray:
  """[N] number of the weakly connected part of each op."""
  leader = np.arange(count)
  while True:
    # Every root takes the least root it has an edge to; then all ops follow to their roots.
    a, b = leader[u], leader[v]
    if (a == b).all():
      return np.unique(leader, return_inverse=True)[1].reshape(-1)
    np.minimum.at(leader, a, b)
    np.minimum.at(leader, b, a)
    while (leader[leader] != leader).any():
      leader = leader[leader]


def earliest_ends_us(problem: PlacementProblem) -> np.ndarray:
  """[N] time before which each op cannot end on any device; the largest is the critical path."""
  graph, cluster = problem.graph, problem.cluster
  compute_us, overhead_us = _charges(problem)
  bandwidth = cluster.bandwidth_bytes_per_us
  apart = ~np.eye(cluster.num_devices, dtype=bool)
  end = np.where(problem.allowed_ops, compute_us, np.inf)  # [N, D] of ops without producers
  _extend_by_producers(
      end, overhead_us, graph.edge_producers, graph.edge_consumers, _by_depth(graph),
      problem.costs.edge_bytes(graph), np.where(apart, 1 / np.where(apart, bandwidth, 1.0), 0.0))
  return end.min(axis=1)


def _by_depth(graph: ComputationGraph) -> np.ndarray:
  """[E] edges, level by level of their consumers, so that all producers are final."""
  return np.lexsort((graph.edge_consumers, graph.depths[graph.edge_consumers]))


@compiled()
def _extend_by_producers(end, overhead_us, producers, consumers, order, size_bytes, slowness):
  """Adds to `end` [N, D] of each op the time at which the last of its inputs can be there.

  Args:
    end: compute time of each op on each device; afterwards, when it can end there.
    overhead_us: [N, D].
    producers, consumers, size_bytes: [E].
    order: [E], edges of one consumer one after the other, consumers after their producers.
    slowness: [D, D] us per byte, 0 on the diagonal.
  """
  devices = end.shape[1]
  latest = np.empty(devices)
  at = 0
  while at < len(order):
    consumer = consumers[order[at]]
    latest[:] = 0.0
    while at < len(order) and consumers[order[at]] == consumer:
      producer, size = producers[order[at]], size_bytes[order[at]]
      for to in range(devices):
        soonest = end[producer, to] + overhead_us[producer, to]
        for source in range(devices):
          if source != to:
            soonest = min(soonest, end[producer, source] + size * slowness[source, to])
        latest[to] = max(latest[to], soonest)
      at += 1
    for to in range(devices):
      end[consumer, to] += latest[to]


def work_us(problem: PlacementProblem) -> float:
  """The work bound."""
  cluster = problem.cluster
  compute_us, overhead_us = _charges(problem)
  sets, index = np.unique(problem.graph.colocation, return_inverse=True)
  work = np.zeros((len(sets), cluster.num_devices))
  np.add.at(work, index.reshape(-1), compute_us + overhead_us)
  work = np.where(problem.allowed_ops[sets], work, np.inf)
  last_us = overhead_us.max(axis=0)
  finite = np.where(np.isfinite(work), work, 0.0)

  def bound(y: np.ndarray) -> Tuple[float, np.ndarray]:
    cost = np.where(np.isfinite(work), finite * y, np.inf)
    choice = cost.argmin(axis=1)
    value = cost[np.arange(len(work)), choice].sum() - (y * last_us).sum()
    load = np.zeros(len(y))
    np.add.at(load, choice, finite[np.arange(len(work)), choice])
    return value, load

  hosts = np.array([device.host for device in cluster.devices])
  best = 0.0
  for y in (np.ones(len(hosts)), (~hosts).astype(float), hosts.astype(float)):
    if y.any():
      best = max(best, bound(y / y.sum())[0])
  kinds = cluster.device_kinds
  if len(np.unique(kinds)) == 1:
    return float(best)
  y = np.where(hosts, 1e-3, 1.0) / np.where(hosts, 1e-3, 1.0).sum()
  for step in range(_ROUNDS):
    value, load = bound(y)
    best = max(best, value)
    if not load.max() > 0:
      break
    # The price of loaded devices rises; devices of one kind share a price, as in the best y.
    mean_load = np.bincount(kinds, load) / np.bincount(kinds)
    y = y * np.exp(2.0 / np.sqrt(step + 4) * (mean_load / mean_load.max())[kinds])
    y = y / y.sum()
  return float(best)


def _charges(problem: PlacementProblem) -> Tuple[np.ndarray, np.ndarray]:
  """Compute time and the overhead after it of each op on each device, both [N, D]."""
  compute_us = problem.costs.compute_us[:, problem.cluster.device_kinds]
  return compute_us, problem.cluster.op_overhead_us * (compute_us > 0)
