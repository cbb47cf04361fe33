"""Reads functions of the process: ConcreteFunction, tf.function and Keras models.

A variable that a function captures is an input of the function's graph. The reader turns this input
into a VarHandleOp, so that the variable's size is known and its readers are colocated with it. A
capture that cannot be moved (a lookup table, a variable that a tf.data pipeline reads) is fixed to
its device.
"""

from __future__ import annotations

import dataclasses
from typing import Mapping

from placeto_tf.errors import GraphError, listed
from placeto_tf.graphs import captures, keras_models, shapes
from placeto_tf.graphs.computation_graph import GraphSource
from placeto_tf.graphs.graph_defs import ReadGraph
from placeto_tf.on_use import ConcreteFunction, GenericFunction, GraphDef, NodeDef, keras, tf

_COMPILED = "_XlaMustCompile"


def is_concrete_function(source: object) -> bool:
  """Returns whether the source is a ConcreteFunction."""
  return hasattr(source, "graph") and hasattr(source, "structured_outputs") and hasattr(
      source, "captured_inputs")


def is_function(source: object) -> bool:
  """Returns whether the source is a `tf.function`."""
  return callable(getattr(source, "get_concrete_function", None)) and not (
      is_concrete_function(source))


def concrete_of(function: GenericFunction) -> ConcreteFunction:
  """Returns a ConcreteFunction itself, or the ConcreteFunction of a `tf.function`.

  A `tf.function` that creates variables in its first call is traced twice for that call. The second
  trace, which later calls use, is returned.

  Raises:
    GraphError: the `tf.function` has no signature, or several.
  """
  if is_concrete_function(function):
    return function
  if getattr(function, "input_signature", None) is not None:
    return function.get_concrete_function()
  traces = function._list_all_concrete_functions() if hasattr(
      function, "_list_all_concrete_functions") else []
  if len(traces) == 1:
    return traces[0]
  # Traces of one signature, made because of the variables of the first call.
  signatures = [trace.structured_input_signature for trace in traces]
  if traces and all(signature == signatures[0] for signature in signatures):
    arguments, keywords = signatures[0]
    return function.get_concrete_function(*arguments, **keywords)
  raise GraphError(
      f"the tf.function {getattr(function, '__name__', function)!r} has {len(traces)} traces"
      f"{' of several signatures' if traces else ''}, and it is not clear which to place; hand "
      "over function.get_concrete_function(...)")


def read_keras_model(model: keras.Model) -> ReadGraph:
  """Reads the inference of a Keras model; `compile_placed` places its training."""
  read = read_concrete_function(keras_models.inference_function(model))
  note = "taken is the inference of the Keras model; see compile_placed for its training"
  return dataclasses.replace(read, notes=(*read.notes, note))


def read_concrete_function(function: ConcreteFunction) -> ReadGraph:
  """Returns the graph of a ConcreteFunction, with its fetches and feeds."""
  function_def = function.function_def
  name, attributes = function_def.signature.name, function_def.attr
  # Looking up a missing key would add it.
  if _COMPILED in attributes and attributes[_COMPILED].b:
    raise GraphError(
        f"the function {name!r} is compiled by XLA as a whole; trace it without jit_compile=True "
        "to place its ops one by one")
  graph = function.graph
  found = captures.resource_captures(function)
  names = getattr(function, captures.PLACED_NAMES, {})
  graph_def = _renamed(graph.as_graph_def(), names)
  # Placeholder of a captured variable -> the capture.
  variables = {each.op: each for each in found if each.shape_and_type is not None}
  for node in graph_def.node:
    if node.name in variables:
      _make_handle(node, variables[node.name])
  fetches = [_original(tensor.name, names) for tensor in graph.outputs]
  # Leave out reads of variables, which a function waits for though they change nothing.
  fetches += sorted(_original(op.name, names) for op in graph.control_outputs
                    if op.type != "ReadVariableOp")
  if not fetches:
    raise GraphError(
        f"the function {name!r} returns nothing and has no side effects; there is nothing to place")
  # Small tensors are captured as constants, which need no feed.
  feeds = tuple(
      _original(tensor.name, names) for tensor in graph.inputs
      if tensor.op.type != "Const" and _original(tensor.op.name, names) not in variables)
  # Names in this function's own graph, for looking up shapes.
  current = {original: name for name, original in names.items()}

  def shape_hint(name):
    op, _, port = name.rpartition(":")
    return shapes.dimensions(
        graph.get_tensor_by_name(f"{current.get(op, op)}:{port}").shape.as_proto())

  fixed = [each for each in found if each.fixed]
  shown = listed([f"{each.name!r} on {each.device.rpartition('/device:')[2]} ({each.fixed})"
                  for each in fixed])
  notes = (f"captured tensors and variables that cannot be moved keep their devices, with all ops "
           f"that use them: {shown}",) if fixed else ()
  return ReadGraph(
      GraphSource(
          "concrete_function", graph_def, tf_graph=function, graph_def=graph_def,
          fixed_devices={each.op: each.device for each in fixed}),
      shape_hint=shape_hint, notes=notes, fetches=tuple(dict.fromkeys(fetches)), feeds=feeds)


def _renamed(graph_def: GraphDef, names: Mapping[str, str]) -> GraphDef:
  """Returns the nodes of a placed function, with the original function's names and order."""
  if not names:
    return graph_def
  # Sort by the original order, so that both functions give the same graph.
  position = {original: i for i, original in enumerate(names.values())}
  for node in graph_def.node:
    node.name = names.get(node.name, node.name)
    node.input[:] = [_original(text, names) for text in node.input]
  nodes = sorted(graph_def.node, key=lambda node: position.get(node.name, len(position)))
  result = type(graph_def)(versions=graph_def.versions, library=graph_def.library)
  result.node.extend(nodes)
  return result


def _original(text: str, names: Mapping[str, str]) -> str:
  """Returns the name of an op, tensor or control input with its op's original name."""
  caret, text = ("^", text[1:]) if text.startswith("^") else ("", text)
  op, colon, port = text.partition(":")
  return f"{caret}{names.get(op, op)}{colon}{port}"


def _make_handle(node: NodeDef, variable: captures.Capture) -> None:
  """Turns the placeholder of a captured variable into the variable's handle."""
  node.op = "VarHandleOp"
  node.attr.clear()
  # Each captured variable is a resource of its own, with the name of its placeholder.
  assert variable.shape_and_type is not None
  shape, node.attr["dtype"].type = variable.shape_and_type
  node.attr["shape"].shape.CopyFrom(shape)
  node.attr["shared_name"].s = f"captured/{node.name}".encode()
  # TensorFlow puts a variable on the first device of this kind unless the user chooses one.
  kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
  if not node.device and not variable.device.endswith(f"/device:{kind}:0"):
    node.device = variable.device
