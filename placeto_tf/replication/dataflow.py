"""`Dataflow`: the needed ops of a graph with their inputs, shapes and constant values.

Dimensions: N needed ops, in the order of `ComputationGraph`. A tensor is (op index, output port).
"""

from __future__ import annotations

import functools
import math
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple

import numpy as np

from placeto_tf.graphs import analysis_graph_def
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.ops import registered, types_with
from placeto_tf.ops.op_rule import RANDOM

Tensor = Tuple[int, int]
Shape = Optional[Tuple[Optional[int], ...]]

_PASSING = ("Identity", "Enter", "RefEnter", "Switch", "StopGradient", "Snapshot", "Cast",
            "PreventGradient", "CheckNumerics")
_ENTER, _EXIT = ("Enter", "RefEnter"), ("Exit", "RefExit")
_INT32, _INT64 = 3, 9
_SHAPED_BY_VALUES = ("Reshape", "BroadcastTo", "Fill", "UnsortedSegmentSum")
# Outputs that are elements of a list, and ops whose first input and output is the list.
_ELEMENTS = (("TensorListPopBack", 1), ("TensorListGetItem", 0))
_PASSES_LISTS = frozenset(
    "Identity Enter Exit Switch Merge NextIteration TensorListPushBack TensorListPopBack "
    "TensorListSetItem TensorListResize".split())
_KEPT = "dataflow"
_BATCH_PRODUCTS = ("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
_OPEN = 1 << 30  # stands for a size that is not known
_DEPTH = 60  # ops that one constant may depend on


class Dataflow:
  """The parts of a graph that replication needs.

  Attributes:
    graph: the graph.
    nodes: [N] NodeDefs of the source.
    types: [N] op types.
    inputs: [N] data inputs of each op, back edges of loops included, in order.
    controls: [N] ops that each op waits for.
    consumers: [N] ops that read data of each op, each once.
    frames: [N] name of the innermost loop an op is in, "" outside; Enter ops count as inside.
  """

  def __init__(
      self, graph: ComputationGraph, outputs: Mapping[str, Sequence[Any]],
      changed: Optional[Mapping[int, Any]] = None):
    """Args:
      graph: the graph.
      outputs: op name -> `OpInfo.TensorProperties` of each output.
      changed: op -> NodeDef instead of the graph's, as at another batch.
    """
    self.graph = graph
    source = graph.origin
    all_nodes = source.graph_def.node
    self.nodes = [all_nodes[position] for position in np.asarray(source.positions).tolist()]
    for op, node in (changed or {}).items():
      self.nodes[op] = node
    self.types = list(graph.op_types)
    index = graph.op_index
    self.inputs: List[List[Tensor]] = []
    self.controls: List[List[int]] = []
    for node in self.nodes:
      data: List[Tensor] = []
      controls: List[int] = []
      # An op whose outputs are fed reads nothing.
      for text in node.input if node.name not in source.cut_ops else ():
        if text.startswith("^"):
          controls.append(index[text[1:]])
          continue
        name, colon, port = text.rpartition(":")
        tensor = (name, int(port)) if colon and port.isdecimal() else (text, 0)
        data.append((index[tensor[0]], tensor[1]))
      self.inputs.append(data)
      self.controls.append(controls)
    self.consumers: List[List[int]] = [[] for _ in self.nodes]
    for op, data in enumerate(self.inputs):
      for producer in dict.fromkeys(producer for producer, _ in data):
        # Each consumer once, however many inputs it has of the producer.
        self.consumers[producer].append(op)
    self._outputs = outputs
    self._shapes: Dict[Tensor, Shape] = {}
    self._corrected: Set[Tensor] = set()  # of which inference gave another shape
    self._values: Dict[Tensor, Optional[np.ndarray]] = {}
    self._depth = 0
    # In this order no shape or value waits for a long chain of others.
    for op in np.argsort(graph.depths, kind="stable").tolist():
      for port in range(int(graph.output_offsets[op + 1] - graph.output_offsets[op])):
        # Vectors and scalars of whole numbers may be shapes, of which the values are needed.
        shape = self.shape((op, port))
        if shape is not None and len(shape) < 2 and self._is_whole_number((op, port)):
          self.value((op, port))

  @functools.cached_property
  def frame_parents(self) -> Dict[str, str]:
    """Returns the frame of each loop -> that of the loop around it, "" where there is none."""
    return self._frames[1]

  @property
  def frames(self) -> List[str]:
    """Returns the frames of ops, [N]; see the class."""
    return self._frames[0]

  @functools.cached_property
  def _frames(self) -> Tuple[List[str], Dict[str, str]]:
    frames = [""] * len(self.nodes)
    parents = {"": ""}
    order = np.argsort(self.graph.depths, kind="stable").tolist()
    for op in order:
      if self.types[op] in _ENTER:
        inner = self.nodes[op].attr["frame_name"].s.decode()
        # The first Enter of a frame tells which frame it is in.
        parents.setdefault(inner, self._frame_of_inputs(op, frames, parents))
        frames[op] = inner
      else:
        frames[op] = self._frame_of_inputs(op, frames, parents)
    return frames, {name: parent for name, parent in parents.items() if name}

  def _frame_of_inputs(self, op: int, frames: List[str], parents: Dict[str, str]) -> str:
    """Returns the innermost frame of an input; an Exit passes its value to the frame outside."""
    before = [producer for producer, _ in self.inputs[op]] + self.controls[op]
    for producer in before:
      frame = frames[producer]
      if self.types[producer] in _EXIT:
        frame = parents.get(frame, "")
      if frame:
        return frame
    return ""

  def shape(self, tensor: Tensor) -> Shape:
    """Dimensions, None for an unknown one; None alone for an unknown rank."""
    if tensor not in self._shapes:
      op, port = tensor
      found = self._outputs.get(self.graph.op_names[op], ())
      shape: Shape = None
      if port < len(found) and not found[port].shape.unknown_rank:
        shape = tuple(None if dim.size < 0 else dim.size for dim in found[port].shape.dim)
      self._shapes[tensor] = shape
      # Where a shape is computed, inference has been seen to give it a wrong rank, which then is
      # wrong in what is made of it, too.
      misled = not self._corrected.isdisjoint(self.inputs[op])
      if self.types[op] == "Range" and shape == ():
        self._shapes[tensor] = shape = (None,)
        self._corrected.add(tensor)
      # Inferred shapes with gaps are filled from the values of shape arguments.
      if shape is None or None in shape or misled or self.types[op] in _SHAPED_BY_VALUES:
        computed = self._computed_shape(tensor)
        # Of each size that one of the two does not know, the other's.
        if computed is not None and not misled and shape is not None and len(shape) == len(
            computed) and None in computed:
          computed = tuple(one if other is None else other for one, other in zip(shape, computed))
        if computed is not None:
          self._shapes[tensor] = computed
          if shape is not None and (len(shape) != len(computed) or any(
              None not in (one, other) and one != other for one, other in zip(shape, computed))):
            self._corrected.add(tensor)
        elif misled:
          self._shapes[tensor] = None
          self._corrected.add(tensor)
    return self._shapes[tensor]

  def _computed_shape(self, tensor: Tensor) -> Shape:
    """Computes a shape that TensorFlow's inference leaves open."""
    op, port = tensor
    kind, data = self.types[op], self.inputs[op]
    if (kind, port) in _ELEMENTS:
      return self._element_shape(tensor)
    if port or kind not in _SHAPED:
      return None
    value = self.value(tensor)
    if value is not None:
      return value.shape
    given = [self.shape(each) for each in data]
    try:
      if kind == "Reshape":
        wanted = self._known(data[1]).tolist()
        # -1 is the size that makes the number of elements fit.
        if -1 in wanted:
          elements = math.prod(known_dims(given[0]))
          rest = math.prod(size for size in wanted if size != -1)
          wanted[wanted.index(-1)] = elements // rest
        return tuple(wanted)
      if kind == "Transpose":
        # Axis i of the result is axis order[i] of the input.
        return tuple(known_dims(given[0])[axis] for axis in self._known(data[1]).tolist())
      if kind == "UnsortedSegmentSum":
        rank, rows = len(known_dims(given[1])), given[0]
        # The ids' axes become one, the segments.
        return (int(self._known(data[2])), *known_dims(None if rows is None else rows[rank:]))
      if kind in ("Pad", "PadV2"):
        added = self._known(data[1]).sum(axis=1).tolist()
        return tuple(size + more for size, more in zip(known_dims(given[0]), added))
      if kind == "BroadcastTo":
        return tuple(self._known(data[1]).tolist())
      if kind in ("Sum", "Mean", "Max", "Min"):
        return self._reduced_shape(op)
      if kind == "Tile":
        return tuple(np.multiply(known_dims(given[0]), self._known(data[1])).tolist())
      if kind in _OF_FIRST_INPUT:
        return given[0]
      if kind == "Shape":
        return None if given[0] is None else (len(given[0]),)
      if kind in ("Rank", "Size"):
        return ()
      if kind == "MatMul":
        # Transposed inputs give their other axis.
        turned = [int(self.nodes[op].attr[name].b) for name in ("transpose_a", "transpose_b")]
        return known_dims(given[0])[turned[0]], known_dims(given[1])[1 - turned[1]]
      if kind in _BATCH_PRODUCTS:
        turned = [int(self.nodes[op].attr[name].b) for name in ("adj_x", "adj_y")]
        one, other = (known_dims(each) for each in given)
        return (*np.broadcast_shapes(one[:-2], other[:-2]), one[turned[0] - 2],
                other[-1 - turned[1]])
      if kind == "Einsum":
        return self._einsum_shape(op)
      if kind == "StridedSlice":
        if given[0] is None:
          return None
        # An array without memory, of which NumPy computes the shape of a slice.
        found = np.broadcast_to(
            np.int8(0), [_OPEN if size is None else size for size in given[0]])
        # Sizes near _OPEN are of axes that are not known.
        return tuple(None if size > _OPEN // 2 else size
                     for size in found[self._slice_index(op)].shape)
      if kind == "ConcatV2":
        parts = [known_dims(each) for each in given[:-1]]
        along = int(self._known(data[-1])) % len(parts[0])
        # Sizes along the axis add up.
        return tuple(sum(part[i] for part in parts) if i == along else size
                     for i, size in enumerate(parts[0]))
      if kind.startswith("MatrixDiag"):
        diagonal = known_dims(given[0])
        # Only the plain form: main diagonal, square, no alignment.
        if [np.ravel(self._known(each)).tolist() for each in data[1:4]] not in (
            [], [[0], [-1], [-1]]):
          return None
        return (*diagonal, diagonal[-1])
      if kind in DRAW_SHAPE:
        return tuple(self._known(data[DRAW_SHAPE[kind]]).tolist())
      if kind == "Fill":
        return tuple(self._known(data[0]).tolist())
      return _broadcast(given) if kind in _BROADCAST else None
    except (ArithmeticError, IndexError, KeyError, ValueError):
      return None

  def _einsum_shape(self, op: int) -> Shape:
    terms, _, result = self.nodes[op].attr["equation"].s.decode().partition("->")
    sizes: Dict[str, int] = {}
    for term, tensor in zip(terms.split(","), self.inputs[op]):
      shape = known_dims(self.shape(tensor))
      if len(term) != len(shape):
        raise ValueError  # an ellipsis
      sizes.update(zip(term, shape))
    return tuple(sizes[letter] for letter in result)

  def _element_shape(self, tensor: Tensor) -> Shape:
    """Returns the shape of an element of a list, from the shapes of all that are put into it."""
    found: Optional[List[Optional[int]]] = None
    for each, is_list in self._added.get(self.list_of(self.inputs[tensor[0]][0]), ()):
      shape = self.shape(each)
      if shape is None:
        return None
      dims = list(shape[1:] if is_list else shape)
      if found is not None and len(found) != len(dims):
        return None
      found = dims if found is None else [
          # A size that is not the same in all elements is open.
          one if one == other else None for one, other in zip(found, dims)]
    return None if found is None else tuple(found)

  def pushed(self, tensor: Tensor) -> Optional[Tensor]:
    """Returns the tensor that was pushed to a list where this one is popped; None if unknown."""
    if self.types[tensor[0]] != "TensorListPopBack" or tensor[1] != 1:
      return None
    # Of a list with one push that element; of several it is not known which.
    added = self._added.get(self.list_of(self.inputs[tensor[0]][0]), ())
    return added[0][0] if len(added) == 1 and not added[0][1] else None

  def list_of(self, tensor: Tensor) -> int:
    """Returns the op that made a list, followed back through loops and writes."""
    seen: Set[int] = set()
    while self.types[tensor[0]] in _PASSES_LISTS and tensor[0] not in seen:
      seen.add(tensor[0])
      tensor = self.inputs[tensor[0]][0]
    return tensor[0]

  @functools.cached_property
  def _added(self) -> Dict[int, List[Tuple[Tensor, bool]]]:
    """Op that made a list -> tensors that are put into it, and whether it is all rows of one."""
    found: Dict[int, List[Tuple[Tensor, bool]]] = {}
    for op, kind in enumerate(self.types):
      if kind in ("TensorListPushBack", "TensorListSetItem"):
        data = self.inputs[op]
        found.setdefault(self.list_of(data[0]), []).append((data[-1], False))
      elif kind == "TensorListFromTensor":
        found.setdefault(op, []).append((self.inputs[op][0], True))
    return found

  def _reduced_shape(self, op: int) -> Shape:
    shape = self.shape(self.inputs[op][0])
    if shape is None:
      return None
    axes = {int(axis) % len(shape) for axis in np.ravel(self._known(self.inputs[op][1]))}
    kept = self.attr(op, "keep_dims")
    if kept is not None and kept.b:
      return tuple(1 if axis in axes else size for axis, size in enumerate(shape))
    return tuple(size for axis, size in enumerate(shape) if axis not in axes)

  def _is_whole_number(self, tensor: Tensor) -> bool:
    found = self._outputs.get(self.graph.op_names[tensor[0]], ())
    return tensor[1] < len(found) and found[tensor[1]].dtype in (_INT32, _INT64)

  def is_integer(self, tensor: Tensor) -> bool:
    """Returns whether the tensor holds integers or booleans, which have no mean."""
    from tensorflow.python.framework import dtypes

    dtype = dtypes.as_dtype(self.dtype(tensor) % 100)
    return dtype.is_integer or dtype.is_bool

  def dtype(self, tensor: Tensor) -> int:
    """Returns the DataType."""
    return self._outputs[self.graph.op_names[tensor[0]]][tensor[1]].dtype

  def attr(self, op: int, name: str, default: Any = None) -> Any:
    """Returns the AttrValue of an op, or the default.

    Args:
      op: index of the op.
      name: name of the attribute.
      default: the result where the op has no such attribute.

    Returns:
      The AttrValue.
    """
    attrs = self.nodes[op].attr
    return attrs[name] if name in attrs else default

  def origin(self, tensor: Tensor) -> Tensor:
    """Returns the tensor that is handed on to this one as it is."""
    while self.types[tensor[0]] in _PASSING and self.inputs[tensor[0]]:
      tensor = self.inputs[tensor[0]][0]
    return tensor

  def value(self, tensor: Tensor) -> Optional[np.ndarray]:
    """Returns the small whole numbers that a tensor holds in every step, or None."""
    if tensor not in self._values:
      self._values[tensor] = None  # a value that depends on itself is not known
      # Values may depend on long chains of others, which are not worth following.
      if self._depth < _DEPTH:
        self._depth += 1
        try:
          self._values[tensor] = self._compute(tensor)
        except (ArithmeticError, IndexError, TypeError, ValueError):
          pass  # inputs are missing or contradict one another
        self._depth -= 1
    return self._values[tensor]

  def _compute(self, tensor: Tensor) -> Optional[np.ndarray]:
    op, port = tensor
    kind, data = self.types[op], self.inputs[op]
    if kind == "Const":
      return _constant(self.nodes[op])
    if kind in _PASSING:
      return self.value(data[0])
    pushed = self.pushed(tensor)
    if pushed is not None:
      return self.value(pushed)
    if kind in ("Shape", "ShapeN", "Size", "Rank"):
      shape = self.shape(data[port])
      if shape is None or (None in shape and kind != "Rank"):
        return None
      return np.array({"Size": math.prod(size or 0 for size in shape),
                       "Rank": len(shape)}.get(kind, shape))
    if kind == "BroadcastGradientArgs":
      return broadcast_reduction(self._known(data[0]), self._known(data[1]))[port]
    if kind == "ConcatOffset":
      # The offset along the axis is the sum of the sizes before.
      axis, shapes = int(self._known(data[0])), [self._known(each) for each in data[1:port + 1]]
      offset = np.zeros_like(self._known(data[1]))
      offset[axis] = sum(int(shape[axis]) for shape in shapes)
      return offset
    if kind == "StridedSlice":
      return np.asarray(self._known(data[0])[self._slice_index(op)])
    rule = _VALUES.get(kind)
    if rule is None:
      return None
    return np.asarray(rule(*[self._known(each) for each in data]))

  def _slice_index(self, op: int) -> Tuple[Any, ...]:
    """Returns the index of a StridedSlice, as numpy writes it."""
    begin, end, step = (self._known(each) for each in self.inputs[op][1:])
    masks = {name: attr.i for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
             for attr in [self.attr(op, f"{name}_mask")] if attr is not None}
    index: List[Any] = []
    # Bit i of a mask is about entry i of the index.
    for i in range(len(begin)):
      bit = 1 << i
      if masks.get("ellipsis", 0) & bit:
        index.append(Ellipsis)
      elif masks.get("new_axis", 0) & bit:
        index.append(None)
      elif masks.get("shrink_axis", 0) & bit:
        index.append(int(begin[i]))
      else:
        index.append(slice(
            None if masks.get("begin", 0) & bit else int(begin[i]),
            None if masks.get("end", 0) & bit else int(end[i]), int(step[i])))
    return tuple(index)

  def _known(self, tensor: Tensor) -> np.ndarray:
    value = self.value(tensor)
    if value is None:
      raise ValueError
    return value


_VALUES: Dict[str, Callable[..., Any]] = {
    "Add": np.add, "AddV2": np.add, "Sub": np.subtract, "Mul": np.multiply,
    "FloorDiv": np.floor_divide, "FloorMod": np.mod, "Maximum": np.maximum,
    "Minimum": np.minimum, "Neg": np.negative,
    "Range": lambda start, limit, step: np.arange(start, limit, step),
    "Pack": lambda *parts: np.stack(parts), "Reshape": lambda value, shape: value.reshape(shape),
    "ConcatV2": lambda *parts: np.concatenate(
        [np.atleast_1d(part) for part in parts[:-1]], axis=int(parts[-1])),
    "Prod": lambda value, axis: np.prod(value, axis=tuple(np.atleast_1d(axis))),
    "Fill": lambda shape, value: np.full(shape, value),
    "InvertPermutation": np.argsort, "Transpose": np.transpose,
    "ExpandDims": lambda value, axis: np.expand_dims(value, int(axis)),
    "Squeeze": np.squeeze, "Cast": lambda value: value,
    "GatherV2": lambda value, indices, axis: np.take(value, indices, axis=int(axis)),
    "Tile": np.tile, "DynamicStitch": lambda *parts: _stitched(parts),
}
# Random op -> its input that holds the shape of its result.
DRAW_SHAPE = {name: rule.shape_input for name, rule in registered().items()
              if rule.role.endswith(RANDOM) and rule.shape_input is not None}
_BROADCAST = types_with(axes="elementwise").difference(
    "IdentityN PlaceholderWithDefault Bitcast Print Assert".split()) | {"Softmax", "LogSoftmax"}
# Whose first result has the shape of the first input.
_OF_FIRST_INPUT = frozenset((
    "BiasAdd FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3 FusedBatchNormGrad "
    "FusedBatchNormGradV2 FusedBatchNormGradV3 LRN Cumsum Cumprod ReverseV2 ReverseSequence "
    "RandomShuffle").split())
# Whose shapes are worked out where TensorFlow's inference leaves them open.
_SHAPED = frozenset((
    *_VALUES, *_BATCH_PRODUCTS, "MatrixDiag", "MatrixDiagV2", "MatrixDiagV3", "Einsum",
    "StridedSlice", "Transpose", "UnsortedSegmentSum", "Pad", "PadV2", "BroadcastTo", "Sum",
    "Mean", "Max", "Min", "Tile", "Fill", "MatMul", "ConcatV2", "Softmax", "LogSoftmax",
    "Shape", "Rank", "Size", *_OF_FIRST_INPUT, *DRAW_SHAPE, *_BROADCAST))


def _broadcast(shapes: Sequence[Shape]) -> Shape:
  """Returns the shape that shapes are broadcast to, with None for unknown dimensions."""
  # Sizes from the last axis backwards; missing axes count as 1.
  rank = max(len(shape) for shape in shapes if shape is not None)
  found: List[Optional[int]] = []
  for axis in range(-rank, 0):
    sizes = {shape[axis] if len(shape) + axis >= 0 else 1 for shape in shapes if shape is not None}
    sizes.discard(1)
    # Unknown, unless one known size decides.
    if None in shapes or None in sizes and len(sizes) == 1 or len(sizes - {None}) > 1:
      found.append(None)
    else:
      found.append(next(iter(sizes - {None}), 1))
  return tuple(found)


def _stitched(parts: Sequence[np.ndarray]) -> np.ndarray:
  # The first half of the inputs are indices, the second half values.
  half = len(parts) // 2
  indices = np.concatenate([np.ravel(part) for part in parts[:half]]).astype(int)
  values = np.concatenate([np.ravel(part) for part in parts[half:]])
  found = np.zeros(indices.max() + 1, values.dtype)
  found[indices] = values
  return found


def known_dims(shape: Shape) -> Sequence[int]:
  """Returns the dimensions; raises ValueError where one is not known."""
  if shape is None or None in shape:
    raise ValueError
  return [size for size in shape if size is not None]


def _constant(node: Any) -> Optional[np.ndarray]:
  tensor = node.attr["value"].tensor
  elements = 1
  for dim in tensor.tensor_shape.dim:
    elements *= dim.size
  # Small whole numbers alone: larger constants are no shapes.
  if elements > 64 or tensor.dtype not in (_INT32, _INT64):
    return None
  import tensorflow as tf

  return tf.make_ndarray(tensor)


def broadcast_reduction(first: np.ndarray, second: np.ndarray) -> List[np.ndarray]:
  """Returns the axes over which the gradients of a broadcasting op are summed, by operand.

  Args:
    first: dimensions of the first operand.
    second: dimensions of the second operand.

  Returns:
    The axes for the first operand, and for the second.
  """
  rank = max(len(first), len(second))
  # Shapes are padded with ones in front, as broadcasting aligns them.
  a = [1] * (rank - len(first)) + first.tolist()
  b = [1] * (rank - len(second)) + second.tolist()
  reduced: List[List[int]] = [[], []]
  for axis, (x, y) in enumerate(zip(a, b)):
    if x == 1 and y == 1:
      # TensorFlow reduces where both are 1 only where one side has no such axis.
      if axis < rank - len(first):
        reduced[0].append(axis)
      if axis < rank - len(second):
        reduced[1].append(axis)
    elif x == 1:
      reduced[0].append(axis)
    elif y == 1:
      reduced[1].append(axis)
  return [np.array(axes, dtype=np.int64) for axes in reduced]


def analyse_dataflow(graph: ComputationGraph) -> Dataflow:
  """Returns the dataflow of a graph with inferred shapes, which is made once for a graph.

  Raises:
    CostError: TensorFlow cannot infer the shapes.
    GraphError: the graph has no TensorFlow nodes.
  """
  from placeto_tf.costs import guarded

  if _KEPT not in graph.analyses:
    graph.analyses[_KEPT] = Dataflow(
        graph, guarded.analyse(analysis_graph_def(graph), counts=False).outputs)
  return graph.analyses[_KEPT]


def closure(seeds: Set[int], consumers: Sequence[Sequence[int]]) -> Set[int]:
  """Returns the seeds and all ops that read them, directly or not.

  Args:
    seeds: ops to begin with.
    consumers: [N] ops that read each op.

  Returns:
    Indices of ops.
  """
  found, stack = set(seeds), list(seeds)
  while stack:
    for consumer in consumers[stack.pop()]:
      if consumer not in found:
        found.add(consumer)
        stack.append(consumer)
  return found
