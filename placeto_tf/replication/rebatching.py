"""Rewrites a graph whose batch is baked into its constants for another batch.

The shapes in such a graph (of reshapes, of initial states, of random ops) are constants. The search
for constants that must change with the batch starts at tensors that hold examples. It goes forwards
from the feeds, and backwards from ops that read both a tensor that depends on a feed and a tensor
that does not.

Constants that count examples (the divisor of a mean's gradient) are treated separately. When a
batch is divided among replicas, these constants do not change, because the divisor is the number of
examples of the whole batch. When the graph is guessed at a larger batch, they grow. A divisor
counts examples if it is a multiple of the batch and divides examples or a sum over examples.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Dict, List, Optional, Set, Tuple

import numpy as np

from placeto_tf.errors import CostError, GraphError
from placeto_tf.graphs import analysis_graph_def
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.graphs.exported_protos import with_nodes
from placeto_tf.graphs.shapes import PLACEHOLDERS, set_shape
from placeto_tf.ops import rule_of
from placeto_tf.replication import op_roles
from placeto_tf.replication.dataflow import Dataflow, Tensor, analyse_dataflow
from placeto_tf.replication.propagation import propagate
from placeto_tf.replication.reloading import check_shapes, frozen, reloaded
from placeto_tf.replication.scaling import Scaling, empty
from placeto_tf.replication.sparse_updates import sparse_updates
from placeto_tf.replication.specs import Container, Gathered, Partial, Sharded, Spec

if TYPE_CHECKING:
  from tensorflow.core.framework.graph_pb2 import GraphDef
  from tensorflow.core.framework.node_def_pb2 import NodeDef

_QUOTIENTS = frozenset("RealDiv Div DivNoNan".split())
_CONTRACTIONS = frozenset("MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3".split())
_CONCATENATING = frozenset("ConcatV2 Concat Pack".split())
# Op types whose result and first input have the examples along different axes.
_MOVING = frozenset("ExpandDims Squeeze Reshape StridedSlice Sum Mean Max Min".split())
_TAKEN = "QueueDequeue"  # first part of the types of ops whose second input is the batch size
_MAX_ROUNDS = 3


class Rebatching:
  """Constants and shapes that another batch changes.

  Attributes:
    nodes: op -> its NodeDef at the other batch.
    followed: whether examples could be followed through all ops.
  """

  def __init__(self, flow: Dataflow, times: int, per: int, counts: bool, scaling: Scaling):
    """Rewrites the graph for another batch.

    Args:
      flow: the graph.
      times, per: the other batch is `times / per` times as large.
      counts: whether constants that count examples change, too.
      scaling: the known parts of the graph at a larger batch.
    """
    self._flow, self._times, self._per = flow, times, per
    self._batch = op_roles.batch_feeds(flow, scaling)[0]
    self._found = propagate(flow, sparse_updates(flow), scaling)
    self._axes: Dict[Tensor, int] = {}  # tensors that depend on no feed -> axis of examples
    self._pending: List[Tuple[Tensor, int]] = []
    self._entries: Set[Tuple[Tensor, Optional[int]]] = set()
    self.nodes: Dict[int, NodeDef] = {}
    self.followed = not self._found.refused
    # Forwards: the shape inputs of tensors with examples. Backwards: the other inputs of their ops.
    self._check_reshapes()
    for op in range(len(flow.types)):
      self._look_at(op)
      if counts:
        self._count(op)
    while self._pending:
      self._follow(*self._pending.pop())
    for op in sorted(self._found.sources):
      if flow.types[op] in PLACEHOLDERS:
        self._resize_feed(op)
      elif flow.types[op].startswith(_TAKEN):
        self._want_entry(flow.inputs[op][1], None)

  def _check_reshapes(self) -> None:
    """Raises GraphError where the axis of the examples after a reshape is ambiguous."""
    flow = self._flow
    for op, why in self._found.refused.items():
      if why.op == op and flow.types[op] == "Reshape" and isinstance(
          self._spec(flow.inputs[op][0]), Sharded):
        raise GraphError(
            f"op {flow.graph.op_names[op]!r} (Reshape) {why.reason}, and the batch is baked into "
            "the graph; leave the first dimension of the feeds open, with None")

  def _resized(self, size: int) -> int:
    """Returns the size of an axis of examples at the other batch."""
    # -1, an open dimension, fits any batch.
    if size < 0:
      return size
    if size * self._times % self._per:
      raise GraphError(f"a dimension of {size} examples cannot be divided by {self._per}")
    return size * self._times // self._per

  def _spec(self, tensor: Tensor) -> Spec:
    return self._found.spec(tensor)

  def _axis(self, tensor: Tensor) -> Optional[int]:
    spec = self._spec(tensor)
    # A gathered tensor is assumed to have the examples along its first axis.
    if isinstance(spec, Gathered) and self._has_batch(tensor):
      return 0
    return spec.axis if isinstance(spec, Sharded) else self._axes.get(tensor)

  def _want(self, tensor: Tensor, axis: int) -> None:
    """Notes that a tensor must hold examples along an axis, and changes the ops before it."""
    shape = self._flow.shape(tensor)
    if not isinstance(self._spec(tensor), Sharded) and tensor not in self._axes and (
        shape is None or axis < len(shape)):
      self._axes[tensor] = axis
      self._pending.append((tensor, axis))

  def _look_at(self, op: int) -> None:
    """Changes the inputs of an op that holds examples."""
    flow = self._flow
    op_type = flow.types[op]
    for tensor in flow.outputs(op):
      axis = self._axis(tensor)
      if axis is not None:
        self._shape_argument(op, tensor, axis)
        self._beside(op, tensor, axis)
    element = rule_of(op_type).element_input
    if element is not None:
      for tensor in (*flow.outputs(op), *flow.inputs[op]):
        found = self._spec(tensor)
        if isinstance(found, Container) and isinstance(found.content, Sharded):
          self._want_entry(flow.inputs[op][element], found.content.axis)
          break
    if op_type in ("TensorListPushBack", "TensorListSetItem"):
      box = self._spec((op, 0))
      if isinstance(box, Container) and isinstance(box.content, Sharded):
        self._want(flow.inputs[op][-1], box.content.axis)
      made, axis = flow.list_of(flow.inputs[op][0]), self._axis(flow.inputs[op][-1])
      # The list's element shape grows with its elements.
      if axis is not None and flow.types[made] in ("EmptyTensorList", "TensorListReserve"):
        self._want_entry(flow.inputs[made][0], axis)
    if op_type == "TensorListPopBack":
      axis = self._axis((op, 1))
      if axis is not None:
        self._want_entry(flow.inputs[op][1], axis)
    if op_type in _CONTRACTIONS:
      self._contraction(op)

  def _contraction(self, op: int) -> None:
    flow = self._flow
    first, second = flow.inputs[op]
    names = ("transpose_a", "transpose_b") if flow.types[op] == "MatMul" else ("adj_x", "adj_y")
    flags = [attr is not None and attr.b for attr in (flow.attr(op, name) for name in names)]
    shapes = [flow.shape(tensor) for tensor in (first, second)]
    if shapes[0] is None or shapes[1] is None:
      return
    # The axis of each input that is summed over, counted from the first axis.
    summed = (len(shapes[0]) - (2 if flags[0] else 1), len(shapes[1]) - (1 if flags[1] else 2))
    for i, (one, other) in enumerate(((first, second), (second, first))):
      # If the summed axis of one factor holds examples, the summed axis of the other does, too.
      if self._axis(one) == summed[i]:
        self._want(other, summed[1 - i])

  def _beside(self, op: int, tensor: Tensor, axis: int) -> None:
    """Makes the inputs of an op hold as many examples as its result."""
    flow, shape = self._flow, self._flow.shape(tensor)
    op_type = flow.types[op]
    if shape is None:
      return
    rule = rule_of(op_type)
    if rule.axes == "elementwise" or rule.passes_on or op_type == "Softmax" or (
        op_type in _CONCATENATING):
      for i, each in enumerate(flow.inputs[op]):
        given = flow.shape(each)
        if given is None or op_type in ("Switch", "RefSwitch") and i == 1:
          continue
        # Axes are aligned from the last one, as in broadcasting.
        at = axis - len(shape) + len(given)
        if op_type == "Pack":
          packed = (flow.attr(op, "axis").i if flow.attr(op, "axis") is not None else 0)
          # Pack adds an axis: the numbers of later axes are one less in the inputs.
          at = axis - (packed % len(shape) < axis)
        # The axis has the same size as in the result, so it is not broadcast.
        if 0 <= at < len(given) and given[at] == shape[axis] and (given[at] or 0) > 1:
          self._want(each, at)

  def _follow(self, tensor: Tensor, axis: int) -> None:
    """Changes the op that computes a tensor so that the tensor has the other number of examples."""
    flow, op = self._flow, tensor[0]
    op_type, data = flow.types[op], flow.inputs[op]
    if op_type == "Const":
      self._resize_constant(op, axis)
      return
    if op_type in op_roles.VARIABLES or op_type == "ReadVariableOp":
      variable = flow.origin(data[0])[0] if data else op
      raise GraphError(
          f"variable {flow.graph.op_names[variable]!r} keeps examples of a batch "
          "that is fixed, so that replicas cannot divide it; put the batch into the first "
          "dimension of the feeds if it is elsewhere, take the variable out of the training step, "
          "or train with one replica")
    self._shape_argument(op, tensor, axis)
    self._beside(op, tensor, axis)
    if op_type == "Transpose":
      order = flow.value(data[1])
      if order is not None:
        self._want(data[0], int(order[axis]))
    elif op_type in _MOVING or op_type in _CONTRACTIONS:
      self._want_elements(data[0], tensor, axis)
    elif op_type in ("ZerosLike", "OnesLike", "OneHot"):
      self._want(data[0], axis)
    elif op_type == "Range":
      self._want_entry(data[1], None)
    elif op_type in ("Gather", "ResourceGather", "GatherV2"):
      indices = flow.shape(data[1])
      first = op_type != "GatherV2" or np.all(flow.value(data[2]) == 0)
      if first and indices is not None and axis < len(indices):
        self._want(data[1], axis)

  def _want_elements(self, source: Tensor, result: Tensor, axis: int) -> None:
    """Finds the axis of the examples in the input of an op that only moves axes."""
    given, shape = self._flow.shape(source), self._flow.shape(result)
    if given is None or shape is None:
      return
    # The same axis with the same size, else the first axis that is a multiple of the batch.
    if axis < len(given) and given[axis] == shape[axis]:
      self._want(source, axis)
      return
    for at, size in enumerate(given):
      if size and size % self._batch == 0:
        self._want(source, at)
        return

  def _shape_argument(self, op: int, tensor: Tensor, axis: int) -> None:
    flow = self._flow
    op_type, data = flow.types[op], flow.inputs[op]
    i = rule_of(op_type).shape_input
    if i is not None:
      self._want_entry(data[i], None if op_type == "UnsortedSegmentSum" else axis)
    elif op_type == "Tile":
      given, shape = flow.shape(data[0]), flow.shape(tensor)
      if given is None or axis >= len(given) or self._axis(data[0]) == axis:
        return
      if shape is not None and (given[axis] or 0) > 1 and given[axis] == shape[axis]:
        self._want(data[0], axis)
      else:
        self._want_entry(data[1], axis)
    elif op_type == "StridedSlice":
      end = flow.value(data[2])
      given = flow.shape(data[0])
      if end is not None and given is not None and axis < len(end) and end[axis] == given[axis]:
        self._want_entry(data[2], axis)

  def _want_entry(self, tensor: Tensor, index: Optional[int]) -> None:
    """Scales one entry of a vector of whole numbers to the other batch.

    If the entry is None, it is the first entry that is a multiple of the batch.
    """
    flow = self._flow
    # Look at each entry once, because shape arithmetic in a loop would recurse for ever.
    if (tensor, index) in self._entries:
      return
    self._entries.add((tensor, index))
    op = tensor[0]
    op_type, data = flow.types[op], flow.inputs[op]
    if op in self._found.copied and op_type not in ("Pack", "ConcatV2", "Const"):
      return  # computed from feeds
    if op_type == "Const":
      self._resize_entry(op, index)
    elif op_type in ("Identity", "Cast", "Squeeze", "ExpandDims", "Reshape", "Enter", "Prod",
                  "FloorDiv", "RealDiv"):
      # A product does not tell which of its factors grows.
      self._want_entry(data[0], None if op_type == "Prod" else index)
    elif op_type == "Pack" and index is not None and index < len(data):
      self._want_entry(data[index], None)
    elif op_type == "StridedSlice":
      self._want_entry(data[0], self._sliced_entry(op, index))
    elif op_type == "Slice" and index is not None:
      begin = flow.value(data[1])
      if begin is not None and np.size(begin) == 1:
        self._want_entry(data[0], index + int(np.ravel(begin)[0]))
    elif op_type in ("Maximum", "Mul"):
      for each in data:
        value = flow.value(each)
        if value is not None and value.size and int(np.max(value)) % self._batch == 0:
          self._want_entry(each, index)
          return
    elif op_type == "ConcatV2" and index is not None:
      for each in data[:-1]:
        value = flow.value(each)
        size = int(np.size(value)) if value is not None else len(flow.shape(each) or (0,))
        if index < size:
          self._want_entry(each, index)
          return
        # The entry is now counted from the beginning of the next part.
        index -= size

  def _sliced_entry(self, op: int, index: Optional[int]) -> Optional[int]:
    """Returns the entry of a vector that a StridedSlice takes, or None if it takes several."""
    begin, step = (self._flow.value(self._flow.inputs[op][i]) for i in (1, 3))
    if begin is None or step is None or np.size(begin) != 1:
      return None
    shrinks, masked = (attr is not None and attr.i == 1 for attr in (
        self._flow.attr(op, name) for name in ("shrink_axis_mask", "begin_mask")))
    first = 0 if masked else int(np.ravel(begin)[0])
    if shrinks:
      return first if first >= 0 else None
    return None if index is None or first < 0 else first + index * int(np.ravel(step)[0])

  def _resize_entry(self, op: int, index: Optional[int]) -> None:
    import tensorflow as tf

    node = self._node(op)
    value = np.array(tf.make_ndarray(node.attr["value"].tensor))
    # The entry is a multiple of the batch; make it the same multiple of the other batch.
    flat = value.reshape(-1)
    before = np.array(tf.make_ndarray(self._flow.nodes[op].attr["value"].tensor)).reshape(-1)
    # Only whole numbers are sizes.
    if value.dtype.kind not in "iu":
      return
    if index is None:
      index = next((i for i, each in enumerate(before.tolist())
                    if each > 0 and each % self._batch == 0), None)
    if index is None or index >= len(flat) or before[index] % self._batch or before[index] <= 0:
      return
    flat[index] = self._resized(int(before[index]))
    self._set(node, flat.reshape(value.shape))

  def _resize_constant(self, op: int, axis: int) -> None:
    node, value = self._node(op), self._flow.constant(op)
    if value is None or axis >= value.ndim or value.shape[axis] % self._batch:
      return
    size = self._resized(value.shape[axis])
    # Extend evenly spaced whole numbers by the same step; repeat other numbers.
    if value.dtype.kind in "iu" and value.size == value.shape[axis] > 1:
      first, second = (int(each) for each in value.reshape(-1)[:2])
      # numbers = first + step * (0, 1, 2, ...), as many as the larger of both sizes.
      numbers = first + (second - first) * np.arange(max(size, value.size))
      if np.array_equal(value.reshape(-1), numbers[:value.size]):
        shape = [size if i == axis else each for i, each in enumerate(value.shape)]
        self._set(node, numbers[:size].astype(value.dtype).reshape(shape))
        return
    if value.dtype.kind in "iu" and size > value.shape[axis] and np.ptp(value):
      raise GraphError(
          f"op {self._flow.graph.op_names[op]!r} (Const) holds an integer for each example of "
          "the batch that is baked into the graph, and the integers of more examples are unknown; "
          "leave the first dimension of the feeds open, with None")
    # Repeat the rows often enough for the other batch, then take as many as it has.
    repeated = np.concatenate([value] * max(1, math.ceil(size / value.shape[axis])), axis=axis)
    self._set(node, np.take(repeated, np.arange(size), axis=axis))

  def _count(self, op: int) -> None:
    """Changes the divisor of a sum over examples if the divisor is the number of examples."""
    flow, data = self._flow, self._flow.inputs[op]
    # A divisor is the second input of a division, or a factor of a product that is a reciprocal.
    reciprocal = flow.types[op] == "Mul"
    places = ((1, 0), (0, 1)) if reciprocal else ((1, 0),) if flow.types[op] in _QUOTIENTS else ()
    for i, other in places:
      number = self._scalar(data[i])
      if number is None or reciprocal and not 0 < abs(number) < 1 or not (
          isinstance(self._spec(data[other]), (Sharded, Partial)) or data[other] in self._axes or (
              self._has_batch(data[other]))):
        continue
      # The number of examples that the constant counts; up to rounding, a multiple of the batch.
      count = 1 / number if reciprocal else number
      if abs(count - round(count)) < 1e-3 * abs(count) and round(count) % self._batch == 0:
        self._resize_count(flow.origin(data[i]), reciprocal)

  def _has_batch(self, tensor: Tensor) -> bool:
    shape = self._flow.shape(tensor)
    first = shape[0] if shape else None
    return first is not None and first > 0 and first % self._batch == 0

  def _scalar(self, tensor: Tensor) -> Optional[float]:
    flow = self._flow
    op = flow.origin(tensor)[0]
    if op in self._found.copied:
      return None
    value = flow.value(tensor)
    if value is None:
      value = flow.constant(op)
    if value is None or np.size(value) != 1:
      return None
    return float(np.reshape(value, -1)[0])

  def _resize_count(self, tensor: Tensor, reciprocal: bool) -> None:
    value = self._flow.constant(tensor[0])
    if value is None:
      self._want_entry(tensor, None)
      return
    # A reciprocal shrinks as the count grows.
    factor = self._times / self._per
    found = value / factor if reciprocal else value * factor
    self._set(self._node(tensor[0]), found.astype(value.dtype))

  def _resize_feed(self, op: int) -> None:
    node = self._node(op)
    shape = self._flow.shape((op, 0))
    if shape is not None:
      set_shape(node.attr["shape"], tuple(
          -1 if size is None else self._resized(size) if not i else size
          for i, size in enumerate(shape)))

  def _node(self, op: int) -> NodeDef:
    if op not in self.nodes:
      self.nodes[op] = type(self._flow.nodes[op])()
      self.nodes[op].CopyFrom(self._flow.nodes[op])
      if "_output_shapes" in self.nodes[op].attr:
        del self.nodes[op].attr["_output_shapes"]
    return self.nodes[op]

  def _set(self, node: NodeDef, value: np.ndarray) -> None:
    import tensorflow as tf

    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value))


def _rebatched_nodes(flow: Dataflow, times: int, per: int, counts: bool) -> Dict[int, NodeDef]:
  """Returns op -> its NodeDef at another batch; for the arguments see `Rebatching`.

  Where examples cannot be followed, for instance through a function, the shapes of the graph at
  twice the batch show which tensors grow, as far as that graph is known.

  Raises:
    GraphError: the axis of the examples is ambiguous.
  """
  scaling = empty(flow)
  nodes: Dict[int, NodeDef] = {}
  twice: Dict[int, NodeDef] = {}
  # Each round at twice the batch makes more shapes known, until nothing new is found.
  for _ in range(_MAX_ROUNDS):
    found = Rebatching(flow, times, per, counts, scaling)
    known = len(nodes)
    nodes.update(found.nodes)
    if found.followed or len(nodes) == known:
      break
    try:
      twice.update(Rebatching(flow, 2, 1, True, scaling).nodes)
      scaling = Scaling(flow, _with_nodes(flow, twice), 2)
    except CostError:
      break
  return nodes


def _with_nodes(flow: Dataflow, changed: Dict[int, NodeDef]) -> Dataflow:
  """Returns the dataflow of a graph in which some ops have another NodeDef.

  Raises:
    CostError: TensorFlow's shape inference fails.
  """
  from placeto_tf.costs import guarded

  graph_def = analysis_graph_def(flow.graph)
  _replace(graph_def, flow, changed)
  return Dataflow(flow.graph, guarded.analyse(graph_def, counts=False).outputs, changed)


def _replace(graph_def: GraphDef, flow: Dataflow, changed: Dict[int, NodeDef]) -> None:
  """Writes the values and shapes of changed ops into a GraphDef; stated shapes are dropped."""
  names = {flow.graph.op_names[op]: node for op, node in changed.items()}
  for node in graph_def.node:
    if "_output_shapes" in node.attr:
      del node.attr["_output_shapes"]
    new = names.get(node.name)
    for key in ("value", "shape"):
      if new is not None and key in new.attr:
        node.attr[key].CopyFrom(new.attr[key])


def rebatched(flow: Dataflow, replicas: int) -> Dataflow:
  """Returns the dataflow of a graph at a batch that is R times as large.

  Args:
    flow: the dataflow of the graph.
    replicas: R.

  Returns:
    The dataflow.

  Raises:
    GraphError: the axis of the examples is ambiguous, or the ops reject the larger batch.
  """
  try:
    return _with_nodes(flow, _rebatched_nodes(flow, replicas, 1, counts=True))
  except CostError as error:
    raise GraphError(
        "the batch is baked into the graph, and its ops do not fit together at a batch "
        f"{replicas} times as large ({error}); leave the first dimension of the feeds open, with "
        "None") from None


def divided_graph(graph: ComputationGraph, replicas: int) -> Optional[ComputationGraph]:
  """Returns the graph of one replica if the batch is fixed; None if ops reject a smaller batch.

  Args:
    graph: with the whole batch, of a `tf.Graph`, GraphDef, MetaGraphDef or ConcreteFunction.
    replicas: the number of replicas that share the batch.

  Returns:
    The graph of one replica.
  """
  live = graph.origin.format == "tf_graph"
  graph = frozen(graph)
  source = graph.origin
  if source.format not in ("concrete_function", "graph_def", "meta_graph_def"):
    return None
  flow = analyse_dataflow(graph)
  try:
    changed = _rebatched_nodes(flow, 1, replicas, counts=False)
  except GraphError:
    return None
  # Batches of a queue can be divided where a constant tells their size, those of iterators cannot.
  if any(op_type in op_roles.PIPELINES and not (
      op_type.startswith(_TAKEN) and flow.inputs[op][1][0] in changed)
         for op, op_type in enumerate(flow.types)):
    return None
  graph_def = type(source.graph_def)()
  graph_def.CopyFrom(source.graph_def)
  _replace(graph_def, flow, changed)
  # Feeds with the smaller batch; all other feeds keep their shapes.
  shapes = {}
  for op in changed:
    if flow.types[op] in PLACEHOLDERS:
      name = f"{flow.graph.op_names[op]}:0"
      dims = source.feed_shapes[name]
      shapes[name] = (dims[0] // replicas, *dims[1:])
  proto = with_nodes(source, graph_def)
  # Analyse the new graph now, to find shapes that do not fit.
  try:
    found = reloaded(graph, proto, shapes)
    analyse_dataflow(found)
    if live:
      return reloaded(graph, proto, shapes, live)
    if source.format != "concrete_function":
      check_shapes(graph_def)
    return found
  except (CostError, ValueError):  # TensorFlow raises ValueError where shapes do not fit
    return None
