"""Numbers that feeds hold: some of them decide the rounds of loops, and sizes of tensors.

A length that is fed (`sequence_length` of a recurrent network, the number of steps to generate) is
assumed to be as large as the shapes of the other feeds allow.
"""

from __future__ import annotations

from typing import Dict, Iterable, List, Mapping, Tuple

from placeto_tf.errors import listed, option
from placeto_tf.graphs import shapes
from placeto_tf.graphs.tensor_names import data_inputs, op_of
from placeto_tf.graphs.traversal import reachable
from placeto_tf.on_use import NodeDef, tf

INTEGERS = (3, 9)  # DT_INT32, DT_INT64
# Ops between a number that is fed and what depends on it. A shape, which is known, ends the way.
_PASSED = frozenset(
    "LoopCond LogicalAnd LogicalOr LogicalNot Less LessEqual Greater GreaterEqual Max Min Maximum "
    "Minimum All Any Cast Reshape ExpandDims Squeeze StridedSlice Add AddV2 Sub Mul FloorDiv Neg "
    "Select SelectV2 Pack ConcatV2 Tile Identity Enter Merge Switch NextIteration "
    "StopGradient".split())


# Inputs that state a size: op type -> number of the input.
_SIZES = {"Fill": 0, "Reshape": 1, "BroadcastTo": 1, "Tile": 1, "RandomUniform": 0, "Slice": 2,
          "RandomStandardNormal": 0, "TruncatedNormal": 0, "Range": 1, "StridedSlice": 2,
          "TopKV2": 1, "OneHot": 1, "TensorArrayV3": 0, "TensorListReserve": 1,
          "Conv2DBackpropInput": 0, "ResizeBilinear": 1, "ResizeNearestNeighbor": 1, "Pad": 1}


def of_loops(
    nodes: Iterable[NodeDef], feed_shapes: Mapping[str, shapes.Shape]
) -> Tuple[Dict[str, int], Tuple[str, ...]]:
  """Finds the numbers of feeds that bound loops.

  Args:
    nodes: the ops of a step.
    feed_shapes: feed (tensor name) -> its dimensions.

  Returns:
    Feed -> number, for scalars and vectors of whole numbers on which the condition of a loop
    depends, if other feeds have sequences; and a note on them.
  """
  by_name = {node.name: node for node in nodes}
  found = {}
  for name in _feeds_above(by_name, [each for each, node in by_name.items()
                                     if node.op == "LoopCond"]):
    shape = feed_shapes.get(name)
    if shape is None or len(shape) > 1:
      continue
    # [batch, length, ...] or [length, batch, ...]; the length of a vector's sequences is the
    # dimension that is not the vector's own. Matrices of other numbers are hardly sequences.
    sizes = {feed: (tuple(dim for dim in other[:2] if (dim,) != shape) or other[:1])[-1]
             for feed, other in feed_shapes.items() if other is not None and len(other) > 1}
    sequences = [size for feed, size in sizes.items()
                 if len(feed_shapes[feed] or ()) > 2 or _is_whole(by_name[op_of(feed)])]
    longest = max(sequences or sizes.values(), default=0)
    if longest > 1:
      found[name] = longest
  said = listed([f"{op_of(name)} {size}" for name, size in found.items()])
  return found, (f"{shapes.ASSUMED}{said}, as long as shapes allow, which bounds the rounds of a "
                 f"loop; {option('trip_count')} sets them",) if found else ()


def of_sizes(nodes: Iterable[NodeDef]) -> List[str]:
  """Returns the feeds (tensor names) of whole numbers on which the size of a tensor depends."""
  by_name = {node.name: node for node in nodes}
  return _feeds_above(by_name, [
      op_of(data_inputs(node)[_SIZES[node.op]]) for node in by_name.values()
      if node.op in _SIZES and len(data_inputs(node)) > _SIZES[node.op]])


def _feeds_above(by_name: Mapping[str, NodeDef], starts: Iterable[str]) -> List[str]:
  """Returns the placeholders of whole numbers that ops are computed from, as tensor names."""
  above = reachable([name for name in starts if name in by_name], lambda name: [
      op_of(text) for text in data_inputs(by_name[name])] if by_name[name].op in _PASSED else ())
  return [f"{name}:0" for name in above if _is_whole(by_name[name])]


def _is_whole(node: NodeDef) -> bool:
  """Returns whether a node is a placeholder of whole numbers."""
  return node.op in shapes.PLACEHOLDERS and node.attr["dtype"].type in INTEGERS


def write_value(node: NodeDef, dims: Tuple[int, ...], number: int) -> None:
  """Turns a placeholder into a constant, which has its name and type.

  Args:
    node: changed.
    dims: the shape of the constant.
    number: each of its elements.
  """
  node.op = "Const"
  for name in ("shape", "_output_shapes"):
    node.attr.pop(name, None)
  node.attr["value"].tensor.CopyFrom(
      tf.make_tensor_proto(number, node.attr["dtype"].type, dims))
