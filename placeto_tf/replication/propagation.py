"""The ops that every replica has, and the kind of each of their tensors.

Legend: N needed ops.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import Dict, FrozenSet, List, Sequence, Set, Tuple

import numpy as np

from placeto_tf.replication import op_roles
from placeto_tf.replication.axis_rules import AxisRules
from placeto_tf.replication.dataflow import Dataflow, Tensor, closure
from placeto_tf.replication.kinds import (
  AFTER,
  MEAN,
  SAME,
  SPARSE,
  Box,
  Kind,
  Rows,
  Unclear,
  join,
)
from placeto_tf.replication.sparse_updates import SparseUpdate

_MERGES = ("Merge", "RefMerge")
_SWITCHES = ("Switch", "RefSwitch")
# Their output is a mean if an input is a mean, whatever the other inputs.
_LINEAR = frozenset((
    "Identity StopGradient PreventGradient CheckNumerics Snapshot Cast Neg AddN AccumulateNV2 Add "
    "AddV2 Sub Reshape Squeeze ExpandDims Transpose ConcatV2 Concat Pack Unpack Split SplitV "
    "Slice StridedSlice StridedSliceGrad Pad PadV2 Tile BroadcastTo Sum Mean Enter RefEnter Exit "
    "RefExit NextIteration RefNextIteration GatherV2 Gather UnsortedSegmentSum ReverseV2 "
    "MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3 Mul Cumsum Einsum Shape ShapeN ZerosLike "
    "EnsureShape").split())
# Linear in one operand only.
_PRODUCTS = frozenset("MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3 Mul Einsum".split())
_QUOTIENTS = frozenset("RealDiv Div DivNoNan".split())
_WRITES = {  # containers: op type -> (container's input, tensor's input, by how much axes grow)
    "TensorArrayWriteV3": (3, 2, 0), "TensorArrayScatterV3": (3, 2, -1),
    "TensorArrayUnpackV3": (3, 2, -1), "TensorArraySplitV3": (2, 1, -1),
    "TensorListPushBack": (0, 1, 0), "TensorListSetItem": (0, 2, 0),
    "TensorListFromTensor": (None, 0, -1), "TensorListScatter": (None, 0, -1),
    "TensorListScatterV2": (None, 0, -1), "TensorListScatterIntoExistingList": (0, 1, -1)}
_READS = {  # op type -> (container's input, by how much axes grow, port of the tensor)
    "TensorArrayReadV3": (2, 0, 0), "TensorArrayGatherV3": (2, 1, 0),
    "TensorListPopBack": (0, 0, 1), "TensorListGetItem": (0, 0, 0), "TensorListStack": (0, 1, 0),
    "TensorListGather": (0, 1, 0)}
_CONTAINER_SHAPES = ("TensorListElementShape", "TensorListLength", "TensorArraySizeV3")
_PUSHES, _POPS = ("StackPushV2", "StackPush"), ("StackPopV2", "StackPop")
_MAX_PASSES = 8  # nested loops settle in as many rounds as their depth, plus one


@dataclasses.dataclass(frozen=True)
class Spread:
  """The ops and tensors that the batch reaches.

  Attributes:
    batch: examples of one replica.
    sources: ops that are fed, or read an input pipeline.
    noise: ops that draw random numbers, for each replica its own.
    copied: ops that each replica has, unless they turn out to come after the means.
    kinds: op of `copied` -> kinds of its outputs.
    sparse: tensors of kind `SPARSE`, whatever their op's rule gives.
    own: ops whose means over the batch go into examples of the same replica.
    statistics: ops that mix values of all examples into single ones, as batch normalization.
  """

  batch: int
  sources: FrozenSet[int]
  noise: FrozenSet[int]
  copied: FrozenSet[int]
  kinds: Dict[int, List[Kind]]
  sparse: FrozenSet[Tensor]
  own: FrozenSet[int]
  statistics: FrozenSet[int]

  def kind(self, tensor: Tensor) -> Kind:
    """The kind of any tensor of the graph."""
    if tensor in self.sparse:
      return SPARSE
    found = self.kinds.get(tensor[0])
    return SAME if found is None else found[tensor[1]]


def spread(flow: Dataflow, sparse: Sequence[SparseUpdate]) -> Spread:
  """Follows the batch through the graph.

  Args:
    flow: the graph.
    sparse: updates of some rows of variables.

  Raises:
    GraphError: there is no batch, a feed is none, or an op draws without a seed.
  """
  batch, sources = op_roles.batch_feeds(flow)
  copied, noise = _copied(flow, set(sources))
  op_roles.check_state(flow, copied)
  return _Propagation(flow, batch, frozenset(sources), noise, copied, sparse).run()


def _copied(flow: Dataflow, sources: Set[int]) -> Tuple[Set[int], Set[int]]:
  """The ops of each replica, and those of them that draw random numbers."""
  noise_types = (
      op_roles.STATEFUL_NOISE | op_roles.SEEDED_NOISE | op_roles.VARIABLE_NOISE)
  candidates = [op for op, kind in enumerate(flow.types) if kind in noise_types]
  containers = [op for op, kind in enumerate(flow.types) if kind in op_roles.STEP_CONTAINERS]
  producers = [[producer for producer, _ in data] for data in flow.inputs]
  by_frame = collections.defaultdict(list)
  for op, frame in enumerate(flow.frames):
    if frame:
      by_frame[frame].append(op)
  copied: Set[int] = set()
  seeds, noise, waiting = set(sources), set(), set(candidates + containers)
  while not seeds <= copied:
    copied = closure(copied | seeds, flow.consumers)
    # A loop goes round for each replica as a whole.
    for frame in {flow.frames[op] for op in copied if flow.frames[op]}:
      seeds.update(by_frame[frame])
    found = waiting & closure(copied, producers) if waiting else set()
    waiting -= found
    seeds |= found
    noise |= found - set(containers)
  return copied, noise


class _Propagation:
  """Kinds, op by op, until loops have settled."""

  def __init__(
      self, flow: Dataflow, batch: int, sources: FrozenSet[int], noise: Set[int],
      copied: Set[int], sparse: Sequence[SparseUpdate]):
    self._flow, self._batch = flow, batch
    self._sources, self._noise, self._copied = sources, frozenset(noise), copied
    self._values = {update.values: update.indices for update in sparse}
    self._indices: Dict[Tensor, List[Tensor]] = collections.defaultdict(list)
    for update in sparse:
      self._indices[update.indices].append(update.values)
    self._rules = AxisRules(flow, batch)
    self._kinds: Dict[int, List[Kind]] = {}
    self._pushed: Dict[int, Kind] = {}  # stack op -> kind of what is on it
    self._statistics: Set[int] = set()
    self._own: Set[int] = set()  # ops whose results go into single examples of their replica

  def run(self) -> Spread:
    flow = self._flow
    order = [op for op in np.argsort(flow.graph.depths, kind="stable").tolist()
             if op in self._copied]
    self._settle(order)
    if self._statistics:
      # A value that goes into single examples again belongs to the replica.
      producers = [[producer for producer, _ in data] for data in flow.inputs]
      before = closure(set(self._statistics), producers)
      self._own = {op for op in before if op in self._copied and not any(
          isinstance(kind, Rows) for kind in self._kinds[op])}
      self._settle(order)
    return Spread(
        self._batch, self._sources, self._noise, frozenset(self._copied), self._kinds,
        frozenset(tensor for tensor in (*self._values, *self._indices)
                  if self._kind(tensor) is SPARSE),
        frozenset(self._own), frozenset(self._statistics))

  def _settle(self, order: Sequence[int]) -> None:
    self._kinds = {op: [SAME] * self._width(op) for op in order}
    for _ in range(_MAX_PASSES if any(self._flow.frames[op] for op in order) else 1):
      changed = False
      self._statistics.clear()
      for op in order:
        found = self._outputs(op)
        if found != self._kinds[op]:
          self._kinds[op], changed = found, True
      if not changed:
        break

  def _width(self, op: int) -> int:
    offsets = self._flow.graph.output_offsets
    return int(offsets[op + 1] - offsets[op])

  def _kind(self, tensor: Tensor) -> Kind:
    if tensor in self._values or tensor in self._indices:
      if any(isinstance(self._own_kind(each), Rows)
             for each in (tensor, *self._indices.get(tensor, ()))):
        return SPARSE
    return self._own_kind(tensor)

  def _own_kind(self, tensor: Tensor) -> Kind:
    found = self._kinds.get(tensor[0])
    return SAME if found is None else found[tensor[1]]

  def _outputs(self, op: int) -> List[Kind]:
    flow, width = self._flow, self._width(op)
    kind = flow.types[op]
    if op in self._sources:
      return [Rows(0)] * width
    inputs = [self._kind(tensor) for tensor in flow.inputs[op]]
    if kind in _MERGES:
      return [join(inputs, op), SAME][:width]
    if kind in _SWITCHES:
      return self._switch(op, inputs)
    if kind in _WRITES or kind in _READS or kind in _PUSHES or kind in _POPS:
      return self._container(op, inputs, width)
    if kind in _CONTAINER_SHAPES or op in self._noise:
      return [SAME] * width
    if any(isinstance(each, Box) for each in inputs):
      return [next(each for each in inputs if isinstance(each, Box))] * width
    if SPARSE in inputs:
      return [AFTER] * width
    if any(isinstance(each, Rows) for each in inputs):
      if MEAN in inputs or AFTER in inputs:
        self._statistics.add(op)
      return self._rules.outputs(op, inputs)
    unclear = next((each for each in inputs if isinstance(each, Unclear)), None)
    if unclear is not None:
      return [unclear] * width
    if any(tensor[0] in self._own and each is not SAME
           for tensor, each in zip(flow.inputs[op], inputs)):
      return [MEAN] * width
    if AFTER in inputs:
      return [AFTER] * width
    if MEAN in inputs:
      return [self._of_means(op, inputs)] * width
    return [SAME] * width

  def _of_means(self, op: int, inputs: Sequence[Kind]) -> Kind:
    kind = self._flow.types[op]
    if kind in ("Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike"):
      return SAME
    if kind in _PRODUCTS:
      return MEAN if sum(each is MEAN for each in inputs) == 1 else AFTER
    if kind in _QUOTIENTS:
      return MEAN if inputs[1] is SAME else AFTER
    return MEAN if kind in _LINEAR else AFTER

  def _switch(self, op: int, inputs: List[Kind]) -> List[Kind]:
    data, condition = inputs
    predicate = self._flow.origin(self._flow.inputs[op][1])[0]
    if condition in (MEAN, AFTER) and self._flow.types[predicate] != "LoopCond":
      if not isinstance(data, (Rows, Box)):
        data = AFTER  # a branch that depends on a result of all replicas
    return [data, data]

  def _container(self, op: int, inputs: List[Kind], width: int) -> List[Kind]:
    flow, kind = self._flow, self._flow.types[op]
    if kind in _PUSHES:
      stack = flow.origin(flow.inputs[op][0])[0]
      self._pushed[stack] = join((self._pushed.get(stack, SAME), inputs[1]), op)
      return [inputs[1]]
    if kind in _POPS:
      return [self._pushed.get(flow.origin(flow.inputs[op][0])[0], SAME)]
    if kind in _WRITES:
      container, tensor, growth = _WRITES[kind]
      before = inputs[container] if container is not None else SAME
      content = _moved(inputs[tensor], growth, op)
      old = before.content if isinstance(before, Box) else SAME
      return [Box(join((old, content), op))] * width
    container, growth, port = _READS[kind]
    box = inputs[container]
    content = _moved(box.content if isinstance(box, Box) else SAME, growth, op)
    return [content if i == port else box for i in range(width)]


def _moved(kind: Kind, growth: int, op: int) -> Kind:
  """The kind of an element put into a container, or taken out: one axis less, or one more."""
  if not isinstance(kind, Rows) or not growth:
    return kind
  if kind.axis + growth < 0:
    return Unclear(op, "takes the examples of the batch apart")
  return Rows(kind.axis + growth, kind.outer)
