"""`NodeWriter`: adds nodes to a GraphDef, as the ops that join replicas need them."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence

import numpy as np

INT32, INT64 = 3, 9
_REDUCING = {"max": "Maximum", "min": "Minimum", "all": "LogicalAnd", "any": "LogicalOr"}


class NodeWriter:
  """Adds nodes to a GraphDef.

  Tensors are given by name ("op" or "op:1"), types by the number of their DataType.

  Attributes:
    graph_def: what is written.
  """

  def __init__(self, graph_def: Any):
    self.graph_def = graph_def

  def new(self, name: str, op: str, inputs: Sequence[str], **types: int) -> Any:
    """A node; `types` are its attributes that are types."""
    node = self.graph_def.node.add(name=name, op=op, input=inputs)
    for key, dtype in types.items():
      node.attr[key].type = dtype
    return node

  def constant(
      self, name: str, value: Any, dtype: int = INT32, anchor: Optional[str] = None) -> str:
    """A Const; `anchor` is an op in whose loop or branch it is."""
    import tensorflow as tf

    waits = [] if anchor is None else [f"^{op_of(anchor)}"]
    node = self.new(name, "Const", waits, dtype=dtype)
    node.attr["value"].tensor.CopyFrom(
        tf.make_tensor_proto(value, dtype=tf.dtypes.as_dtype(dtype), shape=np.shape(value)))
    return name

  def concat(
      self, name: str, axis_name: str, parts: Sequence[str], dtype: int, axis: int = 0,
      anchor: Optional[str] = None) -> str:
    """Parts laid end to end."""
    node = self.new(
        name, "ConcatV2", [*parts, self.constant(axis_name, axis, anchor=anchor)], T=dtype,
        Tidx=INT32)
    node.attr["N"].i = len(parts)
    return name

  def combine(self, name: str, parts: Sequence[str], dtype: int, how: str) -> str:
    """The sum, maximum, ... of the parts."""
    if how == "sum":
      node = self.new(name, "AddN", parts, T=dtype)
      node.attr["N"].i = len(parts)
      return name
    found = parts[0]
    for i, part in enumerate(parts[1:], 1):
      last = i == len(parts) - 1
      types = {} if how in ("all", "any") else {"T": dtype}
      found = self.new(
          name if last else f"{name}/{i}", _REDUCING[how], [found, part], **types).name
    return found

  def reshape(self, name: str, tensor: str, shape: Sequence[int], dtype: int) -> str:
    """A Reshape."""
    wanted = self.constant(f"{name}/shape", list(shape))
    self.new(name, "Reshape", [tensor, wanted], T=dtype, Tshape=INT32)
    return name

  def scale(
      self, name: str, tensor: str, factor: Any, dtype: int, anchor: Optional[str] = None) -> str:
    """A tensor times a constant."""
    self.new(name, "Mul", [tensor, self.constant(f"{name}/scale", factor, dtype, anchor)], T=dtype)
    return name

  def part(
      self, name: str, tensor: str, index: int, count: int, axis: int, dtype: int,
      anchor: Optional[str] = None) -> str:
    """One of equal parts along an axis; `name` is that of the Split."""
    node = self.new(
        name, "Split", [self.constant(f"{name}/axis", axis, anchor=anchor), tensor], T=dtype)
    node.attr["num_split"].i = count
    return tensor_name(name, index)

  def offset(
      self, name: str, tensor: str, parts: int, dtype: int, anchor: Optional[str] = None) -> str:
    """A tensor of positions plus `parts` times their number."""
    size = self.new(f"{name}/count", "Size", [tensor], T=dtype, out_type=INT32)
    count = self.new(f"{name}/number", "Cast", [size.name], SrcT=INT32, DstT=dtype)
    before = self.scale(f"{name}/before", count.name, parts, dtype, anchor)
    self.new(name, "AddV2", [tensor, before], T=dtype)
    return name

  def cut_up(self, name: str, tensor: str, sizes: Sequence[int], dtype: int) -> List[str]:
    """A tensor of one dimension in stretches of these sizes."""
    if len(sizes) == 1:
      return [tensor]
    inputs = [tensor, self.constant(f"{name}/sizes", list(sizes), INT64),
              self.constant(f"{name}/axis", 0)]
    split = self.new(name, "SplitV", inputs, T=dtype, Tlen=INT64)
    split.attr["num_split"].i = len(sizes)
    return [tensor_name(name, i) for i in range(len(sizes))]


def endpoint(text: str) -> tuple[str, int]:
  """("op", port) of a tensor's name."""
  name, colon, port = text.rpartition(":")
  return (name, int(port)) if colon and port.isdecimal() else (text, 0)


def tensor_name(name: str, port: int) -> str:
  """The name of a tensor as an input."""
  return f"{name}:{port}" if port else name


def op_of(text: str) -> str:
  """The op of a tensor's name."""
  return endpoint(text)[0]
