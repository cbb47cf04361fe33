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

from typing import Dict, Iterable, List, Mapping, Optional, Sequence

from placeto_tf.costs.loop_rounds import Evaluate
from placeto_tf.costs.tensor_sizes import Outputs, num_elements, origin, properties, tensor_bytes
from placeto_tf.graphs.tensor_names import Tensor, data_inputs, parse
from placeto_tf.on_use import GraphDef, NodeDef, OpInfo
from placeto_tf.ops import types_with

_STACKS = ("Stack", "StackV2")
_STACK_PUSHES = ("StackPush", "StackPushV2")
_STACK_POPS = ("StackPop", "StackPopV2")
_UNIQUE = types_with(any_number=(1,))
_LOOKUPS = ("LookupTableFind", "LookupTableFindV2")
_LISTS = ("TensorListLength", "TensorListStack")
_LIST_SOURCES = ("TensorListReserve", "TensorListFromTensor")


class Guesser:
  """Guesses for one graph, pass by pass.

  Attributes:
    copies: output that was popped or kept -> the tensor that was pushed or given to be kept.
  """

  def __init__(self, graph_def: GraphDef):
    self._nodes = {node.name: node for node in graph_def.node}
    self._lists = [node for node in graph_def.node if node.op in _LISTS]
    self.copies: Dict[Tensor, Tensor] = {}
    # Stack -> the tensor that is pushed on it.
    pushed = {self._source(node, _STACKS): parse(node.input[1])
              for node in graph_def.node if node.op in _STACK_PUSHES}
    pushed.pop("", None)  # a stack that is not known
    for name, node in self._nodes.items():
      if node.op in _STACK_POPS:
        stack = self._source(node, _STACKS)
        if stack in pushed:
          self.copies[name, 0] = pushed[stack]
      elif node.op == "TensorListPopBack":
        push = self._source(node, ("TensorListPushBack",))
        if push:
          self.copies[name, 1] = parse(self._nodes[push].input[1])
      elif node.op == "OptionalGetValue":
        kept = self._source(node, ("OptionalFromValue",))
        for port, text in enumerate(data_inputs(self._nodes[kept]) if kept else ()):
          self.copies[name, port] = parse(text)

  def guess(
      self, unknown: Iterable[Tensor], outputs: Outputs) -> Dict[Tensor, OpInfo.TensorProperties]:
    """Guesses shapes.

    Args:
      unknown: outputs of unknown shape.
      outputs: op name -> TensorProperties of each output, as far as known.

    Returns:
      (op, port) -> TensorProperties, for outputs that can be guessed.
    """
    found = {}
    for name, port in unknown:
      dims = self._dims(name, port, outputs)
      if dims is not None:
        found[name, port] = properties(outputs[name][port].dtype, dims)
    return found

  def _dims(self, name: str, port: int, outputs: Outputs) -> Optional[List[int]]:
    """Returns the dimensions of an output of unknown shape, None if they cannot be guessed."""
    node = self._nodes[name]
    if (name, port) in self.copies:
      return known_dims(outputs, self.copies[name, port])
    if node.op in _LOOKUPS:  # (table, keys, default value); the table's content is not known
      keys, value = (known_dims(outputs, parse(text)) for text in data_inputs(node)[1:3])
      return None if keys is None or value is None else keys + value
    if node.op in _UNIQUE and port == 0:  # as many values as there are elements
      return known_dims(outputs, parse(node.input[0]))
    # Port 5 is the reserve of cuDNN.
    return [0] if node.op == "FusedBatchNormV3" and port == 5 else None

  def is_unsure(self, tensor: Tensor) -> bool:
    """Returns whether the guess for a tensor may be wrong: the tensor is no copy of another."""
    op_type = self._nodes[tensor[0]].op
    return op_type in _UNIQUE or op_type in _LOOKUPS

  def lengths(
      self, value: Evaluate, outputs: Outputs, bound: Mapping[Tensor, OpInfo.TensorProperties]
  ) -> Dict[Tensor, OpInfo.TensorProperties]:
    """Finds the lengths of lists whose size does not change, and the shapes of their stacks.

    Args:
      value: returns the number that a tensor holds, None if it is not known.
      outputs: op name -> TensorProperties of each output, as far as known.
      bound: the tensors that are known already.

    Returns:
      (op, port) -> TensorProperties, for the ops that read a list.
    """
    found: Dict[Tensor, OpInfo.TensorProperties] = {}
    for node in self._lists:
      tensor = outputs[node.name][0]
      source = self._nodes.get(self._source(node, _LIST_SOURCES, also="TensorListSetItem"))
      if source is None or (node.name, 0) in bound or (
          node.op == "TensorListStack" and tensor_bytes(tensor)[1]):
        # An unknown list, bound already, or a stack whose shape is known.
        continue
      # TensorListReserve(shape, length); TensorListFromTensor(tensor) has a row for each element.
      if source.op == "TensorListReserve":
        length = value(parse(source.input[1]))
      else:
        data, port = parse(source.input[0])
        dims = outputs[data][port].shape.dim
        length = dims[0].size if dims and dims[0].size >= 0 else None
      row = [dim.size for dim in tensor.shape.dim[1:]]
      if length is not None and node.op == "TensorListLength":
        found[node.name, 0] = properties(tensor.dtype, [], length)
      elif length is not None and tensor.shape.dim and min(row, default=0) >= 0:
        found[node.name, 0] = properties(tensor.dtype, [length, *row])
    return found

  def _source(self, node: NodeDef, ops: Sequence[str], also: str = "TensorListPopBack") -> str:
    """Returns the name of the nearest op of these types that input 0 comes from, or ""."""
    # A list has the same pushes after a pop.
    return origin(self._nodes, parse(node.input[0]), ops, also=also)


def known_dims(outputs: Outputs, tensor: Tensor) -> Optional[List[int]]:
  """Returns the dimensions of a tensor, None if they are not all known.

  Args:
    outputs: op name -> TensorProperties of each output, as far as known.
    tensor: (op, port).
  """
  name, port = tensor
  tensors = outputs.get(name, ())
  if not 0 <= port < len(tensors) or not num_elements(tensors[port].shape)[1]:
    return None
  return [dim.size for dim in tensors[port].shape.dim]
