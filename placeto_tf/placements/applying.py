"""Applies placements: to copies of protos, to live functions, and to a live `tf.Graph` in place."""

from __future__ import annotations

from typing import Any, Mapping, Tuple

from placeto_tf.errors import PlacementError
from placeto_tf.graphs.computation_graph import shapes_of_interface
from placeto_tf.graphs.concrete_functions import concrete_of, is_concrete_function, is_function
from placeto_tf.graphs.functions import inline_functions, keep_known_classes
from placeto_tf.placements.belonging import check_shapes
from placeto_tf.placements.node_devices import devices_of, place_nodes
from placeto_tf.placements.placed_functions import place_function

_META_GRAPH = "tensorflow.MetaGraphDef"
_COST_GRAPH = "tensorflow.CostGraphDef"
_PROTOS = ("tensorflow.GraphDef", _META_GRAPH, _COST_GRAPH)


def apply(
    placement: Mapping[str, str], target: Any, shapes: Mapping[str, Tuple[int, ...]]) -> Any:
  """Sets the device of every op of a graph; see `Placement.apply`.

  The placement may hold ops that the target lacks, so the placement of a whole file also fits any
  part of it.

  Args:
    placement: op name -> device name.
    target: the graph, proto or function to place.
    shapes: op name -> shape that a feed or a variable of the target must have.

  Returns:
    A placed copy of a proto, the `tf.Graph` itself, or a placed ConcreteFunction.

  Raises:
    PlacementError: an op has no device, a shape differs, or the target has another type.
  """
  kind = getattr(getattr(target, "DESCRIPTOR", None), "full_name", None)
  if kind in _PROTOS:
    placed = type(target)()
    placed.CopyFrom(target)
    if kind == _COST_GRAPH:
      place_nodes(placement, placed.node)
      return placed
    graph_def = placed.graph_def if kind == _META_GRAPH else placed
    check_shapes(shapes, shapes_of_interface(graph_def.node))
    # Calls are inlined if the placement knows the ops inside; else the calls themselves are placed.
    inlined, _ = inline_functions(graph_def)
    if inlined is not graph_def and all(node.name in placement for node in inlined.node):
      graph_def.CopyFrom(inlined)
    place_nodes(placement, graph_def.node)
    # TensorFlow imports no graph in which an op is colocated with one that was transformed away.
    keep_known_classes(graph_def.node, {node.name for node in graph_def.node})
    return placed
  if hasattr(target, "get_operations") and hasattr(target, "as_default"):
    # A live graph is changed in place.
    ops = target.get_operations()
    check_shapes(shapes, shapes_of_interface(op.node_def for op in ops if op.name in shapes))
    # Look up all devices before setting the first one, so that an error changes nothing.
    for op, device in zip(ops, devices_of(placement, [op.name for op in ops])):
      op._set_device(device)
    return target
  if is_concrete_function(target) or is_function(target):
    function = concrete_of(target)
    check_shapes(shapes, shapes_of_interface(
        op.node_def for op in function.graph.get_operations() if op.name in shapes))
    return place_function(placement, function).function
  raise PlacementError(
      f"cannot place a {type(target).__name__}; expected a GraphDef, MetaGraphDef, CostGraphDef, "
      "tf.Graph or ConcreteFunction")
