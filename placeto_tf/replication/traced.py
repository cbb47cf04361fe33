"""Replicas of a ConcreteFunction: a new one with the same variables that takes the global batch."""

from __future__ import annotations

from typing import Any, Dict, Set

from placeto_tf.graphs.concrete_functions import PLACED_NAMES
from placeto_tf.graphs.shapes import PLACEHOLDERS


def rebuilt_function(function: Any, graph_def: Any) -> Any:
  """Returns the ConcreteFunction of a graph that was made from that of another.

  Args:
    function: the other; its variables become those of the result.
    graph_def: a GraphDef, whose feeds may take another batch.

  Returns:
    The new function.
  """
  import tensorflow as tf
  from tensorflow.python.eager.polymorphic_function import concrete_function
  from tensorflow.python.framework import func_graph

  original = function.graph
  names = getattr(function, PLACED_NAMES, {})
  captures = {names.get(inner.op.name, inner.op.name): outer for outer, inner in original.captures}
  body = type(graph_def)()
  body.versions.CopyFrom(graph_def.versions)
  body.library.CopyFrom(graph_def.library)
  body.node.extend(node for node in graph_def.node if node.name not in captures)
  for node in body.node:
    _forget_colocation(node, captures)
  used = {text.lstrip("^").partition(":")[0] for node in body.node for text in node.input}
  used.update(names.get(tensor.op.name, tensor.op.name) for tensor in original.outputs)
  _open_unread(body.node, used)
  graph = func_graph.FuncGraph(f"{original.name}_rebuilt")
  inner: Dict[str, Any] = {}
  with graph.as_default():
    for i, (name, outer) in enumerate(captures.items()):
      # Under its old name "op/resource" it would take the name of "op", which is imported later.
      inner[name] = graph.capture(outer, name=f"placeto_tf_capture_{i}")
    captured = list(graph.inputs)
    tf.graph_util.import_graph_def(
        body, name="",
        input_map={f"{name}:0": tensor for name, tensor in inner.items() if name in used})

  def find(tensor):
    if not isinstance(tensor, tf.Tensor) or getattr(tensor, "graph", None) is not original:
      return tensor
    name = names.get(tensor.op.name, tensor.op.name)
    return inner[name] if name in inner else graph.get_tensor_by_name(
        f"{name}:{tensor.value_index}")

  outside = {id(tensor) for _, tensor in original.captures}
  arguments = [tensor for tensor in original.inputs if id(tensor) not in outside]
  graph.inputs = [find(tensor) for tensor in arguments] + captured
  graph.outputs = [find(tensor) for tensor in original.outputs]
  graph.control_outputs = [
      graph.get_operation_by_name(names.get(op.name, op.name)) for op in original.control_outputs]
  shapes = iter([find(tensor).shape for tensor in arguments])
  graph.structured_input_signature = tf.nest.map_structure(
      lambda spec: tf.TensorSpec(next(shapes), spec.dtype, spec.name) if (
          isinstance(spec, tf.TensorSpec)) else spec, original.structured_input_signature)
  graph.structured_outputs = tf.nest.map_structure(
      find, original.structured_outputs, expand_composites=True)
  graph.variables = list(original.variables)
  result = concrete_function.ConcreteFunction.from_func_graph(
      graph, _function_type(function, graph), {})
  for name in ("_arg_keywords", "_num_positional_args"):
    if hasattr(function, name):
      setattr(result, name, getattr(function, name))
  setattr(result, PLACED_NAMES, {
      inner[node.name].op.name if node.name in inner else node.name: node.name
      for node in graph_def.node})
  # TensorFlow's graphs hold their variables weakly.
  result._placeto_variables = tuple(original.variables)
  if hasattr(function, "_placeto_model"):
    result._placeto_model = function._placeto_model
  return result


def _open_unread(nodes: Any, used: Set[str]) -> None:
  """Leaves the first dimension of arguments open that nothing reads: it may be that of examples."""
  for node in nodes:
    if node.op not in PLACEHOLDERS or node.name in used:
      continue
    for first in node.attr["shape"].shape.dim[:1]:
      first.size = -1
      if "_output_shapes" in node.attr:
        del node.attr["_output_shapes"]


def _forget_colocation(node: Any, captures: Any) -> None:
  """Drops colocation with captures, which are no ops of the new function."""
  if "_class" not in node.attr:
    return
  classes = list(node.attr["_class"].list.s)
  kept = [value for value in classes if value.decode().partition("@")[2] not in captures]
  if len(kept) < len(classes):
    del node.attr["_class"]
    if kept:
      node.attr["_class"].list.s.extend(kept)


def _function_type(function: Any, graph: Any) -> Any:
  """Returns the parameters of the original, for the global batch."""
  from tensorflow.core.function import trace_type
  from tensorflow.core.function.polymorphism import function_type as function_types

  def traced(value):
    return trace_type.from_value(
        value, trace_type.InternalTracingContext(is_legacy_signature=True))

  args, kwargs = graph.structured_input_signature
  parameters = []
  for i, (name, old) in enumerate(function.function_type.parameters.items()):
    value = args[i] if i < len(args) else kwargs[name]
    parameters.append(function_types.Parameter(name, old.kind, old.optional, traced(value)))
  return function_types.FunctionType(
      parameters, {}, return_annotation=traced(graph.structured_outputs))
