"""Infers the shapes of a graph's tensors and the trip counts of its loops, and counts its work.

Shapes come from these sources, in this order:

1. Grappler. It gives up on loop variables (the shape of a Merge and of all later tensors), so back
   edges are removed: a loop variable keeps the shape with which it enters the loop.
2. TensorFlow's shape functions (`_Inference`), for unknown shapes and for trip counts. They compute
   values that depend only on constants and known shapes, but are slow for large graphs.
3. The shapes of a run of the step (`look`).
4. Guesses (`shape_guesses`).

Each new shape or number becomes an input of grappler, until no more become known.
"""

from __future__ import annotations

import dataclasses
import re
from copy import deepcopy
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from placeto_tf.costs.grappler import OpEstimate, Question
from placeto_tf.costs.loop_rounds import Evaluate, LoopRounds
from placeto_tf.costs.shape_guesses import Guesser, known_dims
from placeto_tf.costs.tensor_sizes import Outputs, properties, tensor_bytes
from placeto_tf.errors import CostError, one_line
from placeto_tf.graphs import shapes
from placeto_tf.graphs.loops import ENTER, EXIT, MERGE, NEXT
from placeto_tf.graphs.tensor_names import Tensor, data_inputs, op_of, parse
from placeto_tf.on_use import GraphDef, NodeDef, TensorShapeProto, tf

_MAX_IMPORTED = 30_000  # ops; about five seconds
_MAX_PASSES = 8  # a guess can make the next possible, as in gradients of gradients of loops
_MAX_IMPORTS = 3  # for shapes
_WHOLE_NUMBERS = (3, 9)  # DT_INT32, DT_INT64
# Messages of TensorFlow's shape functions for shapes that do not fit, with the op and the sizes.
_CONTRADICTION = "with input shapes:"


@dataclasses.dataclass(frozen=True, eq=False)
class Analysis:
  """The known shapes and work of the ops of a graph, and the trip counts of its loops.

  Attributes:
    estimates: op name -> flops and bytes, for ops that grappler counts.
    outputs: op name -> `OpInfo.TensorProperties` of each output: dtype and shape.
    guessed: (op name, output port) of the shapes that were assumed, and may be others.
    trips: LoopCond op of each loop -> trip count, None if unknown.
    capped: loops whose trip count is an upper limit.
    growing: Merge ops of loop variables whose shape changes between iterations; they are assumed to
      keep the shape with which they enter the loop.
  """

  estimates: Mapping[str, OpEstimate]
  outputs: Outputs
  guessed: Sequence[Tensor] = ()
  trips: Mapping[str, Optional[int]] = dataclasses.field(default_factory=dict)
  capped: Sequence[str] = ()
  growing: Sequence[str] = ()


def analyse(
    graph_def: GraphDef, counts: bool = True, seen: Mapping[Tensor, Sequence[int]] = {}
) -> Analysis:
  """Analyses every op of a GraphDef; the estimates are of one run of an op of a loop.

  Args:
    graph_def: the graph.
    counts: whether to compute `estimates`, which takes most of the time.
    seen: tensor -> its shape in a run, where known.

  Returns:
    The estimates, shapes and trip counts, with marks for assumed ones.

  Raises:
    CostError: grappler cannot read the graph, its counts overflow, or shapes contradict it.
  """
  # Read the back edges before they are removed.
  loops = LoopRounds(graph_def.node)
  acyclic = straight(graph_def, loops)
  guesser = Guesser(graph_def)
  bound: Dict[Tensor, Any] = {}  # TensorProperties, with a value where a number is known
  guessed: List[Tensor] = []
  imports = 0
  # Each pass binds the shapes and numbers that the last one found, and asks grappler again.
  for _ in range(_MAX_PASSES):
    analysed = _bind(acyclic, bound)
    # Ops without consumers together depend on all ops of an acyclic graph.
    needed = {op_of(name) for node in analysed.node for name in node.input}
    question = Question(analysed, [node.name for node in analysed.node if node.name not in needed])
    outputs = {name: list(tensors) for name, tensors in question.outputs().items()}
    # Grappler has lost the shapes of bound tensors, because their consumers read other sources.
    for (name, port), tensor in bound.items():
      outputs[name][port] = tensor
    unknown = [(name, port) for name, tensors in outputs.items()
               for port, tensor in enumerate(tensors) if not tensor_bytes(tensor)[1]]
    found: Dict[Tensor, Any] = {}
    counting = None in loops.trips.values()
    # Use TensorFlow's shape functions as long as they may find new shapes.
    if (unknown and imports < _MAX_IMPORTS or counting) and len(analysed.node) <= _MAX_IMPORTED:
      imports += 1
      inference = _Inference(analysed, loops, bound, strict=counts and not bound)
      found = inference.shapes_of(unknown, outputs)
      if counting:
        loops.infer(inference.number)
        found.update(_numbers(loops, guesser, inference.number, outputs, bound))
      found.update(guesser.lengths(inference.number, outputs, bound))
    growing = [(merge, 0) for merge, ends in loops.variables.items()
               if (merge, 0) not in bound and _differ(*(known_dims(outputs, end) for end in ends))]
    # Shapes of a run come before guesses; each is used only if no better source has the shape.
    if not found:
      found = {(name, port): properties(outputs[name][port].dtype, seen[name, port])
               for name, port in (*unknown, *growing) if (name, port) in seen}
    # Guesses are the last resort; those that may be wrong are reported to the caller.
    if not found:
      found = guesser.guess(unknown, outputs)
      guessed.extend(tensor for tensor in found if guesser.is_unsure(tensor))
    if not found:
      break
    bound.update(found)
  return Analysis(question.estimates() if counts else {}, outputs, tuple(guessed), loops.trips,
                  loops.capped, [merge for merge, _ in growing])


class _Inference:
  """TensorFlow's shape functions on a graph, which compute numbers from constants and shapes."""

  def __init__(
      self, graph_def: GraphDef, loops: LoopRounds, bound: Mapping[Tensor, Any], strict: bool):
    """Imports a copy of a graph without back edges.

    Args:
      graph_def: the graph.
      loops: its loops.
      bound: tensor -> TensorProperties, for tensors whose shape or number is known already.
      strict: whether nothing in it was assumed, so that shapes which do not fit are an error.

    Raises:
      CostError: the step cannot run, because shapes contradict one another.
    """
    self._bound = bound
    # A copy, because the import needs a graph without back edges or loop ops.
    copy = readable(graph_def, loops)
    # Without an import: grappler could read the graph, which is enough.
    self._graph, error = _imported(copy)
    reason = contradiction(copy) if strict and error else ""
    if reason:
      # Without the attributes, between which the sizes would be lost.
      reason = one_line(ValueError(re.sub(r"(= \w+)\[.*?\]\(", r"\1(", reason)), 400)
      raise CostError(f"the step cannot run: {reason}; correct batch_size or feed_shapes, or the "
                      "shape that the graph has fixed")

  def shapes_of(self, unknown: Sequence[Tensor], outputs: Outputs) -> Dict[Tensor, Any]:
    """Finds the shapes of tensors whose shape grappler does not know.

    Args:
      unknown: the tensors, as (op name, port).
      outputs: op name -> TensorProperties of each output, for the types.

    Returns:
      Tensor -> TensorProperties, for the shapes that are fully known.
    """
    found = {}
    for name, port in unknown:
      tensor = self._tensor((name, port))
      if tensor is None:
        continue
      # The length of some outputs, such as the axes of BroadcastGradientArgs, is that of a value.
      shape = tensor.shape
      if not shape.is_fully_defined():
        shape = getattr(_evaluated(tensor), "shape", None)
      if shape is not None:
        found[name, port] = properties(outputs[name][port].dtype, tuple(shape))
    return found

  def number(self, name: Tensor) -> Optional[int]:
    """Returns the whole number that a tensor holds, or None if unknown before a run."""
    if name in self._bound and self._bound[name].HasField("value"):
      return int(tf.make_ndarray(self._bound[name].value))
    tensor = self._tensor(name)
    if tensor is None or not tensor.dtype.is_integer or tensor.shape.num_elements() != 1:
      return None
    value = _evaluated(tensor)
    return None if value is None else int(value)

  def _tensor(self, name: Tensor) -> Any:
    try:
      return self._graph.get_tensor_by_name(f"{name[0]}:{name[1]}")
    except (KeyError, ValueError):
      return None


def _evaluated(tensor: tf.Tensor) -> Any:
  """Returns what a tensor holds, or None if it depends on more than constants and shapes."""
  from tensorflow.python.client import pywrap_tf_session

  with tensor.graph._c_graph.get() as c_graph:
    return pywrap_tf_session.TF_TryEvaluateConstant_wrapper(c_graph, tensor._as_tf_output())


def readable(graph_def: GraphDef, loops: LoopRounds) -> GraphDef:
  """Returns a copy in which loop-invariant values can be computed."""
  copy = deepcopy(graph_def)
  # An invariant keeps the value that enters the loop: its Merge passes that on.
  invariants = set(loops.invariants)
  for node in copy.node:
    if node.op == "FakeParam":  # a placeholder is never computed
      node.op = "Placeholder"
    elif node.op in (*ENTER, *EXIT, *NEXT) or node.name in invariants:
      dtype = node.attr["T"].type
      node.op = "Identity"
      node.attr.clear()
      node.attr["T"].type = dtype
  return copy


def _imported(graph_def: GraphDef) -> Tuple[tf.Graph, str]:
  """Returns the graph and "", or an empty graph and TensorFlow's reason for refusing it."""
  graph = tf.Graph()
  try:
    with graph.as_default():
      tf.graph_util.import_graph_def(graph_def, name="")
  except (ValueError, TypeError, tf.errors.OpError) as error:
    return tf.Graph(), str(error)
  return graph, ""


def contradiction(copy: GraphDef) -> str:
  """Returns the reason why TensorFlow refuses the shapes of a graph, or ""."""
  graph, reason = _imported(copy)
  # Shape functions let a Slice begin before the first element, as where the rank of labels is 0.
  for op in graph.get_operations():
    if op.type == "Slice" and (begin := _evaluated(op.inputs[1])) is not None and (begin < 0).any():
      return (f"a wrong rank for '{{{{node {op.name}}}}} = Slice({op.inputs[0].name}, "
              f"{op.inputs[1].name})' {_CONTRADICTION} [{op.inputs[0].shape[0]}], [1]")
  if _CONTRADICTION not in reason or not any(node.op in MERGE for node in copy.node):
    return reason if _CONTRADICTION in reason else ""
  # A loop variable may have another shape after an iteration: make its shape unknown.
  relaxed = deepcopy(copy)
  for node in relaxed.node:
    if node.op in MERGE and len(data_inputs(node)) == 1:
      _make_source(node, node.attr["T"].type, None)
      node.op = "Placeholder"
  reason = _imported(relaxed)[1]
  return reason if _CONTRADICTION in reason else ""


def _numbers(
    loops: LoopRounds, guesser: Guesser, value: Evaluate, outputs: Outputs,
    bound: Mapping[Tensor, Any]) -> Dict[Tensor, Any]:
  """Returns numbers that TensorFlow cannot see: counters that leave loops, and copies of
  numbers in stacks and lists that always got the same number."""
  found = loops.exits()
  for (name, port), source in guesser.copies.items():
    tensors = outputs.get(name, ())
    whole = port < len(tensors) and tensors[port].dtype in _WHOLE_NUMBERS
    number = value(source) if whole else None
    if number is not None:
      found[name, port] = number
  # Numbers that were not bound yet and fit in int32.
  return {(name, port): properties(outputs[name][port].dtype, [], number)
          for (name, port), number in found.items() if abs(number) < 1 << 31 and not (
              (name, port) in bound and bound[name, port].HasField("value"))}


def _differ(before: Optional[List[int]], after: Optional[List[int]]) -> bool:
  """Returns whether two shapes are known and differ."""
  return before is not None and after is not None and before != after


def straight(graph_def: GraphDef, loops: LoopRounds) -> GraphDef:
  """Returns an acyclic copy with sources of known shape instead of placeholders.

  Merge ops read only the entering values of loops. Grappler assumes that every placeholder is fed,
  and infers no shape from feeds.
  """
  copy = deepcopy(graph_def)
  for node in copy.node:
    if node.op in shapes.FEEDABLE:
      _make_source(node, node.attr["dtype"].type, node.attr["shape"].shape)
    elif node.name in loops.variables:
      del node.input[1]  # after the entering value, before control inputs
      node.attr["N"].i = 1
  return copy


def _make_source(node: NodeDef, dtype: int, shape: Optional[TensorShapeProto]) -> None:
  """Turns a node into one whose only output has this type and shape; None for any shape."""
  source = type(node)(name=node.name, op="FakeParam")
  source.attr["dtype"].type = dtype
  if shape is None:
    source.attr["shape"].shape.unknown_rank = True
  else:
    source.attr["shape"].shape.CopyFrom(shape)
  node.CopyFrom(source)


def _bind(graph_def: GraphDef, bound: Mapping[Tensor, Any]) -> GraphDef:
  """Returns a copy in which consumers of the bound tensors read sources of their shapes, or their
  values, instead."""
  copy = deepcopy(graph_def)  # the next pass binds more
  # A source for each bound tensor is next to its op, which is kept for its other outputs.
  names = {tensor: f"{tensor[0]}/bound_shape_{tensor[1]}" for tensor in bound}
  for node in copy.node:
    for i, name in enumerate(node.input):
      tensor = parse(name)
      if tensor in names:
        node.input[i] = names[tensor]
  for tensor, known in bound.items():
    source = copy.node.add(name=names[tensor])
    _make_source(source, known.dtype, known.shape)
    if known.HasField("value"):
      source.op = "Const"
      del source.attr["shape"]
      source.attr["value"].tensor.CopyFrom(known.value)
  return copy
