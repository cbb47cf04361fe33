"""Contraction, merging and neighbours in plain Python, with which compiled loops must agree."""

import math
from typing import Dict, List, Optional

import numpy as np

from placeto_tf.graphs.computation_graph import CONTROL
from placeto_tf.grouping.contraction import CONTROL_BYTES, TRANSFER_BYTES
from placeto_tf.grouping.heavy_edge import CAP_OVER_MEAN, CHEAP_OVER_MEAN


def traffic_between(graph, costs, node_of_op, m):
  """Sums bytes by pair of nodes of m; a tensor counts once for each node that consumes it."""
  del m
  found, seen = {}, set()
  # Control edges of one producer to one node are one signal, hence a negative number by producer.
  for tensor, producer, consumer in sorted(
      (int(output) if port != CONTROL else -1 - int(producer), producer, consumer)
      for producer, port, consumer, output in zip(
          graph.edge_producers, graph.edge_ports, graph.edge_consumers, graph.edge_outputs)):
    u, v = int(node_of_op[producer]), int(node_of_op[consumer])
    if u != v and (tensor, v) not in seen:
      seen.add((tensor, v))
      weight = CONTROL_BYTES if tensor < 0 else costs.output_bytes[tensor] + TRANSFER_BYTES
      found[u, v] = found.get((u, v), 0.0) + weight
  pairs = np.array(sorted(found), np.int32).reshape(-1, 2)
  return pairs[:, 0], pairs[:, 1], np.array([found[u, v] for u, v in pairs.tolist()])


def node_masks(contraction) -> List[int]:
  """[M] bit masks of allowed devices."""
  return [contraction.masks[p] for p in contraction.pattern.tolist()]


class PlainMerger:
  """Disjoint sets of the nodes of a `Contraction`, each named by one of its nodes, its root.

  Attributes:
    weight_us: [M] compute time of the set, by root.
    mask: [M] bit mask of the devices all of the set may use, by root; never 0.
    neighbours: [M] traffic in bytes to every other set, by root of either, both directions.
    num_sets: how many sets there are.
  """

  def __init__(self, contraction):
    m = contraction.num_nodes
    self.weight_us: List[float] = contraction.weight_us.tolist()
    self.mask: List[int] = node_masks(contraction)
    self.neighbours: List[Dict[int, float]] = [{} for _ in range(m)]
    for u, v, traffic in zip(
        contraction.producers.tolist(), contraction.consumers.tolist(),
        contraction.traffic_bytes.tolist()):
      self.neighbours[u][v] = self.neighbours[u].get(v, 0.0) + traffic
      self.neighbours[v][u] = self.neighbours[u][v]
    self._parent = list(range(m))
    self.num_sets = m

  def find(self, node: int) -> int:
    """Root of the node's set."""
    parent = self._parent
    while parent[node] != node:
      parent[node] = parent[parent[node]]
      node = parent[node]
    return node

  def roots(self) -> List[int]:
    """Root of every set, in the order of the nodes."""
    return [node for node, parent in enumerate(self._parent) if node == parent]

  def labels(self) -> np.ndarray:
    """[M] root of each node's set."""
    return np.array([self.find(node) for node in range(len(self._parent))], dtype=np.int64)

  def may_merge(self, u: int, v: int, cap_us: float) -> bool:
    """Whether two sets have equal masks and stay under the cap together."""
    return self.mask[u] == self.mask[v] and self.weight_us[u] + self.weight_us[v] <= cap_us

  def merge(self, u: int, v: int) -> int:
    """Merges the sets of two different roots; the one with more neighbours stays root."""
    u, v = (v, u) if len(self.neighbours[u]) < len(self.neighbours[v]) else (u, v)
    ours, theirs = self.neighbours[u], self.neighbours[v]
    ours.pop(v, None)
    theirs.pop(u, None)
    for other, traffic in theirs.items():
      total = ours.get(other, 0.0) + traffic
      ours[other] = total
      back = self.neighbours[other]
      del back[v]
      back[u] = total
    self.neighbours[v] = {}
    self._parent[v] = u
    self.weight_us[u] += self.weight_us[v]
    self.mask[u] &= self.mask[v]
    self.num_sets -= 1
    return u

  def heaviest_neighbour(self, u: int, cap_us: float) -> Optional[int]:
    """The set with equal mask and most traffic that stays under the cap together with `u`."""
    return min((v for v in self.neighbours[u] if self.may_merge(u, v, cap_us)),
               key=lambda v: (-self.neighbours[u][v], v), default=None)

  def merge_single_device(self) -> None:
    """Merges all sets that may use the same single device only: there is nothing to decide."""
    representative: Dict[int, int] = {}
    for u in self.roots():
      mask = self.mask[u]
      if mask & (mask - 1) == 0:
        known = representative.get(mask)
        representative[mask] = u if known is None else self.merge(known, u)

  def merge_heaviest_edges(self, max_sets: int, cap_us: float) -> None:
    """Merges along the edge with most traffic until there are `max_sets` or the cap forbids all.

    Only sets with equal masks are merged.
    """
    while self.num_sets > max_sets:
      pairs = [
          (-traffic, u, v) for u in self.roots() for v, traffic in self.neighbours[u].items()
          if u < v and self.may_merge(u, v, cap_us)]
      if not pairs:
        return
      self.merge(*min(pairs)[1:])

  def merge_isolated(self, max_sets: int, cap_us: float) -> None:
    """Merges sets with no neighbour of equal mask, the lightest two first, under the cap."""
    by_mask: Dict[int, list] = {}
    for u in self.roots():
      if not any(self.mask[v] == self.mask[u] for v in self.neighbours[u]):
        by_mask.setdefault(self.mask[u], []).append((self.weight_us[u], u))
    for found in by_mask.values():
      while len(found) > 1 and self.num_sets > max_sets:
        first, second = sorted(found)[:2]
        if first[0] + second[0] > cap_us:
          break
        root = self.merge(first[1], second[1])
        found = [each for each in found if each not in (first, second)]
        found.append((self.weight_us[root], root))

  def merge_compatible(self, max_sets: int) -> None:
    """Last resort: merges sets whose masks differ but intersect, the lightest first."""
    order = sorted(self.roots(), key=lambda u: (self.weight_us[u], u))
    kept: List[int] = []
    for position, u in enumerate(order):
      if len(kept) + len(order) - position <= max_sets:
        return
      for i, v in enumerate(kept):
        if self.mask[u] & self.mask[v]:
          kept[i] = self.merge(u, v)
          break
      else:
        kept.append(u)

  def merge_down(self, max_sets: int, cap_us: float) -> None:
    """Merges along the heaviest edges under the cap, which is raised as often as it must be."""
    total = math.fsum(self.weight_us[u] for u in self.roots())
    while self.num_sets > max_sets:
      self.merge_heaviest_edges(max_sets, cap_us)
      self.merge_isolated(max_sets, cap_us)
      if cap_us > total:
        break
      cap_us = cap_us * 1.5 if cap_us > 0 else math.inf
    self.merge_compatible(max_sets)


def merge_stages(merger, contraction, max_groups):
  """[N] labels after stages 2 and 3."""
  merger.merge_single_device()
  mean_us = float(contraction.weight_us.sum()) / max_groups
  join_single_consumers(merger, contraction, CHEAP_OVER_MEAN * mean_us)
  join_cheap(merger, contraction, CHEAP_OVER_MEAN * mean_us, CAP_OVER_MEAN * mean_us, max_groups)
  merger.merge_down(max_groups, CAP_OVER_MEAN * mean_us)
  return merger.labels()[contraction.node_of_op]


def join_single_consumers(merger, contraction, cap_us: float) -> None:
  """Joins nodes to their only consumer while the two weigh no more than the cap."""
  m = contraction.num_nodes
  num_consumers = np.bincount(contraction.producers, minlength=m)
  starts = np.searchsorted(contraction.producers, np.arange(m))
  single = np.flatnonzero(num_consumers == 1)
  # Last first, so that a chain grows from its end and its joints fall where the cap is met.
  single = single[np.argsort(-contraction.rank[single], kind="stable")]
  for node, consumer in zip(
      single.tolist(), contraction.consumers[starts[single]].tolist()):
    u, v = merger.find(node), merger.find(consumer)
    if u != v and merger.may_merge(u, v, cap_us):
      merger.merge(u, v)


def join_cheap(
    merger, contraction, cheap_us: float, cap_us: float, max_groups: int
) -> None:
  """Joins sets lighter than `cheap_us` to the neighbour they exchange most bytes with."""
  for node in np.argsort(contraction.rank, kind="stable").tolist():
    if merger.num_sets <= max_groups:
      return
    u = merger.find(node)
    if merger.weight_us[u] < cheap_us:
      v = merger.heaviest_neighbour(u, cap_us)
      if v is not None:
        merger.merge(u, v)


def neighbours(producers, consumers, count):
  """Offsets [U+1] into an array of each supernode's neighbours, in the order of the first edge."""
  edges = len(producers)
  owner, other = np.concatenate([producers, consumers]), np.concatenate([consumers, producers])
  turn = np.tile(np.arange(edges), 2)
  order = np.lexsort((turn, other, owner))
  first = np.ones(len(order), dtype=bool)
  first[1:] = (np.diff(owner[order]) != 0) | (np.diff(other[order]) != 0)
  order = order[first]
  order = order[np.lexsort((turn[order], owner[order]))]
  return (np.concatenate([[0], np.cumsum(np.bincount(owner[order], minlength=count))]),
          np.ascontiguousarray(other[order], dtype=np.int32))
