"""`TrainableGraph`: a graph in a session of its own, with fixed numbers in place of random ones."""

from __future__ import annotations

import collections
import math
import time
import zlib
from typing import Dict, Iterable, List, Mapping, Sequence, Set, Tuple

import numpy as np

from placeto_tf.errors import GraphError
from placeto_tf.graphs.captures import captures_of, resource_captures
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.graphs.loops import SWITCH
from placeto_tf.graphs.op_defs import registered_op_def
from placeto_tf.graphs.tensor_names import control_inputs, copy_of, data_inputs, parse
from placeto_tf.graphs.traversal import reachable
from placeto_tf.graphs.variables import fills, initializers
from placeto_tf.on_use import GraphDef, NodeDef, tf
from placeto_tf.ops import types_with
from placeto_tf.replication import op_roles
from placeto_tf.replication.reloading import frozen

_LONG_S = 1e6  # as long as no limit
# The usual and the other fixed numbers. A step that drops values with some probability drops none
# of them with one number, and all of them with the other.
_FIXED_NUMBERS = {"normal": (0.6, -0.6), "uniform": (0.9, 0.05)}
_FIXED_HANDLE = "/fixed_random/handle"
_BOUNDED = {"RandomUniformInt": 1, "StatelessRandomUniformInt": 2, "StatelessRandomUniformIntV2": 4}


class NotRunnable(Exception):
  """The reason why a graph cannot be trained here."""


class NotCompared(NotRunnable):
  """The reason why a graph that may well run is not compared here."""


class NotEnoughMemory(NotCompared):
  """The memory that training needs, and the free memory of this machine."""


class TrainableGraph:
  """Runs a graph's step in a session of its own, with fixed numbers in place of random ones.

  Attributes:
    graph: the graph that is run.
    tf_graph: the graph in TensorFlow; ops may be added to it.
    captured: op -> variable that a live function captures; empty for other graphs.
    given: fed tensor -> value of other captured tensors.
    tables: op -> lookup table that a live function captures.
    session: None before it is opened.
  """

  def __init__(self, graph: ComputationGraph, double: bool = False):
    """Imports the graph with fixed numbers for random ones, and wider types.

    Args:
      graph: to be run.
      double: whether all floating-point numbers have 64 bits. Otherwise, 16-bit numbers become
        32-bit numbers, whose roundings do not hide differences.

    Raises:
      NotRunnable: the graph cannot be run so.
      GraphError: TensorFlow cannot import it.
    """
    self.captured, self.given, self.tables = _captured(graph)
    self.graph = graph = frozen(graph)
    # Work on a copy, because the given graph must not change.
    source = graph.origin
    graph_def = type(source.graph_def)()
    graph_def.CopyFrom(source.graph_def)
    for node in graph_def.node:
      node.device = ""
      _stand_in(graph_def, node, node.name in graph.op_index)  # of initializers, too
    filled = [_make_table(graph_def, name, handle) for name, handle in self.tables.items()]
    wide = tf.float64 if double else tf.float32
    _lift(graph_def, {tf.float16: wide, tf.bfloat16: wide, **(
        {tf.float32: tf.float64, tf.complex64: tf.complex128} if double else {})})
    # The variables of fixed numbers; handles of random ops may be in a loop.
    self._fixed = {node.attr["shared_name"].s.decode(): node.attr["dtype"].type
                   for node in graph_def.node if node.name.endswith(_FIXED_HANDLE)}
    self.tf_graph = tf.Graph()
    try:
      with self.tf_graph.as_default():
        tf.graph_util.import_graph_def(graph_def, name="")
        for name, dtype in self._fixed.items():
          tf.raw_ops.VarHandleOp(dtype=dtype, shape=[], shared_name=name, name=name)
        self._fills = [tf.raw_ops.LookupTableImportV2(
            table_handle=self.tf_graph.get_tensor_by_name(f"{name}:0"), keys=keys, values=values)
                       for name, (keys, values) in zip(self.tables, filled)]
    except ValueError as problem:
      if double:
        raise NotRunnable(f"an op has no double precision ({problem})") from None
      raise GraphError(f"TensorFlow cannot import the graph ({problem})") from None
    self._setters: Dict[str, Tuple[tf.Operation, tf.Tensor]] = {}
    self._readers: Dict[str, tf.Tensor] = {}
    self.add(self._fixed)
    self.session: tf.compat.v1.Session = None

  def open(self, *, initialises: bool) -> None:
    """Begins a session; initialises its variables, unless a live function has or they are set."""
    # A session has its own lookup tables, also where variables have their values already.
    find = initializers if initialises and not self.captured else fills
    init, fed = find(self.graph, self.tf_graph)
    config = tf.compat.v1.ConfigProto(allow_soft_placement=True)
    # Optimisers could merge equal ops of several replicas.
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    self.session = tf.compat.v1.Session(graph=self.tf_graph, config=config)
    self._set_random_ops(False)
    self.session.run([*init, *self._fills], fed)

  def close(self) -> None:
    """Ends the session."""
    if self.session is not None:
      self.session.close()
      self.session = None  # values of variables are freed with the object

  def add(self, names: Iterable[str]) -> None:
    """Adds ops that read and write variables."""
    with self.tf_graph.as_default(), tf.device(None):
      for name in names:
        op = self.tf_graph.get_operation_by_name(name)
        dtype = tf.as_dtype(op.get_attr("dtype")).base_dtype
        value = tf.compat.v1.placeholder(dtype)
        # Resource variables, then the older reference variables.
        if op.type == "VarHandleOp":
          read = tf.raw_ops.ReadVariableOp(resource=op.outputs[0], dtype=dtype)
          write = tf.raw_ops.AssignVariableOp(resource=op.outputs[0], value=value)
        else:
          read = tf.identity(op.outputs[0])
          write = tf.raw_ops.Assign(ref=op.outputs[0], value=value, validate_shape=False).op
        self._readers[name], self._setters[name] = read, (write, value)

  def first(self, names: Sequence[str]) -> List[np.ndarray]:
    """Returns the first values of variables: those that a live function captures, if it is one."""
    if not self.captured:
      return self.read(names)
    values = [self.captured[name].numpy() for name in names]
    # As `_lift` widens the variables.
    return [value.astype(np.float32) if value.dtype.itemsize == 2 and (
        self.captured[name].dtype.is_floating) else value for name, value in zip(names, values)]

  def read(self, names: Sequence[str]) -> List[np.ndarray]:
    """Returns the present values of variables."""
    return self.session.run([self._readers[name] for name in names])

  def write(self, values: Mapping[str, np.ndarray]) -> None:
    """Sets variables."""
    setters = [self._setters[name] for name in values]
    self.session.run([write for write, _ in setters],
                     {fed: value for (_, fed), value in zip(setters, values.values())})

  def step(
      self, feed: Mapping[str, np.ndarray], deadline: float = math.inf, otherwise: bool = False
  ) -> List[np.ndarray]:
    """Runs the fetches once; returns the values of the fetched tensors.

    Args:
      feed: feed of the step.
      deadline: deadline of the step.
      otherwise: whether random ops give the other fixed numbers.

    Returns:
      Arrays in the order of the fetched tensors.

    Raises:
      DeadlineExceededError: it was not done by the deadline (of the monotonic clock).
    """
    self._set_random_ops(otherwise)
    left_s = deadline - time.monotonic()
    if left_s <= 0.0:  # the least time-out of a session is 1 ms, enough for a small step
      raise tf.errors.DeadlineExceededError(None, None, "nothing is left of the time")
    options = None if left_s > _LONG_S else tf.compat.v1.RunOptions(
        timeout_in_ms=math.ceil(1000 * left_s))
    # Fetches with a port are tensors, others are ops; both run in one step.
    tensors = [name for name in self.graph.fetches if ":" in name]
    ops = [name for name in self.graph.fetches if ":" not in name]
    return self.session.run([tensors, ops], feed, options=options)[0]

  def _set_random_ops(self, otherwise: bool) -> None:
    """Sets the fixed numbers of random ops: the usual ones or the others."""
    self.write({name: np.array(_FIXED_NUMBERS[name.split("_")[2]][otherwise])
                for name in self._fixed})


def _captured(
    graph: ComputationGraph
) -> Tuple[Dict[str, tf.Variable], Dict[str, np.ndarray], Dict[str, tf.Tensor]]:
  """Returns what a live function captures.

  Returns:
    (op -> variable), (fed tensor -> value) of its other tensors, such as class weights, and (op ->
    handle) of what may be lookup tables.

  Raises:
    NotRunnable: it captures a value that is not there.
  """
  function = graph.origin.tf_graph
  if graph.origin.format != "concrete_function":
    return {}, {}, {}
  found = resource_captures(function)
  variables = {each.op: each.variable for each in found if each.variable is not None}
  tables, tensors = {each.op: each.handle for each in found if each.variable is None}, {}
  for name, outer in captures_of(function).items():
    if name in variables or name in tables:
      continue
    if not hasattr(outer, "numpy"):
      raise NotRunnable(f"the function captures the value {name!r}")
    tensors[f"{name}:0"] = outer.numpy()
  return variables, tensors, tables


def _make_table(
    graph_def: GraphDef, name: str, handle: tf.Tensor) -> Tuple[np.ndarray, np.ndarray]:
  """Turns the placeholder of a captured lookup table into a table; returns its keys and values.

  Raises:
    NotRunnable: no lookup of scalars reads it, so it may be another resource.
  """
  node = next(each for each in graph_def.node if each.name == name)
  lookup = next((each for each in graph_def.node if each.op == "LookupTableFindV2"
                 and each.input[0].partition(":")[0] == name), None)
  if lookup is None:
    raise NotRunnable(f"the function captures {name!r}, which is no variable and no lookup table")
  kinds = lookup.attr["Tin"].type, lookup.attr["Tout"].type
  with tf.init_scope():
    keys, values = (each.numpy() for each in tf.raw_ops.LookupTableExportV2(
        table_handle=handle, Tkeys=kinds[0], Tvalues=kinds[1]))
  if values.ndim > 1:
    raise NotRunnable(f"the function captures {name!r}, a lookup table of tensors")
  node.op = "MutableHashTableV2"
  node.attr.clear()
  node.attr["key_dtype"].type, node.attr["value_dtype"].type = kinds
  node.attr["shared_name"].s = name.encode()
  return keys, values


def _stand_in(graph_def: GraphDef, node: NodeDef, needed: bool) -> None:
  """Turns a random op into an op that outputs a fixed number; others must not be needed."""
  kind = node.op
  # All replicas read one op, which samples the same ids in both graphs if it has a seed.
  if kind.endswith("CandidateSampler"):
    node.attr["seed"].i = node.attr["seed2"].i = 1
    return
  # A shuffle becomes the identity.
  if kind == "RandomShuffle":
    node.op = "Identity"
    for key in set(node.attr) - {"T"}:
      del node.attr[key]
    return
  if kind not in op_roles.RANDOM_OPS - op_roles.KEYS - {"RngSkip"}:
    return
  uniform = "Uniform" in kind
  if not (uniform or "Normal" in kind) or "FullInt" in kind or "Parameterized" in kind:
    if not needed:
      return
    raise NotRunnable(f"op {node.name!r} ({kind}) samples in a way that has no fixed stand-in")
  # The op becomes Fill(shape, fixed number), with the same control inputs.
  data, controls = data_inputs(node), control_inputs(node)
  # A sampler from a variable reads (variable, algorithm, shape); all others read the shape first.
  shape = data[2 if kind in op_roles.VARIABLE_RANDOM else 0]
  if kind in _BOUNDED:
    value = data[_BOUNDED[kind]]  # the least whole number
    dtype = node.attr["Tout" if "Tout" in node.attr else "dtype"].type
  else:
    dtype = node.attr["dtype"].type
    value = _fixed_random(
        graph_def, node.name, "uniform" if uniform else "normal", dtype, shape.partition(":")[0])
  # Type of the shape input: DT_INT32 (3) or DT_INT64 (9).
  index = next((node.attr[key].type for key in ("T", "Tshape", "shape_dtype")
                if key in node.attr and node.attr[key].type in (3, 9)), 3)
  node.op, node.input[:] = "Fill", [shape, value, *controls]
  node.attr.clear()
  node.attr["T"].type, node.attr["index_type"].type = dtype, index


def _lift(graph_def: GraphDef, types: Mapping[tf.DType, tf.DType]) -> None:
  """Replaces types of numbers by wider ones (type -> wider type), in functions, too."""
  flows = _flows(graph_def)
  lifted = {one.as_datatype_enum: other.as_datatype_enum for one, other in types.items()}
  for function in graph_def.library.function:
    for arg in (*function.signature.input_arg, *function.signature.output_arg):
      arg.type = lifted.get(arg.type, arg.type)
  for node in (*(node for node in graph_def.node if node.name not in flows), *(
      node for function in graph_def.library.function for node in function.node_def)):
    for attr in node.attr.values():
      kind = attr.WhichOneof("value")
      if kind == "type" and attr.type in lifted:
        attr.type = lifted[attr.type]
      elif kind == "list":
        attr.list.type[:] = [lifted.get(each, each) for each in attr.list.type]
      elif kind == "tensor" and attr.tensor.dtype in lifted:
        wanted = tf.dtypes.as_dtype(lifted[attr.tensor.dtype]).as_numpy_dtype
        # Constants are converted with their type.
        attr.tensor.CopyFrom(tf.make_tensor_proto(tf.make_ndarray(attr.tensor).astype(wanted)))


def _flows(graph_def: GraphDef) -> Set[str]:
  """Returns the ops that pass flows of TensorArrays on, whose numbers always have 32 bits."""
  types = {node.name: node.op for node in graph_def.node}
  passing = (*types_with(hands_on=True), "Const", "AddN", "ZerosLike")
  flows: Set[str] = set()
  beside: Dict[str, List[str]] = collections.defaultdict(list)  # op -> ops of the same type T
  for node in graph_def.node:
    for i, (name, port) in enumerate(map(parse, data_inputs(node))):
      if _is_flow(node.op, "input_arg", i):
        flows.add(name)
      elif _is_flow(types[name], "output_arg", port):
        flows.add(node.name)
      elif node.op in passing and types[name] in passing and not (i and node.op in SWITCH):
        beside[name].append(node.name)
        beside[node.name].append(name)
  return {name for name in reachable(flows, beside.__getitem__) if types[name] in passing}


def _is_flow(op_type: str, args: str, i: int) -> bool:
  """Returns whether an input or output of an op is the flow of a TensorArray."""
  op_def = registered_op_def(op_type) if op_type.startswith("TensorArray") else None
  return op_def is not None and getattr(op_def, args)[i].name.startswith("flow")


def _fixed_random(graph_def: GraphDef, name: str, kind: str, dtype: int, after: str) -> str:
  """Adds ops that give the fixed number of a random op; `after`: in whose loop or branch."""
  handle, read, share, value = (
      graph_def.node.add(name=name + part, op=op, input=[f"^{after}"])
      for part, op in ((_FIXED_HANDLE, "VarHandleOp"), ("/fixed_random/read", "ReadVariableOp"),
                       ("/fixed_random/share", "Const"), ("/fixed_random/value", "AddV2")))
  # All random ops of a kind and type share one variable, which `_set_random_ops` sets.
  handle.attr["shared_name"].s = f"fixed_random_{kind}_{dtype}".encode()
  handle.attr["shape"].shape.SetInParent()
  for node in (handle, read, share):
    node.attr["dtype"].type = dtype
  value.attr["T"].type = dtype
  # A different number for each op, so that an exchange of two random ops would show.
  part = (zlib.crc32((copy[1] if (copy := copy_of(name)) else name).encode()) % 1000) / 1e5
  share.attr["value"].tensor.CopyFrom(
      tf.make_tensor_proto(part, dtype=tf.dtypes.as_dtype(dtype), shape=()))
  read.input.insert(0, handle.name)
  for i, each in enumerate((read.name, share.name)):
    value.input.insert(i, each)
  return value.name
