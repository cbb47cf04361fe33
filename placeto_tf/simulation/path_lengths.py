"""Compute time along the paths of a graph, without transfers.

Dimensions: N ops.
"""

from __future__ import annotations

import numpy as np

from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.simulation.compiling import compiled


def longest_path_us(graph: ComputationGraph, op_us: np.ndarray) -> np.ndarray:
  """Returns the time of the longest path that ends with each op, itself included.

  Args:
    graph: N ops.
    op_us: [N] compute time of each op.

  Returns:
    [N] float64 us, without transfers.
  """
  # Edges by the depth of their consumers: all edges into an op come before the edges out of it.
  order = np.argsort(graph.depths[graph.edge_consumers], kind="stable")
  return _longest(
      np.asarray(op_us, dtype=np.float64), graph.edge_producers[order],
      graph.edge_consumers[order])


def remaining_path_us(graph: ComputationGraph, op_us: np.ndarray) -> np.ndarray:
  """Returns the time of the longest path that starts with each op, including the op itself.

  Args:
    graph: N ops.
    op_us: [N] compute time of each op.

  Returns:
    [N] float64 us, without transfers.
  """
  # The same on the reversed graph.
  order = np.argsort(-graph.depths[graph.edge_producers], kind="stable")
  return _longest(
      np.asarray(op_us, dtype=np.float64), graph.edge_consumers[order],
      graph.edge_producers[order])


@compiled()
def _longest(op_us, sources, targets):
  """Returns longest paths, [N]; edges are sorted: edges into an op come before edges from it."""
  found = op_us.copy()
  for edge in range(len(sources)):
    # Longest path through this edge: the path to its source, and its target's own time.
    through = found[sources[edge]] + op_us[targets[edge]]
    found[targets[edge]] = max(found[targets[edge]], through)
  return found
