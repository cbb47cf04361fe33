"""`NodeWriter`: adds nodes to a GraphDef, such as those that combine replicas."""

from __future__ import annotations

import contextlib
import math
from typing import Dict, Iterator, List, Optional, Sequence

import numpy as np
from numpy.typing import ArrayLike

from placeto_tf.graphs.tensor_names import op_of
from placeto_tf.on_use import GraphDef, NodeDef, tf

INT32, INT64 = 3, 9
_REDUCING = {"max": "Maximum", "min": "Minimum", "all": "LogicalAnd", "any": "LogicalOr"}


class NodeWriter:
  """Adds nodes to a GraphDef.

  Tensors are given by name ("op" or "op:1"), types by the number of their DataType.

  Attributes:
    graph_def: the nodes that were added.
    replica_of: name of each op that belongs to a replica -> the replica.
    original_of: name of each op that copies an op of the source -> that op's name.
  """

  def __init__(self, graph_def: GraphDef):
    self.graph_def = graph_def
    self.replica_of: Dict[str, int] = {}
    self.original_of: Dict[str, str] = {}

  def beside(self) -> NodeWriter:
    """Returns another writer with a list of nodes of its own, for the same graph."""
    other = NodeWriter(type(self.graph_def)())
    other.replica_of, other.original_of = self.replica_of, self.original_of
    return other

  @contextlib.contextmanager
  def owned(self, r: Optional[int]) -> Iterator[None]:
    """Assigns the ops that are written within the context to replica r; to none if r is None."""
    first = len(self.graph_def.node)
    yield
    if r is not None:
      self.replica_of.update((node.name, r) for node in self.graph_def.node[first:])

  def copy(self, original: NodeDef, name: str, replica: Optional[int]) -> NodeDef:
    """Adds a node of the source under another name, without inputs.

    Args:
      original: the node of the source.
      name: name of the new node.
      replica: the replica that the node belongs to; None for a node that exists once.
    """
    node = self.graph_def.node.add()
    node.CopyFrom(original)
    del node.input[:]
    node.name = name
    if replica is not None:
      self.replica_of[name] = replica
    self.original_of[name] = original.name
    return node

  def new(self, name: str, op: str, inputs: Sequence[str], **types: int) -> NodeDef:
    """Adds a node; `types` are its attributes that are types."""
    node = self.graph_def.node.add(name=name, op=op, input=inputs)
    for key, dtype in types.items():
      node.attr[key].type = dtype
    return node

  def constant(
      self, name: str, value: ArrayLike, dtype: int = INT32, anchor: Optional[str] = None) -> str:
    """Adds a Const, in the loop or branch of the op `anchor`.

    Args:
      name: name of the new node.
      value: of the constant.
      dtype: number of the DataType.
      anchor: an op in whose loop or branch the node is; None outside.

    Returns:
      The name of the constant.
    """
    # A control input puts the constant into the loop or branch of the anchor.
    node = self.new(name, "Const", [] if anchor is None else [f"^{op_of(anchor)}"], dtype=dtype)
    node.attr["value"].tensor.CopyFrom(
        tf.make_tensor_proto(value, dtype=tf.dtypes.as_dtype(dtype), shape=np.shape(value)))
    return name

  def concat(
      self, name: str, parts: Sequence[str], dtype: int, axis: int = 0,
      anchor: Optional[str] = None) -> str:
    """Adds a concatenation of parts.

    Args:
      name: name of the new node.
      parts: names of tensors.
      dtype: number of the DataType.
      axis: the axis.
      anchor: an op in whose loop or branch the node is; None outside.

    Returns:
      The name of the result.
    """
    along = self.constant(f"{name}/axis", axis, anchor=anchor)
    self.new(name, "ConcatV2", [*parts, along], T=dtype, Tidx=INT32).attr["N"].i = len(parts)
    return name

  def combine(self, name: str, parts: Sequence[str], dtype: int, how: str) -> str:
    """Adds the sum, maximum, ... of the parts.

    Args:
      name: name of the new node.
      parts: names of tensors.
      dtype: number of the DataType.
      how: "sum", "max", "min", "all" or "any".
    """
    if how == "sum":
      self.new(name, "AddN", parts, T=dtype).attr["N"].i = len(parts)
      return name
    found = parts[0]
    # Pairwise: maximum and minimum take two inputs.
    for i, part in enumerate(parts[1:], 1):
      last = i == len(parts) - 1
      types = {} if how in ("all", "any") else {"T": dtype}
      found = self.new(
          name if last else f"{name}/{i}", _REDUCING[how], [found, part], **types).name
    return found

  def reduce(
      self, name: str, parts: Sequence[str], dtype: int, how: str, factor: Optional[ArrayLike],
      anchor: Optional[str] = None) -> str:
    """Combines the parts and multiplies the result by a factor, if any.

    Args:
      name: name of the new node.
      parts: names of tensors.
      dtype: number of the DataType.
      how: "sum", "max", "min", "all" or "any".
      factor: the number to multiply by; None for none.
      anchor: an op in whose loop or branch the node is; None outside.

    Returns:
      The name of the op that combines, before the factor.
    """
    # `name`/sum is the combined value; `name` is the combined value times the factor.
    total = self.combine(f"{name}/sum", parts, dtype, how)
    if factor is None:
      self.new(name, "Identity", [total], T=dtype)
    else:
      self.scale(name, total, factor, dtype, anchor)
    return total

  def laid_out(
      self, name: str, tensors: Sequence[str], shapes: Sequence[Sequence[int]], dtype: int) -> str:
    """Flattens tensors of these shapes and concatenates them."""
    flat = [text if len(shape) == 1 else self.reshape(
        f"{name}/flat_{i}", text, [math.prod(shape)], dtype)
            for i, (text, shape) in enumerate(zip(tensors, shapes))]
    return flat[0] if len(flat) == 1 else self.concat(name, flat, dtype)

  def reshape(self, name: str, tensor: str, shape: Sequence[int], dtype: int) -> str:
    """Adds a Reshape.

    Args:
      name: name of the new node.
      tensor: name of the tensor.
      shape: the new dimensions.
      dtype: number of the DataType.

    Returns:
      The name of the result.
    """
    wanted = self.constant(f"{name}/shape", list(shape))
    self.new(name, "Reshape", [tensor, wanted], T=dtype, Tshape=INT32)
    return name

  def scale(
      self, name: str, tensor: str, factor: ArrayLike, dtype: int, anchor: Optional[str] = None
  ) -> str:
    """Multiplies a tensor by a constant.

    Args:
      name: name of the new node.
      tensor: name of the tensor.
      factor: the number to multiply by; None for none.
      dtype: number of the DataType.
      anchor: an op in whose loop or branch the node is; None outside.
    """
    self.new(name, "Mul", [tensor, self.constant(f"{name}/scale", factor, dtype, anchor)], T=dtype)
    return name

  def part(
      self, name: str, tensor: str, index: int, count: int, axis: int, dtype: int,
      anchor: Optional[str] = None) -> str:
    """Splits a tensor into equal parts along an axis, and returns one of them.

    Args:
      name: name of the new node.
      tensor: name of the tensor.
      index: number of the part.
      count: the number of parts.
      axis: the axis.
      dtype: number of the DataType.
      anchor: an op in whose loop or branch the node is; None outside.

    Returns:
      The name of the part.
    """
    node = self.new(
        name, "Split", [self.constant(f"{name}/axis", axis, anchor=anchor), tensor], T=dtype)
    node.attr["num_split"].i = count
    return tensor_name(name, index)

  def offset(
      self, name: str, tensor: str, parts: int, numbers: int, span: int, dtype: int,
      anchor: Optional[str] = None) -> str:
    """Adds the number of slots of all earlier replicas to a tensor of positions.

    Args:
      name, dtype, anchor: of the new node.
      tensor: positions in the replica's batch, `numbers` for each example.
      parts: the number of earlier replicas.
      numbers: positions in `tensor` for each example.
      span: slots of an example.
    """
    # Examples of a replica = all numbers of the tensor / numbers for an example.
    size = self.new(f"{name}/count", "Size", [tensor], T=dtype, out_type=INT32)
    count = self.new(f"{name}/number", "Cast", [size.name], SrcT=INT32, DstT=dtype).name
    if numbers > 1:
      each = self.constant(f"{name}/of_an_example", numbers, dtype, anchor)
      count = self.new(f"{name}/examples", "FloorDiv", [count, each], T=dtype).name
    # Slots before replica q: q * examples * slots of an example.
    before = self.scale(f"{name}/before", count, parts * span, dtype, anchor)
    self.new(name, "AddV2", [tensor, before], T=dtype)
    return name

  def split_up(self, name: str, tensor: str, sizes: Sequence[int], dtype: int) -> List[str]:
    """Splits a tensor of one dimension into parts of these sizes."""
    if len(sizes) == 1:
      return [tensor]
    inputs = [tensor, self.constant(f"{name}/sizes", list(sizes), INT64),
              self.constant(f"{name}/axis", 0)]
    self.new(name, "SplitV", inputs, T=dtype, Tlen=INT64).attr["num_split"].i = len(sizes)
    return [tensor_name(name, i) for i in range(len(sizes))]


def tensor_name(name: str, port: int) -> str:
  """Returns a tensor's name as inputs of nodes write it."""
  return f"{name}:{port}" if port else name
