"""Lower bounds on the step time of any placement, whatever the links.

Legend: N ops, D devices.
"""

from __future__ import annotations

from typing import Optional

import numpy as np

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.costs.op_costs import OpCosts
from placeto_tf.errors import PlacementError
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


def critical_path_us(
    graph: ComputationGraph,
    costs: OpCosts,
    cluster: Cluster,
    allowed: Optional[np.ndarray] = None,
) -> float:
  """Longest path of compute time with every op on the fastest device it may use."""
  return float(longest_path_us(graph, fastest_us(costs, cluster, allowed)).max())


def total_work_us(
    graph: ComputationGraph,
    costs: OpCosts,
    cluster: Cluster,
    allowed: Optional[np.ndarray] = None,
) -> float:
  """Time to get through all ops if work were spread evenly over all devices.

  Each op counts with its time on the fastest device it may use and with the overhead after it,
  except that no device has to sit out the overhead after its last op. Ops that may only use one
  device must share it, which can be the tighter bound.

  Raises:
    PlacementError: `allowed` [N, D] bool leaves an op no device.
  """
  d = cluster.num_devices
  if allowed is None:
    allowed = np.ones((graph.num_ops, d), dtype=bool)
  stuck = np.flatnonzero(~allowed.any(axis=1))
  if len(stuck):
    raise PlacementError(
        f"op {graph.op_names[int(stuck[0])]!r} is allowed on none of the {d} devices; expected at "
        "least one")
  work_us = fastest_us(costs, cluster, allowed)
  work_us = work_us + np.where(work_us > 0, cluster.op_overhead_us, 0.0)
  best = 0.0
  # Whatever set of devices we look at, ops that may use no other must be done by it.
  for devices in [np.ones(d, dtype=bool)] + [row for row in np.eye(d, dtype=bool)] + [
      pattern for pattern in np.unique(allowed, axis=0)]:
    confined = ~allowed[:, ~devices].any(axis=1)
    lanes = int(devices.sum()) * cluster.compute_streams
    best = max(best, float(work_us[confined].sum()) / lanes - cluster.op_overhead_us)
  return best
