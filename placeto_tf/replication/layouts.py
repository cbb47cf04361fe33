"""Start placements of searches, made from an equal share of the devices for each replica.

Ops that exist once are on the first device, or are spread so that every device holds about as many
bytes of variables. All-reduces and all-gathers are on the device of the variable that they update.
If each replica has variables of its own, the variables are on the replica's devices, and the means
of gradients are spread by their bytes over the devices that compute the gradients.

Dimensions: N ops, D devices, R replicas, C sets of ops that must share a device.
"""

from __future__ import annotations

from typing import List, Optional, Sequence, Tuple

import numpy as np

from placeto_tf.costs.op_costs import OpCosts
from placeto_tf.graphs.traversal import components, neighbours
from placeto_tf.replication.dataflow import closure
from placeto_tf.replication.replicated_graph import SHARED, ReplicatedGraph

_SCALAR_BYTES = 8.0


def shares(devices: Sequence[int], replicas: int) -> List[List[int]]:
  """Returns the devices of each replica: consecutive ones, or in turn if there are fewer than R.

  Args:
    devices: indices of devices.
    replicas: R.

  Returns:
    For each replica, indices of its devices.
  """
  if replicas > len(devices):
    return [[devices[r % len(devices)]] for r in range(replicas)]
  # Consecutive devices are neighbours, which often have the faster links.
  size = len(devices) // replicas
  return [list(devices[r * size:(r + 1) * size]) for r in range(replicas)]


def layouts(
    replicated: ReplicatedGraph, costs: OpCosts, devices: Sequence[int],
    pieces: Optional[np.ndarray] = None,
) -> np.ndarray:
  """Returns placements by share, with single ops on one device, on all, or beside replicas.

  Args:
    replicated: the replicas.
    costs: of its graph.
    devices: indices of the devices that compute.
    pieces: [N0] for each op of one replica, the index of its device in the replica's share; by
      default 0.

  Returns:
    [B, N] int32, B placements. They may put ops on devices that cannot run them; the caller moves
    such ops.
  """
  graph = replicated.graph
  of_replica = [share for share in shares(devices, replicated.groups)
                for _ in range(replicated.micro_batches)]
  copied = replicated.replica_of_op != SHARED
  piece = np.zeros(graph.num_ops, dtype=np.int64)
  if pieces is not None:
    # Ops that the rewriting added take the piece of the nearest original op.
    piece = np.asarray(pieces)[replicated.nearest_original]
  # [R, most devices of a share]: device of replica r and piece p.
  table = np.array([[share[p % len(share)] for p in range(max(map(len, of_replica)))]
                    for share in of_replica])
  placement = np.full(graph.num_ops, devices[0], dtype=np.int32)
  placement[copied] = table[replicated.replica_of_op[copied], piece[copied] % table.shape[1]]
  used = sorted({int(each) for each in placement[copied]}, key=list(devices).index)
  # Ops that exist once: on the first device, on all devices, or on the devices of replicas where
  # replicas use only some.
  targets_of_layouts = [[devices[0]], list(devices)]
  if used and set(used) < set(devices):
    targets_of_layouts.append(used)
  found = []
  for targets in targets_of_layouts:
    whole = placement.copy()
    spread = _spread(replicated, costs, targets, placement)
    moved = spread >= 0
    whole[moved] = spread[moved]
    found.append(whole)
  return np.stack(found[:1] if len(devices) == 1 else found)


def _spread(
    replicated: ReplicatedGraph, costs: OpCosts, devices: Sequence[int], placement: np.ndarray
) -> np.ndarray:
  """Returns the devices of ops that exist once and of ops colocated with them, [N]; -1 elsewhere.

  Args:
    replicated, costs: see `layouts`.
    devices: to spread over.
    placement: [N] of the copies.
  """
  graph = replicated.graph
  colocation = graph.colocation
  shared = replicated.replica_of_op == SHARED
  # [N] bytes of an op's outputs; 0 where it has none.
  output_bytes = np.add.reduceat(
      np.append(costs.output_bytes, 0.0), graph.output_offsets[:-1]) * (
          np.diff(graph.output_offsets) > 0)
  types = np.array(graph.op_types)
  held = np.where(types == "Const", 0.0, costs.persistent_bytes)
  # Mirrored variables are on the devices of their replicas; the sums of gradients are spread.
  if replicated.mirrored:
    held = np.where(shared & (types == "AddN") & (replicated.original_of_op < 0), output_bytes, 0.0)
  # [N] bytes by label of the colocation set.
  weight = np.bincount(colocation, held, minlength=graph.num_ops)
  with_state = np.flatnonzero(weight > 0)
  packed = _packed_together(replicated, weight, output_bytes)
  merged = np.bincount(packed, weight, minlength=graph.num_ops)
  load = np.zeros(len(devices))
  home = np.full(graph.num_ops, -1, dtype=np.int64)  # by label of the set
  heads = with_state[packed[with_state] == with_state]
  parts = neighbours(graph.edge_consumers, graph.edge_producers, graph.num_ops)
  # Largest set first, each to the device with the fewest bytes (longest processing time first).
  for label in heads[np.argsort(-merged[heads], kind="stable")].tolist():
    near = {int(placement[op]) for op in parts[label]} if replicated.mirrored else set(devices)
    choice = [i for i, device in enumerate(devices) if device in near] or range(len(devices))
    target = min(choice, key=load.__getitem__)
    load[target] += merged[label]
    home[label] = devices[target]
  home[with_state] = home[packed[with_state]]
  place = np.where(home[colocation] >= 0, home[colocation], -1)
  # An op without a variable goes to a reader, else to an op that it reads.
  order = graph.topological_order.tolist()
  producers, consumers = graph.edge_producers, graph.edge_consumers
  outputs = neighbours(producers, consumers, graph.num_ops)
  for sequence, around in ((order[::-1], outputs), (order, parts)):
    for op in sequence:
      if shared[op] and place[op] < 0:
        # Prefer the device of an op with a variable, then of the neighbour with most bytes.
        place[op] = max(
            ((weight[colocation[other]] > 0, output_bytes[other], -i, place[other])
             for i, other in enumerate(around[op]) if shared[other] and place[other] >= 0),
            default=(False, 0.0, 0, -1))[-1]
  # Ops without a variable nearby are on the first device.
  place[shared & (place < 0)] = devices[0]
  # A set of ops has one device.
  label_place = np.full(graph.num_ops, -1, dtype=np.int64)
  # Written backwards, so that the first op of a set decides.
  label_place[colocation[shared][::-1]] = place[shared][::-1]
  label_place[home >= 0] = home[home >= 0]
  return np.where(label_place[colocation] >= 0, label_place[colocation], -1)


def _packed_together(
    replicated: ReplicatedGraph, weight: np.ndarray, output_bytes: np.ndarray) -> np.ndarray:
  """Returns the label of each colocation set, [N]; variables of one pack share a label."""
  graph = replicated.graph
  pairs: List[Tuple[int, int]] = []
  held = weight[graph.colocation] > 0  # [N] whether an op shares its device with a variable
  outputs = neighbours(graph.edge_producers, graph.edge_consumers, graph.num_ops)
  shared = replicated.replica_of_op == SHARED
  for op, op_type in enumerate(graph.op_types):
    if op_type != "SplitV" or not shared[op] or replicated.original_of_op[op] >= 0:
      continue
    # From the split of a pack to the variables that its gradients update; not past a global norm,
    # which all packs feed.
    reached = closure({op}, outputs, lambda other: bool(
        shared[other] and not held[other] and output_bytes[other] > _SCALAR_BYTES))
    labels = [int(graph.colocation[other]) for other in reached - {op}
              if shared[other] and held[other]]
    pairs += [(labels[0], label) for label in labels]
  return components(graph.num_ops, pairs)
