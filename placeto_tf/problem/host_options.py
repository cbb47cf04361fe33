"""The ops for which searches try a host: only ops that may make the step shorter there.

In TensorFlow, a host can run every op that has a kernel for it. But a host is many times slower
than its devices, and each option makes a search longer. So a host is an option only for

- ops that run nowhere else, or that the user or the graph has put on the host;
- variables that may leave too little memory on the devices for other ops: variables that are read
  or written by rows, if variables take half of a device; all variables, if together they are too
  large for all devices, or one is too large for each device;
- ops beside these variables whose inputs and outputs take longer to move than the op takes to
  compute on the host: the look-up of rows, also in a value that was read of the variable, sums of
  rows, the sparse gradient.

Dimensions: N ops, E edges, D devices.
"""

from __future__ import annotations

from typing import Optional

import numpy as np

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.clusters.constraints import allowed_devices, own_devices
from placeto_tf.costs.op_costs import OpCosts
from placeto_tf.errors import counted, option
from placeto_tf.graphs.computation_graph import CONTROL, ComputationGraph

_BY_ROWS = ("Gather", "Scatter", "Sparse")  # in the names of op types that use only some rows
_LARGE = 1 / 64  # of a device's memory: moving smaller variables frees too little memory
_HALF, _TIGHT = 0.5, 0.8  # shares of memory that variables may take before hosts are tried
_HOPS = 12  # the most edges from a variable to an op beside it, as through branches of an update


def hosts_of(cluster: Cluster) -> np.ndarray:
  """Returns which devices are hosts, [D] bool."""
  return np.array([device.host for device in cluster.devices], dtype=bool)


def used_by_rows(graph: ComputationGraph) -> np.ndarray:
  """Returns the ops that read or write only some rows of a tensor, [N] bool."""
  return np.array(
      [any(part in op_type for part in _BY_ROWS) for op_type in graph.op_types], dtype=bool)


def offered_devices(
    graph: ComputationGraph,
    cluster: Cluster,
    costs: OpCosts,
    *,
    able: Optional[np.ndarray] = None,
    said: Optional[np.ndarray] = None,
    all_hosts: bool = False,
) -> np.ndarray:
  """Returns the devices that searches try for each op, without hosts that cannot help.

  Args:
    graph, cluster, costs: of the ops and devices.
    able: [N, D] bool, devices that each op may use; by default those with a kernel for it.
    said: [N] bool, ops for which the user has given devices; these are not changed.
    all_hosts: whether hosts are options for all ops, because otherwise nothing fits.

  Returns:
    [N, D] bool, devices that searches may use for each op; equal for colocated ops.
  """
  able = allowed_devices(graph, cluster) if able is None else able
  hosts = hosts_of(cluster)
  elsewhere = able[:, ~hosts].any(axis=1)
  # Nothing to leave out: no host, only hosts, or all hosts wanted.
  if all_hosts or not hosts.any() or not elsewhere.any() or hosts.all():
    return able
  said = np.zeros(graph.num_ops, dtype=bool) if said is None else said
  own = own_devices(graph, cluster)
  # Ops to start from: on the host in the graph, in large variables, or for hosts alone.
  seeds = ((own >= 0) & hosts[own]) | _crowding(graph, cluster, costs, hosts) | (said & ~elsewhere)
  # Ops that run nowhere else, or whose devices the user has given, keep their hosts.
  offered = said | ~elsewhere
  if seeds.any():
    offered = offered | _beside(graph, cluster, costs, able, seeds)
  return able & (offered[:, None] | ~hosts)


def _crowding(
    graph: ComputationGraph, cluster: Cluster, costs: OpCosts, hosts: np.ndarray) -> np.ndarray:
  """Returns the ops, [N] bool, of variables that may leave too little memory for other ops."""
  n, memory = graph.num_ops, cluster.memory_bytes[~hosts]
  held = np.bincount(graph.colocation, costs.persistent_bytes, minlength=n)  # of each set
  found = np.zeros(n, dtype=bool)
  # Variables fill half of the smallest device: variables that are used by rows may move.
  if held.sum() > _HALF * memory.min():
    by_rows = used_by_rows(graph)
    # Reference variables are read by an op of their own set, and its reader takes the rows.
    producers = graph.edge_producers[by_rows[graph.edge_consumers] & (graph.edge_ports != CONTROL)]
    found[graph.colocation[by_rows]] = found[graph.colocation[producers]] = True
  # All variables may move if they are too large for all devices, or a set is too large for each.
  if held.sum() > _TIGHT * memory.sum() or held.max() > _TIGHT * memory.max():
    found[:] = True
  # Small variables are left out; [N] by label to [N] by op.
  return (found & (held > _LARGE * memory.min()))[graph.colocation]


def _beside(
    graph: ComputationGraph, cluster: Cluster, costs: OpCosts, able: np.ndarray, seeds: np.ndarray
) -> np.ndarray:
  """Adds the ops beside `seeds` [N] that may be better on a host to them, [N] bool."""
  n, hosts = graph.num_ops, hosts_of(cluster)
  host = int(np.argmax(hosts))
  data = graph.edge_ports != CONTROL
  u, v = graph.edge_producers[data], graph.edge_consumers[data]
  made, read, by_rows = costs.made_bytes(graph), costs.edge_bytes(graph)[data], used_by_rows(graph)
  # [N] bytes of outputs and inputs that cross to the host if the op alone moves.
  moved = made + np.bincount(v, read, minlength=n)
  slowest = cluster.us_per_byte[host, ~hosts].max()
  # Ops for which computing on the host takes no longer than moving inputs and outputs.
  cheap = costs.compute_us[:, cluster.device_kinds[host]] <= moved * slowest
  # [N] by set, because colocated ops move together.
  dear = np.zeros(n, dtype=bool)
  dear[graph.colocation[~cheap | ~able[:, host]]] = True
  free = ~dear[graph.colocation]
  has_inputs = np.bincount(v, minlength=n) > 0
  # Grow by one edge per round; a set grows as a whole.
  near = seeds
  for _ in range(_HOPS):
    # An op is beside the set if all its inputs (except constants) come from it, or all its outputs
    # go to it; an op that takes rows, also if its other inputs and its outputs have fewer bytes.
    away_in = np.bincount(v, ~near[u] & has_inputs[u], minlength=n) > 0
    from_near = np.bincount(v, near[u], minlength=n) > 0
    away_out = np.bincount(u, ~near[v], minlength=n) > 0
    to_near = np.bincount(u, near[v], minlength=n) > 0
    closer = np.bincount(v, np.where(near[u], read, -read), minlength=n) > (
        made * away_out - made * to_near)
    beside = free & ((from_near & ~away_in) | (to_near & ~away_out) | closer & from_near & by_rows)
    sets = np.zeros(n, dtype=bool)
    sets[graph.colocation[near | beside]] = True
    grown = sets[graph.colocation]
    if (grown == near).all():
      break
    near = grown
  return near


def own_host_note(
    graph: ComputationGraph, cluster: Cluster, costs: OpCosts, placement: np.ndarray) -> str:
  """Describes the ops that the graph puts on a host although another device could run them.

  Args:
    graph, cluster, costs: of the ops and devices.
    placement: [N] device of each op in the result.

  Returns:
    A sentence; "" if there is no such op.
  """
  hosts, own = hosts_of(cluster), own_devices(graph, cluster)
  named = np.array([bool(device) for device in graph.assigned_devices])
  elsewhere = allowed_devices(graph, cluster)[:, ~hosts].any(axis=1)
  there = np.flatnonzero(named & (own >= 0) & hosts[own] & elsewhere)
  if not len(there):
    return ""
  moved = there[~hosts[placement[there]]]
  gigabytes = costs.persistent_bytes[there].sum() / 2**30
  held = f" with {gigabytes:.2f} GiB of variables" if gigabytes >= 0.01 else ""
  moves = (f"moves {len(moved):,} of them to other devices (to keep them there: "
           f"{option('existing_devices', 'keep')})" if len(moved) else "leaves them there")
  return (f"the graph has {counted(len(there), 'op')}{held} on the host, such as "
          f"{graph.op_names[there[0]]!r}; the placement {moves}")
