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
  return _longest(op_us, graph.edge_producers, graph.edge_consumers, graph.depths)


def remaining_path_us(graph: ComputationGraph, op_us: np.ndarray) -> np.ndarray:
  """Returns the time of the longest path that starts with each op, including the op itself.

  Args:
    graph: N ops.
    op_us: [N] compute time of each op.

  Returns:
    [N] float64 us, without transfers.
  """
  return _longest(op_us, graph.edge_consumers, graph.edge_producers, -graph.depths)


def _longest(
    op_us: np.ndarray, sources: np.ndarray, targets: np.ndarray, depths: np.ndarray) -> np.ndarray:
  """Returns longest paths, [N]: edges into an op come before the edges out of it."""
  order = np.argsort(depths[targets], kind="stable")
  return _relaxed(np.asarray(op_us, dtype=np.float64), sources[order], targets[order])


@compiled()
def _relaxed(op_us, sources, targets):
  """Returns longest paths, [N]; edges are sorted: edges into an op come before edges from it."""
  found = op_us.copy()
  for edge in range(len(sources)):
    # Longest path through this edge: the path to its source, and its target's own time.
    through = found[sources[edge]] + op_us[targets[edge]]
    found[targets[edge]] = max(found[targets[edge]], through)
  return found
