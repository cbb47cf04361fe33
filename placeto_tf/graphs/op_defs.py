"""Definitions of ops in TensorFlow's registry: attributes, numbers and types of in- and outputs.

A node is checked here before any part of it is passed to TensorFlow's C++, which aborts the process
on some bad attributes instead of raising an exception.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Dict, Hashable, List, Mapping, Optional, Tuple

from placeto_tf.errors import GraphError

if TYPE_CHECKING:
  from tensorflow.core.framework.attr_value_pb2 import AttrValue
  from tensorflow.core.framework.function_pb2 import FunctionDef, FunctionDefLibrary
  from tensorflow.core.framework.node_def_pb2 import NodeDef
  from tensorflow.core.framework.op_def_pb2 import OpDef
  from tensorflow.core.framework.tensor_pb2 import TensorProto
  from tensorflow.core.framework.tensor_shape_pb2 import TensorShapeProto

REF = 100  # the DataType of a reference is the value's DataType plus 100, as in types.proto
MAX_ARGUMENTS = 1 << 20  # in- or outputs of one op; more is a corrupt file
MAX_RANK = 254  # of TensorFlow's TensorShape
MAX_ELEMENTS = 1 << 62

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
    if node.op not in self._schemas:
      self._schemas[node.op] = self._read_schema(node)
    return self._schemas[node.op]

  def _read_schema(self, node: NodeDef) -> _Schema:
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
    return _Schema(op_def, tuple(dict.fromkeys(used)), defaults)

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
    """Raises GraphError where an attribute is missing or wrong, or TensorFlow would abort on it."""
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
      if expected is None:
        continue
      allowed = attribute.allowed_values.list.type
      # The value, or all members of a list.
      for each in getattr(value.list, _FIELDS[kind]) if is_list else (getattr(value, held),):
        if kind == "type" and (not 0 < each < REF or allowed and each not in allowed):
          raise GraphError(
              f"attribute {name!r} of op {node.name!r} ({node.op}) is {type_name(each)}, which the "
              "op does not allow")
        # A function's empty name stands for none, which is the default of some attributes.
        if kind == "func" and each.name and each.name not in self.functions and (
            registered_op_def(each.name) is None):
          raise GraphError(
              f"attribute {name!r} of op {node.name!r} ({node.op}) calls the function "
              f"{each.name!r}, which is not in the graph's library; export the graph with its "
              "functions")
        if kind == "shape":
          check_shape(node, name, each)
        elif kind == "tensor":
          check_tensor(node, name, each)
        elif kind == "int" and not is_list and attribute.has_minimum and each < attribute.minimum:
          raise GraphError(
              f"attribute {name!r} of op {node.name!r} ({node.op}) is {each}, expected at "
              f"least {attribute.minimum}")


def registered_op_def(name: str) -> OpDef:
  """Returns the OpDef of TensorFlow's registry, or None."""
  from tensorflow.python.framework import op_def_registry

  return op_def_registry.get(name)


def type_name(dtype: int) -> str:
  """Returns the name of a DataType, with "_ref" for references."""
  from tensorflow.core.framework import types_pb2

  try:
    return types_pb2.DataType.Name(dtype)
  except ValueError:
    return f"the unknown type {dtype}"


def check_shape(node: NodeDef, what: str, shape: TensorShapeProto) -> None:
  """Checks a shape on which TensorFlow's C++ would abort.

  Args:
    node: with the shape.
    what: name of the attribute, for the error.
    shape: TensorShapeProto.

  Raises:
    GraphError: a size below -1, too many dimensions, or too many elements.
  """
  if shape.unknown_rank and not shape.dim:
    return
  elements = 1
  for dim in shape.dim:
    if dim.size < -1:
      raise GraphError(
          f"attribute {what!r} of op {node.name!r} ({node.op}) has a dimension of {dim.size}, "
          "expected -1 for an unknown one or a size that is not negative")
    # Unknown dimensions count as 1.
    elements *= max(dim.size, 1)
  if len(shape.dim) > MAX_RANK or elements > MAX_ELEMENTS:
    raise GraphError(
        f"attribute {what!r} of op {node.name!r} ({node.op}) is a shape of {len(shape.dim)} "
        f"dimensions and about 1e{math.log10(elements):.0f} elements, "
        "more than TensorFlow can hold")


def check_tensor(node: NodeDef, what: str, tensor: TensorProto) -> None:
  """Checks that the content of a constant fits its shape.

  Args:
    node: with the constant.
    what: name of the attribute, for the error.
    tensor: TensorProto.

  Raises:
    GraphError: the shape is unknown or too large, or the content has another length.
  """
  check_shape(node, what, tensor.tensor_shape)
  elements = 1
  for dim in tensor.tensor_shape.dim:
    elements *= dim.size
  if elements < 0 or tensor.tensor_shape.unknown_rank:
    raise GraphError(
        f"attribute {what!r} of op {node.name!r} ({node.op}) is a constant of unknown shape; "
        "constants need every dimension")
  # Lists of values in other fields may have fewer entries than the shape.
  if not tensor.tensor_content:
    return
  itemsize = _item_size(tensor.dtype)
  if itemsize and len(tensor.tensor_content) != elements * itemsize:
    raise GraphError(
        f"attribute {what!r} of op {node.name!r} ({node.op}) holds "
        f"{len(tensor.tensor_content)} bytes, expected {elements * itemsize} for its shape")


def _item_size(dtype: int) -> int:
  """Returns the bytes of one element of a DataType; 0 if the size varies or is no whole number."""
  from tensorflow.python.framework import dtypes

  try:
    size = dtypes.as_dtype(dtype).size
  except (TypeError, KeyError, ValueError):
    return 0
  return size if isinstance(size, int) and size > 0 else 0


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
