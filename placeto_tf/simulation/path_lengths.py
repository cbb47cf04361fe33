"""Compute time along the paths of a graph, without transfers.

Dimensions: N ops.
"""

from __future__ import annotations

import numpy as np

from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.simulation.compiling import compiled


def longest_path_us(
    graph: ComputationGraph, op_us: np.ndarray, *, onwards: bool = False) -> np.ndarray:
  """Returns the time of the longest path that ends with each op, itself included.

  Args:
    graph: N ops.
    op_us: [N] compute time of each op.
    onwards: whether paths start with the op instead.

  Returns:
    [N] float64 us, without transfers.
  """
  ends = [graph.edge_producers, graph.edge_consumers][::-1 if onwards else 1]
  # Edges into an op come before the edges out of it.
  order = np.argsort((-graph.depths if onwards else graph.depths)[ends[1]], kind="stable")
  return _relaxed(np.asarray(op_us, dtype=np.float64), ends[0][order], ends[1][order])


@compiled()
def _relaxed(op_us, sources, targets):
  """Returns longest paths, [N]; edges are sorted: edges into an op come before edges from it."""
  found = op_us.copy()
  for edge in range(len(sources)):
    # Longest path through this edge: the path to its source, and its target's own time.
    found[targets[edge]] = max(found[targets[edge]], found[sources[edge]] + op_us[targets[edge]])
  return found
