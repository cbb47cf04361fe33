"""`group_ops`: groups ops by the name of a grouping.

Dimensions: N ops, D devices.
"""

from __future__ import annotations

from typing import Callable, Mapping

import numpy as np

from placeto_tf.costs.op_costs import OpCosts
from placeto_tf.errors import PlacementError
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.grouping.compared_groupings import single_consumer, single_ops
from placeto_tf.grouping.contraction import number_groups
from placeto_tf.grouping.grouping import Grouping
from placeto_tf.grouping.heavy_edge import heavy_edge

# Each maps (graph, costs, allowed_ops [N, D], max_groups) to labels [N].
METHODS: Mapping[str, Callable[..., np.ndarray]] = {
    "heavy_edge": heavy_edge,
    "single_consumer": single_consumer,
    "none": single_ops,
}


def group_ops(
    graph: ComputationGraph,
    costs: OpCosts,
    allowed_ops: np.ndarray,
    *,
    max_groups: int = 128,
    method: str = "heavy_edge",
) -> Grouping:
  """Groups the ops of a graph.

  Ops that must share a device share a group, and the ops of a group always have an allowed
  device in common, so there can be more than `max_groups` groups where ops cannot share devices.

  Args:
    graph: the ops.
    costs: their compute times and output bytes.
    allowed_ops: [N, D] bool, where each op may run; equal for ops that are colocated.
    max_groups: at most so many groups.
    method: one of `METHODS`.

  Raises:
    PlacementError: an unknown method, less than one group, or colocated ops that have no allowed
      device in common.
  """
  if method not in METHODS:
    raise PlacementError(
        f"there is no grouping called {method!r}; choose one of {', '.join(sorted(METHODS))}")
  if max_groups < 1:
    raise PlacementError(f"max_groups is {max_groups}; expected at least 1")
  labels = METHODS[method](graph, costs, allowed_ops, max_groups)
  return number_groups(labels, graph.topological_rank)
