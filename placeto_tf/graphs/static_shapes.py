"""Shapes between the feeds and the length of a loop, without TensorFlow's C++.

This covers the ops that are usual before a recurrent layer. For any other op, the shape that the
graph itself states (`_output_shapes`) is taken, or else none. A shape is a tuple of
dimensions, None for one that is not known; None alone is an unknown rank.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from placeto_tf.graphs import shapes as shapes_lib

if TYPE_CHECKING:
  from tensorflow.core.framework.node_def_pb2 import NodeDef

Shape = Optional[Tuple[Optional[int], ...]]
_Tensor = Tuple[int, int]

_SAME = frozenset((
    "Identity Enter RefEnter Exit RefExit Switch RefSwitch Merge RefMerge NextIteration "
    "StopGradient PreventGradient PlaceholderWithDefault CheckNumerics Snapshot Cast Abs Neg Exp "
    "Log Log1p Sqrt Rsqrt Square Sign Sin Cos Tanh Sigmoid Softplus Softsign Softmax LogSoftmax "
    "Relu Relu6 Elu Selu LeakyRelu Erf LogicalNot BiasAdd ClipByValue Cumsum ReverseV2 "
    "ReverseSequence ZerosLike OnesLike FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3").split())
_BROADCAST = frozenset((
    "Add AddV2 Sub Mul RealDiv Div DivNoNan FloorDiv FloorMod Maximum Minimum Pow "
    "SquaredDifference Less LessEqual Greater GreaterEqual Equal NotEqual LogicalAnd LogicalOr "
    "SelectV2").split())
_REDUCTIONS = frozenset("Sum Mean Max Min Prod All Any".split())
_HANDLES = ("VarHandleOp", "VariableV2", "Variable")
_DEPTH = 100


class StaticShapes:
  """Shapes of one graph's tensors, each computed once."""

  def __init__(self, values: Any, feed_shapes: Mapping[str, Tuple[int, ...]]):
    """Args: values: the `StaticValues` of the graph; feed_shapes: tensor name -> dimensions."""
    self._values = values
    self._feeds = feed_shapes
    self._known: Dict[_Tensor, Shape] = {}

  def shape(self, tensor: _Tensor) -> Shape:
    """The shape of a tensor, as far as it is known."""
    tensor = self._values.origin(tensor)
    if tensor not in self._known:
      self._known[tensor] = None  # a value that depends on itself is not known
      if self._values.depth < _DEPTH:
        self._values.depth += 1
        self._known[tensor] = self._compute(tensor)
        self._values.depth -= 1
    return self._known[tensor]

  def fed(self, tensor: _Tensor) -> Shape:
    """The shape that a tensor is fed with, None where it is computed."""
    return self._feeds.get(f"{self._values.nodes[tensor[0]].name}:{tensor[1]}")

  def _compute(self, tensor: _Tensor) -> Shape:
    op, port = tensor
    node = self._values.nodes[op]
    fed = self.fed(tensor)
    if fed is not None:
      return fed
    declared = shapes_lib.declared_shape(node, port)
    stated: Shape = None
    if declared is not None:
      stated = tuple(dim if dim >= 0 else None for dim in declared)
    data = self._values.inputs.data(op)
    try:
      found = self._rule(node, port, data)
    except (ArithmeticError, IndexError, TypeError, ValueError):
      found = None  # inputs are missing or contradict one another
    if found is None or stated is None or len(found) != len(stated):
      return stated if found is None else found
    return tuple(b if a is None else a for a, b in zip(found, stated))

  def _rule(self, node: NodeDef, port: int, data: List[_Tensor]) -> Shape:
    kind = node.op
    if kind == "Const":
      return tuple(dim.size for dim in node.attr["value"].tensor.tensor_shape.dim)
    if kind in _SAME:
      return self.shape(data[0]) if port == 0 or kind in ("Switch", "RefSwitch") else None
    if kind in _BROADCAST:
      return _broadcast([self.shape(each) for each in data])
    if kind == "IdentityN":
      return self.shape(data[port])
    if kind == "ReadVariableOp":
      return self._variable(data[0])
    if kind in _HANDLES[1:]:
      return _attr_shape(node)
    rule = _RULES.get(kind)
    return rule(self, node, data) if rule is not None else None

  def numbers(self, tensor: _Tensor) -> Any:
    """All elements of a tensor.

    Raises:
      ValueError: one is not known.
    """
    found = self._values.values(tensor)
    if found is None or None in found:
      raise ValueError
    return found

  def partial(self, tensor: _Tensor) -> Shape:
    """The elements of a tensor as dimensions; negative ones are not known."""
    found = self._values.values(tensor)
    return found and tuple(None if dim is None or dim < 0 else dim for dim in found)

  def known(self, tensor: _Tensor) -> Tuple[Optional[int], ...]:
    """The shape of a tensor.

    Raises:
      ValueError: its rank is not known.
    """
    found = self.shape(tensor)
    if found is None:
      raise ValueError
    return found

  def _variable(self, handle: _Tensor) -> Shape:
    op, _ = self._values.origin(handle)
    return _attr_shape(self._values.nodes[op]) if self._values.types[op] in _HANDLES else None

  def _transpose(self, node: NodeDef, data: List[_Tensor]) -> Shape:
    shape = self.known(data[0])
    return tuple(shape[axis] for axis in self.numbers(data[1]))

  def _reshape(self, node: NodeDef, data: List[_Tensor]) -> Shape:
    wanted = self._values.values(data[1])
    if wanted is None or -1 not in wanted:
      return wanted
    given = self.shape(data[0])
    rest = [dim for dim in wanted if dim != -1]
    inferred = None
    kept = [dim for dim in rest if dim is not None]
    if given is not None and len(kept) == len(rest) and math.prod(kept):
      sizes = [dim for dim in given if dim is not None]
      inferred = math.prod(sizes) // math.prod(kept) if len(sizes) == len(given) else None
    return tuple(inferred if dim == -1 else dim for dim in wanted)

  def _expand_dims(self, node: NodeDef, data: List[_Tensor]) -> Shape:
    shape, (axis,) = list(self.known(data[0])), self.numbers(data[1])
    shape.insert(axis if axis >= 0 else axis + len(shape) + 1, 1)
    return tuple(shape)

  def _squeeze(self, node: NodeDef, data: List[_Tensor]) -> Shape:
    shape = self.known(data[0])
    axes = [axis % len(shape) for axis in _attr(node, "squeeze_dims").list.i]
    if not axes and None in shape:
      return None
    return tuple(
        dim for i, dim in enumerate(shape) if (i not in axes if axes else dim != 1))

  def _concat(self, node: NodeDef, data: List[_Tensor]) -> Shape:
    parts, (axis,) = [self.known(each) for each in data[:-1]], self.numbers(data[-1])
    shape = list(parts[0])
    lengths = [part[axis] for part in parts]
    shape[axis] = None if None in lengths else sum(lengths)
    return tuple(shape)

  def _pack(self, node: NodeDef, data: List[_Tensor]) -> Shape:
    shape, axis = list(self.known(data[0])), _attr(node, "axis").i
    shape.insert(axis if axis >= 0 else axis + len(shape) + 1, len(data))
    return tuple(shape)

  def _unpack(self, node: NodeDef, data: List[_Tensor]) -> Shape:
    shape = list(self.known(data[0]))
    del shape[_attr(node, "axis").i]
    return tuple(shape)

  def _strided_slice(self, node: NodeDef, data: List[_Tensor]) -> Shape:
    shape = self.known(data[0])
    begin, end, strides = (self._values.values(each) for each in data[1:4])
    masks, result, axis = strided_masks(node), [], 0
    for i, stride in enumerate(strides):
      has = {name: mask >> i & 1 for name, mask in masks.items()}
      if has["ellipsis_mask"]:
        left = len(strides) - i - 1 - bin(masks["new_axis_mask"] >> (i + 1)).count("1")
        while axis < len(shape) - left:
          result.append(shape[axis])
          axis += 1
      elif has["new_axis_mask"]:
        result.append(1)
      elif has["shrink_axis_mask"]:
        axis += 1
      else:
        whole = has["begin_mask"] and has["end_mask"] and stride in (1, -1)
        first = None if has["begin_mask"] else begin[i]
        last = None if has["end_mask"] else end[i]
        unsaid = (first is None and not has["begin_mask"]) or (last is None and not has["end_mask"])
        size = shape[axis]
        if whole or size is None or unsaid:
          result.append(size if whole else None)
        else:
          result.append(len(range(*slice(first, last, stride).indices(size))))
        axis += 1
    return (*result, *shape[axis:])

  def _slice(self, node: NodeDef, data: List[_Tensor]) -> Shape:
    shape, begin, size = self.known(data[0]), self._values.values(data[1]), self.numbers(data[2])
    return tuple(
        count if count >= 0 else None if dim is None or first is None else dim - first
        for dim, first, count in zip(shape, begin, size))

  def _gather(self, node: NodeDef, data: List[_Tensor]) -> Shape:
    axis = self.numbers(data[2])[0] if len(data) > 2 else 0
    table = self._variable(data[0]) if node.op == "ResourceGather" else self.known(data[0])
    if table is None or _attr(node, "batch_dims").i:
      return None
    return (*table[:axis], *self.known(data[1]), *table[axis:][1:])

  def _matmul(self, node: NodeDef, data: List[_Tensor]) -> Shape:
    first, second = (self.known(each) for each in data)
    flips = [
        any(_attr(node, name).b for name in names)
        for names in (("transpose_a", "adj_x"), ("transpose_b", "adj_y"))]
    batch = _broadcast([first[:-2], second[:-2]])
    return None if batch is None else (
        *batch, first[-1 if flips[0] else -2], second[-2 if flips[1] else -1])

  def _window(self, node: NodeDef, data: List[_Tensor]) -> Shape:
    shape = self.known(data[0])
    if len(shape) != 4 or _attr(node, "data_format").s not in (b"NHWC", b""):
      return None
    strides = _attr(node, "strides").list.i
    if node.op == "Conv2D":
      sizes, channels = self.known(data[1])[:2], self.known(data[1])[3]
    else:
      sizes, channels = _attr(node, "ksize").list.i[1:3], shape[3]
    spread = list(_attr(node, "dilations").list.i)
    result: List[Optional[int]] = [shape[0]]
    for i, size in zip((1, 2), sizes):
      length = shape[i]
      if length is None or size is None or _attr(node, "padding").s not in (b"SAME", b"VALID"):
        result.append(None)
        continue
      covered = 0 if _attr(node, "padding").s == b"SAME" else (
          (size - 1) * (spread[i] if spread else 1))
      result.append(-(-(length - covered) // strides[i]) if strides[i] > 0 else None)
    return (*result, channels)

  def _reduce(self, node: NodeDef, data: List[_Tensor]) -> Shape:
    shape = self.known(data[0])
    axes = {axis % max(len(shape), 1) for axis in self.numbers(data[1])}
    if _attr(node, "keep_dims").b:
      return tuple(1 if i in axes else dim for i, dim in enumerate(shape))
    return tuple(dim for i, dim in enumerate(shape) if i not in axes)

  def _stack_list(self, node: NodeDef, data: List[_Tensor]) -> Shape:
    element = self.partial(data[1]) if len(data) > 1 else None
    _, item = self._values.list_source(data[0])
    stored = self.shape(item) if item is not None else None
    if stored is not None and (element is None or None in element):
      element = stored
    return None if element is None else (self._values.list_length(data[0]), *element)

  def _gather_array(self, node: NodeDef, data: List[_Tensor]) -> Shape:
    element = _attr_shape(node, "element_shape")
    return None if element is None else (*self.known(data[1]), *element)

  def _range(self, node: NodeDef, data: List[_Tensor]) -> Shape:
    start, limit, step = (self._values.scalar(each) for each in data)
    return (None if None in (start, limit, step) else max(-(-(limit - start) // step), 0),)

  def _list_item(self, node: NodeDef, data: List[_Tensor]) -> Shape:
    source, item = self._values.list_source(data[0])
    if source is not None and self._values.types[source] == "TensorListFromTensor":
      return self.known(self._values.inputs.data(source)[0])[1:]
    return self.shape(item) if item is not None else None

  def _lookup(self, node: NodeDef, data: List[_Tensor]) -> Shape:
    """The keys' shape, then that of a value, which the default value has."""
    _, keys, default = data
    return (*self.known(keys), *self.known(default))

  def _fill(self, node: NodeDef, data: List[_Tensor]) -> Shape:
    return self.partial(data[0])

  def _tile(self, node: NodeDef, data: List[_Tensor]) -> Shape:
    return tuple(
        None if None in (dim, times) else dim * times
        for dim, times in zip(self.known(data[0]), self._values.values(data[1])))

  def _pad(self, node: NodeDef, data: List[_Tensor]) -> Shape:
    shape, more = self.known(data[0]), self.numbers(data[1])
    return tuple(
        dim if dim is None else dim + more[2 * i] + more[2 * i + 1] for i, dim in enumerate(shape))

  def _split(self, node: NodeDef, data: List[_Tensor]) -> Shape:
    shape, (axis,) = list(self.known(data[1])), self.numbers(data[0])
    parts = _attr(node, "num_split").i
    shape[axis] = None if shape[axis] is None else shape[axis] // parts
    return tuple(shape)

  def _one_hot(self, node: NodeDef, data: List[_Tensor]) -> Shape:
    shape, axis = list(self.known(data[0])), _attr(node, "axis").i if "axis" in node.attr else -1
    shape.insert(axis if axis >= 0 else axis + len(shape) + 1, self._values.scalar(data[1]))
    return tuple(shape)


_Rule = Callable[[StaticShapes, "NodeDef", List[_Tensor]], Shape]
_RULES: Dict[str, _Rule] = {
    "Transpose": StaticShapes._transpose, "Reshape": StaticShapes._reshape,
    "ExpandDims": StaticShapes._expand_dims, "Squeeze": StaticShapes._squeeze,
    "ConcatV2": StaticShapes._concat, "Pack": StaticShapes._pack, "Unpack": StaticShapes._unpack,
    "StridedSlice": StaticShapes._strided_slice, "Slice": StaticShapes._slice,
    "Gather": StaticShapes._gather, "GatherV2": StaticShapes._gather,
    "ResourceGather": StaticShapes._gather, "MatMul": StaticShapes._matmul,
    "BatchMatMul": StaticShapes._matmul, "BatchMatMulV2": StaticShapes._matmul,
    "Conv2D": StaticShapes._window, "MaxPool": StaticShapes._window,
    "AvgPool": StaticShapes._window, "TensorListStack": StaticShapes._stack_list,
    "TensorListGetItem": StaticShapes._list_item, "Fill": StaticShapes._fill,
    "Tile": StaticShapes._tile, "Pad": StaticShapes._pad, "PadV2": StaticShapes._pad,
    "LookupTableFind": StaticShapes._lookup, "LookupTableFindV2": StaticShapes._lookup,
    "Range": StaticShapes._range, "TensorArrayGatherV3": StaticShapes._gather_array,
    "Split": StaticShapes._split, "OneHot": StaticShapes._one_hot,
    **{kind: StaticShapes._reduce for kind in _REDUCTIONS},
}


def strided_masks(node: NodeDef) -> Dict[str, int]:
  """The bit masks of a StridedSlice by name."""
  return {
      name: _attr(node, name).i
      for name in ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")}


def _attr(node: NodeDef, name: str) -> Any:
  """An attribute of a node, empty if it has none; asking the node itself would add it."""
  return (node if name in node.attr else type(node)()).attr[name]


def _attr_shape(node: NodeDef, name: str = "shape") -> Shape:
  shape = _attr(node, name).shape
  if shape.unknown_rank:
    return None
  return tuple(dim.size if dim.size >= 0 else None for dim in shape.dim)


def _broadcast(parts: Sequence[Shape]) -> Shape:
  """The shape of an elementwise op; a dimension that is not known is taken to fit the others."""
  shapes = [part for part in parts if part is not None]
  if len(shapes) < len(parts):
    return None
  rank = max(map(len, shapes), default=0)
  result: List[Optional[int]] = []
  for axis in range(-rank, 0):
    dims = [shape[axis] for shape in shapes if len(shape) >= -axis]
    known = [dim for dim in dims if dim is not None]
    result.append(max(known) if known and (len(known) == len(dims) or max(known) > 1) else None)
  return tuple(result)
