"""Places a ConcreteFunction: makes a new one with the same signature and its ops on their devices.

The variables that a function captures exist already, each on a device. By default they are moved to
the devices of the placement. They remain the same Python objects, and every function in the process
keeps using them (`moving`). On request they stay, together with the ops that touch them, or the
function gets copies of its own.
"""

from __future__ import annotations

import dataclasses
import warnings
from typing import TYPE_CHECKING, Any, Dict, Mapping, Optional, Tuple

from placeto_tf.errors import PlacementError, listed, one_line
from placeto_tf.graphs.captures import resource_captures
from placeto_tf.graphs.colocation import colocate
from placeto_tf.graphs.concrete_functions import PLACED_NAMES, read_concrete_function
from placeto_tf.graphs.functions import inline_functions, keep_known_classes
from placeto_tf.graphs.node_table import read_nodes
from placeto_tf.placements import moving
from placeto_tf.placements.node_devices import place_nodes

if TYPE_CHECKING:
  import tensorflow as tf
  from tensorflow.core.framework.graph_pb2 import GraphDef
  from tensorflow.types.experimental import ConcreteFunction


@dataclasses.dataclass(frozen=True)
class CapturedVariable:
  """A variable, or another resource, that the function captures.

  Attributes:
    name: of the variable.
    device: where it was.
    wanted: where the placement has it.
  """

  name: str
  device: str
  wanted: str


@dataclasses.dataclass(frozen=True, eq=False)
class PlacedFunction:
  """A placed function and what happened to its variables; called like the original.

  Attributes:
    function: a new ConcreteFunction; the original is unchanged.
    in_place: captured variables that were where the placement wants them.
    moved: captured variables that are there now; their Python objects are the same.
    stayed: captured variables that are elsewhere; the ops that touch them run there too.
    recreated: captured variables that the function no longer uses, because it has copies.
    variables: name of each recreated variable -> the copy, which starts with the same value.
  """

  function: ConcreteFunction
  in_place: Tuple[CapturedVariable, ...]
  moved: Tuple[CapturedVariable, ...]
  stayed: Tuple[CapturedVariable, ...]
  recreated: Tuple[CapturedVariable, ...]
  variables: Dict[str, tf.Variable]

  def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: D102
    return self.function(*args, **kwargs)

  def __str__(self) -> str:
    lines = [f"{len(self.in_place)} variables were where the placement wants them"]
    if self.moved:
      lines.append(f"{len(self.moved)} were moved there ({_names(self.moved)})")
    if self.stayed:
      lines.append(
          f"{len(self.stayed)} stay elsewhere ({_names(self.stayed)}), and the ops that touch them "
          "with them")
    if self.recreated:
      lines.append(
          f"{len(self.recreated)} were made again ({_names(self.recreated)}): the function no "
          "longer shares them with the model")
    return "; ".join(lines)


def place_function(
    placement: Mapping[str, str], function: ConcreteFunction, *, move_variables: bool = True,
    recreate_variables: bool = False,
) -> PlacedFunction:
  """Makes a placed copy of a ConcreteFunction.

  Args:
    placement: op name -> device name, for all ops of the function, calls inlined, as
      `load_graph(function)` names them.
    function: a ConcreteFunction.
    move_variables: whether captured variables that are elsewhere are moved to their devices, for
      this function and all else that uses them. If not, they stay, and the ops that touch them
      stay with them: such a step may take far longer than the placement promises.
    recreate_variables: whether those variables are copied to their devices instead, for this
      function alone.

  Raises:
    PlacementError: an op has no device, or what the function captures is elsewhere than the
      placement wants it and cannot be moved.
    GraphError: the function cannot be read, or XLA compiles it as a whole.
  """
  graph_def, _ = inline_functions(read_concrete_function(function)[0].source.graph_def)
  place_nodes(placement, graph_def.node)
  names = getattr(function, PLACED_NAMES, {})
  by_name = {names.get(each.op, each.op): each for each in resource_captures(function)}
  captures = {names.get(inner.op.name, inner.op.name): outer
              for outer, inner in function.graph.captures if inner.op.type != "Const"}
  devices = {node.name: node.device for node in graph_def.node}
  in_place, moved, stayed, recreated, copies = [], [], [], [], {}
  moves = []
  anchors: Dict[str, str] = {}  # captured op -> where it stays
  capture = None
  for name, capture in by_name.items():
    found = CapturedVariable(capture.name, capture.device, devices[name])
    if moving.local_device(capture.device) == moving.local_device(devices[name]):
      in_place.append(found)
    elif recreate_variables and capture.variable is not None:
      recreated.append(found)
      copies[capture.variable.name] = _copy(capture.variable, devices[name])
      captures[name] = copies[capture.variable.name].handle
    elif not move_variables:
      stayed.append(found)
      anchors[name] = capture.device
    elif capture.fixed:
      raise PlacementError(
          f"the placement wants {capture.name!r} on {devices[name]}, but it is on "
          f"{capture.device} and cannot be moved, because {capture.fixed}; place the function "
          "again, which plans with it where it is")
    else:
      moved.append(found)
      moves.append((capture.variable, devices[name]))
  _keep_together(graph_def, anchors)
  placed = _build(function, graph_def, captures, tuple(copies.values()))
  del capture, by_name, captures  # these hold handles, and `held` names all that is held
  held = moving.move_variables(moves).held
  if held:
    warnings.warn(
        f"{len(held)} of the variables that were moved are also held by something that is no "
        f"function ({', '.join(held[:3])}), which still reads their old values; make it again",
        stacklevel=3)
  return PlacedFunction(
      placed, tuple(in_place), tuple(moved), tuple(stayed), tuple(recreated), copies)


def trial_function(
    function: ConcreteFunction, placement: Optional[Mapping[str, str]] = None) -> ConcreteFunction:
  """A copy of a ConcreteFunction whose steps change no variable of the original.

  Args:
    function: a ConcreteFunction.
    placement: as for `place_function`; None leaves the ops to TensorFlow, as the original does.

  Returns:
    A ConcreteFunction with copies of all variables, which start with the present values. Other
    resources (lookup tables) are shared.

  Raises:
    PlacementError, GraphError: as `place_function`.
  """
  import tensorflow as tf

  graph_def = read_concrete_function(function)[0].source.graph_def
  devices: Mapping[str, str] = {}
  if placement is not None:
    graph_def, _ = inline_functions(graph_def)
    place_nodes(placement, graph_def.node)
    devices = {node.name: node.device for node in graph_def.node}
  names = getattr(function, PLACED_NAMES, {})
  captures = {names.get(inner.op.name, inner.op.name): outer
              for outer, inner in function.graph.captures if inner.op.type != "Const"}
  copies: Dict[str, tf.Variable] = {}
  try:
    for each in resource_captures(function):
      name = names.get(each.op, each.op)
      if each.variable is not None:
        copies[name] = _copy(each.variable, devices.get(name, each.device))
        captures[name] = copies[name].handle
  except tf.errors.OpError as error:
    raise PlacementError(
        f"there is no room for copies of the variables ({one_line(error, 100)}); place without a "
        "trial") from error
  return _build(function, graph_def, captures, tuple(copies.values()))


def _keep_together(graph_def: GraphDef, moved: Dict[str, str]) -> None:
  """Puts the ops that touch a variable on its device, as TensorFlow would silently."""
  if not moved:
    return
  table = read_nodes(graph_def)
  sets = colocate(table)
  stays = {int(sets[table.index[name]]): device for name, device in moved.items()}
  for node, label in zip(table.nodes, sets.tolist()):
    if label in stays:
      node.device = stays[label]


def _copy(variable: tf.Variable, device: str) -> tf.Variable:
  """A variable with the same value on another device."""
  import tensorflow as tf

  with tf.init_scope(), tf.device(device):
    return tf.Variable(
        variable.read_value(), trainable=variable.trainable, dtype=variable.dtype,
        shape=variable.shape, name=variable.name.partition(":")[0])


def _build(
    function: ConcreteFunction, graph_def: GraphDef, captures: Dict[str, tf.Tensor],
    copies: Tuple[tf.Variable, ...]) -> ConcreteFunction:
  """The ConcreteFunction of a GraphDef, called as `function` is.

  Args:
    function: a ConcreteFunction.
    graph_def: its nodes, calls inlined, with their devices.
    captures: op -> the tensor from outside that it stands for.
    copies: variables that the function owns.
  """
  import tensorflow as tf
  from tensorflow.python.eager.polymorphic_function import concrete_function
  from tensorflow.python.framework import func_graph

  original = function.graph
  old_names = getattr(function, PLACED_NAMES, {})
  body = type(graph_def)()
  body.versions.CopyFrom(graph_def.versions)
  body.library.CopyFrom(graph_def.library)
  body.node.extend(node for node in graph_def.node if node.name not in captures)
  # Every op has its device, so colocated ops are together already; `_class` of an op may name a
  # capture, which has another name now.
  keep_known_classes(body.node, {node.name for node in body.node})
  used = {text.lstrip("^").partition(":")[0] for node in body.node for text in node.input}
  used.update(old_names.get(tensor.op.name, tensor.op.name) for tensor in original.outputs)
  devices = {node.name: node.device for node in graph_def.node}
  graph = func_graph.FuncGraph(f"{original.name}_placed")
  inner: Dict[str, tf.Tensor] = {}
  with graph.as_default():
    for i, (name, outer) in enumerate(captures.items()):
      # Under its old name "op/resource" it would take the name of "op", which is imported later.
      inner[name] = graph.capture(outer, name=f"placeto_tf_capture_{i}")
      inner[name].op._set_device(devices[name])
    captured = list(graph.inputs)
    tf.graph_util.import_graph_def(
        body, name="",
        input_map={f"{name}:0": tensor for name, tensor in inner.items() if name in used})

  def find(tensor: object) -> object:
    if not isinstance(tensor, tf.Tensor) or getattr(tensor, "graph", None) is not original:
      return tensor
    name = old_names.get(tensor.op.name, tensor.op.name)
    return inner.get(name) if name in inner else (
        graph.get_tensor_by_name(f"{name}:{tensor.value_index}"))

  outside = {id(tensor) for _, tensor in original.captures}
  graph.inputs = [
      find(tensor) for tensor in original.inputs if id(tensor) not in outside] + captured
  graph.outputs = [find(tensor) for tensor in original.outputs]
  graph.control_outputs = [
      graph.get_operation_by_name(old_names.get(op.name, op.name))
      for op in original.control_outputs]
  graph.structured_input_signature = original.structured_input_signature
  graph.structured_outputs = tf.nest.map_structure(
      find, original.structured_outputs, expand_composites=True)
  owned = {id(variable.handle): variable for variable in (*original.variables, *copies)}
  graph.variables = [
      owned[id(outer)] for outer in captures.values() if id(outer) in owned]
  # The original's type names the original's captures.
  signature = function.function_type
  signature = type(signature)(
      list(signature.parameters.values()), graph.function_captures.capture_types,
      return_annotation=signature.output)
  placed = concrete_function.ConcreteFunction.from_func_graph(graph, signature, {})
  for name in ("_arg_keywords", "_num_positional_args"):
    if hasattr(function, name):
      setattr(placed, name, getattr(function, name))
  setattr(placed, PLACED_NAMES, {
      inner[node.name].op.name if node.name in inner else node.name: node.name
      for node in graph_def.node})
  # TensorFlow's graphs hold their variables weakly.
  placed._placeto_owned = (copies, getattr(function, "_placeto_model", None))
  return placed


def _names(variables: Tuple[CapturedVariable, ...]) -> str:
  return listed([f"{variable.name} on {variable.device}" for variable in variables])
