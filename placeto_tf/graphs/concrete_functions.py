"""Reading functions that live in the process: ConcreteFunction, tf.function and Keras models.

A variable that a function captures is an input of its graph. Here it becomes a VarHandleOp, so
that its size is known and all that reads it stays with it.
"""

from __future__ import annotations

from typing import Any, Tuple

from placeto_tf.errors import GraphError
from placeto_tf.graphs import keras_models
from placeto_tf.graphs.graph_defs import ReadGraph

_RESOURCE = 20  # DT_RESOURCE


def is_concrete_function(source: Any) -> bool:
  """Whether the source is a ConcreteFunction."""
  return hasattr(source, "graph") and hasattr(source, "structured_outputs") and hasattr(
      source, "captured_inputs")


def is_function(source: Any) -> bool:
  """Whether the source is a `tf.function`."""
  return callable(getattr(source, "get_concrete_function", None)) and not (
      is_concrete_function(source))


def read_function(function: Any) -> Tuple[ReadGraph, Tuple[str, ...], Tuple[str, ...]]:
  """The graph, fetches and feeds of a `tf.function` that has one trace or one signature."""
  traces = function._list_all_concrete_functions() if hasattr(
      function, "_list_all_concrete_functions") else []
  if len(traces) == 1:
    return read_concrete_function(traces[0])
  if not traces and getattr(function, "input_signature", None) is not None:
    return read_concrete_function(function.get_concrete_function())
  raise GraphError(
      f"the tf.function {getattr(function, '__name__', function)!r} has {len(traces)} traces and "
      "it is not clear which to place; hand over function.get_concrete_function(...)")


def read_keras_model(model: Any) -> Tuple[ReadGraph, Tuple[str, ...], Tuple[str, ...]]:
  """The inference of a Keras model; see `keras_models.training_function` for its training."""
  return read_concrete_function(keras_models.inference_function(model))


def read_concrete_function(function: Any) -> Tuple[ReadGraph, Tuple[str, ...], Tuple[str, ...]]:
  """The graph, fetches and feeds of a ConcreteFunction."""
  graph = function.graph
  graph_def = graph.as_graph_def()
  captured = {}
  try:
    variables = {id(variable.handle): variable for variable in graph.variables}
  except AssertionError:
    raise GraphError(
        f"the function {function.name!r} uses variables that have been deleted; keep the object "
        "that owns them") from None
  for outer, inner in graph.captures:
    variable = variables.get(id(outer))
    if variable is not None:
      captured[inner.op.name] = variable
  for node in graph_def.node:
    if node.name in captured:
      _make_handle(node, captured[node.name])
  fetches = [tensor.name for tensor in graph.outputs]
  fetches += sorted(op.name for op in graph.control_outputs)
  if not fetches:
    raise GraphError(
        f"the function {function.name!r} returns nothing and has no side effects; there is "
        "nothing to place")
  feeds = tuple(
      tensor.name for tensor in graph.inputs if tensor.op.name not in captured)

  def shape_hint(name):
    shape = graph.get_tensor_by_name(name).shape
    return None if shape.rank is None else tuple(
        -1 if dim is None else dim for dim in shape.as_list())

  read = ReadGraph(
      "concrete_function", graph_def, graph_def, tf_graph=function, shape_hint=shape_hint)
  return read, tuple(dict.fromkeys(fetches)), feeds


def _make_handle(node: Any, variable: Any) -> None:
  """Turns the placeholder of a captured variable into the variable's handle."""
  node.op = "VarHandleOp"
  node.attr.clear()
  node.attr["dtype"].type = variable.dtype.as_datatype_enum
  node.attr["shape"].shape.CopyFrom(variable.shape.as_proto())
  node.attr["shared_name"].s = f"captured/{node.name}".encode()
