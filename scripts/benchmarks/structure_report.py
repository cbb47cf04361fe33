"""How cyclic a graph of groups is, and which part of it policies see.

Dimensions: G groups, E edges between groups.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph

from placeto_tf.encoding.grouped_graph import GroupedGraph


def largest_component(num_groups: int, sources: np.ndarray, targets: np.ndarray) -> int:
  """Groups in the largest strongly connected component; 1 in an acyclic graph."""
  edges = sparse.csr_matrix(
      (np.ones(len(sources), dtype=bool), (sources, targets)), shape=(num_groups, num_groups))
  _, labels = csgraph.connected_components(edges, directed=True, connection="strong")
  return int(np.bincount(labels).max())


def parallel_share(num_groups: int, sources: np.ndarray, targets: np.ndarray) -> float:
  """Share of the pairs of groups between which no path leads; 0 for one group."""
  g = num_groups
  edges = sparse.csr_matrix((np.ones(len(sources)), (sources, targets)), shape=(g, g))
  lengths = csgraph.shortest_path(edges, unweighted=True)  # 0 from a group to itself
  apart = np.isinf(lengths) & np.isinf(lengths.T)
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


def report(grouped: GroupedGraph) -> StructureReport:
  """The report on the groups of a graph."""
  g, sources, targets, kept = grouped.num_groups, grouped.sources, grouped.targets, grouped.flow
  seen = sources[kept], targets[kept]
  return StructureReport(
      groups=g, edges=len(sources),
      cyclic_share=largest_component(g, sources, targets) / g,
      parallel_share_of_all=parallel_share(g, sources, targets),
      left_out_share=float((~kept).sum()) / max(len(sources), 1),
      seen_cyclic_share=largest_component(g, *seen) / g,
      seen_parallel_share=parallel_share(g, *seen))
