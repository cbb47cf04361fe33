"""`NodeSets`: disjoint sets of nodes and the traffic between them, as arrays for compiled loops.

Other modules use `merging.Merger`. One node of each set, its root, identifies the set. The traffic
between two sets is an edge, which is in the lists of both: edge e has two half-edges, 2e in the
list of one end and 2e+1 in the list of the other end. A hash table from pairs of roots finds the
edge between them.

Where order decides, it is that of numbers, never that of lists or tables: so a result does not
depend on how sets are kept. Roots and half-edges are int64 in loops: numba would compile a function
again for each other type.

Dimensions: M nodes, F edges, T places in the table.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placeto_tf.simulation.compiling import compiled, part

NONE = -1  # no half-edge, no edge
_SPREAD = 0x9E3779B97F4A7C1  # odd; the upper bits of key times this number are the hash


class NodeSets(NamedTuple):
  """The sets of one merging; only entries of roots are kept up to date."""

  weight_us: np.ndarray  # [M] float64 compute time
  pattern: np.ndarray  # [M] int32, equal where the same devices are allowed
  parent: np.ndarray  # [M] int32, towards the root
  degree: np.ndarray  # [M] int32, number of edges
  head: np.ndarray  # [M] int32, first half-edge of the set's list
  after: np.ndarray  # [2F] int32, next half-edge of the list
  before: np.ndarray  # [2F] int32
  to: np.ndarray  # [2F] int32, root at the other end
  traffic: np.ndarray  # [F] float64 bytes, both directions
  keys: np.ndarray  # [T] int64, smaller root * M + larger one, or NONE
  edges: np.ndarray  # [T] int32
  num_sets: np.ndarray  # [1] int64

  @classmethod
  def of(
      cls, weight_us: np.ndarray, pattern: np.ndarray, producers: np.ndarray, consumers: np.ndarray,
      traffic_bytes: np.ndarray) -> NodeSets:
    """Makes a set for each node.

    Args:
      weight_us, pattern, producers, consumers, traffic_bytes: see `Contraction`.
    """
    m, f = len(weight_us), len(producers)
    capacity = 8
    while capacity < 2 * f:
      capacity *= 2
    sets = cls(
        np.array(weight_us, dtype=np.float64), np.array(pattern, dtype=np.int32),
        np.arange(m, dtype=np.int32), np.zeros(m, np.int32), np.full(m, NONE, np.int32),
        np.empty(2 * f, np.int32), np.empty(2 * f, np.int32), np.empty(2 * f, np.int32),
        np.empty(f), np.full(capacity, NONE, np.int64), np.empty(capacity, np.int32),
        np.array([m], dtype=np.int64))
    _add_edges(sets, producers, consumers, traffic_bytes)
    return sets

  def copy(self) -> NodeSets:
    """Returns a copy of the sets, which is merged independently."""
    return NodeSets(*(array.copy() for array in self))


@part
def find(sets, node):
  """Finds the root of a node's set, and shortens the path to it.

  Args:
    sets: the sets.
    node: the node.
  """
  parent = sets.parent
  while parent[node] != node:
    parent[node] = parent[parent[node]]
    node = parent[node]
  return node


@part
def key_of(sets, u, v):
  """Encodes two roots as one number, the same in both orders.

  Args:
    sets: the sets.
    u, v: the roots.

  Returns:
    The key of their edge in the table.
  """
  return min(u, v) * sets.parent.shape[0] + max(u, v)


@part
def _home(keys, key):
  """Returns the place where the search for a key begins."""
  return ((key * _SPREAD) >> 20) & (keys.shape[0] - 1)


@part
def _place_of(keys, key):
  """Returns the place of a key, or the place where it would be put."""
  at = _home(keys, key)
  while keys[at] != NONE and keys[at] != key:
    at = (at + 1) & (keys.shape[0] - 1)
  return at


@part
def edge_of(sets, key):
  """Looks up the edge of a pair of roots."""
  at = _place_of(sets.keys, key)
  return sets.edges[at] if sets.keys[at] == key else np.int32(NONE)


@part
def _forget(sets, key):
  """Removes a key from the table, and moves later keys that collided with it closer to home."""
  keys, edges = sets.keys, sets.edges
  last = keys.shape[0] - 1
  hole = at = _place_of(keys, key)
  while True:
    at = (at + 1) & last
    if keys[at] == NONE:
      keys[hole] = NONE
      return
    if ((at - _home(keys, keys[at])) & last) >= ((at - hole) & last):
      keys[hole], edges[hole] = keys[at], edges[at]
      hole = at


@part
def _enlist(sets, u, half):
  """Puts a half-edge into the list of a set."""
  first = sets.head[u]
  sets.after[half], sets.before[half] = first, NONE
  if first != NONE:
    sets.before[first] = half
  sets.head[u] = half
  sets.degree[u] += 1


@part
def _strike(sets, u, half):
  """Takes a half-edge off the list of a set."""
  after, before = sets.after[half], sets.before[half]
  if before == NONE:
    sets.head[u] = after
  else:
    sets.after[before] = after
  if after != NONE:
    sets.before[after] = before
  sets.degree[u] -= 1


@compiled(nogil=True, _nrt=False)
def _add_edges(sets, producers, consumers, traffic_bytes):
  """Fills the edges of sets of one node each; a pair's two directions become one edge."""
  count = 0
  for k in range(producers.shape[0]):
    u, v = np.int64(producers[k]), np.int64(consumers[k])
    key = key_of(sets, u, v)
    at = _place_of(sets.keys, key)
    if sets.keys[at] == key:
      sets.traffic[sets.edges[at]] += traffic_bytes[k]
      continue
    sets.keys[at], sets.edges[at] = key, count
    sets.traffic[count] = traffic_bytes[k]
    sets.to[2 * count], sets.to[2 * count + 1] = v, u
    _enlist(sets, u, 2 * count)
    _enlist(sets, v, 2 * count + 1)
    count += 1


@part
def may_merge(sets, u, v, cap_us):
  """Returns whether two sets have the same allowed devices and together stay under the cap.

  Args:
    sets: all sets.
    u, v: the roots of the two sets.
    cap_us: the largest compute time of a merged set.

  Returns:
    bool, True if the two sets may be merged.
  """
  return sets.pattern[u] == sets.pattern[v] and sets.weight_us[u] + sets.weight_us[v] <= cap_us


@part
def merge(sets, u, v):
  """Merges the sets of two different roots.

  Returns:
    The root of the merged set: that of the set with more edges.
  """
  if sets.degree[u] < sets.degree[v]:
    u, v = v, u
  half = np.int64(sets.head[v])
  while half != NONE:
    following, reverse, other = sets.after[half], half ^ 1, np.int64(sets.to[half])
    _forget(sets, key_of(sets, v, other))
    if other == u:
      _strike(sets, u, reverse)
    else:
      key = key_of(sets, u, other)
      at = _place_of(sets.keys, key)
      if sets.keys[at] == key:
        sets.traffic[sets.edges[at]] += sets.traffic[half >> 1]
        _strike(sets, other, reverse)
      else:
        sets.keys[at], sets.edges[at] = key, half >> 1
        sets.to[reverse] = u
        _enlist(sets, u, half)
    half = following
  sets.head[v], sets.degree[v] = NONE, 0
  sets.parent[v] = u
  sets.weight_us[u] += sets.weight_us[v]
  sets.num_sets[0] -= 1
  return u
