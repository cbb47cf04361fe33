"""Applies placements: to copies of protos, to a live `tf.Graph` in place, and by device scopes."""

from __future__ import annotations

import dataclasses
from typing import Any, Iterable, Mapping, Tuple

from placeto_tf.clusters import device_names
from placeto_tf.errors import PlacementError, counted, listed
from placeto_tf.graphs import tensor_names
from placeto_tf.graphs.collective_groups import is_member
from placeto_tf.graphs.computation_graph import shapes_of_interface
from placeto_tf.graphs.concrete_functions import concrete_of, is_concrete_function, is_function
from placeto_tf.graphs.files import format_of
from placeto_tf.graphs.functions import functions_in, inline_functions, keep_known_classes
from placeto_tf.on_use import tf
from placeto_tf.placements import node_devices
from placeto_tf.placements.belonging import check_shapes
from placeto_tf.placements.placed_functions import place_function


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
  kind = format_of(target)
  if kind is not None:
    placed = type(target)()
    placed.CopyFrom(target)
    if kind == "cost_graph_def":
      node_devices.place_nodes(placement, placed.node)
      return placed
    graph_def = placed.graph_def if kind == "meta_graph_def" else placed
    check_shapes(shapes, shapes_of_interface(graph_def.node))
    # Calls are inlined if the placement knows the ops inside; else the calls themselves are placed.
    inlined, _ = inline_functions(graph_def)
    if inlined is not graph_def and all(node.name in placement for node in inlined.node):
      graph_def.CopyFrom(inlined)
    node_devices.place_nodes(placement, graph_def.node)
    # TensorFlow imports no graph in which an op is colocated with one that was transformed away.
    keep_known_classes(graph_def.node, {node.name for node in graph_def.node})
    return placed
  if hasattr(target, "get_operations") and hasattr(target, "as_default"):
    # A live graph is changed in place.
    ops = target.get_operations()
    check_shapes(shapes, shapes_of_interface(op.node_def for op in ops if op.name in shapes))
    # Look up all devices before setting the first one, so that an error changes nothing.
    devices = node_devices.devices_of(placement, [op.name for op in ops])
    if any(is_member(op.type) for op in ops):
      node_devices.check_apart([op.node_def for op in ops], devices)
    _free_functions(target, placement.values())
    for op, device in zip(ops, devices):
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


def _free_functions(graph: tf.Graph, names: Iterable[str]) -> None:
  """Takes devices that a placement does not have from the ops in functions of a live graph.

  A function of a graph cannot be changed. So calls get copies of the functions, without the devices
  of the machine for which the graph was built: the ops run where their call was placed.
  """
  known, graph_def = list(dict.fromkeys(names)), graph.as_graph_def()
  foreign = [node for function in graph_def.library.function for node in function.node_def
             if node.device and device_names.find_device(known, node.device) is None]
  if not foreign:
    return
  for node in foreign:
    node.device = ""
  taken = {function.signature.name for function in graph_def.library.function}
  fresh = {name: tensor_names.fresh(f"{name}_placed", taken) for name in sorted(taken)}
  for function in graph_def.library.function:
    function.signature.name = fresh[function.signature.name]
    for callee in functions_in(
        attr for node in function.node_def for attr in node.attr.values()):
      callee.name = fresh.get(callee.name, callee.name)
  graph_def.library.ClearField("gradient")  # gradients have been made
  with graph.as_default():
    tf.graph_util.import_graph_def(
        type(graph_def)(versions=graph_def.versions, library=graph_def.library), name="")
  for node in graph_def.node:
    for key, value in node.attr.items():
      for callee in functions_in([value]):
        callee.name = fresh.get(callee.name, callee.name)
        graph.get_operation_by_name(node.name)._set_attr(key, value)


@dataclasses.dataclass(frozen=True)
class DeviceReport:
  """A finished graph that was built in a device scope, compared with the placement.

  Attributes:
    placed: number of ops on the device of the placement.
    missed: ops of the graph on another device than in the placement.
    unknown: ops of the graph without a device in the placement.
  """

  placed: int
  missed: Tuple[str, ...]
  unknown: Tuple[str, ...]

  def __str__(self) -> str:
    lines = [f"{counted(self.placed, 'op')} on their devices"]
    if self.missed:
      lines.append(
          f"the scope did not reach {_ops(self.missed)}; call place_missed(graph) of the device "
          "function before the first run")
    if self.unknown:
      lines.append(f"the placement has no device for {_ops(self.unknown)}")
    return "; ".join(lines)


class DeviceFunction:
  """A function from an op to its device, for `tf.compat.v1.device(...)` while a graph is built.

  Scopes do not apply to ops that TensorFlow colocates, places without regard to scopes, or creates
  outside of scopes (initializers, reads): call `report` when the graph is finished. `tf.group`
  creates a further op for each device of its ops. The placement does not contain these ops, so they
  keep that device.
  """

  def __init__(self, placement: Mapping[str, str]):
    self._placement = placement
    self._canonical = node_devices.canonical_devices(placement)

  def __call__(self, op: tf.Operation) -> str:
    """Returns the device string that TensorFlow asks for while it makes the op."""
    device = self._placement.get(op.name)
    # An op that is not in the placement keeps the device of inner scopes.
    return op.device if device is None else self._canonical[device]

  def report(self, graph: tf.Graph) -> DeviceReport:
    """Compares a finished `tf.Graph` with the placement."""
    ops = graph.get_operations()
    unknown = tuple(op.name for op in ops if op.name not in self._placement)
    missed = tuple(
        op.name for op in ops if op.name in self._placement
        and device_names.canonical(op.device) != self._canonical[self._placement[op.name]])
    # All other ops of the graph are on their devices.
    return DeviceReport(len(ops) - len(missed) - len(unknown), missed, unknown)

  def place_missed(self, graph: tf.Graph) -> DeviceReport:
    """Places the ops that the scope missed, before the graph's first run; reports the rest."""
    for name in self.report(graph).missed:
      graph.get_operation_by_name(name)._set_device(self._canonical[self._placement[name]])
    return self.report(graph)


def _ops(names: Tuple[str, ...]) -> str:
  return f"{counted(len(names), 'op')} ({listed(names)})"
