"""Infers the shapes of a graph's tensors and counts its work, with grappler and beyond it.

Grappler gives up on loop variables (the shape of a Merge and of all that follows), so back edges
are cut: a loop variable keeps the shape it enters with. Shapes that grappler does not know come
from `shape_guesses`, and then from TensorFlow's own shape functions, which evaluate what a shape is
computed from (`tf.zeros([tf.shape(x)[0], 64])`) but take long for large graphs.
Each shape found is given to grappler as an input, until no more shapes become known.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Dict, List, Mapping, Sequence

from placeto_tf.costs import no_side_effects
from placeto_tf.costs.grappler import OpEstimate, Question
from placeto_tf.costs.shape_guesses import Guesser
from placeto_tf.costs.tensor_sizes import tensor_bytes
from placeto_tf.graphs import shapes
from placeto_tf.graphs.tensor_names import Tensor, op_of, parse

if TYPE_CHECKING:
  from tensorflow.core.framework.graph_pb2 import GraphDef
  from tensorflow.core.framework.node_def_pb2 import NodeDef
  from tensorflow.core.framework.tensor_shape_pb2 import TensorShapeProto
  from tensorflow.core.grappler.costs.op_performance_data_pb2 import OpInfo

_MERGES = ("Merge", "RefMerge")
_NEXT = ("NextIteration", "RefNextIteration")
_MAX_IMPORTED = 30_000  # ops; about five seconds
_MAX_PASSES = 6  # a guess can make the next possible, as in gradients of gradients of loops


@dataclasses.dataclass(frozen=True, eq=False)
class Analysis:
  """What is known about the ops of a graph.

  Attributes:
    estimates: op name -> flops and bytes, where grappler has them.
    outputs: op name -> `OpInfo.TensorProperties` of each output: dtype and shape.
    guessed: (op name, output port) of the shapes that were assumed.
  """

  estimates: Mapping[str, OpEstimate]
  outputs: Mapping[str, Sequence[OpInfo.TensorProperties]]
  guessed: Sequence[Tensor] = ()


def analyse(graph_def: GraphDef, counts: bool = True) -> Analysis:
  """Analyses every op of a GraphDef, those of loops as if they ran once.

  Args:
    graph_def: the graph.
    counts: whether `estimates` are wanted, which take most of the time.

  Raises:
    CostError: grappler cannot read the graph, or its counts overflow.
  """
  straight = no_side_effects.removed(_without_back_edges(_without_feeds(graph_def)))
  guesser = Guesser(graph_def)
  bound: Dict[Tensor, OpInfo.TensorProperties] = {}
  guessed: List[Tensor] = []
  evaluated = False
  for _ in range(_MAX_PASSES):
    analysed = _bind(straight, bound)
    question = Question(analysed, _sinks(analysed))
    outputs = {name: list(tensors) for name, tensors in question.outputs().items()}
    for (name, port), tensor in bound.items():
      outputs[name][port] = tensor
    found = guesser.guess(outputs)
    guessed.extend(found)
    if not found and not evaluated:
      evaluated = True  # shape functions have no more to say the next time
      found = _evaluated_shapes(analysed, outputs)
    if not found:
      break
    bound.update(found)
  return Analysis(question.estimates() if counts else {}, outputs, tuple(guessed))


def _evaluated_shapes(
    graph_def: GraphDef, outputs: Mapping[str, Sequence[OpInfo.TensorProperties]]
) -> Dict[Tensor, OpInfo.TensorProperties]:
  """Shapes that TensorFlow's shape functions find for tensors of unknown shape."""
  unknown = [(name, port) for name, tensors in outputs.items()
             for port, tensor in enumerate(tensors) if not tensor_bytes(tensor)[1]]
  if not unknown or len(graph_def.node) > _MAX_IMPORTED:
    return {}
  import tensorflow as tf

  graph = tf.Graph()
  try:
    with graph.as_default():
      tf.graph_util.import_graph_def(graph_def, name="")
  except (ValueError, TypeError, tf.errors.OpError):
    return {}  # grappler could read it, which is what counts
  found = {}
  for name, port in unknown:
    shape = graph.get_tensor_by_name(f"{name}:{port}").shape
    if shape.is_fully_defined():
      tensor = type(outputs[name][port])(dtype=outputs[name][port].dtype)
      tensor.shape.CopyFrom(shape.as_proto())
      found[name, port] = tensor
  return found


def _without_feeds(graph_def: GraphDef) -> GraphDef:
  """A copy with sources of known shape instead of placeholders.

  Grappler takes every placeholder for fed, and infers no shape from what is fed.
  """
  copy = type(graph_def)()
  copy.CopyFrom(graph_def)
  for node in copy.node:
    if node.op in shapes.FEEDABLE:
      _make_source(node, node.attr["dtype"].type, node.attr["shape"].shape)
  return copy


def _make_source(node: NodeDef, dtype: int, shape: TensorShapeProto) -> None:
  """Turns a node into one whose only output has this type and shape."""
  kept = type(shape)()
  kept.CopyFrom(shape)  # it may be one of the attributes that go
  del node.input[:]
  node.attr.clear()
  node.op = "FakeParam"
  node.attr["dtype"].type = dtype
  node.attr["shape"].shape.CopyFrom(kept)


def _without_back_edges(graph_def: GraphDef) -> GraphDef:
  """Makes the graph acyclic, in place: Merge ops see only what enters the loop."""
  nexts = {node.name for node in graph_def.node if node.op in _NEXT}
  for node in graph_def.node if nexts else ():
    if node.op in _MERGES:
      kept = [name for name in node.input if op_of(name) not in nexts]
      if len(kept) < len(node.input):
        del node.input[:]
        node.input.extend(kept)
        node.attr["N"].i = sum(not name.startswith("^") for name in kept)
  return graph_def


def _sinks(graph_def: GraphDef) -> List[str]:
  """Ops that no other op needs: together they need every op of an acyclic graph."""
  needed = {op_of(name) for node in graph_def.node for name in node.input}
  return [node.name for node in graph_def.node if node.name not in needed]


def _bind(graph_def: GraphDef, bound: Mapping[Tensor, OpInfo.TensorProperties]) -> GraphDef:
  """A copy in which consumers of the bound tensors read sources of their shapes instead."""
  if not bound:
    return graph_def
  copy = type(graph_def)()
  copy.CopyFrom(graph_def)  # the next pass binds more
  names = {tensor: f"{tensor[0]}/bound_shape_{tensor[1]}" for tensor in bound}
  for node in copy.node:
    for i, name in enumerate(node.input):
      tensor = parse(name)
      if tensor in names:
        node.input[i] = names[tensor]
  for tensor, properties in bound.items():
    _make_source(copy.node.add(name=names[tensor]), properties.dtype, properties.shape)
  return copy
