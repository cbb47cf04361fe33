"""Makes a ConcreteFunction from a changed GraphDef of another ConcreteFunction.

A placed function has other devices, and a replicated function takes another batch. Both keep the
captures, the outputs and the calling convention of the original.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional, Sequence, Set

from placeto_tf.graphs.captures import PLACED_NAMES, captures_of, live_variables
from placeto_tf.graphs.functions import keep_known_classes
from placeto_tf.graphs.shapes import PLACEHOLDERS
from placeto_tf.on_use import ConcreteFunction, GraphDef, tf


def rebuilt_function(
    function: ConcreteFunction, graph_def: GraphDef, *,
    captures: Optional[Mapping[str, tf.Tensor]] = None, copies: Sequence[tf.Variable] = (),
    resized: bool = False) -> ConcreteFunction:
  """Makes the ConcreteFunction of a GraphDef; it is called like `function`.

  Args:
    function: the original.
    graph_def: the nodes, with calls inlined, with devices, and with the original's op names.
    captures: name of an op -> the captured tensor; by default the captures of `function`.
    copies: variables that the result owns.
    resized: whether the arguments may have another batch than the arguments of `function`.

  Returns:
    The ConcreteFunction, which keeps the variables alive.
  """
  from tensorflow.python.eager.polymorphic_function import concrete_function
  from tensorflow.python.framework import func_graph

  original = function.graph
  captures = captures_of(function) if captures is None else captures
  names = getattr(function, PLACED_NAMES, {})
  body = type(graph_def)()
  body.versions.CopyFrom(graph_def.versions)
  body.library.CopyFrom(graph_def.library)
  # Captures become inputs of the new graph, not imported ops.
  body.node.extend(node for node in graph_def.node if node.name not in captures)
  # The `_class` of an op may name a capture, whose name has changed.
  keep_known_classes(body.node, {node.name for node in body.node})
  # Names of ops that are read, because an input map must not contain other names.
  used = {text.lstrip("^").partition(":")[0] for node in body.node for text in node.input}
  used.update(names.get(tensor.op.name, tensor.op.name) for tensor in original.outputs)
  if resized:
    _open_unread(body, used)
  devices = {node.name: node.device for node in graph_def.node}
  graph = func_graph.FuncGraph(f"{original.name}_rebuilt")
  inner: Dict[str, tf.Tensor] = {}
  with graph.as_default():
    for i, (name, outer) in enumerate(captures.items()):
      # Under its old name "op/resource" it would take the name of "op", which is imported later.
      inner[name] = graph.capture(outer, name=f"placeto_tf_capture_{i}")
      inner[name].op._set_device(devices.get(name, ""))
    captured = list(graph.inputs)
    tf.graph_util.import_graph_def(
        body, name="",
        input_map={f"{name}:0": tensor for name, tensor in inner.items() if name in used})

  def find(tensor: object) -> Any:
    """Returns the tensor of the new graph that replaces a tensor of the original."""
    if not isinstance(tensor, tf.Tensor) or getattr(tensor, "graph", None) is not original:
      return tensor
    name = names.get(tensor.op.name, tensor.op.name)
    return inner[name] if name in inner else graph.get_tensor_by_name(
        f"{name}:{tensor.value_index}")

  # Inputs, outputs and control outputs in the original's order, captures last.
  outside = {id(tensor) for _, tensor in original.captures}
  arguments = [find(tensor) for tensor in original.inputs if id(tensor) not in outside]
  graph.inputs = arguments + captured
  graph.outputs = [find(tensor) for tensor in original.outputs]
  # Reads of a variable that is now in slices are gone; they change nothing.
  graph.control_outputs = [
      graph.get_operation_by_name(names.get(op.name, op.name)) for op in original.control_outputs
      if op.type != "ReadVariableOp" or names.get(op.name, op.name) in devices]
  graph.structured_input_signature = original.structured_input_signature
  if resized:
    # Resized arguments take the shapes of the new placeholders.
    shapes = iter([tensor.shape for tensor in arguments])
    graph.structured_input_signature = tf.nest.map_structure(
        lambda spec: tf.TensorSpec(next(shapes), spec.dtype, spec.name) if (
            isinstance(spec, tf.TensorSpec)) else spec, original.structured_input_signature)
  graph.structured_outputs = tf.nest.map_structure(
      find, original.structured_outputs, expand_composites=True)
  # The original's variables and the copies, by handle.
  variables = {
      id(variable.handle): variable for variable in (*live_variables(original), *copies)}
  graph.variables = [
      variables[id(outer)] for outer in captures.values() if id(outer) in variables]
  result = concrete_function.ConcreteFunction.from_func_graph(
      graph, _function_type(function, graph, resized), {})
  for name in ("_arg_keywords", "_num_positional_args"):
    if hasattr(function, name):
      setattr(result, name, getattr(function, name))
  # Captures have other names in the new graph.
  setattr(result, PLACED_NAMES, {
      inner[node.name].op.name if node.name in inner else node.name: node.name
      for node in graph_def.node})
  # Keep variables alive, because TensorFlow's graphs hold them by weak references.
  result._placeto_owned = (tuple(copies), tuple(graph.variables))
  if hasattr(function, "_placeto_model"):
    result._placeto_model = function._placeto_model
  return result


def _open_unread(body: GraphDef, used: Set[str]) -> None:
  """Makes the first dimension of unread arguments unknown, because it may be the batch."""
  for node in body.node:
    if node.op not in PLACEHOLDERS or node.name in used:
      continue
    for first in node.attr["shape"].shape.dim[:1]:
      first.size = -1
      node.attr.pop("_output_shapes", None)


def _function_type(function: ConcreteFunction, graph: Any, resized: bool) -> Any:
  """Returns the original's type with the new captures, and with the new arguments if resized."""
  from tensorflow.core.function import trace_type
  from tensorflow.core.function.polymorphism import function_type as function_types

  old = function.function_type
  parameters, output = list(old.parameters.values()), old.output

  def traced(value: Any) -> Any:
    return trace_type.from_value(
        value, trace_type.InternalTracingContext(is_legacy_signature=True))

  # A resized function has a type of its own, traced from the new specs.
  if resized:
    args, kwargs = graph.structured_input_signature
    parameters = [
        function_types.Parameter(
            each.name, each.kind, each.optional,
            traced(args[i] if i < len(args) else kwargs[each.name]))
        for i, each in enumerate(parameters)]
    output = traced(graph.structured_outputs)
  return type(old)(
      parameters, graph.function_captures.capture_types, return_annotation=output)
