"""Graph traversals in O(N + E), without recursion, so that long chains work.

Dimensions: N ops, E edges.
"""

from __future__ import annotations

from typing import Callable, Iterable, List, Set, Tuple, TypeVar

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph

Node = TypeVar("Node")


def slices(sorted_ends: np.ndarray, num_ops: int) -> np.ndarray:
  """Returns the start of each op's edges in an array of edges that is sorted by one end.

  Args:
    sorted_ends: [E] op index of this end, ascending.
    num_ops: N.

  Returns:
    [N+1] start of each op's slice.
  """
  return np.searchsorted(sorted_ends, np.arange(num_ops + 1))


def neighbours(ends: np.ndarray, others: np.ndarray, num_ops: int) -> List[List[int]]:
  """Returns the ops at the other ends of each op's edges.

  Args:
    ends: [E] op index of one end of each edge.
    others: [E] op index of the other end.
    num_ops: N.

  Returns:
    [N] lists of op indices, in the order of the edges.
  """
  found: List[List[int]] = [[] for _ in range(num_ops)]
  for end, other in zip(ends.tolist(), others.tolist()):
    found[end].append(other)
  return found


def reachable(seeds: Iterable[Node], follow: Callable[[Node], Iterable[Node]]) -> Set[Node]:
  """Returns the seeds and everything that can be reached from them.

  Args:
    seeds: nodes of any kind, such as op indices or names.
    follow: returns the nodes to go on to from a node; none where the search ends.
  """
  found = set(seeds)
  stack = list(found)
  while stack:
    for node in follow(stack.pop()):
      if node not in found:
        found.add(node)
        stack.append(node)
  return found


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
  targets = np.fromiter(targets, np.int64)
  # Row i has the inputs of op i; one more row has the targets, from which the search starts.
  rows = np.concatenate([consumers, np.full(len(targets), num_ops)])
  columns = np.concatenate([producers, targets])
  needed = np.zeros(num_ops + 1, dtype=bool)
  needed[csgraph.breadth_first_order(
      _matrix(num_ops + 1, rows, columns), num_ops, return_predecessors=False)] = True
  return needed[:-1]


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


def op_on_cycle(num_ops: int, producers: np.ndarray, consumers: np.ndarray) -> int:
  """Returns an op on a cycle of a graph that has one.

  Args:
    num_ops: N.
    producers, consumers: [E] op indices, in any order.
  """
  _, parts = csgraph.connected_components(
      _matrix(num_ops, producers, consumers), connection="strong")
  # An edge within a strongly connected component is on a cycle.
  return int(producers[parts[producers] == parts[consumers]][0])


def components(num_ops: int, pairs: Iterable[Tuple[int, int]]) -> np.ndarray:
  """Merges the sets of each pair of ops.

  Args:
    num_ops: N; each op is a set of its own at first.
    pairs: op indices.

  Returns:
    [N] int32, the smallest member of each op's set.
  """
  ends = np.array(list(pairs), dtype=np.int64).reshape(-1, 2)
  _, sets = csgraph.connected_components(_matrix(num_ops, ends[:, 0], ends[:, 1]), directed=False)
  # [sets] the first op of each.
  _, first = np.unique(sets, return_index=True)
  return first[sets].astype(np.int32)


def _matrix(num_ops: int, rows: np.ndarray, columns: np.ndarray) -> sparse.csr_matrix:
  """Returns the adjacency matrix of edges, [N, N]."""
  return sparse.csr_matrix(
      (np.ones(len(rows), np.int32), (rows, columns)), shape=(num_ops, num_ops))
