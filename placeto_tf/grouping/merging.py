"""`Merger`: merges nodes pair by pair and updates the traffic between them.

Dimensions: M nodes, D devices, P patterns.
"""

from __future__ import annotations

import copy
import math
from typing import List

import numpy as np

from placeto_tf.grouping.contraction import Contraction
from placeto_tf.grouping.node_sets import NONE, NodeSets, edge_of, find, key_of, may_merge, merge
from placeto_tf.simulation.compiling import compiled, part
from placeto_tf.simulation.heaps import pop, push, sink


class Merger:
  """Disjoint sets of the nodes of a `Contraction`, each named by one of its nodes, its root.

  Its loops are compiled and run without the interpreter's lock.

  Attributes:
    sets: arrays for compiled loops.
    masks: [P] bit mask of the devices of each pattern.
  """

  def __init__(self, contraction: Contraction):
    """Starts with a set for each node of the contraction."""
    self.sets = NodeSets.of(
        contraction.weight_us, contraction.pattern, contraction.producers, contraction.consumers,
        contraction.traffic_bytes)
    self.masks: List[int] = list(contraction.masks)

  def placed(self, node_devices: np.ndarray, num_devices: int) -> Merger:
    """Copies the sets so that nodes on different devices are never merged.

    For this, each device gets its own copies of all devices, and the masks of its nodes refer to
    these copies.

    Args:
      node_devices: [M] device of each node.
      num_devices: D.
    """
    other = copy.copy(self)
    pattern = self.sets.pattern * num_devices + node_devices
    other.sets = self.sets.copy()._replace(pattern=pattern.astype(np.int32))
    other.masks = [mask << num_devices * d for mask in self.masks for d in range(num_devices)]
    return other

  @property
  def num_sets(self) -> int:
    """Returns the number of sets."""
    return int(self.sets.num_sets[0])

  def roots(self) -> np.ndarray:
    """Returns the root of every set, in the order of the nodes."""
    return np.flatnonzero(self.sets.parent == np.arange(len(self.sets.parent)))

  def labels(self) -> np.ndarray:
    """Returns the root of each node's set, [M] int64."""
    found = self.sets.parent.astype(np.int64)
    while True:
      above = found[found]  # the parents' parents
      if (above == found).all():
        return found
      found = above

  def mask(self, root: int) -> int:
    """Returns the bit mask of the devices that all of a set may use; never 0."""
    return self.masks[self.sets.pattern[root]]

  def merge(self, u: int, v: int) -> int:
    """Merges the sets of two different roots with the same pattern.

    Returns:
      The root of the merged set: that of the set with more neighbours.
    """
    self.merge_pairs(np.array([u]), np.array([v]), math.inf)
    return u if self.sets.parent[u] == u else v

  def merge_pairs(self, firsts: np.ndarray, seconds: np.ndarray, cap_us: float) -> None:
    """Merges nodes pair by pair, where the cap allows it.

    Args:
      firsts, seconds: [pairs] nodes.
      cap_us: the largest compute time of a merged set.
    """
    _merge_pairs(self.sets, firsts.astype(np.int64), seconds.astype(np.int64), float(cap_us))

  def merge_cheap(
      self, order: np.ndarray, cheap_us: float, cap_us: float, max_sets: int) -> None:
    """Merges cheap sets with the neighbour with which they exchange most bytes.

    Args:
      order: [M] nodes, in the order in which their sets are visited.
      cheap_us: sets with less compute time are cheap.
      cap_us: the largest compute time of a merged set.
      max_sets: ends when so many sets are left.
    """
    _merge_cheap(self.sets, order, float(cheap_us), float(cap_us), max_sets)

  def merge_single_device(self) -> None:
    """Merges all sets that may use the same single device only: there is nothing to decide."""
    single = np.array([mask & (mask - 1) == 0 for mask in self.masks])
    roots = self.roots()
    roots = roots[single[self.sets.pattern[roots]]]
    # Each root with the first root of its pattern.
    _, first, same = np.unique(
        self.sets.pattern[roots], return_index=True, return_inverse=True)
    self.merge_pairs(roots[first[same]], roots, math.inf)

  def merge_heaviest_edges(self, max_sets: int, cap_us: float) -> None:
    """Merges sets of equal masks along the edge with most traffic, until the cap forbids it.

    Args:
      max_sets: ends when so many sets are left.
      cap_us: the largest compute time of a merged set.
    """
    _merge_heaviest_edges(self.sets, max_sets, float(cap_us))

  def merge_compatible(self, max_sets: int) -> None:
    """Last resort: merges sets whose masks differ but intersect, the lightest first."""
    if self.num_sets <= max_sets:
      return
    sets = self.sets
    order = sorted(self.roots().tolist(), key=lambda u: (sets.weight_us[u], u))
    kept: List[int] = []
    for position, u in enumerate(order):
      if len(kept) + len(order) - position <= max_sets:
        return
      # The first set that shares a device with set u.
      mask = self.mask(u)
      i = next((i for i, v in enumerate(kept) if mask & self.mask(v)), None)
      if i is None:
        kept.append(u)
        continue
      self.masks.append(self.mask(kept[i]) & mask)
      sets.pattern[[u, kept[i]]] = len(self.masks) - 1
      kept[i] = self.merge(u, kept[i])

  def merge_down(self, max_sets: int, cap_us: float) -> None:
    """Merges along the heaviest edges under the cap, and raises the cap as often as necessary.

    Args:
      max_sets: ends when so many sets are left.
      cap_us: the first cap on the compute time of a merged set.
    """
    total_us = math.fsum(self.sets.weight_us[self.roots()].tolist())
    while self.num_sets > max_sets:
      self.merge_heaviest_edges(max_sets, cap_us)
      _merge_isolated(self.sets, len(self.masks), max_sets, float(cap_us))
      if self.num_sets <= max_sets or cap_us > total_us:
        break
      cap_us = cap_us * 1.5 if cap_us > 0 else math.inf
    self.merge_compatible(max_sets)


@compiled(nogil=True, _nrt=False)
def _merge_pairs(sets, firsts, seconds, cap_us):
  for k in range(firsts.shape[0]):
    u, v = find(sets, firsts[k]), find(sets, seconds[k])
    if u != v and may_merge(sets, u, v, cap_us):
      merge(sets, u, v)


@compiled(nogil=True, _nrt=False)
def _merge_cheap(sets, order, cheap_us, cap_us, max_sets):
  for k in range(order.shape[0]):
    if sets.num_sets[0] <= max_sets:
      return
    u = find(sets, order[k])
    if sets.weight_us[u] < cheap_us:
      v = _heaviest_neighbour(sets, u, cap_us)
      if v != NONE:
        merge(sets, u, v)


@part
def _heaviest_neighbour(sets, u, cap_us):
  """Returns the mergeable set with most traffic to set u, of equal ones the first; or NONE."""
  best, most = np.int64(NONE), -1.0
  half = sets.head[u]
  while half != NONE:
    v, traffic = np.int64(sets.to[half]), sets.traffic[half >> 1]
    ahead = best == NONE or traffic > most or (traffic == most and v < best)
    if ahead and may_merge(sets, u, v, cap_us):
      best, most = v, traffic
    half = sets.after[half]
  return best


@compiled(nogil=True)
def _merge_heaviest_edges(sets, max_sets, cap_us):
  m = sets.parent.shape[0]
  capacity = max(16, sets.traffic.shape[0])
  priority, keys, size = np.empty(capacity), np.empty(capacity, np.int64), 0
  for u in range(m):
    half = sets.head[u] if sets.parent[u] == u else NONE
    while half != NONE:
      v = np.int64(sets.to[half])
      if u < v and sets.pattern[u] == sets.pattern[v]:
        priority[size], keys[size] = -sets.traffic[half >> 1], key_of(sets, u, v)
        size += 1
      half = sets.after[half]
  for i in range(size // 2 - 1, -1, -1):
    sink(0, size, i, priority, keys)
  changed = np.empty(m, np.int64)
  while size > 0 and sets.num_sets[0] > max_sets:
    negative, key = priority[0], pop(0, size, priority, keys)
    size -= 1
    # Entries are not removed when a set changes; stale entries are skipped here.
    edge = edge_of(sets, key)
    if edge == NONE or sets.traffic[edge] != -negative:
      continue
    u, v = key // m, key % m
    if not may_merge(sets, u, v, cap_us):
      continue
    # Entries of the set with more neighbours are still valid where traffic did not grow, so only
    # the neighbours of the smaller set need new entries.
    count, half = 0, sets.head[u if sets.degree[u] < sets.degree[v] else v]
    while half != NONE:
      other = sets.to[half]
      if other != u and other != v and sets.pattern[other] == sets.pattern[u]:
        changed[count] = other
        count += 1
      half = sets.after[half]
    root = merge(sets, u, v)
    if size + count > priority.shape[0]:
      old_priority, old_keys = priority, keys
      priority, keys = np.empty(2 * (size + count)), np.empty(2 * (size + count), np.int64)
      for k in range(size):  # numba compiles this in a tenth of the time of an array's assignment
        priority[k], keys[k] = old_priority[k], old_keys[k]
    for k in range(count):
      key = key_of(sets, root, changed[k])
      push(0, size, -sets.traffic[edge_of(sets, key)], key, priority, keys)
      size += 1


@compiled(nogil=True)
def _merge_isolated(sets, num_patterns, max_sets, cap_us):
  """Merges sets with no neighbour of equal mask, the lightest two first."""
  m = sets.parent.shape[0]
  isolated, count = np.empty(m, np.int64), 0
  for u in range(m):
    if sets.parent[u] != u:
      continue
    half = sets.head[u]
    while half != NONE and sets.pattern[sets.to[half]] != sets.pattern[u]:
      half = sets.after[half]
    if half == NONE:
      isolated[count] = u
      count += 1
  done = np.zeros(num_patterns, np.bool_)
  weights, roots = np.empty(count), np.empty(count, np.int64)
  for i in range(count):
    pattern = sets.pattern[isolated[i]]
    if done[pattern]:
      continue
    done[pattern] = True
    size = 0
    for k in range(i, count):
      u = isolated[k]
      if sets.pattern[u] == pattern:
        push(0, size, sets.weight_us[u], u, weights, roots)
        size += 1
    while size > 1 and sets.num_sets[0] > max_sets:
      weight_us, u = weights[0], pop(0, size, weights, roots)
      size -= 1
      if weight_us + weights[0] > cap_us:
        break
      root = merge(sets, u, roots[0])
      weights[0], roots[0] = sets.weight_us[root], root
      sink(0, size, 0, weights, roots)
