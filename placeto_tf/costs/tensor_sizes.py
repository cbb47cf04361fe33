"""Bytes of tensors and variables, from inferred shapes and from attributes."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Callable, Container, Dict, List, Mapping, Sequence, Tuple

from placeto_tf.graphs import shapes
from placeto_tf.graphs.tensor_names import Tensor, data_inputs, parse

if TYPE_CHECKING:
  from tensorflow.core.framework.node_def_pb2 import NodeDef
  from tensorflow.core.framework.tensor_shape_pb2 import TensorShapeProto
  from tensorflow.core.grappler.costs.op_performance_data_pb2 import OpInfo

# Bytes of an element whose content is stored elsewhere; handles are never moved.
_STRING_BYTES = 24
_OPAQUE = ("resource", "variant")

PASS_ON = frozenset("""
    Identity IdentityN RefIdentity Enter RefEnter Exit RefExit NextIteration RefNextIteration
    Switch RefSwitch _SwitchN Merge RefMerge StopGradient PreventGradient
    """.split())
VARIABLES = frozenset(("VarHandleOp", "Variable", "VariableV2", "AutoReloadVariable"))


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


def properties(dtype: int, dims: Sequence[int]) -> OpInfo.TensorProperties:
  """Returns the proto of a tensor. Args: dtype: a `DataType` value; dims: all known."""
  from tensorflow.core.grappler.costs.op_performance_data_pb2 import OpInfo

  tensor = OpInfo.TensorProperties(dtype=dtype)
  shapes.write_shape(tensor.shape, tuple(dims))
  return tensor


class VariableSizes:
  """Finds the variable of a handle or reference, through ops that only pass the handle on.

  Attributes:
    bytes_of: variable op's name -> (bytes, known).
  """

  def __init__(
      self, nodes: Mapping[str, NodeDef], outputs: Mapping[str, Sequence[OpInfo.TensorProperties]]):
    self._nodes = nodes
    self._memo: Dict[Tensor, str] = {}
    self.bytes_of: Dict[str, Tuple[int, bool]] = {}
    for name, node in nodes.items():
      if node.op in VARIABLES:
        elements, known = num_elements(node.attr["shape"].shape)
        self.bytes_of[name] = (elements * item_bytes(node.attr["dtype"].type), known)
    # A handle without a shape (of some importers) is as large as the value that is read through it.
    for name, node in nodes.items():
      if node.op == "ReadVariableOp" and node.input and outputs.get(name):
        variable = self.find(node.input[0])
        if variable and not self.bytes_of[variable][1]:
          self.bytes_of[variable] = tensor_bytes(outputs[name][0])

  def find(self, input_name: str) -> str:
    """Returns the name of the variable op that an input comes from, "" if from none."""
    start = parse(input_name)
    if start not in self._memo:
      self._memo[start] = origin(self._nodes, start, VARIABLES, passed_on)
    return self._memo[start]


def origin(
    nodes: Mapping[str, NodeDef], start: Tensor, ops: Container[str],
    through: Callable[[NodeDef, int], Sequence[Tensor]]) -> str:
  """Returns the name of the nearest op of one of some types that a tensor comes from.

  Args:
    nodes: by name.
    start: the tensor.
    ops: op types.
    through: (node, port) -> the tensors that this output may be.

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
    for tensor in through(node, port):
      if tensor not in seen:
        seen.add(tensor)
        queue.append(tensor)
  return ""


def passed_on(node: NodeDef, port: int) -> List[Tensor]:
  """Returns the inputs that a node may pass on as an output.

  Args:
    node: the NodeDef.
    port: the output.

  Returns:
    (op, port) of the inputs; none for an op that does more than pass its input on.
  """
  if node.op not in PASS_ON:
    return []
  inputs = [parse(text) for text in data_inputs(node)]
  if node.op == "IdentityN":
    # A Merge may pass on any of its inputs; the others have one data input.
    return inputs[port:port + 1]
  return inputs if node.op in ("Merge", "RefMerge") else inputs[:1]
