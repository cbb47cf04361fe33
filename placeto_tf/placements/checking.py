"""Finds the problems of a placement before TensorFlow does."""

from __future__ import annotations

from typing import List, Sequence

import numpy as np

from placeto_tf.clusters import device_names
from placeto_tf.clusters.cluster import Cluster
from placeto_tf.graphs import traversal
from placeto_tf.graphs.collective_groups import is_member, members_together
from placeto_tf.graphs.computation_graph import KERNEL_TYPES, ComputationGraph
from placeto_tf.placements.coverage import file_ops
from placeto_tf.placements.placement import Placement


def check(graph: ComputationGraph, placement: Placement, cluster: Cluster) -> List[str]:
  """Finds the problems of a placement; without problems, TensorFlow follows the placement.

  All ops of the graph's file are checked, because TensorFlow also places ops that are not run. The
  problems are: ops without a device, ops and devices that do not exist, devices without a kernel
  for their op, ops that must share a device (colocated, or of one loop that is run) but do not, and
  members of a collective group that share one.
  TensorFlow refuses most of these. An op that reads a resource of another device is silently moved
  to that device.

  Args:
    graph: of the placement.
    placement: to check.
    cluster: its devices.

  Returns:
    A sentence for each problem; [] without problems.
  """
  ops = file_ops(graph)
  column = device_names.match(placement.devices, cluster.device_names)
  known = set(ops.names)
  problems = [
      f"op {name!r} is not in the graph; remove it from the placement or place this graph again"
      for name in placement if name not in known]
  # [M] device of each op of the file, -1 where it has none.
  devices = np.full(len(ops.names), -1, dtype=np.int64)
  for i, name in enumerate(ops.names):
    device = placement.op_devices.get(name)
    at = None if device is None else column[device]
    if device is None:
      problems.append(f"op {name!r} has no device; place the whole graph again")
    elif at is None:
      problems.append(
          f"op {name!r} is on {device!r}, which is none of the cluster's devices "
          f"{', '.join(cluster.device_names)}")
    else:
      devices[i], kind = at, cluster.devices[at].type
      if kind in KERNEL_TYPES and not ops.has_kernel[i, KERNEL_TYPES.index(kind)]:
        problems.append(f"op {name!r} ({ops.types[i]}) is on {cluster.device_names[at]}, but "
                        f"TensorFlow has no {kind} kernel for it")
  # The graph's own sets also contain its loops, which TensorFlow allows on several devices.
  # Merge the sets of TensorFlow's colocation with the graph's sets.
  sets = traversal.components(len(ops.names), [
      *enumerate(ops.colocation.tolist()),
      *zip(ops.positions.tolist(), ops.positions[np.asarray(graph.colocation)].tolist())])
  if any(map(is_member, ops.types)):
    nodes = graph.origin.graph_def.node
    pair = members_together(nodes, [at if at >= 0 else -i for i, at in enumerate(devices.tolist())])
    if pair is not None:
      first, second = (ops.names[op] for op in pair)
      problems.append(f"ops {first!r} and {second!r} are members of one collective group, but are "
                      f"both on {cluster.device_names[devices[pair[0]]]}")
  return problems + _split(ops.names, sets, devices, cluster)


def _split(
    names: Sequence[str], sets: np.ndarray, devices: np.ndarray, cluster: Cluster
) -> List[str]:
  """Returns a sentence for each set whose ops are on different devices."""
  # Ops without a device have been reported; they are left out.
  placed = np.flatnonzero(devices >= 0)
  first = np.full(len(names), -1, dtype=np.int64)
  # Write backwards, so that the entry of each set is its first placed op, [M].
  first[sets[placed[::-1]]] = placed[::-1]
  apart = placed[devices[placed] != devices[first[sets[placed]]]]
  # One sentence for each set: its first op on another device than the leader.
  _, ones = np.unique(sets[apart], return_index=True)
  found = []
  for i in apart[ones].tolist():
    leader = int(first[sets[i]])
    found.append(
        f"ops {names[leader]!r} and {names[i]!r} must share a device, but are on "
        f"{cluster.device_names[devices[leader]]} and {cluster.device_names[devices[i]]}")
  return found
