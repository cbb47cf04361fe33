"""Placing a ConcreteFunction: a new one of the same call, with its ops on their devices.

Variables that a function captures are made before it and live where they are. Either they stay, and
the ops that touch them stay with them, or they are made anew, as copies on their new devices.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Tuple

from placeto_tf.clusters import device_names
from placeto_tf.errors import PlacementError
from placeto_tf.graphs.concrete_functions import read_concrete_function
from placeto_tf.graphs.functions import inline_functions
from placeto_tf.graphs.node_table import read_nodes
from placeto_tf.placements import applying, coverage
from placeto_tf.placements.placement import Placement

_COMPILED = "_XlaMustCompile"


@dataclasses.dataclass(frozen=True)
class CapturedVariable:
  """A variable that the function captures.

  Attributes:
    name: of the variable.
    device: where it was made.
    wanted: where the placement has it.
  """

  name: str
  device: str
  wanted: str


@dataclasses.dataclass(frozen=True, eq=False)
class PlacedFunction:
  """A placed function and what became of its variables.

  Attributes:
    function: a new ConcreteFunction; the original is as it was.
    in_place: captured variables that are where the placement wants them.
    stayed: captured variables that are elsewhere; the ops that touch them run there too.
    recreated: captured variables that the function does not use any more, because it has copies.
    variables: name of each recreated variable -> the copy, which starts with the same value.
  """

  function: Any
  in_place: Tuple[CapturedVariable, ...]
  stayed: Tuple[CapturedVariable, ...]
  recreated: Tuple[CapturedVariable, ...]
  variables: Dict[str, Any]

  def __str__(self) -> str:
    lines = [f"{len(self.in_place)} variables are where the placement wants them"]
    if self.stayed:
      lines.append(
          f"{len(self.stayed)} stay elsewhere ({_some(self.stayed)}), and the ops that touch them "
          "with them; make them under tf.device, or place with recreate_variables=True")
    if self.recreated:
      lines.append(
          f"{len(self.recreated)} were made anew ({_some(self.recreated)}): the function no longer "
          "shares them with the model")
    return "; ".join(lines)


def place_function(
    placement: Placement, function: Any, *, recreate_variables: bool = False
) -> PlacedFunction:
  """Makes a placed copy of a ConcreteFunction.

  Args:
    placement: of all ops of the function, calls inlined, as `load_graph(function)` names them.
    function: a ConcreteFunction.
    recreate_variables: whether captured variables that are elsewhere are copied to their devices.

  Raises:
    PlacementError: an op has no device, or XLA compiles the function as a whole.
    GraphError: the function cannot be read.
  """
  if function.function_def.attr[_COMPILED].b:
    raise PlacementError(
        f"the function {function.name!r} is compiled by XLA as a whole; trace it without "
        "jit_compile=True to place its ops one by one")
  graph_def, _ = inline_functions(read_concrete_function(function)[0].graph_def)
  applying.place_nodes(placement, graph_def.node)
  by_handle = {id(variable.handle): variable for variable in function.graph.variables}
  captures = {inner.op.name: (outer, by_handle.get(id(outer)))
              for outer, inner in function.graph.captures}
  devices = {node.name: node.device for node in graph_def.node}
  in_place, stayed, recreated, copies = [], [], [], {}
  moved: Dict[str, str] = {}  # captured op -> where it stays
  for name, (_, variable) in captures.items():
    if variable is None:
      continue
    found = CapturedVariable(variable.name, variable.device, devices[name])
    if _local(variable.device) == _local(devices[name]):
      in_place.append(found)
    elif recreate_variables:
      recreated.append(found)
      captures[name] = (None, _copy(variable, devices[name]))
      copies[variable.name] = captures[name][1]
    else:
      stayed.append(found)
      moved[name] = variable.device
  _keep_together(graph_def, moved)
  placed = _build(function, graph_def, captures)
  # TensorFlow's graphs hold their variables weakly.
  placed._placeto_variables = tuple(copies.values())
  return PlacedFunction(placed, tuple(in_place), tuple(stayed), tuple(recreated), copies)


def _keep_together(graph_def: Any, moved: Dict[str, str]) -> None:
  """Puts the ops that touch a variable where it stays, as TensorFlow would without a word."""
  if not moved:
    return
  import numpy as np

  table = read_nodes(graph_def)
  sets = coverage.colocation_sets(table, np.full(table.num_nodes, -1))
  stays = {int(sets[table.index[name]]): device for name, device in moved.items()}
  for node, label in zip(table.nodes, sets.tolist()):
    if label in stays:
      node.device = stays[label]


def _copy(variable: Any, device: str) -> Any:
  """A variable with the same value on another device."""
  import tensorflow as tf

  with tf.init_scope(), tf.device(device):
    return tf.Variable(
        variable.read_value(), trainable=variable.trainable, dtype=variable.dtype,
        shape=variable.shape, name=variable.name.partition(":")[0])


def _build(function: Any, graph_def: Any, captures: Dict[str, Tuple[Any, Any]]) -> Any:
  """The ConcreteFunction of a GraphDef, called as `function` is."""
  import tensorflow as tf
  from tensorflow.python.eager.polymorphic_function import concrete_function
  from tensorflow.python.framework import func_graph

  original = function.graph
  body = type(graph_def)()
  body.versions.CopyFrom(graph_def.versions)
  body.library.CopyFrom(graph_def.library)
  body.node.extend(node for node in graph_def.node if node.name not in captures)
  used = {text.lstrip("^").partition(":")[0] for node in body.node for text in node.input}
  used.update(tensor.op.name for tensor in original.outputs)
  graph = func_graph.FuncGraph(f"{original.name}_placed")
  inner: Dict[str, Any] = {}
  with graph.as_default():
    for i, (name, (outer, variable)) in enumerate(captures.items()):
      handle = outer if outer is not None else variable.handle
      # Under its old name "op/resource" it would keep "op" from being imported under its own.
      inner[name] = graph.capture(handle, name=f"placeto_tf_capture_{i}")
    captured = list(graph.inputs)
    tf.graph_util.import_graph_def(
        body, name="",
        input_map={f"{name}:0": tensor for name, tensor in inner.items() if name in used})

  def find(tensor: Any) -> Any:
    if not isinstance(tensor, tf.Tensor) or getattr(tensor, "graph", None) is not original:
      return tensor
    return inner.get(tensor.op.name) if tensor.op.name in inner else (
        graph.get_tensor_by_name(tensor.name))

  arguments = [tensor for tensor in original.inputs if tensor.op.name not in inner]
  graph.inputs = [find(tensor) for tensor in arguments] + captured
  graph.outputs = [find(tensor) for tensor in original.outputs]
  graph.control_outputs = [
      graph.get_operation_by_name(op.name) for op in original.control_outputs]
  graph.structured_input_signature = original.structured_input_signature
  graph.structured_outputs = tf.nest.map_structure(
      find, original.structured_outputs, expand_composites=True)
  kept = [variable for _, variable in captures.values() if variable is not None]
  graph.variables = kept
  placed = concrete_function.ConcreteFunction.from_func_graph(graph, function.function_type, {})
  for name in ("_arg_keywords", "_num_positional_args"):
    if hasattr(function, name):
      setattr(placed, name, getattr(function, name))
  return placed


def _local(device: str) -> str:
  found = device_names.canonical(device) or device
  for part in ("/job:localhost", "/task:0"):
    found = found.replace(part, "", 1)
  return found


def _some(variables: Tuple[CapturedVariable, ...]) -> str:
  listed: List[str] = [f"{variable.name} on {variable.device}" for variable in variables[:3]]
  return ", ".join(listed) + (", ..." if len(variables) > 3 else "")
