"""Compute time along the paths of a graph, without transfers.

Legend: N ops, D devices.
"""

from __future__ import annotations

from typing import Optional

import numpy as np

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.costs.op_costs import OpCosts
from placeto_tf.graphs.computation_graph import ComputationGraph


def fastest_us(
    costs: OpCosts, cluster: Cluster, allowed: Optional[np.ndarray] = None) -> np.ndarray:
  """[N] compute time of each op on the fastest device it may use (`allowed` [N, D] bool)."""
  on_device = costs.compute_us[:, cluster.device_kinds]
  if allowed is None:
    return on_device.min(axis=1)
  return np.where(allowed, on_device, np.inf).min(axis=1)


def longest_path_us(graph: ComputationGraph, op_us: np.ndarray) -> np.ndarray:
  """[N] time of the longest path that ends with each op, the op itself included."""
  end_us = np.array(op_us, dtype=np.float64)
  depths = graph.depths[graph.edge_consumers]
  order = np.argsort(depths, kind="stable")
  producers, consumers = graph.edge_producers[order], graph.edge_consumers[order]
  levels = np.searchsorted(depths[order], np.arange(int(graph.depths.max()) + 2))
  for first, last in zip(levels[:-1], levels[1:]):
    target = consumers[first:last]
    np.maximum.at(end_us, target, end_us[producers[first:last]] + op_us[target])
  return end_us


def remaining_path_us(graph: ComputationGraph, op_us: np.ndarray) -> np.ndarray:
  """[N] time of the longest path that starts with each op, the op itself included."""
  op_us = np.asarray(op_us, dtype=np.float64)
  remaining_us = op_us.copy()
  depths = graph.depths[graph.edge_producers]
  order = np.argsort(depths, kind="stable")
  producers, consumers = graph.edge_producers[order], graph.edge_consumers[order]
  levels = np.searchsorted(depths[order], np.arange(int(graph.depths.max()) + 2))
  for first, last in zip(levels[-2::-1], levels[:0:-1]):
    source = producers[first:last]
    np.maximum.at(remaining_us, source, remaining_us[consumers[first:last]] + op_us[source])
  return remaining_us
