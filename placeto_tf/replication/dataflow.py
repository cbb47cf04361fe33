"""`Dataflow`: the needed ops of a graph with their inputs, shapes and constant values.

Dimensions: N needed ops, in the order of `ComputationGraph`. A tensor is (op index, output port).
"""

from __future__ import annotations

import functools
import math
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple

import numpy as np

from placeto_tf.graphs import analysis_graph_def, loops
from placeto_tf.graphs.computation_graph import CONTROL, ComputationGraph
from placeto_tf.graphs.tensor_names import parse
from placeto_tf.graphs.traversal import reachable
from placeto_tf.on_use import tf
from placeto_tf.ops import rule_of

Tensor = Tuple[int, int]
Shape = Optional[Tuple[Optional[int], ...]]

_PASSING = (*loops.PASSING, "StopGradient", "Snapshot", "Cast", "PreventGradient", "CheckNumerics")
_INT32, _TEXT, _INT64 = 3, 7, 9
_PASSES_SHAPES = (*loops.ENTER, *loops.EXIT, *loops.NEXT, *loops.SWITCH)
# Ops whose first input and output is a list, or the handle of an array; an array of gradients has
# elements of the same shapes as its array.
_PASSES_LISTS = frozenset((
    *loops.PASSING, *loops.EXIT, *loops.NEXT, *loops.MERGE, "ZerosLike", "TensorListPushBack",
    "TensorListPopBack", "TensorListSetItem", "TensorListResize", "TensorArrayGradV3"))
_POPPED = (("TensorListPopBack", 1), ("StackPopV2", 0), ("StackPop", 0))
_KEPT = "dataflow"


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
    late: see `Frames`.
    frame_parents: name of each loop -> name of the enclosing loop, or "".
    changed: op -> NodeDef that replaces the graph's.
  """

  def __init__(
      self, graph: ComputationGraph, outputs: Mapping[str, Sequence[Any]],
      changed: Optional[Mapping[int, Any]] = None):
    """Reads the nodes and infers their values.

    Args:
      graph: the graph.
      outputs: op name -> `OpInfo.TensorProperties` of each output.
      changed: op -> NodeDef that replaces the graph's, such as for another batch.
    """
    self.graph = graph
    source = graph.origin
    self.nodes = graph.nodes
    self.changed = dict(changed or {})
    for op, node in self.changed.items():
      self.nodes[op] = node
    self.types = list(graph.op_types)
    index = graph.op_index
    self.inputs: List[List[Tensor]] = []
    self.controls: List[List[int]] = []
    for node in self.nodes:
      # An op whose outputs are fed reads nothing.
      read = list(map(parse, node.input if node.name not in source.fully_fed_ops else ()))
      self.inputs.append([(index[name], port) for name, port in read if port != CONTROL])
      self.controls.append([index[name] for name, port in read if port == CONTROL])
    self.consumers: List[List[int]] = [[] for _ in self.nodes]
    for op, data in enumerate(self.inputs):
      for producer in dict.fromkeys(producer for producer, _ in data):
        # Each consumer once, however many inputs it has of the producer.
        self.consumers[producer].append(op)
    frames = loops.frames_of(
        self.nodes, graph.edge_producers, graph.edge_consumers, graph.topological_order)
    names = [*frames.names, ""]  # frame -1 is outside of all loops
    self.frames, self.late = [names[frame] for frame in frames.of_op], frames.late
    self.frame_parents = {
        name: names[parent] for name, parent in zip(frames.names, frames.parents)}
    self._outputs = outputs
    self._shapes: Dict[Tensor, Shape] = {}
    self._inferred: Dict[int, List[Shape]] = {}  # op -> output shapes by its own shape function
    self._values: Dict[Tensor, Optional[np.ndarray]] = {}
    # Loop variables are assumed to keep their shape, until a back edge contradicts that.
    self._kept: Dict[int, Tensor] = {}  # Merge of a loop -> its back edge
    self._changing: Set[int] = set()
    self._infer_all()
    while True:
      changing = {op for op, back in self._kept.items() if self.shape(back) != self.shape((op, 0))}
      if not changing:
        break
      self._changing |= changing
      for each in (self._kept, self._shapes, self._inferred, self._values):
        each.clear()
      self._infer_all()

  def _infer_all(self) -> None:
    # Producers first, so that no shape or value recurses into a long chain of others.
    for op in self.order:
      for tensor in self.outputs(op):
        # Vectors and scalars of whole numbers may be shapes, whose values are needed later.
        shape = self.shape(tensor)
        if shape is not None and len(shape) < 2 and self._is_whole_number(tensor):
          self.value(tensor)

  @functools.cached_property
  def order(self) -> List[int]:
    """Returns the ops, [N], producers first."""
    return np.argsort(self.graph.depths, kind="stable").tolist()

  def outputs(self, op: int) -> List[Tensor]:
    """Returns the tensors that an op gives."""
    offsets = self.graph.output_offsets
    return [(op, port) for port in range(int(offsets[op + 1] - offsets[op]))]

  def constant(self, op: int) -> Optional[np.ndarray]:
    """Returns the numbers of a Const; None for another op or for text."""
    if self.types[op] != "Const" or self.nodes[op].attr["dtype"].type == _TEXT:
      return None
    return tf.make_ndarray(self.nodes[op].attr["value"].tensor)

  def shape(self, tensor: Tensor) -> Shape:
    """Returns the dimensions of a tensor, None for unknown ones; None for an unknown rank."""
    if tensor not in self._shapes:
      op, port = tensor
      found = self._outputs.get(self.graph.op_names[op], ())
      shape: Shape = None
      if port < len(found) and not found[port].shape.unknown_rank:
        shape = tuple(None if dim.size < 0 else dim.size for dim in found[port].shape.dim)
      self._shapes[tensor] = shape
      # TensorFlow takes elements of a list in a list for elements of the outer one.
      takes = rule_of(self.types[op]).takes
      if shape is None or None in shape or takes and takes[2] == port:
        computed = self._computed_shape(tensor)
        # Fill sizes that the computed shape leaves open with the inferred ones.
        if computed is not None and shape is not None and len(shape) == len(computed):
          computed = tuple(one if other is None else other for one, other in zip(shape, computed))
        if computed is not None:
          self._shapes[tensor] = computed
    return self._shapes[tensor]

  def elements(self, tensor: Tensor) -> Optional[int]:
    """Returns the number of elements of a tensor, or None."""
    shape = self.shape(tensor)
    return None if shape is None or None in shape else math.prod(known_dims(shape))

  def _computed_shape(self, tensor: Tensor) -> Shape:
    """Returns the shape that follows from the known shapes and values of an op's inputs."""
    op, port = tensor
    takes = rule_of(self.types[op]).takes
    if takes is not None and takes[2] == port:
      element = self._element_shape(tensor)
      if element is None or not takes[1]:
        return element
      if self.types[op] != "TensorListStack":  # as many elements as there are indices
        return ((self.shape(self.inputs[op][1]) or (None,))[0], *element)
      made = self.list_of(self.inputs[op][0])
      # A list that is reserved keeps its length, if no list of the graph is resized.
      length = self.value(self.inputs[made][1]) if (
          self.types[made] == "TensorListReserve" and not self._resizes_lists) else None
      return (None if length is None else int(length), *element)
    value = self.value(tensor) if self._is_whole_number(tensor) else None
    if value is not None:
      return value.shape
    if self.types[op] in _PASSES_SHAPES:
      return self.shape(self.inputs[op][0])
    if self.types[op] in loops.MERGE:
      entered = self.shape(self.inputs[op][0])
      back = [each for each in self.inputs[op] if self.types[each[0]] in loops.NEXT]
      if port or entered is None or None in entered or op in self._changing:
        return None
      if not back:  # of a branch
        return entered if {entered} == set(map(self.shape, self.inputs[op])) else None
      self._kept[op] = back[0]
      return entered
    if op not in self._inferred:
      self._inferred[op] = self._infer(op)
    return self._inferred[op][port] if port < len(self._inferred[op]) else None

  def _infer(self, op: int) -> List[Shape]:
    """Asks TensorFlow's shape function of one op for the shapes of its outputs."""
    nodes = tf.compat.v1.GraphDef(node=[self.nodes[op]])
    node = nodes.node[0]
    node.ClearField("input")
    # Drop shapes stated for another batch, and colocation with ops that this graph lacks.
    for key in ("_class", "_output_shapes"):
      node.attr.pop(key, None)
    given = {}
    try:
      with tf.Graph().as_default():
        for i, each in enumerate(self.inputs[op]):
          dtype, value = tf.as_dtype(self.dtype(each) % 100), self.value(each)
          made = self.nodes[self.origin(each)[0]]
          node.input.append(f"input_{i}")
          if made.op == "VarHandleOp":  # tells its variable's shape, also after it entered a loop
            given[f"input_{i}:0"] = tf.raw_ops.VarHandleOp(
                dtype=made.attr["dtype"].type, shape=made.attr["shape"].shape)
            continue
          given[f"input_{i}:0"] = tf.compat.v1.placeholder(dtype, self.shape(each)) if (
              value is None) else tf.constant(value, dtype)
        found = tf.graph_util.import_graph_def(
            nodes, input_map=given, return_elements=[node.name])[0].outputs
    except (ValueError, TypeError, KeyError, IndexError, tf.errors.OpError):
      return []
    return [None if each.shape.rank is None else tuple(each.shape.as_list()) for each in found]

  def _element_shape(self, tensor: Tensor) -> Shape:
    """Returns the shape of an element of a list, from the shapes of all elements put into it."""
    found: Optional[List[Optional[int]]] = None
    for each, is_list in self.added(self.list_of(self.inputs[tensor[0]][0])):
      shape = self.shape(each)
      if shape is None:
        return None
      dims = list(shape[1:] if is_list else shape)
      if found is not None and len(found) != len(dims):
        return None
      found = dims if found is None else [
          # A dimension that differs between elements is unknown.
          one if one == other else None for one, other in zip(found, dims)]
    return None if found is None else tuple(found)

  def pushed(self, tensor: Tensor) -> Optional[Tensor]:
    """Returns the tensor whose push a TensorListPopBack or StackPop undoes; None if unknown."""
    if (self.types[tensor[0]], tensor[1]) not in _POPPED:
      return None
    # A list with several pushes does not tell which element is popped.
    added = self.added(self.list_of(self.inputs[tensor[0]][0]))
    return added[0][0] if len(added) == 1 and not added[0][1] else None

  def added(self, made: int) -> Sequence[Tuple[Tensor, bool]]:
    """Returns (tensor, whether its rows are elements) of all tensors put into what an op made."""
    return self._added.get(made, ())

  def list_of(self, tensor: Tensor) -> int:
    """Returns the op that made a list, stack or array, followed back through loops and writes."""
    return self.handle_of(tensor)[1]

  def handle_of(self, tensor: Tensor) -> Tuple[str, int]:
    """Returns ("", op that made a list, stack or array); or the name of an array's gradient."""
    seen: Set[int] = set()
    name = ""
    while self.types[tensor[0]] in _PASSES_LISTS and tensor[0] not in seen:
      seen.add(tensor[0])
      if self.types[tensor[0]] == "TensorArrayGradV3":
        name += f"/{self.attr(tensor[0], 'source').s.decode()}"
      if tensor[1] and self.types[tensor[0]] == "TensorListPopBack":  # a list that was in a list
        tensor = self.pushed(tensor) or tensor
      else:
        tensor = self.inputs[tensor[0]][0]
    return name, tensor[0]

  @functools.cached_property
  def _resizes_lists(self) -> bool:
    resizes = [self.attr(op, "resize_if_index_out_of_bounds") for op, op_type in enumerate(
        self.types) if op_type == "TensorListSetItem"]
    return "TensorListResize" in self.types or any(each is not None and each.b for each in resizes)

  @functools.cached_property
  def _added(self) -> Dict[int, List[Tuple[Tensor, bool]]]:
    """Returns op that made a list -> (tensor put into the list, whether its rows are elements)."""
    found: Dict[int, List[Tuple[Tensor, bool]]] = {}
    for op, op_type in enumerate(self.types):
      puts = rule_of(op_type).puts
      if puts is not None and max(puts[0] or 0, puts[1]) < len(self.inputs[op]):
        gradient, made = ("", op) if puts[0] is None else self.handle_of(self.inputs[op][puts[0]])
        if not gradient:  # the array's own elements tell the shape
          found.setdefault(made, []).append((self.inputs[op][puts[1]], puts[2] < 0))
    return found

  def _is_whole_number(self, tensor: Tensor) -> bool:
    found = self._outputs.get(self.graph.op_names[tensor[0]], ())
    return tensor[1] < len(found) and found[tensor[1]].dtype in (_INT32, _INT64)

  def is_integer(self, tensor: Tensor) -> bool:
    """Returns whether the tensor holds integers or booleans, which have no mean."""
    dtype = tf.as_dtype(self.dtype(tensor) % 100)
    return dtype.is_integer or dtype.is_bool

  def dtype(self, tensor: Tensor) -> int:
    """Returns the DataType."""
    return self._outputs[self.graph.op_names[tensor[0]]][tensor[1]].dtype

  def attr(self, op: int, name: str) -> Any:
    """Returns the AttrValue of an op, or None.

    Args:
      op: index of the op.
      name: name of the attribute.
    """
    attrs = self.nodes[op].attr
    return attrs[name] if name in attrs else None

  def integer(self, op: int, name: str) -> int:
    """Returns a whole number that is an attribute of an op; 0 if the op has no such attribute.

    Args:
      op: index of the op.
      name: name of the attribute.
    """
    attr = self.attr(op, name)
    return attr.i if attr is not None else 0

  def origin(self, tensor: Tensor) -> Tensor:
    """Returns the tensor that ops such as Identity and Switch pass on to this one."""
    while self.types[tensor[0]] in _PASSING and self.inputs[tensor[0]]:
      tensor = self.inputs[tensor[0]][0]
    return tensor

  def value(self, tensor: Tensor) -> Optional[np.ndarray]:
    """Returns the small whole numbers that a tensor holds in every step, or None."""
    if tensor not in self._values:
      self._values[tensor] = None  # a value that depends on itself is unknown
      try:
        self._values[tensor] = self._compute(tensor)
      except (ArithmeticError, IndexError, TypeError, ValueError, RecursionError):
        pass  # inputs are missing or contradict one another, or the chain of ops is very long
    return self._values[tensor]

  def _compute(self, tensor: Tensor) -> Optional[np.ndarray]:
    op, port = tensor
    op_type, data = self.types[op], self.inputs[op]
    if op_type == "Const":
      # At most 64 whole numbers: larger constants are no shapes.
      return self.constant(op) if self._is_whole_number(tensor) and (
          (self.elements(tensor) or 0) <= 64) else None
    if op_type in _PASSING:
      return self.value(data[0])
    pushed = self.pushed(tensor)
    if pushed is not None:
      return self.value(pushed)
    if op_type in ("Shape", "ShapeN", "Size", "Rank"):
      shape = self.shape(data[port])
      if shape is None or (None in shape and op_type != "Rank"):
        return None
      return np.array({"Size": math.prod(size or 0 for size in shape),
                       "Rank": len(shape)}.get(op_type, shape))
    if op_type == "BroadcastGradientArgs":
      return broadcast_reduction(self._known(data[0]), self._known(data[1]))[port]
    if op_type == "ConcatOffset":
      # The offset along the axis is the sum of the sizes before.
      axis, shapes = int(self._known(data[0])), [self._known(each) for each in data[1:port + 1]]
      offset = np.zeros_like(self._known(data[1]))
      offset[axis] = sum(int(shape[axis]) for shape in shapes)
      return offset
    if op_type == "StridedSlice":
      return np.asarray(self._known(data[0])[self.slice_index(
          op, *map(self._known, data[1:]))])
    if op_type == "Unpack":
      return np.asarray(np.take(self._known(data[0]), port, axis=self.integer(op, "axis")))
    rule = _VALUES.get(op_type)
    return None if rule is None else np.asarray(rule(*[self._known(each) for each in data]))

  def slice_index(
      self, op: int, begin: np.ndarray, end: np.ndarray, step: np.ndarray) -> Tuple[Any, ...]:
    """Returns the index of a StridedSlice, as numpy writes it.

    Args:
      op: a StridedSlice or its gradient.
      begin, end, step: of each entry of the index.
    """
    index: List[Any] = []
    for i, (first, last, stride) in enumerate(zip(begin.tolist(), end.tolist(), step.tolist())):
      # Bit i of a mask is about entry i of the index.
      ellipsis, new, shrinks, whole_begin, whole_end = (
          self.integer(op, f"{name}_mask") >> i & 1 for name in (
              "ellipsis", "new_axis", "shrink_axis", "begin", "end"))
      index.append(Ellipsis if ellipsis else None if new else first if shrinks else slice(
          None if whole_begin else first, None if whole_end else last, stride))
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
    "Slice": lambda value, begin, size: value[tuple(
        slice(first, None if count < 0 else first + count)
        for first, count in zip(begin.tolist(), size.tolist()))],
    "Tile": np.tile, "DynamicStitch": lambda *parts: _stitched(parts),
}


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


def broadcast_reduction(first: np.ndarray, second: np.ndarray) -> List[np.ndarray]:
  """Returns the axes over which the gradients of a broadcasting op are summed, by operand.

  Returns:
    The axes for the first operand, and for the second.
  """
  rank = max(len(first), len(second))
  # Shapes are padded with ones in front, as broadcasting aligns them.
  padded = [np.array([1] * (rank - len(each)) + list(each)) for each in (first, second)]
  # An operand's gradient is summed over axes that the operand lacks, and over axes in which the
  # operand has one element and the other operand has several.
  return [
      np.flatnonzero((one == 1) & (other != 1) | (np.arange(rank) < rank - len(each)))
      for each, one, other in zip((first, second), padded, reversed(padded))]


def analyse_dataflow(graph: ComputationGraph) -> Dataflow:
  """Returns the dataflow of a graph with inferred shapes; repeated calls return the same object.

  Raises:
    CostError: TensorFlow cannot infer the shapes.
    GraphError: the graph has no TensorFlow nodes.
  """
  from placeto_tf.costs import guarded

  if _KEPT not in graph.analyses:
    graph.analyses[_KEPT] = Dataflow(
        graph, guarded.analyse(analysis_graph_def(graph), counts=False).outputs)
  return graph.analyses[_KEPT]


def closure(
    seeds: Set[int], consumers: Sequence[Sequence[int]],
    passes: Optional[Callable[[int], bool]] = None) -> Set[int]:
  """Returns the seeds and all ops that read them, directly or not.

  Args:
    seeds: ops to begin with.
    consumers: [N] ops that read each op.
    passes: returns whether the search goes on behind an op that is no seed; by default, always.
  """
  return reachable(seeds, lambda op: consumers[op] if (
      passes is None or op in seeds or passes(op)) else ())
