"""Chooses the all-reduces that are packed together, and the ones that are divided into pieces.

A model has hundreds of small variables. Sending each gradient on its own pays the latency of a
transfer, and a kernel for each sum, hundreds of times a step and replica; collective libraries pack
them (MirroredStrategy: `num_packs`, NCCL's buckets). A pack is flattened and concatenated on each
replica, added up, scaled, and split again: the same sums in the same order.

A large tensor would keep the links of one device busy while the others wait. If every replica has
variables of its own, a large tensor is divided into R pieces, whose means are computed on R
devices. That is the exchange of a ring all-reduce (reduce-scatter, all-gather), with the same bytes
on every link.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Dict, List, Set, Tuple

from placeto_tf.costs.tensor_sizes import item_bytes
from placeto_tf.graphs.loops import MERGE, SWITCH
from placeto_tf.ops import rule_of
from placeto_tf.replication.dataflow import Dataflow, Tensor
from placeto_tf.replication.exponents import GLOBAL
from placeto_tf.replication.mirroring import Plan
from placeto_tf.replication.op_partition import FIRST, OpPartition
from placeto_tf.replication.propagation import Propagated

PACK_BYTES = 4e6
# Op type -> the input that determines the number of rows of the result.
_NUMBER_FROM = {"GatherV2": 1, "Gather": 1, "ResourceGather": 1, "GatherNd": 1,
                "UnsortedSegmentSum": 2}
_SHAPED_AS_READ = frozenset(
    "Shape Size StridedSlice Slice Reshape ConcatV2 Pack ExpandDims Squeeze Transpose".split())


@dataclasses.dataclass(frozen=True)
class Pack:
  """Tensors that are concatenated, and the number of equal pieces to compute their mean in."""

  tensors: Tuple[Tensor, ...]
  pieces: int = 1


def find_packs(plan: Plan, in_pieces: bool) -> List[Pack]:
  """Returns packs of all-reduced tensors, in the order of readiness.

  If there is enough to pack, there are at least as many packs as replicas, so that every device
  can compute the mean of one pack.

  Args:
    plan: the plan of the replicas; tensors that are fetched are in no pack.
    in_pieces: whether large tensors may be divided into pieces.

  Returns:
    The packs; a tensor that is in no pack has a separate all-reduce.
  """
  flow, partition, replicas = plan.flow, plan.partition, plan.scaling.replicas
  if any(flow.frames[op] for op in partition.shared):
    return []
  level = _levels(flow, plan.propagated, partition)
  # A pack with a tensor of a conditional branch would wait for a branch that is not taken.
  excluded = _of_any_number(flow) | _in_branches(flow)
  # Only tensors with the same dtype, all-reduce depth and factor can share a pack.
  by_key: Dict[Tuple[int, int, float], List[Tuple[int, Tensor, float]]] = {}
  depths = flow.graph.depths
  for tensor, collective in partition.combined.items():
    elements = None if tensor[0] in excluded else flow.elements(tensor)
    if collective.how != "sum" or tensor in plan.fetched or elements is None or (
        flow.frames[tensor[0]]):
      continue
    size = float(elements * item_bytes(flow.dtype(tensor)))
    key = (flow.dtype(tensor) % 100, level[tensor[0]], collective.exponent)
    by_key.setdefault(key, []).append((int(depths[tensor[0]]), tensor, size))
  # Tensors above half of a device's share would not spread evenly as a whole.
  whole = sum(size for members in by_key.values() for _, _, size in members)
  large = max(PACK_BYTES, whole / (2 * replicas)) if in_pieces else math.inf
  packs = []
  # Packs of about the same size, as many as there are devices to take them.
  for members in by_key.values():
    limit = min(PACK_BYTES, sum(size for _, _, size in members) / replicas)
    pack: List[Tensor] = []
    filled = 0.0
    for _, tensor, size in sorted(members):
      # A large tensor is divided into R pieces, which R devices sum.
      if size >= large:
        packs.append(Pack((tensor,), replicas))
      # A tensor that fills a pack alone needs no packing.
      if size >= min(limit, large):
        continue
      pack.append(tensor)
      filled += size
      if filled >= limit:
        packs.append(Pack(tuple(pack)))
        pack, filled = [], 0.0
    packs.append(Pack(tuple(pack)))
  return [pack for pack in packs if len(pack.tensors) > 1 or pack.pieces > 1]


def _of_any_number(flow: Dataflow) -> Set[int]:
  """Returns ops whose number of rows depends on values; their shapes give only the most rows."""
  rules = [rule_of(op_type) for op_type in flow.types]
  found = {op for op, rule in enumerate(rules) if rule.any_number is not None}
  # The consumers whose number of rows follows from such an op, too.
  for op in flow.order:
    op_type, data = flow.types[op], flow.inputs[op]
    i = _NUMBER_FROM.get(op_type)
    if i is not None:
      data = data[i:i + 1]
    elif rules[op].axes != "elementwise" and op_type not in _SHAPED_AS_READ:
      continue
    if any(producer in found and port not in (rules[producer].any_number or ())
           for producer, port in data):
      found.add(op)
  return found


def _in_branches(flow: Dataflow) -> Set[int]:
  """Returns the ops that run in one branch of a conditional only, outside of loops."""
  depth = [0] * len(flow.types)  # how many conditionals an op is in
  # An op is as deep as its deepest input; a Switch adds one conditional, a Merge ends one.
  for op in flow.order:
    found = max([0, *(depth[producer] for producer, _ in flow.inputs[op]),
                 *(depth[awaited] for awaited in flow.controls[op])])
    if not flow.frames[op]:
      found += (flow.types[op] in SWITCH) - (flow.types[op] in MERGE)
    depth[op] = max(0, found)
  return {op for op, conditionals in enumerate(depth) if conditionals}


def _levels(flow: Dataflow, propagated: Propagated, partition: OpPartition) -> List[int]:
  """Returns the all-reduce depth of each op, [N]; all-reduces of equal depth are independent.

  A tensor that leaves a loop has the depth of all tensors that enter the loop, and of its back
  edges.
  """
  level = [0] * len(flow.types)
  # All ops of a loop wait for every tensor that comes into the loop.
  in_frame: Dict[str, int] = {}
  settled = False
  while not settled:
    settled = True
    # Repeat until nothing changes: a back edge may make the tensors of its loop deeper.
    for op in flow.order:
      once = op in partition.shared or op not in partition.copies
      found = in_frame.get(flow.frames[op], 0)
      for i, tensor in enumerate(flow.inputs[op]):
        # An all-reduce counts where the consumer reads the combined value.
        reduces = (once or propagated.fixes.get((op, i)) == (GLOBAL,)) and (
            tensor in partition.combined and partition.combined[tensor].how != FIRST) and (
                not flow.frames[tensor[0]])
        found = max(found, level[tensor[0]] + reduces)
      for awaited in flow.controls[op]:
        found = max(found, level[awaited])
      level[op] = found
      if flow.frames[op] and op not in flow.late and found > in_frame.get(flow.frames[op], 0):
        in_frame[flow.frames[op]], settled = found, False
  return level
