"""The acyclic structure of a graph of groups: which edges it keeps.

Ops that must share a device are one unit: a variable, the ops that read it, and the op that
applies its gradient at the end of the step. A group that holds such a unit both feeds the forward
pass and is fed by the backward one, so in a training graph nearly all groups lie on one cycle and
each is an ancestor of all others. So policies see only the edges that agree with the order of the
groups' main ops, the ops that compute longest; an edge that runs against that order, such as a
gradient's into the update of a variable, is left out. Costs and simulation keep every edge.

Legend: G groups, E edges between groups.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph


def agreeing(positions: np.ndarray, sources: np.ndarray, targets: np.ndarray) -> np.ndarray:
  """[E] bool: edges whose source comes before their target.

  Args:
    positions: [G] distinct numbers, each group's place in the order.
    sources, targets: [E] int32 groups.
  """
  return positions[sources] < positions[targets]


def reachable(num_groups: int, sources: np.ndarray, targets: np.ndarray) -> np.ndarray:
  """[G, G] bool: row g marks the groups to which a path of at least one edge leads from g.

  A group on a cycle reaches itself.
  """
  reach = np.zeros((num_groups, num_groups), dtype=bool)
  reach[sources, targets] = True
  while True:  # each round doubles the length of paths
    as_numbers = reach.astype(np.float32)
    longer = reach | (as_numbers @ as_numbers > 0)
    if (longer == reach).all():
      return reach
    reach = longer


def largest_component(num_groups: int, sources: np.ndarray, targets: np.ndarray) -> int:
  """Groups in the largest strongly connected component; 1 in an acyclic graph."""
  edges = sparse.csr_matrix(
      (np.ones(len(sources), dtype=bool), (sources, targets)), shape=(num_groups, num_groups))
  _, labels = csgraph.connected_components(edges, directed=True, connection="strong")
  return int(np.bincount(labels).max())


def parallel_share(reach: np.ndarray) -> float:
  """Share of the pairs of groups between which no path leads, from `reachable`; 0 for one group."""
  g = len(reach)
  apart = ~(reach | reach.T | np.eye(g, dtype=bool))
  return float(apart.sum()) / max(g * (g - 1), 1)


@dataclasses.dataclass(frozen=True)
class StructureReport:
  """How cyclic a graph of groups is, and which part of it policies see.

  Attributes:
    groups, edges: G, E.
    cyclic_share: groups in the largest strongly connected component of all edges, over G.
    parallel_share_of_all: pairs of groups with no path between them along all edges, over all.
    left_out_share: edges that policies do not see, over E.
    seen_cyclic_share, seen_parallel_share: as above, of the edges that policies see.
  """

  groups: int
  edges: int
  cyclic_share: float
  parallel_share_of_all: float
  left_out_share: float
  seen_cyclic_share: float
  seen_parallel_share: float


def report(positions: np.ndarray, sources: np.ndarray, targets: np.ndarray) -> StructureReport:
  """The report on groups at `positions` [G] with edges from `sources` [E] to `targets` [E]."""
  g, kept = len(positions), agreeing(positions, sources, targets)
  seen = sources[kept], targets[kept]
  return StructureReport(
      groups=g, edges=len(sources),
      cyclic_share=largest_component(g, sources, targets) / g,
      parallel_share_of_all=parallel_share(reachable(g, sources, targets)),
      left_out_share=float((~kept).sum()) / max(len(sources), 1),
      seen_cyclic_share=largest_component(g, *seen) / g,
      seen_parallel_share=parallel_share(reachable(g, *seen)))
