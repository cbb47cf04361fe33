"""Graph traversals over edge lists in O(N + E), without recursion, so that long chains work.

Dimensions: N ops, E edges.
"""

from __future__ import annotations

from typing import Iterable, Tuple

import numpy as np


def slices(sorted_ends: np.ndarray, num_ops: int) -> np.ndarray:
  """Returns the start of each op's edges in an array of edges that is sorted by one end.

  Args:
    sorted_ends: [E] op index of this end, ascending.
    num_ops: N.

  Returns:
    [N+1] start of each op's slice.
  """
  return np.searchsorted(sorted_ends, np.arange(num_ops + 1))


def ancestors(
    num_ops: int, producers: np.ndarray, consumers: np.ndarray, targets: Iterable[int]
) -> np.ndarray:
  """Returns the targets and all ops that they depend on.

  Args:
    num_ops: N.
    producers, consumers: [E] op indices, in any order.
    targets: op indices.

  Returns:
    [N] bool.
  """
  # Edges by consumer: the inputs of op i are inputs[starts[i]:starts[i + 1]].
  order = np.argsort(consumers, kind="stable")
  starts = slices(consumers[order], num_ops).tolist()
  inputs = producers[order].tolist()
  needed = bytearray(num_ops)
  stack = []
  for target in targets:
    if not needed[target]:
      needed[target] = 1
      stack.append(target)
  while stack:
    op = stack.pop()
    for producer in inputs[starts[op]:starts[op + 1]]:
      if not needed[producer]:
        needed[producer] = 1
        stack.append(producer)
  return np.frombuffer(needed, dtype=np.uint8).astype(bool)


def topological_order(
    num_ops: int, producers: np.ndarray, consumers: np.ndarray
) -> Tuple[np.ndarray, np.ndarray]:
  """Sorts ops by Kahn's algorithm, first in first out.

  Args:
    num_ops: N.
    producers: [E] op indices, in any order; repeated edges are allowed.
    consumers: [E] op indices.

  Returns:
    The order, shorter than N if there is a cycle, and [N] int32 depths: the number of edges
    on the longest path that ends at an op, -1 for ops on a cycle or after one.
  """
  by_producer = np.argsort(producers, kind="stable")
  starts = slices(producers[by_producer], num_ops).tolist()
  outputs = consumers[by_producer].tolist()
  # Inputs of each op that are not in the order yet.
  missing = np.bincount(consumers, minlength=num_ops).tolist()
  depths = [-1] * num_ops
  order = [op for op in range(num_ops) if not missing[op]]
  for op in order:
    depths[op] = 0
  for op in order:  # the list grows during the loop
    depth = depths[op] + 1
    for consumer in outputs[starts[op]:starts[op + 1]]:
      missing[consumer] -= 1
      if not missing[consumer]:
        # Ops are processed in the order of depth, so the last input has the greatest depth.
        depths[consumer] = depth
        order.append(consumer)
  return np.array(order, dtype=np.int64), np.array(depths, dtype=np.int32)


class UnionFind:
  """Disjoint sets of ops; the label of a set is its smallest member."""

  def __init__(self, num_ops: int):
    self._parents = list(range(num_ops))

  def find(self, op: int) -> int:
    """Returns the smallest member of the op's set."""
    parents = self._parents
    while parents[op] != op:
      # Path halving makes later searches short.
      parents[op] = parents[parents[op]]
      op = parents[op]
    return op

  def union(self, a: int, b: int) -> None:
    """Merges the sets of two ops.

    Args:
      a, b: op indices.
    """
    # Keep the smaller root, so that the root is the smallest member.
    a, b = self.find(a), self.find(b)
    if a < b:
      self._parents[b] = a
    elif b < a:
      self._parents[a] = b

  def union_all(self, pairs: Iterable[Tuple[int, int]]) -> None:
    """Merges the sets of each pair."""
    for a, b in pairs:
      self.union(a, b)

  def labels(self) -> np.ndarray:
    """Returns [N] int32, the smallest member of each op's set."""
    return np.array([self.find(op) for op in range(len(self._parents))], dtype=np.int32)
