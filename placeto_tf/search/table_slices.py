"""`choose_slices`: the tables that are in the way of a step, and the number of slices of each.

Dimensions: N ops, D devices, S slices.
"""

from __future__ import annotations

from typing import Dict, Optional

import numpy as np

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.costs.op_costs import OpCosts
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.replication.dataflow import analyse_dataflow
from placeto_tf.replication.table_columns import Columns, tables

# A table is in the way if its ops take more than this part of a device's share of the step, or if
# it takes more than this part of a device's memory.
_OF_STEP, _OF_MEMORY = 0.25, 0.25
_LEAST_COLUMNS = 4  # a float32 row of fewer takes as long to read: GPUs read 32 bytes at once


def choose_slices(
    graph: ComputationGraph, costs: OpCosts, cluster: Cluster, most: Optional[int] = None
) -> Dict[str, int]:
  """Returns table -> S, for tables that take too much of a step or of the memory.

  Args:
    graph: a training graph.
    costs: of its ops, on `cluster`.
    cluster: devices and links.
    most: the largest S; by default the number of devices.

  Returns:
    The tables to split, with powers of two that divide their columns.
  """
  devices = [device for device in cluster.devices if not device.host] or list(cluster.devices)
  # [N] time of each op on the kind of the first device.
  op_us = costs.compute_us[:, cluster.device_kinds[cluster.devices.index(devices[0])]]
  share_us, memory = _OF_STEP * op_us.sum() / len(devices), _OF_MEMORY * min(
      device.memory_bytes for device in devices)
  flow, found = analyse_dataflow(graph), {}
  for table, variables in tables(flow).items():
    held = costs.persistent_bytes[list(variables)].sum()
    region = Columns(flow, variables)
    if region.refused:
      continue
    region.extend(frozenset())
    own_us = op_us[np.array(list(region.ops))].sum()
    width, count = flow.nodes[table].attr["shape"].shape.dim[-1].size, 1
    while 2 * count <= (most or len(devices)) and not width % (2 * count) and (
        width >= 2 * count * _LEAST_COLUMNS and (
            own_us / count > share_us or held / count > memory)):
      count *= 2
    if count > 1:
      found[graph.op_names[table]] = count
  return found
