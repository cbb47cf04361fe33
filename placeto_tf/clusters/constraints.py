"""The devices that each op may run on: kernels, colocation, collectives, and captures that stay.

Dimensions: N ops, D devices.
"""

from __future__ import annotations

from typing import Dict, Sequence

import numpy as np

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.clusters.device_names import find_device
from placeto_tf.errors import PlacementError, option
from placeto_tf.graphs.collective_groups import collective_groups, nodes_with_members
from placeto_tf.graphs.computation_graph import KERNEL_TYPES, ComputationGraph
from placeto_tf.on_use import NodeDef


def allowed_devices(graph: ComputationGraph, cluster: Cluster) -> np.ndarray:
  """Returns the devices that each op may use.

  An op may run on devices with a kernel for it, so most ops may also run on a host;
  `offered_devices` of `placeto_tf.problem.host_options` leaves out hosts that cannot help. Captures
  of a live function that cannot be moved, and ops for which a function of a live graph states a
  device, are kept there, with the ops colocated with them, if the cluster has that device. Members
  of a collective group have one device each, see `apart`.

  Args:
    graph: of N ops.
    cluster: of D devices.

  Returns:
    [N, D] bool; equal for colocated ops.

  Raises:
    PlacementError: an op, or a set of colocated ops, has no device; or members of a collective
      group have no devices of their own.
  """
  n, d = graph.num_ops, cluster.num_devices
  # The kernels of a device type without a column are not known, so nothing is ruled out.
  allowed = np.ones((n, d), dtype=bool)
  for j, device in enumerate(cluster.devices):
    if device.type in KERNEL_TYPES:
      allowed[:, j] = graph.has_kernel[:, KERNEL_TYPES.index(device.type)]
  # A colocated set may use the devices for which all of its ops have kernels.
  together = np.ones((n, d), dtype=bool)
  np.logical_and.at(together, graph.colocation, allowed)
  together = together[graph.colocation]
  # A fixed op takes all ops of its set with it.
  fixed = graph.source.fixed_devices if graph.source is not None else {}
  for name, where in fixed.items():
    column = find_device(cluster.device_names, where)
    if column is not None and name in graph.op_index:
      mates = graph.colocation == graph.colocation[graph.op_index[name]]
      together[mates] &= np.arange(d) == column
      if not together[mates].any():
        raise PlacementError(_fixed_apart(graph, name, where, mates))
  stuck = np.flatnonzero(~together.any(axis=1))
  if len(stuck):
    raise PlacementError(_without_device(graph, cluster, int(stuck[0])))
  nodes = nodes_with_members(graph)
  for op, column in apart(nodes, together, own_devices(graph, cluster)).items() if nodes else ():
    mates = graph.colocation == graph.colocation[op]
    together[mates] &= np.arange(d) == column
    if not together[op].any():
      raise PlacementError(
          f"op {graph.op_names[op]!r} ({graph.op_types[op]}) is colocated with another member of "
          "its collective group, and TensorFlow waits for ever for two members on one device; take "
          "the colocation of one of them (_class) out of the graph")
  return together


def apart(
    nodes: Sequence[NodeDef], allowed: np.ndarray, own: np.ndarray) -> Dict[int, int]:
  """Gives each member of a collective group a device of its own.

  Members keep the devices of the graph where these differ; otherwise the first members of all
  exchanges get one device, the second ones the next, and so on.

  Args:
    nodes: [N] NodeDefs.
    allowed: [N, D] bool, devices that each op may use.
    own: [N] index of the device that is set in the graph, -1 for none.

  Returns:
    Index of each member -> index of its device.

  Raises:
    PlacementError: there are too few devices, or it is only known when the graph runs which ops
      exchange values, and the graph does not set their devices.
  """
  found: Dict[int, int] = {}
  for calls, known in collective_groups(nodes):
    members = [op for call in calls for op in call]
    # The devices on which all members may run.
    common = np.flatnonzero(allowed[members].all(axis=0)).tolist()
    if all(own[op] >= 0 and allowed[op, own[op]] for op in members) and all(
        len({int(own[op]) for op in call}) == len(call) for call in calls):
      found.update((op, int(own[op])) for op in members)
    elif known and max(map(len, calls)) <= len(common) and len(set(map(len, calls))) == 1:
      found.update((op, column) for call in calls for op, column in zip(call, common))
    else:
      first = nodes[members[0]]
      raise PlacementError(
          f"op {first.name!r} ({first.op}) and the other {len(members) - 1} members of its "
          "collective group need a device each, because TensorFlow waits for ever for two on one "
          f"device; {len(common)} of the cluster's devices can run them: " + (
              f"place on a cluster of at least {max(map(len, calls))} such devices" if known else
              "set a device of the cluster for each of them in the graph, as only a run shows "
              "which of them exchange values"))
  return found


def own_devices(graph: ComputationGraph, cluster: Cluster) -> np.ndarray:
  """Returns the devices that are set in the graph.

  Device strings may be partial, as in TensorFlow: "/GPU:1" and "/device:GPU:1" mean the first
  device of the cluster that agrees with all given parts. Colocated ops follow the first op of their
  set that has a device.

  Args:
    graph: of N ops.
    cluster: of D devices.

  Returns:
    [N] int64 device indices; -1 if the graph has no device of the cluster for the op.
  """
  names = graph.assigned_devices
  known = {name: find_device(cluster.device_names, name) if name else None for name in set(names)}
  # Device strings repeat, so each is looked up once.
  own = np.array([-1 if known[name] is None else known[name] for name in names], dtype=np.int64)
  n = len(own)
  leader = np.full(n, n, dtype=np.int64)  # of each set: its first op that has a device
  has = np.flatnonzero(own >= 0)
  # The least op index of each set's label; n if no op of the set has a device.
  np.minimum.at(leader, graph.colocation[has], has)
  return np.where(leader < n, own[np.minimum(leader, n - 1)], -1)[graph.colocation]


def _fixed_apart(graph: ComputationGraph, name: str, where: str, mates: np.ndarray) -> str:
  """Returns a sentence on an op that cannot leave a device where a colocated op may not run.

  Args:
    graph: of N ops.
    name: of the op.
    where: its device.
    mates: [N] bool, the ops colocated with it, and the op itself.
  """
  in_loop = any(graph.op_types[op] == "LoopCond" for op in np.flatnonzero(mates).tolist())
  return (
      f"op {name!r} is on {where}, from where it cannot be moved, but it or an op it is colocated "
      "with has no kernel there, or cannot be moved from another device; " + (
          f"load the graph with {option('split_loops', True)}: until then a loop stays on one"
          if in_loop and not graph.origin.split_loops else
          "hand over the GraphDef (as_graph_def()) of a live graph, all ops of which can be moved"))


def _without_device(graph: ComputationGraph, cluster: Cluster, op: int) -> str:
  """Returns a sentence on an op that has no device, with the remedy for its cause."""
  mates = np.flatnonzero(graph.colocation == graph.colocation[op])
  kernels = graph.has_kernel[mates]
  # An op without any kernel is the cause, also in a colocated set.
  none = mates[~kernels.any(axis=1)]
  if len(none):
    op = int(none[0])
    return (
        f"this TensorFlow has no kernel of any device for op {graph.op_names[op]!r} "
        f"({graph.op_types[op]}); place the graph with the TensorFlow that wrote it, or choose "
        f"fetches that do not need the op ({option('fetches')})")
  found = f"op {graph.op_names[op]!r} ({graph.op_types[op]})"
  # Some kind of device could run the set, but the cluster has none of that kind.
  common = [kind for kind, able in zip(KERNEL_TYPES, np.all(kernels, axis=0)) if able]
  if common:
    return (
        f"{found}, colocated with {len(mates) - 1} others, has a kernel on none of "
        f"{', '.join(cluster.device_names)}; add a device that has one, such as +cpu:1"
        if "CPU" in common else
        f"{found}, colocated with {len(mates) - 1} others, has kernels for {common[0]} alone, and "
        f"the cluster has {', '.join(cluster.device_names)}; place on a cluster with a "
        f"{common[0]}, such as v100:1")
  # Two ops of the set have no kind of device in common.
  first = int(mates[~kernels.all(axis=1)][0])
  other = int(mates[~kernels[:, graph.has_kernel[first]].any(axis=1)][0])
  return (
      f"ops {graph.op_names[first]!r} ({graph.op_types[first]}) and {graph.op_names[other]!r} "
      f"({graph.op_types[other]}) must share a device, and no kind of device has kernels for both; "
      f"choose fetches that do not need one of them ({option('fetches')})")
