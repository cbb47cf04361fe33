"""Rewrites a graph whose batch is baked into its constants for another batch.

The shapes in such a graph (of reshapes, of initial states, of random ops) are constants. The graph
is built again, op by op, with feeds of the other batch. TensorFlow's shape functions check every
op. If the inputs of an op do not fit together, a constant before the op still has the old batch:
the nearest constant with which the op fits is changed. A wrong guess does no harm, because sharding
propagation compares the graphs at both batches and refuses replicas that would differ.

Constants that count examples (the divisor of a mean's gradient) do not show in shapes. When a batch
is divided among replicas, these constants do not change, because the divisor is the number of
examples of the whole batch. When the graph is guessed at a larger batch, they grow. A divisor
counts examples if as many elements, examples among them, are added up in what it divides, or are
repeated, as in the gradient of a mean. If that is not known of a multiple of the batch that divides
a scalar, such as a loss, the graph is refused.
"""

from __future__ import annotations

import math
from typing import Any, Dict, Iterator, List, Mapping, Optional, Set, Tuple

import numpy as np

from placeto_tf.errors import CostError, GraphError
from placeto_tf.graphs import analysis_graph_def
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.graphs.exported_protos import state_shapes, with_nodes
from placeto_tf.graphs.functions import functions_in
from placeto_tf.graphs.loops import ENTER, EXIT, MERGE, NEXT, SWITCH
from placeto_tf.graphs.op_defs import registered_op_def
from placeto_tf.graphs.shapes import ITERATORS, PLACEHOLDERS, write_shape
from placeto_tf.on_use import GraphDef, NodeDef, tf
from placeto_tf.ops import QUOTIENTS, rule_of
from placeto_tf.replication import dataflow, op_roles
from placeto_tf.replication.dataflow import Dataflow, Shape, Tensor, analyse_dataflow, closure
from placeto_tf.replication.reloading import check_shapes, frozen, reloaded
from placeto_tf.replication.scaling import Scaling

# A change of a constant: (whether it holds rows of examples, the number of the axis or entry).
Change = Tuple[bool, int]
_TAKEN = "QueueDequeue"  # first part of the types of ops whose second input is the batch size
# Ops of loops and branches, which pass a value on; the graph is built without loops.
_PASSING = (*ENTER, *EXIT, *NEXT, *SWITCH)
# Attributes of the ops and shapes of the original graph.
_STALE = ("_class", "_output_shapes", "element_shape")
_SUMS = ("Sum", "BroadcastTo", "Tile")  # of several elements, or repeats
_MAX_ENTRIES = 64  # of a constant that may be a shape
_MAX_CONSTANTS = 50  # that are tried for one input of an op
_MAX_BUILT = 100_000  # ops that are built in all, in about 15 seconds


class Rebatching:
  """The ops of a graph at another batch.

  Attributes:
    nodes: constant, feed or iterator -> its NodeDef at the other batch.
  """

  def __init__(self, flow: Dataflow, times: int, per: int, counts: bool):
    """Builds the graph.

    Args:
      flow: the graph.
      times, per: the other batch is `times / per` times as large.
      counts: whether constants that count examples change, too.

    Raises:
      GraphError: the ops do not fit together at the other batch, whatever constant changes.
    """
    self._flow = flow
    self._batch, sources = op_roles.batch_feeds(flow, Scaling(flow, flow, 1))
    self._times, self._per = self._target = times, per
    # One example would fit any number, as broadcasting does: build the graph at twice the batch.
    if self._batch * times == per:
      self._times, self._per = 2, 1
    self._sources = frozenset(sources)
    self._fed = self._sources.union(
        flow.graph.op_index[name.rpartition(":")[0]] for name in flow.graph.origin.feed_shapes)
    self._graph = tf.Graph()
    self._made: Dict[int, List[tf.Tensor]] = {}  # op -> its outputs at the other batch
    self._built = 0  # how often an op was built
    self._repairing: Set[int] = set()  # ops that do not fit yet
    self._place = {op: i for i, op in enumerate(flow.order)}
    # Readers of each op; the graph is built without the back edges of loops.
    self._readers = [[] if op_type in NEXT else readers
                     for op_type, readers in zip(flow.types, flow.consumers)]
    self._changes: Dict[int, Change] = {}  # constant -> how it changes
    for op in sources:
      if flow.types[op].startswith(_TAKEN) and flow.constant(flow.inputs[op][1][0]) is not None:
        self._changes[flow.inputs[op][1][0]] = (False, 0)
    for op in flow.order:
      if not self._build(op):
        raise self._unfit(op)
    self._times, self._per = self._target
    self.nodes: Dict[int, NodeDef] = {}
    for op in self._changes:
      self._set(op, self._changed(op))
    for op in sorted(self._sources):
      if flow.types[op] in (*PLACEHOLDERS, *ITERATORS):
        self._resize_source(op)
    for op, op_type in enumerate(flow.types):
      if op_type in ("TensorArrayV3", "TensorArrayGatherV3"):
        self._resize_elements(op)
    if counts:
      self._count()

  def _resized(self, size: int) -> int:
    """Returns the size of an axis of examples at the other batch."""
    if size * self._times % self._per:
      raise GraphError(f"a dimension of {size} examples cannot be divided by {self._per}")
    return size * self._times // self._per

  # Building.

  def _build(self, op: int) -> bool:
    """Builds an op, and changes constants before it where needed; returns whether it fits."""
    return self._fits(op) or op not in self._repairing and self._repair(op)

  def _fits(self, op: int) -> bool:
    """Builds an op on the tensors before it, and returns whether their shapes fit."""
    self._built += 1
    try:
      self._made[op] = self._make(op)
      return self._built <= _MAX_BUILT + len(self._place) and self._keeps_order(op)
    except (ValueError, TypeError, tf.errors.OpError):
      return False

  def _keeps_order(self, op: int) -> bool:
    """Returns whether a Reshape may keep the examples in order, as its sizes alone do not tell."""
    if self._flow.types[op] != "Reshape":
      return True
    axis, now = self._changed_axis(self._flow.inputs[op][0]), self._changed_axis((op, 0))
    given, shape = self._flow.shape(self._flow.inputs[op][0]), self._flow.shape((op, 0))
    if axis is None or now is None or given is None or shape is None or None in (*given, *shape):
      return True
    # [before, outer * b, ...] -> [before * outer, b, ...]: elements before the examples stay there.
    sizes = dataflow.known_dims(given)
    before, most = math.prod(sizes[:axis]), math.prod(sizes[:axis + 1]) // self._batch
    return before <= math.prod(dataflow.known_dims(shape)[:now]) <= most

  def _make(self, op: int) -> List[tf.Tensor]:
    flow, op_type = self._flow, self._flow.types[op]
    # Back edges of loops are left out: their ops come later.
    inputs = [tensor for tensor in flow.inputs[op] if flow.types[tensor[0]] not in NEXT]
    data = [self._made[producer][port] for producer, port in inputs]
    node, tensors = flow.nodes[op], flow.outputs(op)
    if op in self._changes:
      with self._graph.as_default():
        return [tf.constant(self._changed(op))]
    if op in self._fed:
      return [self._source(tensor, self._fed_shape(tensor)) for tensor in tensors]
    if op_type in _PASSING or op_type in MERGE:
      if op_type in NEXT:
        inputs += [(merge, 0) for merge in flow.consumers[op]]
      # A loop or branch keeps the number of examples: Pack refuses tensors of different shapes.
      shapes = {flow.shape(tensor) for tensor in inputs}
      if op_type in (*NEXT, *MERGE) and len(shapes) == 1 and None not in shapes:
        with self._graph.as_default():
          tf.stack([self._made[producer][port] for producer, port in inputs])
      if op_type not in MERGE:
        return [data[0]] * len(tensors)
      # The values of a Merge are not known. A handle tells the shapes of the tensors behind it.
      return [data[0] if data[0].dtype in (tf.resource, tf.variant) else self._source(
          tensors[0], data[0].shape if len(shapes) == 1 else None),
              *(self._source(tensor, ()) for tensor in tensors[1:])]
    if registered_op_def(op_type) is None or functions_in(node.attr.values()):
      return [self._source(tensor, None) for tensor in tensors]
    if op_type.startswith(("Stack", "TensorArray")) and rule_of(op_type).takes is not None:
      takes = rule_of(op_type).takes
      shape = next((self._made[each[0]][each[1]].shape[is_list:] for each, is_list in flow.added(
          flow.list_of(flow.inputs[op][0])) if each[0] in self._made), tf.TensorShape(None))
      if shape.rank is None:
        shape = None
      elif takes is not None and takes[1]:  # as many elements as there are indices
        shape = data[1].shape.concatenate(shape)
      return [self._source(tensors[0], shape)]
    attrs = {key: value for key, value in node.attr.items() if key not in _STALE}
    made = list(self._graph.create_op(op_type, data, attrs=attrs).outputs)
    # Kernels compare these shapes, though shape functions do not.
    if op_type == "StridedSliceGrad":
      part = self._graph.create_op("StridedSlice", [made[0], *data[1:4]], attrs=attrs).outputs[0]
      part.shape.assert_is_compatible_with(data[4].shape)
    if op_type == "ConcatOffset":
      with self._graph.as_default():
        tf.concat([tf.fill(shape, 0) for shape in data[1:]], data[0])
    return made

  def _source(self, tensor: Tensor, shape: Any) -> tf.Tensor:
    """Returns a tensor of this shape and of unknown values."""
    with self._graph.as_default():
      return tf.compat.v1.placeholder(self._flow.dtype(tensor) % 100, shape)

  def _fed_shape(self, tensor: Tensor) -> Shape:
    shape = self._flow.shape(tensor)
    if tensor[0] not in self._sources or not shape or shape[0] is None:
      return shape
    return (self._resized(shape[0]), *shape[1:])

  def _changed_axis(self, tensor: Tensor) -> Optional[int]:
    """Returns the first axis of a tensor with another size than in the original graph, or None."""
    before = self._flow.shape(tensor) if tensor[0] in self._made else None
    if before is None or self._made[tensor[0]][tensor[1]].shape.rank != len(before):
      return None
    now = self._made[tensor[0]][tensor[1]].shape
    return next((axis for axis, pair in enumerate(zip(before, now.as_list()))
                 if None not in pair and pair[0] != pair[1]), None)

  # Repairing.

  def _repair(self, op: int) -> bool:
    """Changes constants before an op until its inputs fit; returns whether they fit."""
    start = dict(self._made), dict(self._changes)
    inputs = self._flow.inputs[op]
    axes = {self._changed_axis(tensor) for tensor in inputs} - {None}
    self._repairing.add(op)
    try:
      for tensor in inputs:
        if tensor[0] not in self._made or self._changed_axis(tensor) is not None:
          continue
        kept = None
        for constant, change in self._candidates(tensor):
          before = dict(self._made), dict(self._changes)
          if self._change(constant, change):
            if self._fits(op):
              return True
            # Perhaps another input has to change, too, along the same axis.
            if kept is None and self._changed_axis(tensor) in axes:
              kept = self._made, self._changes
          self._made, self._changes = before
        self._made, self._changes = kept or (self._made, self._changes)
      self._made, self._changes = start
      return False
    finally:
      self._repairing.discard(op)

  def _change(self, constant: int, change: Change) -> bool:
    """Changes a constant, and builds the ops behind it again; returns whether they fit."""
    self._changes[constant] = change
    # An op that does not fit yet is built later, and so are the ops behind it.
    waiting = set(self._repairing)
    for op in sorted(closure({constant}, self._readers) & self._made.keys(),
                     key=self._place.__getitem__):
      if op in waiting:
        waiting.update(self._readers[op])
      elif not self._build(op):
        return False
    return True

  def _candidates(self, tensor: Tensor) -> Iterator[Tuple[int, Change]]:
    """Yields constants behind an input of an op, the nearest first, with changes to try."""
    flow = self._flow
    queue, seen = [tensor[0]], {tensor[0]}
    constants = 0
    for at in queue:  # the list grows during the loop
      value = flow.constant(at) if at not in self._changes else None
      if value is not None:
        # A size: an entry that is a multiple of the batch. Or rows: an axis that is one.
        entries = np.flatnonzero((value > 0) & (value % self._batch == 0)).tolist() if (
            value.dtype.kind in "iu" and value.size <= _MAX_ENTRIES) else []
        yield from ((at, (False, i)) for i in entries)
        for axis, size in enumerate(value.shape):
          if value.size and not size % self._batch:
            yield at, (True, axis)
        constants += 1
        if constants == _MAX_CONSTANTS:
          return
      for producer, _ in flow.inputs[at]:
        if producer not in seen and producer in self._made:
          seen.add(producer)
          queue.append(producer)

  def _changed(self, constant: int) -> np.ndarray:
    """Returns the value of a constant at the other batch; ValueError if it cannot be told."""
    value, (is_axis, i) = self._flow.constant(constant), self._changes[constant]
    assert value is not None
    if not is_axis:
      flat = value.reshape(-1).copy()
      flat[i] = self._resized(int(flat[i]))
      return flat.reshape(value.shape)
    whole, size, wanted = value.dtype.kind in "iu", value.shape[i], self._resized(value.shape[i])
    steps = np.diff(value.reshape(-1)) if whole and value.size == size > 1 else np.zeros(0)
    # Extend evenly spaced whole numbers by the same step; repeat other rows.
    if len(set(steps.tolist())) == 1:
      shape = [wanted if axis == i else each for axis, each in enumerate(value.shape)]
      numbers = value.reshape(-1)[0] + steps[0] * np.arange(wanted)
      return numbers.astype(value.dtype).reshape(shape)
    # Varied whole numbers, such as labels, cannot be told for more examples.
    if whole and self._target[0] > self._target[1] and np.ptp(value):
      raise ValueError("varied whole numbers")
    return np.take(value, np.arange(wanted) % size, axis=i)

  def _unfit(self, op: int) -> GraphError:
    """Returns the error of an op that does not fit at the other batch."""
    flow, names = self._flow, self._flow.graph.op_names
    for tensor in flow.inputs[op]:
      variable = flow.origin(tensor)[0]
      if flow.types[variable] == "ReadVariableOp":
        variable = flow.origin(flow.inputs[variable][0])[0]
      if flow.types[variable] in op_roles.VARIABLES and self._changed_axis(tensor) is None:
        return GraphError(
            f"variable {names[variable]!r} keeps examples of a batch "
            "that is fixed, so that replicas cannot divide it; put the batch into the first "
            "dimension of the feeds if it is elsewhere, take the variable out of the training "
            "step, or train with one replica")
    return baked_in(
        f"the inputs of op {names[op]!r} ({flow.types[op]}) do not fit together at another batch")

  # Constants that count examples, and feeds.

  def _count(self) -> None:
    """Changes divisors that count examples.

    Raises:
      GraphError: it is not known whether a divisor of a sum counts examples.
    """
    flow, reached = self._flow, closure(set(self._sources), self._flow.consumers)
    # Constant -> whether it counts examples, at each place where that matters (None: not known);
    # constant -> its value if it does.
    counts: Dict[int, Set[Optional[bool]]] = {}
    values: Dict[int, np.ndarray] = {}
    for op in flow.order:
      data = flow.inputs[op]
      # A divisor is the second input of a division, or a factor of a product that is a reciprocal.
      reciprocal = flow.types[op] == "Mul"
      for i, other in ((1, 0), (0, 1)) if reciprocal else (
          ((1, 0),) if flow.types[op] in QUOTIENTS else ()):
        constant = flow.origin(data[i])[0]
        value = flow.constant(constant)
        if value is None or value.size != 1 or data[other][0] not in reached and (
            self._changed_axis(data[other]) is None):
          continue
        number = float(value.reshape(-1)[0])
        if not number or reciprocal and not abs(number) < 1:
          continue
        # The number of examples that the constant counts; up to rounding, a multiple of the batch.
        count = 1 / number if reciprocal else number
        if abs(count - round(count)) < 1e-3 * abs(count) and round(count) % self._batch == 0:
          # A reciprocal shrinks as the count grows.
          factor = self._times / self._per
          values[constant] = (value / factor if reciprocal else value * factor).astype(value.dtype)
          found = self._are_examples(data[other], round(count))
          # A loss may be a sum in other ways; examples are scaled one by one.
          if found is not None or flow.shape(data[other]) == ():
            counts.setdefault(constant, set()).add(found)
    for constant, every in counts.items():
      known = every - {None} or every
      if known == {True}:
        self._set(constant, values[constant])
      elif known != {False}:
        raise baked_in(f"constant {flow.graph.op_names[constant]!r} may count the examples that "
                       "are summed up, or something else")

  def _are_examples(self, tensor: Tensor, count: int) -> Optional[bool]:
    """Returns whether examples are among so many sums or repeats; None if there are others."""
    flow, op, terms, examples = self._flow, tensor[0], 1, False
    while flow.types[op] in (*_SUMS, "Reshape", "Identity", "Cast", "ExpandDims", "Squeeze"):
      before = flow.inputs[op][0]
      if flow.types[op] in _SUMS:
        sizes = [0 if shape is None or None in shape else math.prod(dataflow.known_dims(shape))
                 for shape in map(flow.shape, (before, (op, 0)))]
        terms *= max(sizes) // max(1, min(sizes))
        examples |= (self._changed_axis(before) is None) != (self._changed_axis((op, 0)) is None)
        if terms == count:
          return examples
      op = before[0]
    return None

  def _resize_source(self, op: int) -> None:
    """States the shapes of a feed, or of an iterator's examples, at the other batch."""
    shapes = [None if shape is None else tuple(-1 if size is None else size for size in shape)
              for shape in map(self._fed_shape, self._flow.outputs(op))]
    if self._flow.types[op] in ITERATORS:
      state_shapes(self._node(op), shapes)
    elif shapes[0] is not None:
      write_shape(self._node(op).attr["shape"].shape, shapes[0])

  def _resize_elements(self, op: int) -> None:
    """States the shape of an array's elements at the other batch."""
    flow, dims = self._flow, self._flow.attr(op, "element_shape")
    made = flow.list_of(flow.inputs[op][0]) if flow.types[op].endswith("GatherV3") else op
    for each, is_list in flow.added(made) if dims is not None and dims.shape.dim else ():
      axis = self._changed_axis(each)
      if axis is not None and axis >= is_list:
        sizes = [dim.size for dim in dims.shape.dim]
        if sizes[axis - is_list] > 0:
          sizes[axis - is_list] = self._resized(sizes[axis - is_list])
          write_shape(self._node(op).attr["element_shape"].shape, tuple(sizes))
        return

  def _set(self, constant: int, value: np.ndarray) -> None:
    self._node(constant).attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value))

  def _node(self, op: int) -> NodeDef:
    """Returns a new copy of an op's node, which stands for it at the other batch."""
    self.nodes[op] = type(self._flow.nodes[op])()
    self.nodes[op].CopyFrom(self._flow.nodes[op])
    self.nodes[op].attr.pop("_output_shapes", None)
    return self.nodes[op]


def baked_in(problem: str) -> GraphError:
  """Returns the error of a graph that cannot be had at another batch, because of a problem."""
  return GraphError(f"{problem}, and the batch is baked into the graph; leave the first dimension "
                    "of the feeds open, with None, or hand over a graph with feeds")


def _replace(graph_def: GraphDef, flow: Dataflow, changed: Mapping[int, NodeDef]) -> GraphDef:
  """Writes the values and shapes of changed ops into a GraphDef; stated shapes are dropped."""
  names = {flow.graph.op_names[op]: node for op, node in changed.items()}
  for node in graph_def.node:
    node.attr.pop("_output_shapes", None)
    new = names.get(node.name)
    for key in ("value", "shape", "output_shapes", "element_shape"):
      if new is not None and key in new.attr:
        node.attr[key].CopyFrom(new.attr[key])
  return graph_def


def resized(flow: Dataflow, changed: Mapping[int, NodeDef]) -> GraphDef:
  """Returns the nodes of a graph for an analysis, some of them changed for another batch.

  Args:
    flow: the dataflow of the graph.
    changed: op -> its NodeDef at the other batch.
  """
  return _replace(analysis_graph_def(flow.graph), flow, changed)


def rebatched(flow: Dataflow, replicas: int) -> Dataflow:
  """Returns the dataflow of a graph at a batch that is R times as large.

  Raises:
    GraphError: the axis of the examples is ambiguous, or the ops reject the larger batch.
  """
  from placeto_tf.costs import guarded

  changed = Rebatching(flow, replicas, 1, counts=True).nodes
  try:
    return Dataflow(
        flow.graph, guarded.analyse(resized(flow, changed), counts=False).outputs, changed)
  except CostError as error:
    raise baked_in(
        f"ops do not fit together at a batch {replicas} times as large ({error})") from None


def divided_graph(graph: ComputationGraph, replicas: int) -> Optional[ComputationGraph]:
  """Returns the graph of one replica if the batch is fixed; None if ops reject a smaller batch.

  Args:
    graph: with the whole batch, of a `tf.Graph`, GraphDef, MetaGraphDef or ConcreteFunction.
    replicas: the number of replicas that share the batch.
  """
  live = graph.origin.format == "tf_graph"
  graph = frozen(graph)
  source = graph.origin
  if source.format not in ("concrete_function", "graph_def", "meta_graph_def"):
    return None
  flow = analyse_dataflow(graph)
  try:
    changed = Rebatching(flow, 1, replicas, counts=False).nodes
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
