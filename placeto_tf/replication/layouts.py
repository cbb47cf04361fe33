"""Placements by replicas, from which searches start.

Each replica has an equal share of the devices. Ops that exist once are on the first device, or
spread so that every device holds about as many bytes of variables. Ops that join replicas are on
the device of the variable that they are for.

Legend: N ops, D devices, R replicas, C sets of ops that must share a device.
"""

from __future__ import annotations

from typing import List, Optional, Sequence

import numpy as np

from placeto_tf.costs.op_costs import OpCosts
from placeto_tf.replication.replicated_graph import SHARED, ReplicatedGraph


def shares(devices: Sequence[int], replicas: int) -> List[List[int]]:
  """The devices of each replica: consecutive ones, or in turn if there are fewer than R."""
  if replicas > len(devices):
    return [[devices[r % len(devices)]] for r in range(replicas)]
  size = len(devices) // replicas
  return [list(devices[r * size:(r + 1) * size]) for r in range(replicas)]


def layouts(
    replicated: ReplicatedGraph, costs: OpCosts, devices: Sequence[int],
    pieces: Optional[np.ndarray] = None,
) -> np.ndarray:
  """Placements by share, with variables on one device and spread.

  Args:
    replicated: the replicas.
    costs: of its graph.
    devices: indices of the devices that compute.
    pieces: [N0] which device of its share each op of one replica is on; by default the first.

  Returns:
    [B, N] int32; an op that may not run there is still to be moved.
  """
  graph = replicated.graph
  of_replica = shares(devices, replicated.replicas)
  copied = replicated.replica_of_op != SHARED
  piece = np.zeros(graph.num_ops, dtype=np.int64)
  if pieces is not None:
    known = replicated.original_of_op >= 0
    piece[known] = np.asarray(pieces)[replicated.original_of_op[known]]
  table = np.array([[share[p % len(share)] for p in range(max(map(len, of_replica)))]
                    for share in of_replica])
  placement = np.full(graph.num_ops, devices[0], dtype=np.int32)
  placement[copied] = table[replicated.replica_of_op[copied], piece[copied] % table.shape[1]]
  found = []
  for targets in ([devices[0]], list(devices)):
    whole = placement.copy()
    spread = _spread(replicated, costs, targets)
    moved = spread >= 0
    whole[moved] = spread[moved]
    found.append(whole)
  return np.stack(found[:1] if len(devices) == 1 else found)


def _spread(replicated: ReplicatedGraph, costs: OpCosts, devices: Sequence[int]) -> np.ndarray:
  """[N] the device of ops that exist once, and of ops that must be with them; -1 elsewhere."""
  graph = replicated.graph
  colocation = graph.colocation
  shared = replicated.replica_of_op == SHARED
  weight = np.bincount(colocation, costs.persistent_bytes, minlength=graph.num_ops)
  with_state = np.flatnonzero(weight > 0)
  load = np.zeros(len(devices))
  home = np.full(graph.num_ops, -1, dtype=np.int64)  # by label of the set
  for label in with_state[np.argsort(-weight[with_state], kind="stable")].tolist():
    target = int(load.argmin())
    load[target] += weight[label]
    home[label] = devices[target]
  place = np.where(home[colocation] >= 0, home[colocation], -1)
  # An op without a variable goes to a reader, else to an op that it reads.
  order = graph.topological_order.tolist()
  producers, consumers = graph.edge_producers, graph.edge_consumers
  inputs = _neighbours(consumers, producers, graph.num_ops)
  outputs = _neighbours(producers, consumers, graph.num_ops)
  for sequence, neighbours in ((order[::-1], outputs), (order, inputs)):
    for op in sequence:
      if shared[op] and place[op] < 0:
        place[op] = next(
            (place[other] for other in neighbours(op) if shared[other] and place[other] >= 0), -1)
  place[shared & (place < 0)] = devices[0]
  # A set of ops has one device.
  label_place = np.full(graph.num_ops, -1, dtype=np.int64)
  label_place[colocation[shared][::-1]] = place[shared][::-1]
  label_place[home >= 0] = home[home >= 0]
  return np.where(label_place[colocation] >= 0, label_place[colocation], -1)


def _neighbours(ends: np.ndarray, others: np.ndarray, count: int):
  """op -> the ops at the other end of its edges."""
  order = np.argsort(ends, kind="stable")
  starts = np.searchsorted(ends[order], np.arange(count + 1)).tolist()
  found = others[order].tolist()
  return lambda op: found[starts[op]:starts[op + 1]]
