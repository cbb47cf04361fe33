"""Guesses shapes that grappler's inference does not find.

  StackPop, TensorListPopBack   the shape of the pushed tensor, which the gradient of a loop reads
  OptionalGetValue              the shape of the kept tensor, which the gradient of a branch reads
  Unique                        at most all elements of its input
  LookupTableFind               the shape of the keys, and for each the shape of the default value
  FusedBatchNormV3              an empty reserve: cuDNN fills it only where it fuses an activation

"At most", and a table that holds a value for each key, are assumptions; callers receive the outputs
with such shapes.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Dict, List, Optional, Sequence

from placeto_tf.costs.tensor_sizes import Outputs, num_elements, origin, properties
from placeto_tf.graphs.tensor_names import Tensor, data_inputs, parse
from placeto_tf.ops import types_with

if TYPE_CHECKING:
  from tensorflow.core.framework.graph_pb2 import GraphDef
  from tensorflow.core.framework.node_def_pb2 import NodeDef
  from tensorflow.core.grappler.costs.op_performance_data_pb2 import OpInfo

_STACKS = ("Stack", "StackV2")
_STACK_PUSHES = ("StackPush", "StackPushV2")
_STACK_POPS = ("StackPop", "StackPopV2")
POPS = (*_STACK_POPS, "TensorListPopBack")
_UNIQUE = types_with(any_number=(1,))
_LOOKUPS = ("LookupTableFind", "LookupTableFindV2")
_LISTS = ("TensorListLength", "TensorListStack")
_LIST_SOURCES = ("TensorListReserve", "TensorListFromTensor")
_CANDIDATES = _UNIQUE.union(POPS, _LOOKUPS, ("OptionalGetValue", "FusedBatchNormV3"))


class Guesser:
  """Guesses for one graph, pass by pass."""

  def __init__(self, graph_def: GraphDef):
    self._nodes = {node.name: node for node in graph_def.node}
    self._candidates = [node for node in graph_def.node if node.op in _CANDIDATES]
    self.lists = [node for node in graph_def.node if node.op in _LISTS]

  def guess(self, outputs: Outputs) -> Dict[Tensor, OpInfo.TensorProperties]:
    """Returns (op, port) -> TensorProperties, for outputs of unknown shape that can be guessed.

    Args:
      outputs: op name -> TensorProperties of each output, as far as known.
    """
    found = {}
    for node in self._candidates:
      for port, tensor in enumerate(outputs.get(node.name, ())):
        if num_elements(tensor.shape)[1]:
          continue
        dims = self._dims(node, port, outputs)
        if dims is not None:
          found[node.name, port] = properties(tensor.dtype, dims)
    return found

  def _dims(self, node: NodeDef, port: int, outputs: Outputs) -> Optional[List[int]]:
    """Returns the dimensions of an output of unknown shape, None if they cannot be guessed."""
    inputs = [parse(text) for text in data_inputs(node)]
    if node.op == "FusedBatchNormV3":
      # Port 5 is the reserve of cuDNN.
      return [0] if port == 5 else None
    if node.op in _LOOKUPS:  # (table, keys, default value); the table's content is not known
      keys, value = (known_dims(outputs, tensor) for tensor in inputs[1:3])
      return None if keys is None or value is None else keys + value
    if node.op in POPS:
      source = self.pushed(node)
    elif node.op == "OptionalGetValue":  # a tensor that a branch kept for its gradient
      kept = self._nodes.get(self._trace(node.input[0], ("OptionalFromValue",)))
      parts = data_inputs(kept) if kept is not None else []
      source = parse(parts[port]) if port < len(parts) else None
    else:  # Unique: as many values as there are elements
      source = inputs[0] if port == 0 else None
    return known_dims(outputs, source) if source else None

  def is_unsure(self, tensor: Tensor) -> bool:
    """Returns whether the guess for a tensor may be wrong: the tensor is no copy of another."""
    op_type = self._nodes[tensor[0]].op
    return op_type in _UNIQUE or op_type in _LOOKUPS

  def pops(self) -> List[NodeDef]:
    """Returns the ops that pop a tensor from a stack or list."""
    return [node for node in self._candidates if node.op in POPS]

  def made_by(self, node: NodeDef) -> Optional[NodeDef]:
    """Returns the op that made the list whose length or elements a node reads."""
    return self._nodes.get(
        origin(self._nodes, parse(node.input[0]), _LIST_SOURCES, also="TensorListSetItem"))

  def pushed(self, pop: NodeDef) -> Optional[Tensor]:
    """Returns the tensor that was pushed, which a pop returns."""
    if pop.op == "TensorListPopBack":
      push = self._trace(pop.input[0], ("TensorListPushBack",))
      return parse(self._nodes[push].input[1]) if push else None
    return self._pushed_on.get(self._trace(pop.input[0], _STACKS))

  @functools.cached_property
  def _pushed_on(self) -> Dict[str, Tensor]:
    """Returns stack -> the tensor that is pushed on it."""
    found = {self._trace(node.input[0], _STACKS): parse(node.input[1])
             for node in self._nodes.values() if node.op in _STACK_PUSHES}
    found.pop("", None)  # a stack that is not known
    return found

  def _trace(self, input_name: str, ops: Sequence[str]) -> str:
    """Returns the name of the nearest op of these types that a handle or list comes from, or ""."""
    # A list has the same pushes after a pop.
    return origin(self._nodes, parse(input_name), ops, also="TensorListPopBack")


def known_dims(outputs: Outputs, tensor: Tensor) -> Optional[List[int]]:
  """Returns the dimensions of a tensor, None if they are not all known.

  Args:
    outputs: op name -> TensorProperties of each output, as far as known.
    tensor: (op, port).

  Returns:
    The dimensions.
  """
  name, port = tensor
  tensors = outputs.get(name, ())
  if not 0 <= port < len(tensors) or not num_elements(tensors[port].shape)[1]:
    return None
  return [dim.size for dim in tensors[port].shape.dim]
