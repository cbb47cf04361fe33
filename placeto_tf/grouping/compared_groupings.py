"""Groupings for comparison: none, and the colocation heuristic of the papers."""

from __future__ import annotations

import numpy as np

from placeto_tf.costs.op_costs import OpCosts
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.grouping.contraction import contract
from placeto_tf.grouping.heavy_edge import CAP_OVER_MEAN
from placeto_tf.grouping.merging import Merger

_ROUNDS = 20


def single_ops(
    graph: ComputationGraph, costs: OpCosts, allowed_ops: np.ndarray, max_groups: int
) -> np.ndarray:
  """Groups only ops that must share a device, with any number of groups.

  Args:
    graph: the ops.
    costs: their compute times and output bytes.
    allowed_ops: [N, D] bool, where each op may run; equal for ops that are colocated.
    max_groups: at most so many groups; not used.

  Returns:
    [N] labels, equal for ops of one group.
  """
  del max_groups
  return contract(graph, costs, allowed_ops, graph.colocation).node_of_op


def single_consumer(
    graph: ComputationGraph, costs: OpCosts, allowed_ops: np.ndarray, max_groups: int
) -> np.ndarray:
  """Groups by the rule of Mirhoseini et al. 2017, section 4.1.

  An op with one consumer is merged with it, however heavy the two are; this repeats. The papers
  then merged the ops of a layer by hand; this function merges along the heaviest edges instead.

  Args:
    graph: the ops.
    costs: their compute times and output bytes.
    allowed_ops: [N, D] bool, where each op may run; equal for ops that are colocated.
    max_groups: at most so many groups.

  Returns:
    [N] labels, equal for ops of one group.
  """
  contraction = contract(graph, costs, allowed_ops, graph.colocation)
  cap_us = CAP_OVER_MEAN * float(contraction.weight_us.sum()) / max_groups
  for _ in range(_ROUNDS):
    merger = Merger(contraction)
    merger.merge_single_device()
    merger.merge_pairs(*contraction.single_consumers, np.inf)
    if merger.num_sets == contraction.num_nodes or merger.num_sets <= max_groups:
      break
    contraction = contract(
        graph, costs, allowed_ops, merger.labels()[contraction.node_of_op])
  merger.merge_down(max_groups, cap_us)
  return merger.labels()[contraction.node_of_op]
