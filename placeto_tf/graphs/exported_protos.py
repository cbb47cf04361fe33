"""Makes protos of a graph: GraphDefs for cost models, and protos for placed graphs."""

from __future__ import annotations

from typing import Dict, List, Sequence

from placeto_tf.errors import GraphError
from placeto_tf.graphs import shapes
from placeto_tf.graphs.colocation import RESOURCE
from placeto_tf.graphs.computation_graph import ComputationGraph, GraphSource
from placeto_tf.graphs.feed_values import write_value
from placeto_tf.graphs.functions import functions_in, keep_known_classes
from placeto_tf.graphs.op_defs import REF, OpDefs
from placeto_tf.on_use import GraphDef, Message, NodeDef


def analysis_graph_def(graph: ComputationGraph) -> GraphDef:
  """Returns a GraphDef of the graph's N ops, in order, without devices and with known feed shapes.

  A feed becomes a Placeholder of its bound shape, or a Const of its assumed value. Inputs are those
  of the source, including back edges of loops, and all producers are in the GraphDef.

  Args:
    graph: a graph whose source has nodes.

  Returns:
    A new GraphDef, which the caller may change.

  Raises:
    GraphError: the graph has no GraphDef (it was read from a CostGraphDef or made of arrays).
  """
  source = graph.source
  if source is None or source.graph_def is None or source.positions is None:
    raise GraphError(
        "the graph has no TensorFlow nodes to analyse; give a GraphDef, or costs that are known")
  result = type(source.graph_def)()
  result.versions.CopyFrom(source.graph_def.versions)
  result.library.CopyFrom(source.graph_def.library)
  nodes, op_defs = source.graph_def.node, OpDefs(source.graph_def.library)
  # Op -> ports that are fed.
  fed: Dict[str, List[int]] = {}
  for name in source.feed_shapes:
    op, _, port = name.rpartition(":")
    fed.setdefault(op, []).append(int(port))
  for position in source.positions.tolist():
    node = result.node.add()
    node.CopyFrom(nodes[position])
    node.device = ""
    shape = source.feed_shapes.get(f"{node.name}:0")
    if node.name in source.iterator_shapes:
      state_shapes(node, source.iterator_shapes[node.name])
    # A Placeholder has one output, so a feed of a later port needs an op with several.
    later = [port for port in fed.get(node.name, ()) if port]
    if later:
      _make_iterator(
          result, node, [each % REF for each in op_defs.signature(node).outputs],
          [source.feed_shapes.get(f"{node.name}:{port}") for port in range(max(later) + 1)])
    elif node.name in source.fully_fed_ops and node.op not in shapes.PLACEHOLDERS:
      _make_placeholder(node, op_defs.signature(node).outputs[0] % REF, shape)
    elif shape is not None and node.op in shapes.PLACEHOLDERS:
      shapes.write_shape(node.attr["shape"].shape, shape)
    if f"{node.name}:0" in source.feed_values and node.op in shapes.PLACEHOLDERS:
      write_value(node, shape or (), source.feed_values[f"{node.name}:0"])
    # The stated shapes would contradict the bound ones.
    if node.op in shapes.PLACEHOLDERS:
      node.attr.pop("_output_shapes", None)
  keep_known_classes(result.node, graph.op_index)
  clear_uncalled(result)
  return result


def clear_uncalled(graph_def: GraphDef) -> None:
  """Removes the functions of a GraphDef without calls: names of functions differ between traces."""
  functions = {function.signature.name for function in graph_def.library.function}
  if not any(node.op in functions or functions_in(node.attr.values()) for node in graph_def.node):
    graph_def.library.Clear()


def rewritten_proto(graph: ComputationGraph) -> Message:
  """Returns the source's proto with function calls inlined; placements name its nodes.

  Returns:
    The proto, which may be the source's own: do not change it.

  Raises:
    GraphError: the graph was made of arrays alone.
  """
  source = graph.origin
  return source.proto if source.graph_def is None else with_nodes(source, source.graph_def)


def with_nodes(source: GraphSource, graph_def: GraphDef) -> Message:
  """Returns a source's proto with replaced nodes.

  Args:
    source: of any format.
    graph_def: the nodes.

  Returns:
    A new MetaGraphDef or SavedModel if the source has this format, else `graph_def` itself.
  """
  if source.format not in ("meta_graph_def", "saved_model"):
    return graph_def
  result = type(source.proto)()
  result.CopyFrom(source.proto)
  if source.format == "meta_graph_def":
    result.graph_def.CopyFrom(graph_def)
    return result
  # The MetaGraph that was read is one of several.
  for meta_graph, copy in zip(source.proto.meta_graphs, result.meta_graphs):
    if meta_graph is source.meta_graph:
      copy.graph_def.CopyFrom(graph_def)
  return result


def state_shapes(node: NodeDef, stated: Sequence[shapes.Shape]) -> None:
  """Sets the shapes of an iterator's outputs.

  Args:
    node: the op that takes the next batch; changed.
    stated: dimensions of each output, -1 for unknown ones; None for an unknown rank.
  """
  node.attr["output_shapes"].list.ClearField("shape")
  for shape in stated:
    shapes.write_shape(node.attr["output_shapes"].list.shape.add(), shape)


def _make_iterator(
    graph_def: GraphDef, node: NodeDef, types: Sequence[int], known: Sequence[shapes.Shape]
) -> None:
  """Turns a node with several fed outputs into an iterator op with outputs of the same types."""
  del node.input[:]
  node.attr.clear()
  node.op = "IteratorGetNext"
  node.attr["output_types"].list.type.extend(types)
  state_shapes(node, [*known, *[None] * (len(types) - len(known))])
  # A source of unknown content: an iterator's handle.
  source = graph_def.node.add(name=f"{node.name}/fed", op="FakeParam")
  source.attr["dtype"].type = RESOURCE
  shapes.write_shape(source.attr["shape"].shape, ())
  node.input.append(source.name)


def _make_placeholder(node: NodeDef, dtype: int, shape: shapes.Shape) -> None:
  """Turns a node whose output is fed into a Placeholder."""
  node.op = "Placeholder"
  del node.input[:]
  # Keep colocation; all other attributes belong to the replaced op.
  classes = list(node.attr["_class"].list.s)
  node.attr.clear()
  node.attr["dtype"].type = dtype
  shapes.write_shape(node.attr["shape"].shape, shape)
  if classes:
    node.attr["_class"].list.s.extend(classes)
