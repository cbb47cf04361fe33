"""The devices that each op may run on: kernels, hosts and colocation.

Legend: N ops, D devices.
"""

from __future__ import annotations

import numpy as np

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.clusters.device_names import find_device
from placeto_tf.errors import PlacementError
from placeto_tf.graphs.computation_graph import ComputationGraph


def allowed_devices(graph: ComputationGraph, cluster: Cluster) -> np.ndarray:
  """[N, D] bool: where each op may run; equal for ops that are colocated.

  An op may run where it has a kernel. It may run on a host only if its set of colocated ops has no
  common device that is not a host. Captures of a live function that cannot be moved stay on their
  device, with the ops colocated with them, if the cluster has that device.

  Raises:
    PlacementError: an op, or a set of colocated ops, has no device.
  """
  n, d = graph.num_ops, cluster.num_devices
  kernel_column = {name: k for k, name in enumerate(graph.kernel_types)}
  allowed = np.ones((n, d), dtype=bool)
  for j, device in enumerate(cluster.devices):
    if device.type in kernel_column:
      allowed[:, j] = graph.has_kernel[:, kernel_column[device.type]]
  together = np.ones((n, d), dtype=bool)
  np.logical_and.at(together, graph.colocation, allowed)
  together = together[graph.colocation]
  able = together.copy()
  hosts = np.array([device.host for device in cluster.devices], dtype=bool)
  elsewhere = (together & ~hosts).any(axis=1)
  together[np.ix_(elsewhere, hosts)] = False
  fixed = graph.source.fixed_devices if graph.source is not None else {}
  for name, where in fixed.items():
    column = find_device(cluster.device_names, where)
    if column is not None and name in graph.op_index:
      mates = graph.colocation == graph.colocation[graph.op_index[name]]
      together[mates] = False
      together[mates, column] = able[mates, column]
  stuck = np.flatnonzero(~together.any(axis=1))
  if len(stuck):
    op = int(stuck[0])
    mates = int((graph.colocation == graph.colocation[op]).sum()) - 1
    raise PlacementError(
        f"op {graph.op_names[op]!r} ({graph.op_types[op]}), colocated with {mates} others, has a "
        f"common kernel on none of {', '.join(cluster.device_names)}; add a device that has one, "
        "such as +cpu:1")
  return together
