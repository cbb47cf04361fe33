"""The default grouping: merges ops along the heaviest edges.

Three stages, each on the result of the previous one:
1. ops that must share a device become one node (`ComputationGraph.colocation`);
2. a node with one consumer is merged with it (Mirhoseini et al. 2017, section 4.1), and a cheap
   node with the neighbour with which it exchanges most bytes, as long as the result is light;
3. the two nodes with the most traffic between them are merged, repeatedly, as long as their
   weight is below a cap, which is raised when nothing more can be merged.
"""

from __future__ import annotations

import functools
from typing import Tuple

import numpy as np

from placeto_tf.costs.op_costs import OpCosts
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.grouping.contraction import Contraction, contract, raise_stuck
from placeto_tf.grouping.merging import Merger

# A group may weigh this many times the mean: a smaller factor separates ops with heavy edges, a
# larger one puts nearly all ops into a few groups.
CAP_OVER_MEAN = 2.0
# A node is cheap below this fraction of the mean weight of a group. With 0.1 the time steps of
# recurrent layers are in the wrong groups; with 0.3 convolutional networks get slower.
CHEAP_OVER_MEAN = 0.2


def heavy_edge(
    graph: ComputationGraph, costs: OpCosts, allowed_ops: np.ndarray, max_groups: int
) -> np.ndarray:
  """Groups by merging along the heaviest edges; see the module.

  Args:
    graph: the ops.
    costs: their compute times and output bytes.
    allowed_ops: [N, D] bool, where each op may run; equal for ops that are colocated.
    max_groups: at most so many groups (more if they cannot share devices).

  Returns:
    [N] labels, equal for ops of one group.
  """
  contraction = contract(graph, costs, allowed_ops, graph.colocation)
  return merge_stages(Merger(contraction), contraction, max_groups)


def merge_stages(merger: Merger, contraction: Contraction, max_groups: int) -> np.ndarray:
  """Runs stages 2 and 3.

  Args:
    merger: of the nodes of the contraction.
    contraction: of stage 1.
    max_groups: at most so many groups.

  Returns:
    [N] labels, equal for ops of one group.
  """
  merger.merge_single_device()
  mean_us = float(contraction.weight_us.sum()) / max_groups
  merger.merge_pairs(*contraction.single_consumers, CHEAP_OVER_MEAN * mean_us)
  merger.merge_cheap(
      contraction.order, CHEAP_OVER_MEAN * mean_us, CAP_OVER_MEAN * mean_us, max_groups)
  merger.merge_down(max_groups, CAP_OVER_MEAN * mean_us)
  return merger.labels()[contraction.node_of_op]


class PlacedSets:
  """Merges sets of ops that are on one device in a placement, for one placement after another.

  Data that do not depend on the placement are computed once, on first use.
  """

  def __init__(
      self, graph: ComputationGraph, costs: OpCosts, allowed_ops: np.ndarray, labels: np.ndarray):
    """Keeps the graph; nothing is computed yet.

    Args:
      graph, costs, allowed_ops: see `contract`.
      labels: [N] ints, equal for ops of one set.
    """
    self._graph, self._costs, self._allowed_ops, self._labels = graph, costs, allowed_ops, labels

  @functools.cached_property
  def contraction(self) -> Contraction:
    """Returns the contraction whose nodes are the sets."""
    return contract(self._graph, self._costs, self._allowed_ops, self._labels)

  @functools.cached_property
  def _start(self) -> Tuple[Merger, np.ndarray]:
    """Returns a merger without merged nodes, and [M] the first op of each node."""
    return Merger(self.contraction), np.unique(self.contraction.node_of_op, return_index=True)[1]

  def merged(self, placement: np.ndarray, max_groups: int) -> np.ndarray:
    """Merges sets of ops that are on one device in a placement.

    Args:
      placement: [N] device of each op.
      max_groups: approximate number of groups.

    Returns:
      [N] labels, equal for ops of one group.

    Raises:
      PlacementError: the placement has ops of a set on different devices.
    """
    merger, op_of_node = self._start
    node_of_op, node_devices = self.contraction.node_of_op, placement[op_of_node]
    apart = np.flatnonzero(node_devices[node_of_op] != placement)
    if len(apart):
      raise_stuck(self._graph, node_of_op, int(node_of_op[apart].min()))
    return merge_stages(
        merger.placed(node_devices, self._allowed_ops.shape[1]), self.contraction, max_groups)
