"""Chooses the means over replicas that are taken together, and those that are taken in pieces.

A model has hundreds of small variables. Sending each gradient on its own pays the latency of a
transfer, and a kernel for each sum, hundreds of times a step and replica; collective libraries pack
them (MirroredStrategy: `num_packs`, NCCL's buckets). A pack is flattened and concatenated on each
replica, added up, scaled, and split again: the same sums in the same order.

A large tensor would keep the links of one device busy while the others wait. If every replica has
variables of its own, it is cut into R pieces, whose means can be taken on R devices: the exchange
that a ring all-reduce does (reduce-scatter, all-gather), with the same bytes on every link.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Dict, List, Optional, Set, Tuple

from placeto_tf.ops import rule_of
from placeto_tf.replication.dataflow import Dataflow, Tensor, known_dims
from placeto_tf.replication.exponents import GLOBAL
from placeto_tf.replication.mirroring import Plan
from placeto_tf.replication.op_partition import FIRST, OpPartition
from placeto_tf.replication.propagation import Propagated

PACK_BYTES = 4e6
# Which of an op's inputs says how many rows it gives.
_NUMBER_FROM = {"GatherV2": 1, "Gather": 1, "ResourceGather": 1, "GatherNd": 1,
                "UnsortedSegmentSum": 2}
_SHAPED_AS_READ = frozenset(
    "Shape Size StridedSlice Slice Reshape ConcatV2 Pack ExpandDims Squeeze Transpose".split())


@dataclasses.dataclass(frozen=True)
class Pack:
  """Tensors laid end to end, and the number of equal pieces in which their mean is taken."""

  tensors: Tuple[Tensor, ...]
  pieces: int = 1


def find_packs(plan: Plan, in_pieces: bool) -> List[Pack]:
  """Returns the means that are taken together, in the order of readiness, or in pieces.

  There are at least as many packs as replicas where there is enough to pack, so that every device
  can have one.

  Args:
    plan: of the replicas; tensors that are fetched are in no pack.
    in_pieces: whether large tensors may be cut.

  Returns:
    The packs; tensors in none of them travel alone.
  """
  flow, partition, replicas = plan.flow, plan.partition, plan.scaling.replicas
  if any(flow.frames[op] for op in partition.shared):
    return []
  level = _levels(flow, plan.propagated, partition)
  # A pack with a tensor of a branch would wait for a branch that is not taken.
  excluded = _of_any_number(flow) | _in_branches(flow)
  # Only tensors of one type, one depth and one factor can be laid end to end.
  kinds: Dict[Tuple[int, int, float], List[Tuple[int, Tensor, float]]] = {}
  depths = flow.graph.depths
  for tensor, collective in partition.combined.items():
    size = None if tensor[0] in excluded else _bytes(flow, tensor)
    if collective.how != "sum" or tensor in plan.fetched or size is None or flow.frames[tensor[0]]:
      continue
    kind = (flow.dtype(tensor) % 100, level[tensor[0]], collective.exponent)
    kinds.setdefault(kind, []).append((int(depths[tensor[0]]), tensor, size))
  # Above half of a device's share, whole tensors do not spread evenly.
  whole = sum(size for members in kinds.values() for _, _, size in members)
  large = max(PACK_BYTES, whole / (2 * replicas)) if in_pieces else math.inf
  packs = []
  # Packs of about the same size, as many as there are devices to take them.
  for members in kinds.values():
    limit = min(PACK_BYTES, sum(size for _, _, size in members) / replicas)
    pack: List[Tensor] = []
    filled = 0.0
    for _, tensor, size in sorted(members):
      # Above this, a tensor is cut into R pieces, whose sums R devices take.
      if size >= large:
        packs.append(Pack((tensor,), replicas))
      # Above the limit a tensor is a pack alone, which needs no packing.
      if size >= min(limit, large):
        continue  # on its own
      pack.append(tensor)
      filled += size
      if filled >= limit:
        packs.append(Pack(tuple(pack)))
        pack, filled = [], 0.0
    packs.append(Pack(tuple(pack)))
  return [pack for pack in packs if len(pack.tensors) > 1 or pack.pieces > 1]


def _of_any_number(flow: Dataflow) -> Set[int]:
  """Returns ops with as many rows as there are different values; shapes give the most."""
  rules = [rule_of(kind) for kind in flow.types]
  found = {op for op, rule in enumerate(rules) if rule.any_number is not None}
  # Onwards through ops that give as many rows as they read.
  for op in flow.order:
    kind, data = flow.types[op], flow.inputs[op]
    i = _NUMBER_FROM.get(kind)
    if i is not None:
      data = data[i:i + 1]
    elif rules[op].axes != "elementwise" and kind not in _SHAPED_AS_READ:
      continue
    if any(producer in found and port not in (rules[producer].any_number or ())
           for producer, port in data):
      found.add(op)
  return found


def _in_branches(flow: Dataflow) -> Set[int]:
  """Returns the ops that run in one branch of a conditional only, outside of loops."""
  depth = [0] * len(flow.types)  # how many conditionals an op is in
  # Conditionals that an op is inside: of its inputs the deepest, plus one behind a Switch.
  for op in flow.order:
    found = max([0, *(depth[producer] for producer, _ in flow.inputs[op]),
                 *(depth[awaited] for awaited in flow.controls[op])])
    if not flow.frames[op]:
      found += (flow.types[op] in ("Switch", "RefSwitch")) - (
          flow.types[op] in ("Merge", "RefMerge"))
    depth[op] = max(0, found)
  return {op for op, conditionals in enumerate(depth) if conditionals}


def _levels(flow: Dataflow, propagated: Propagated, partition: OpPartition) -> List[int]:
  """Returns the all-reduce depth of each op, [N]; all-reduces of equal depth are independent.

  What leaves a loop has waited for all that went into it, also on the way round.
  """
  level = [0] * len(flow.types)
  # All ops of a loop wait for every tensor that comes into the loop.
  in_frame: Dict[str, int] = {}
  settled = False
  while not settled:
    settled = True
    # Until nothing changes: a tensor that comes round a loop may be deeper than before.
    for op in flow.order:
      once = op in partition.shared or op not in partition.copies
      found = in_frame.get(flow.frames[op], 0)
      for i, tensor in enumerate(flow.inputs[op]):
        # An all-reduce counts where the consumer reads the combined value.
        reduces = (once or _reads_combined(propagated, op, i)) and (
            tensor in partition.combined and partition.combined[tensor].how != FIRST) and (
                not flow.frames[tensor[0]])
        found = max(found, level[tensor[0]] + reduces)
      for awaited in flow.controls[op]:
        found = max(found, level[awaited])
      level[op] = found
      if flow.frames[op] and found > in_frame.get(flow.frames[op], 0):
        in_frame[flow.frames[op]], settled = found, False
  return level


def _reads_combined(propagated: Propagated, op: int, i: int) -> bool:
  fix = propagated.fixes.get((op, i))
  return fix is not None and fix[0] == GLOBAL


def _bytes(flow: Dataflow, tensor: Tensor) -> Optional[float]:
  """Returns the bytes of a tensor of known shape, or None."""
  import tensorflow as tf

  try:
    elements = math.prod(known_dims(flow.shape(tensor)))
  except ValueError:
    return None
  return float(elements) * tf.dtypes.as_dtype(flow.dtype(tensor) % 100).size
