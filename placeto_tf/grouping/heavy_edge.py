"""Groups by merging along the heaviest edges, the default.

Three stages, each on the result of the one before:
1. ops that must share a device become one node (`ComputationGraph.colocation`);
2. a node with one consumer joins it (Mirhoseini et al. 2017, section 4.1), and a cheap node joins
   the neighbour it exchanges most bytes with, as long as the result is light;
3. the two nodes with the most traffic between them are merged, repeatedly, as long as together
   they stay under a weight cap, which is raised when nothing more can be merged.
"""

from __future__ import annotations

import numpy as np

from placeto_tf.costs.op_costs import OpCosts
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.grouping.contraction import Contraction, contract
from placeto_tf.grouping.merging import Merger

# A group may weigh this many times the mean: with less the cap decides and cuts heavy edges,
# with more a few groups hold everything.
CAP_OVER_MEAN = 2.0
# What counts as cheap, over the mean weight of a group. With 0.1 the time steps of recurrent layers
# end in the wrong groups, with 0.3 convolutional networks lose.
CHEAP_OVER_MEAN = 0.2


def heavy_edge(
    graph: ComputationGraph, costs: OpCosts, allowed_ops: np.ndarray, max_groups: int
) -> np.ndarray:
  """[N] labels of at most `max_groups` groups (more if that many cannot share devices)."""
  contraction = contract(graph, costs, allowed_ops, graph.colocation)
  return merge_stages(Merger(contraction), contraction, max_groups)


def merge_stages(merger: Merger, contraction: Contraction, max_groups: int) -> np.ndarray:
  """[N] labels after stages 2 and 3."""
  merger.merge_single_device()
  mean_us = float(contraction.weight_us.sum()) / max_groups
  join_single_consumers(merger, contraction, CHEAP_OVER_MEAN * mean_us)
  join_cheap(merger, contraction, CHEAP_OVER_MEAN * mean_us, CAP_OVER_MEAN * mean_us, max_groups)
  merger.merge_down(max_groups, CAP_OVER_MEAN * mean_us)
  return merger.labels()[contraction.node_of_op]


def join_single_consumers(merger: Merger, contraction: Contraction, cap_us: float) -> None:
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
    merger: Merger, contraction: Contraction, cheap_us: float, cap_us: float, max_groups: int
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
