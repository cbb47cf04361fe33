"""Definitions of ops in TensorFlow's registry: attributes, numbers and types of in- and outputs.

A node is checked here before any part of it is passed to TensorFlow's C++, which aborts the process
on some bad attributes instead of raising an exception.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Dict, Hashable, Iterable, Optional, Tuple

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
  """Types of the in- and outputs of one node; types above `REF` are references."""

  inputs: Tuple[int, ...]
  outputs: Tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class _Attribute:
  name: str
  kind: str  # AttrDef.type without "list()"
  is_list: bool
  required: bool
  allowed: Optional[frozenset]  # of types
  minimum: Optional[int]  # of an int, or of the length of a list


@dataclasses.dataclass(frozen=True)
class _Schema:
  op_def: OpDef
  attributes: Tuple[_Attribute, ...]
  signature_attributes: Tuple[str, ...]
  defaults: Dict[str, AttrValue]
  is_function: bool


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
    found = self._schemas.get(node.op)
    if found is None:
      found = self._schemas[node.op] = self._read_schema(node)
    return found

  def is_function(self, op_type: str) -> bool:
    """Returns whether the op type is a function of the graph's library."""
    return op_type in self.functions

  def _read_schema(self, node: NodeDef) -> _Schema:
    function = self.functions.get(node.op)
    op_def = function.signature if function is not None else registered_op_def(node.op)
    if op_def is None:
      raise GraphError(
          f"op {node.name!r} has the unknown type {node.op!r}; expected an op of this TensorFlow "
          "or a function of the graph's library: import the library that defines it, or use the "
          "TensorFlow version that wrote the graph")
    attributes = []
    for attr in op_def.attr:
      is_list = attr.type.startswith("list(")
      # "list(type)" -> "type".
      kind = attr.type[5:-1] if is_list else attr.type
      allowed = None
      if kind == "type" and attr.HasField("allowed_values"):
        allowed = frozenset(attr.allowed_values.list.type)
      attributes.append(_Attribute(
          attr.name, kind, is_list, not attr.HasField("default_value"), allowed,
          attr.minimum if attr.has_minimum else None))
    # Attributes on which the numbers and types of in- and outputs depend.
    used = []
    for arg in (*op_def.input_arg, *op_def.output_arg):
      used += [name for name in (arg.number_attr, arg.type_attr, arg.type_list_attr) if name]
    defaults = {
        attr.name: attr.default_value for attr in op_def.attr if attr.HasField("default_value")}
    return _Schema(
        op_def, tuple(attributes), tuple(dict.fromkeys(used)), defaults, function is not None)

  def signature(self, node: NodeDef) -> Signature:
    """Returns the types of the node's in- and outputs.

    Raises:
      GraphError: an unknown op, or an attribute that is missing or wrong.
    """
    schema = self.schema(node)
    self.check_attributes(node, schema)
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
      found = Signature(
          _argument_types(node, schema.op_def.input_arg, values),
          _argument_types(node, schema.op_def.output_arg, values))
      self._signatures[key] = found
    return found

  def output_ranges(self, node: NodeDef) -> Dict[str, Tuple[int, int]]:
    """Returns the name of each output argument -> its first output and their number.

    Raises:
      GraphError: as `signature`.
    """
    return self._ranges(node, self.schema(node).op_def.output_arg)

  def input_ranges(self, node: NodeDef) -> Dict[str, Tuple[int, int]]:
    """Returns the name of each input argument -> its first input and their number."""
    return self._ranges(node, self.schema(node).op_def.input_arg)

  def _ranges(self, node: NodeDef, args: Iterable[OpDef.ArgDef]) -> Dict[str, Tuple[int, int]]:
    self.signature(node)  # checks the attributes
    schema = self.schema(node)
    values = {
        name: _plain(node.attr[name] if name in node.attr else schema.defaults[name])
        for name in schema.signature_attributes}
    # Each argument begins where the one before ends.
    ranges, start = {}, 0
    for arg in args:
      count = len(_argument_types(node, (arg,), values))
      ranges[arg.name] = (start, count)
      start += count
    return ranges

  def check_attributes(self, node: NodeDef, schema: _Schema) -> None:
    """Checks that each attribute exists and has the type that the op expects.

    Args:
      node: with the attributes.
      schema: of its op.

    Raises:
      GraphError: an attribute is missing or has another type, or TensorFlow would abort on it.
    """
    attrs = node.attr
    for attribute in schema.attributes:
      name = attribute.name
      if name not in attrs:
        if attribute.required:
          raise GraphError(
              f"op {node.name!r} ({node.op}) lacks the attribute {name!r}; expected a value of "
              f"kind {attribute.kind!r}: write the graph again")
        continue
      value = attrs[name]
      held = value.WhichOneof("value")
      expected = "list" if attribute.is_list else _FIELDS.get(attribute.kind)
      if expected is not None and held != expected:
        raise GraphError(
            f"attribute {name!r} of op {node.name!r} ({node.op}) holds {held or 'nothing'}, "
            f"expected {expected}: write the graph again")
      if attribute.kind == "type":
        self._check_types(node, attribute, value.list.type if attribute.is_list else (value.type,))
      elif attribute.kind == "func":
        for func in value.list.func if attribute.is_list else (value.func,):
          self._check_function(node, name, func)
      elif attribute.kind == "shape":
        for shape in value.list.shape if attribute.is_list else (value.shape,):
          check_shape(node, name, shape)
      elif attribute.kind == "tensor" and not attribute.is_list:
        check_tensor(node, name, value.tensor)
      if attribute.minimum is not None and attribute.kind == "int" and not attribute.is_list:
        if value.i < attribute.minimum:
          raise GraphError(
              f"attribute {name!r} of op {node.name!r} ({node.op}) is {value.i}, expected at "
              f"least {attribute.minimum}")

  def _check_types(self, node, attribute, types) -> None:
    for value in types:
      if attribute.allowed is not None and value not in attribute.allowed:
        raise GraphError(
            f"attribute {attribute.name!r} of op {node.name!r} ({node.op}) is {type_name(value)}, "
            "which the op does not allow")
      if not 0 < value < REF:
        raise GraphError(
            f"attribute {attribute.name!r} of op {node.name!r} ({node.op}) is {type_name(value)}, "
            "expected a type of tensors")

  def _check_function(self, node, name, func) -> None:
    # An empty name stands for no function, which is the default of some attributes.
    if func.name and func.name not in self.functions and registered_op_def(func.name) is None:
      raise GraphError(
          f"attribute {name!r} of op {node.name!r} ({node.op}) calls the function {func.name!r}, "
          "which is not in the graph's library; export the graph with its functions")


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


def _argument_types(node, args, values) -> Tuple[int, ...]:
  """Returns the types of all tensors of the arguments, by their ArgDefs."""
  types = []
  # An argument is a list of types, or `count` tensors of one type.
  for arg in args:
    if arg.type_list_attr:
      listed = values[arg.type_list_attr]
      found = list(listed) if isinstance(listed, tuple) else None
    else:
      dtype = values[arg.type_attr] if arg.type_attr else arg.type
      count = values[arg.number_attr] if arg.number_attr else 1
      found = None
      if isinstance(dtype, int) and isinstance(count, int):
        if not 0 <= count <= MAX_ARGUMENTS:
          raise GraphError(
              f"attribute {arg.number_attr!r} of op {node.name!r} ({node.op}) gives the op "
              f"{count} tensors, expected 0 to {MAX_ARGUMENTS}")
        found = [dtype] * count
    if found is None:
      raise GraphError(
          f"argument {arg.name!r} of op {node.name!r} ({node.op}) has attributes of the wrong "
          "kind; write the graph again")
    # A reference has the type of its value plus 100.
    types += [dtype + REF if arg.is_ref else dtype for dtype in found]
  return tuple(types)
