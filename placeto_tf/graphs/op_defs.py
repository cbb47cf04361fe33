"""Definitions of ops in TensorFlow's registry: attributes, numbers and types of in- and outputs.

A node's attributes are checked here by kind, as far as other readers need them. The contents of
shapes and constants are left to TensorFlow's C++, which aborts on some: its analysis of a graph has
a process of its own (`costs/guarded.py`).
"""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, Hashable, List, Mapping, Optional, Tuple

from placeto_tf.errors import GraphError
from placeto_tf.on_use import AttrValue, FunctionDef, FunctionDefLibrary, NodeDef, OpDef

REF = 100  # the DataType of a reference is the value's DataType plus 100, as in types.proto
MAX_ARGUMENTS = 1 << 20  # in- or outputs of one op; more is a corrupt file

# AttrDef.type -> the field of AttrValue that holds it.
_FIELDS = {
    "string": "s", "int": "i", "float": "f", "bool": "b", "type": "type", "shape": "shape",
    "tensor": "tensor", "func": "func",
}


@dataclasses.dataclass(frozen=True)
class Signature:
  """Types of the in- and outputs of one node; types above `REF` are references.

  Attributes:
    inputs, outputs: DataTypes.
    output_ranges: name of each output argument -> its first output and their number.
  """

  inputs: Tuple[int, ...]
  outputs: Tuple[int, ...]
  output_ranges: Mapping[str, Tuple[int, int]]


@dataclasses.dataclass(frozen=True)
class _Schema:
  op_def: OpDef
  signature_attributes: Tuple[str, ...]  # that decide numbers and types of in- and outputs
  defaults: Dict[str, AttrValue]


class OpDefs:
  """OpDefs of TensorFlow's registry and of the functions in a graph's library.

  Raises:
    GraphError: the library names a function twice.
  """

  def __init__(self, library: Optional[FunctionDefLibrary] = None):
    self.functions: Dict[str, FunctionDef] = {}
    for function in library.function if library is not None else ():
      name = function.signature.name
      if name in self.functions:
        raise GraphError(
            f"function {name!r} is defined twice in the graph's library; keep one definition")
      self.functions[name] = function
    self._schemas: Dict[str, _Schema] = {}
    self._signatures: Dict[Tuple[Hashable, ...], Signature] = {}

  def schema(self, node: NodeDef) -> _Schema:
    """Returns the schema of the node's op.

    Raises:
      GraphError: TensorFlow does not know the op.
    """
    if node.op in self._schemas:
      return self._schemas[node.op]
    function = self.functions.get(node.op)
    op_def = function.signature if function is not None else registered_op_def(node.op)
    if op_def is None:
      raise GraphError(
          f"op {node.name!r} has the unknown type {node.op!r}; expected an op of this TensorFlow "
          "or a function of the graph's library: import the library that defines it, or use the "
          "TensorFlow version that wrote the graph")
    # Attributes on which the numbers and types of in- and outputs depend.
    used = [name for arg in (*op_def.input_arg, *op_def.output_arg)
            for name in (arg.number_attr, arg.type_attr, arg.type_list_attr) if name]
    defaults = {
        attr.name: attr.default_value for attr in op_def.attr if attr.HasField("default_value")}
    self._schemas[node.op] = _Schema(op_def, tuple(dict.fromkeys(used)), defaults)
    return self._schemas[node.op]

  def signature(self, node: NodeDef) -> Signature:
    """Returns the types of the node's in- and outputs.

    Raises:
      GraphError: an unknown op, or an attribute that is missing or wrong.
    """
    schema = self.schema(node)
    self._check_attributes(node, schema)
    attrs = node.attr
    parts = [node.op]
    for name in schema.signature_attributes:
      value = attrs[name] if name in attrs else schema.defaults.get(name)
      if value is None:
        raise GraphError(
            f"op {node.name!r} ({node.op}) has no attribute {name!r}, which its definition uses; "
            "write the graph again")
      parts.append(_plain(value))
    # Nodes with the same op and attributes share a cached signature.
    key = tuple(parts)
    found = self._signatures.get(key)
    if found is None:
      values = dict(zip(schema.signature_attributes, key[1:]))
      inputs = [dtype for arg in schema.op_def.input_arg
                for dtype in _argument_types(node, arg, values)]
      outputs: List[int] = []
      ranges = {}
      for arg in schema.op_def.output_arg:
        types = _argument_types(node, arg, values)
        ranges[arg.name] = (len(outputs), len(types))
        outputs += types
      found = self._signatures[key] = Signature(tuple(inputs), tuple(outputs), ranges)
    return found

  def _check_attributes(self, node: NodeDef, schema: _Schema) -> None:
    """Raises GraphError where an attribute is missing, of another kind, or an unknown function."""
    attrs = node.attr
    for attribute in schema.op_def.attr:
      name = attribute.name
      is_list = attribute.type.startswith("list(")
      kind = attribute.type[5:-1] if is_list else attribute.type  # "list(type)" -> "type"
      if name not in attrs:
        if name not in schema.defaults:
          raise GraphError(
              f"op {node.name!r} ({node.op}) lacks the attribute {name!r}; expected a value of "
              f"kind {kind!r}: write the graph again")
        continue
      value = attrs[name]
      held = value.WhichOneof("value")
      expected = "list" if is_list else _FIELDS.get(kind)
      if expected is not None and held != expected:
        raise GraphError(
            f"attribute {name!r} of op {node.name!r} ({node.op}) holds {held or 'nothing'}, "
            f"expected {expected}: write the graph again")
      # A function's empty name stands for none, which is the default of some attributes.
      for each in (value.list.func if is_list else (value.func,)) if kind == "func" else ():
        if each.name and each.name not in self.functions and (
            registered_op_def(each.name) is None):
          raise GraphError(
              f"attribute {name!r} of op {node.name!r} ({node.op}) calls the function "
              f"{each.name!r}, which is not in the graph's library; export the graph with its "
              "functions")


def registered_op_def(name: str) -> OpDef:
  """Returns the OpDef of TensorFlow's registry, or None."""
  from tensorflow.python.framework import op_def_registry

  return op_def_registry.get(name)


def _plain(value: AttrValue) -> Hashable:
  """Returns the value of an AttrValue that is a number, type or list of types."""
  kind = value.WhichOneof("value")
  return tuple(value.list.type) if kind == "list" else getattr(value, kind or "i")


def _argument_types(
    node: NodeDef, arg: OpDef.ArgDef, values: Mapping[str, Hashable]) -> List[int]:
  """Returns the types of all tensors of an argument: a list of types, or a number of one type."""
  found: Any = values.get(arg.type_list_attr)
  dtype = values[arg.type_attr] if arg.type_attr else arg.type
  count = values[arg.number_attr] if arg.number_attr else 1
  if not arg.type_list_attr and isinstance(dtype, int) and isinstance(count, int):
    if not 0 <= count <= MAX_ARGUMENTS:
      raise GraphError(
          f"attribute {arg.number_attr!r} of op {node.name!r} ({node.op}) gives the op "
          f"{count} tensors, expected 0 to {MAX_ARGUMENTS}")
    found = (dtype,) * count
  if not isinstance(found, tuple):
    raise GraphError(
        f"argument {arg.name!r} of op {node.name!r} ({node.op}) has attributes of the wrong "
        "kind; write the graph again")
  # A reference has the type of its value plus 100.
  return [each + REF if arg.is_ref else each for each in found]
