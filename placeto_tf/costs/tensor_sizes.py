"""Bytes and origins of tensors, from inferred shapes and from the ops that pass tensors on."""

from __future__ import annotations

import collections
from typing import Container, List, Mapping, Optional, Sequence, Tuple

from placeto_tf.graphs import shapes
from placeto_tf.graphs.loops import MERGE
from placeto_tf.graphs.tensor_names import Tensor, data_inputs, parse
from placeto_tf.on_use import NodeDef, OpInfo, TensorShapeProto, tf
from placeto_tf.ops import rule_of

Outputs = Mapping[str, Sequence["OpInfo.TensorProperties"]]  # op name -> its outputs

# Bytes of an element whose content is stored elsewhere; handles are never moved.
_STRING_BYTES = 24
_OPAQUE = ("resource", "variant")


def item_bytes(dtype: int) -> int:
  """Returns the bytes of one element of a `DataType` value (reference types as their base)."""
  from tensorflow.python.framework import dtypes

  # Reference types are numbered 100 above their base types.
  base = dtype - 100 if dtype > 100 else dtype
  try:
    found = dtypes.as_dtype(base)
  except TypeError:
    return 0  # DT_INVALID, of an output whose type was not inferred
  if found.name in _OPAQUE:
    return 0
  return _STRING_BYTES if found.name == "string" else found.size


def num_elements(shape: TensorShapeProto) -> Tuple[int, bool]:
  """Returns (elements, known) of a TensorShapeProto; as in grappler, unknown dimensions count 1."""
  known, elements = not shape.unknown_rank, 1
  for dim in shape.dim:
    if dim.size < 0:
      known = False
    else:
      elements *= dim.size
  return elements, known


def tensor_bytes(tensor: OpInfo.TensorProperties) -> Tuple[int, bool]:
  """Returns (bytes, known) of an `OpInfo.TensorProperties`."""
  size = item_bytes(tensor.dtype)
  if size == 0:
    return 0, True
  elements, known = num_elements(tensor.shape)
  return elements * size, known


def properties(
    dtype: int, dims: Sequence[int], value: Optional[int] = None) -> OpInfo.TensorProperties:
  """Returns the proto of a tensor.

  Args:
    dtype: a `DataType` value.
    dims: the dimensions, all of them known.
    value: the number in the tensor, if it is known.

  Returns:
    The type, shape and value.
  """
  from tensorflow.core.grappler.costs.op_performance_data_pb2 import OpInfo

  tensor = OpInfo.TensorProperties(dtype=dtype)
  shapes.write_shape(tensor.shape, tuple(dims))
  if value is not None:
    tensor.value.CopyFrom(tf.make_tensor_proto(value, dtype))
  return tensor


def origin(
    nodes: Mapping[str, NodeDef], start: Tensor, ops: Container[str], also: str = "") -> str:
  """Returns the name of the nearest op of one of some types that a tensor comes from.

  Args:
    nodes: by name.
    start: the tensor.
    ops: op types.
    also: an op type that passes its first input on for the purpose of the caller.

  Returns:
    The op's name, or "" where there is none.
  """
  # Breadth first, so that the nearest op is found.
  queue, seen = collections.deque([start]), {start}
  while queue:
    name, port = queue.popleft()
    # A control input (port below 0) carries no tensor.
    node = nodes.get(name)
    if port < 0 or node is None:
      continue
    if node.op in ops:
      return name
    for tensor in [parse(node.input[0])] if node.op == also else passed_on(node, port):
      if tensor not in seen:
        seen.add(tensor)
        queue.append(tensor)
  return ""


def passed_on(node: NodeDef, port: int) -> List[Tensor]:
  """Returns the inputs that a node may pass on as an output.

  Returns:
    (op, port) of the inputs; none for an op that does more than pass its input on.
  """
  if not rule_of(node.op).hands_on:
    return []
  inputs = [parse(text) for text in data_inputs(node)]
  if node.op == "IdentityN":
    # A Merge may pass on any of its inputs; the others have one data input.
    return inputs[port:port + 1]
  return inputs if node.op in MERGE else inputs[:1]
