"""Small whole numbers that a graph computes, if they are known before it runs.

A trip count of a loop is mostly the length of something: `strided_slice(shape(x))` of a feed whose
shape is bound, the size of a TensorList, the count of another loop. Values are computed backwards
from the tensor that is asked for, and no further: a tensor of at most `_MOST` elements is a flat
tuple of integers, None for those that are not known; shapes are in `static_shapes`.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from placeto_tf.graphs.computation_graph import CONTROL
from placeto_tf.graphs.static_shapes import StaticShapes, strided_masks
from placeto_tf.graphs.tensor_names import op_of

if TYPE_CHECKING:
  from tensorflow.core.framework.node_def_pb2 import NodeDef

Tensor = Tuple[int, int]  # op, output port
Values = Optional[Tuple[Optional[int], ...]]

PASSING = ("Identity", "Switch", "RefSwitch", "Enter", "RefEnter")
_MERGE = ("Merge", "RefMerge")
_NEXT = ("NextIteration", "RefNextIteration")
_EXIT = ("Exit", "RefExit")
_SAME = ("Cast", "Reshape", "ExpandDims", "Squeeze", "StopGradient", "PreventGradient", "Snapshot",
         "PlaceholderWithDefault")
_JOINING = ("Pack", "ConcatV2")
_NUMPY = {3: "<i4", 9: "<i8"}  # DT_INT32, DT_INT64
_MOST = 64  # elements of a value
_LARGEST = 1 << 62
_DEPTH = 100  # ops in a chain that one value may depend on; Python's stack is finite


def _divided(a: int, b: int) -> Optional[int]:
  return a // b if b else None


_BINARY: Mapping[str, Callable[[int, int], Optional[int]]] = {
    "Add": lambda a, b: a + b, "AddV2": lambda a, b: a + b, "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b, "Maximum": max, "Minimum": min, "FloorDiv": _divided,
    "FloorMod": lambda a, b: a % b if b else None, "Less": lambda a, b: int(a < b),
    "LessEqual": lambda a, b: int(a <= b), "Greater": lambda a, b: int(a > b),
    "GreaterEqual": lambda a, b: int(a >= b), "Equal": lambda a, b: int(a == b),
    "NotEqual": lambda a, b: int(a != b),
}
_REDUCED: Mapping[str, Callable[[Any], int]] = {
    "Prod": math.prod, "Sum": sum, "Max": max, "Min": min}


class Inputs:
  """The tensors that each op reads."""

  def __init__(self, producers: np.ndarray, ports: np.ndarray, consumers: np.ndarray, count: int):
    """Args: edges [E] sorted by consumer and in the order of its inputs; count of ops."""
    self._starts = np.searchsorted(consumers, np.arange(count + 1)).tolist()
    self._producers = producers.tolist()
    self._ports = ports.tolist()

  def all(self, op: int) -> List[int]:
    """Producers of all inputs."""
    return self._producers[self._starts[op]:self._starts[op + 1]]

  def data(self, op: int) -> List[Tensor]:
    """Data inputs."""
    edges = range(self._starts[op], self._starts[op + 1])
    return [(self._producers[e], self._ports[e]) for e in edges if self._ports[e] != CONTROL]


class StaticValues:
  """Values of one graph's tensors, each computed once."""

  def __init__(
      self,
      nodes: Sequence[NodeDef],
      inputs: Inputs,
      feed_shapes: Mapping[str, Tuple[int, ...]],
      exit_value: Callable[[int], Optional[int]],
  ):
    """Prepares the tables.

    Args:
      nodes: [N] NodeDefs.
      inputs: of the nodes, back edges of loops left out.
      feed_shapes: tensor name -> dimensions of what is fed.
      exit_value: op -> the value of a loop's Exit, if that is known.
    """
    self.nodes = nodes
    self.types = [node.op for node in nodes]
    self.inputs = inputs
    self.shapes = StaticShapes(self, feed_shapes)
    self._exit_value = exit_value
    self._index = {node.name: i for i, node in enumerate(nodes)}
    self._pushed: Optional[Dict[int, Tensor]] = None  # stack -> values pushed on it
    self._known: Dict[Tensor, Values] = {}
    self.depth = 0

  def scalar(self, tensor: Optional[Tensor]) -> Optional[int]:
    """A single number, or None."""
    found = self.values(tensor) if tensor is not None else None
    return found[0] if found is not None and len(found) == 1 else None

  def values(self, tensor: Tensor) -> Values:
    """The elements of a tensor, or None if not even their number is known."""
    tensor = self.origin(tensor)
    if tensor not in self._known:
      self._known[tensor] = None  # a value that depends on itself is not known
      if self.depth < _DEPTH:
        self.depth += 1
        found = self._compute(tensor)
        self.depth -= 1
        if found is not None and len(found) <= _MOST:
          self._known[tensor] = tuple(
              None if value is None or abs(value) > _LARGEST else value for value in found)
    return self._known[tensor]

  def origin(self, tensor: Tensor, passing: Sequence[str] = PASSING) -> Tensor:
    """The tensor that reaches this one through ops that only pass it on."""
    while self.types[tensor[0]] in passing:
      data = self.inputs.data(tensor[0])
      if not data:
        break
      tensor = data[0]
    return tensor

  def round_trip(self, merge: int) -> Optional[Tensor]:
    """The tensor that comes round a loop to a Merge, before ops that only pass it on."""
    inputs = self.nodes[merge].input
    op = self._index.get(op_of(inputs[1])) if len(inputs) > 1 else None
    if op is None or self.types[op] not in _NEXT:
      return None
    return self.origin((op, 0), _NEXT + PASSING)

  def list_source(self, tensor: Tensor) -> Tuple[Optional[int], Optional[Tensor]]:
    """The op that made a TensorList, and the tensor that is put into it, as far as known."""
    item, seen = None, set()
    while tensor not in seen:
      seen.add(tensor)
      tensor = self.origin(tensor, PASSING + _EXIT)
      data = self.inputs.data(tensor[0])
      kind = self.types[tensor[0]]
      if not data or kind in ("TensorListReserve", "EmptyTensorList", "TensorListFromTensor"):
        return tensor[0], item
      if kind == "TensorListPushBack" and len(data) == 2:
        item = item or data[1]
      elif kind == "TensorListSetItem" and len(data) >= 3:
        item = item or data[2]
      elif kind in _MERGE:
        behind = self.round_trip(tensor[0])
        if item is None and behind is not None:
          into = self.inputs.data(behind[0])
          if self.types[behind[0]] == "TensorListPushBack" and len(into) == 2:
            item = into[1]
          elif self.types[behind[0]] == "TensorListSetItem" and len(into) >= 3:
            item = into[2]
      elif kind != "TensorListPopBack":
        break
      tensor = data[0]
    return None, item

  def list_length(self, tensor: Tensor) -> Optional[int]:
    """The number of elements of a TensorList whose size does not change."""
    source, _ = self.list_source(tensor)
    data = self.inputs.data(source) if source is not None else []
    if source is None or not data:
      return None
    if self.types[source] == "TensorListReserve" and len(data) == 2:
      return self.scalar(data[1])
    if self.types[source] == "TensorListFromTensor":
      shape = self.shapes.shape(data[0])
      return shape[0] if shape else None
    return None

  def _compute(self, tensor: Tensor) -> Values:
    op, port = tensor
    kind, data = self.types[op], self.inputs.data(op)
    if self.shapes.fed(tensor) is not None:
      return None
    if kind == "Const":
      return constant(self.nodes[op])
    if kind in _EXIT:
      return _one(self._exit_value(op))
    if kind in _MERGE and data:
      behind = self.round_trip(op)
      return self.values(data[0]) if behind == (op, 0) else None
    if kind == "Shape" and data:
      return self.shapes.shape(data[0])
    if kind == "ShapeN" and port < len(data):
      return self.shapes.shape(data[port])
    if kind in ("Size", "Rank") and data:
      shape = self.shapes.shape(data[0])
      if shape is None:
        return None
      dims = [dim for dim in shape if dim is not None]
      return _one(
          len(shape) if kind == "Rank" else math.prod(dims) if len(dims) == len(shape) else None)
    if kind in _SAME and data:
      return self.values(data[0])
    if kind in _BINARY and len(data) == 2:
      return _elementwise(_BINARY[kind], self.values(data[0]), self.values(data[1]))
    if kind in ("Select", "SelectV2") and len(data) == 3:
      chosen = self.scalar(data[0])
      return None if chosen is None else self.values(data[1 if chosen else 2])
    if kind in _REDUCED and data:
      found = self.values(data[0])
      return _one(_REDUCED[kind](found)) if found and None not in found else None
    if kind in _JOINING:
      parts = [self.values(each) for each in data[:-1 if kind == "ConcatV2" else None]]
      known = [part for part in parts if part is not None]
      return tuple(itertools.chain(*known)) if len(known) == len(parts) else None
    if kind == "StridedSlice":
      return self._sliced(op, data)
    if kind == "GatherV2" and len(data) == 3:
      found, at = self.values(data[0]), self.values(data[1])
      if found is None or at is None or self.scalar(data[2]) != 0:
        return None
      return tuple(found[i] if i is not None and 0 <= i < len(found) else None for i in at)
    if kind == "Range" and len(data) == 3:
      start, limit, step = (self.scalar(each) for each in data)
      if start is None or limit is None or not step or abs(limit - start) > _MOST * abs(step):
        return None
      return tuple(range(start, limit, step))
    if kind == "TensorArraySizeV3" and data:
      made, _ = self.origin(data[0])
      size = self.inputs.data(made)[:1] if self.types[made] == "TensorArrayV3" else []
      return self.values(size[0]) if size else None
    if kind == "TensorListLength" and data:
      return _one(self.list_length(data[0]))
    if kind == "TensorListPopBack" and port == 1 and data:
      _, item = self.list_source(data[0])
      return self.values(item) if item is not None else None
    if kind == "StackPopV2" and data:
      item = self._stacks().get(self.origin(data[0])[0])
      return self.values(item) if item is not None else None
    return None

  def _sliced(self, op: int, data: List[Tensor]) -> Values:
    parts = [part for part in map(self.values, data) if part is not None]
    if len(data) != 4 or len(parts) != 4 or any(len(part) != 1 for part in parts[1:]):
      return None
    masks = strided_masks(self.nodes[op])
    if masks["ellipsis_mask"] or masks["new_axis_mask"]:
      return None
    begin, end, stride = (part[0] for part in parts[1:])
    if begin is None or not stride:
      return None
    if masks["shrink_axis_mask"]:
      return _one(parts[0][begin] if -len(parts[0]) <= begin < len(parts[0]) else None)
    if end is None and not masks["end_mask"]:
      return None
    return parts[0][slice(
        None if masks["begin_mask"] else begin, None if masks["end_mask"] else end, stride)]

  def _stacks(self) -> Dict[int, Tensor]:
    if self._pushed is None:
      self._pushed = {}
      for op, kind in enumerate(self.types):
        data = self.inputs.data(op) if kind == "StackPushV2" else []
        if len(data) == 2:
          self._pushed[self.origin(data[0])[0]] = data[1]
    return self._pushed


def constant(node: NodeDef) -> Values:
  """The elements of a Const of few whole numbers."""
  tensor = node.attr["value"].tensor
  count = math.prod(max(dim.size, 0) for dim in tensor.tensor_shape.dim)
  if tensor.dtype not in _NUMPY or count > _MOST:
    return None
  if tensor.tensor_content:
    kind = np.dtype(_NUMPY[tensor.dtype])
    if len(tensor.tensor_content) != count * kind.itemsize:
      return None
    return tuple(np.frombuffer(tensor.tensor_content, kind).tolist())
  found = list((tensor.int_val or tensor.int64_val)[:count]) or [0]
  return tuple(found + found[-1:] * (count - len(found)))[:count]


def _one(value: Optional[int]) -> Values:
  return (value,)


def _elementwise(function: Callable, first: Values, second: Values) -> Values:
  if first is None or second is None:
    return None
  if len(first) != len(second):
    if 1 not in (len(first), len(second)):
      return None
    count = max(len(first), len(second))
    first, second = (each * count if len(each) == 1 else each for each in (first, second))
  return tuple(
      None if a is None or b is None else function(a, b) for a, b in zip(first, second))
