"""Places a ConcreteFunction: makes a new one with the same signature and its ops on their devices.

The variables that a function captures exist already, each on a device. They are moved to the
devices of the placement. Their Python objects do not change, and every function in the process
continues to use them (`moving`).
"""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any, Dict, Mapping, NamedTuple, Optional, Tuple

from placeto_tf.clusters.device_names import local_name
from placeto_tf.errors import PlacementError, counted, listed, one_line
from placeto_tf.graphs.captures import Capture, captures_of, resource_captures
from placeto_tf.graphs.concrete_functions import read_concrete_function
from placeto_tf.graphs.functions import inline_functions
from placeto_tf.graphs.rebuilt_functions import rebuilt_function
from placeto_tf.on_use import ConcreteFunction, GraphDef, tf
from placeto_tf.placements import moving
from placeto_tf.placements.node_devices import place_nodes


class CapturedVariable(NamedTuple):
  """The name of a variable, or another resource, and its device in the placement."""

  name: str
  wanted: str


@dataclasses.dataclass(frozen=True, eq=False)
class PlacedFunction:
  """A placed function, and a record of its variables; called like the original.

  Attributes:
    function: a new ConcreteFunction; the original is unchanged.
    in_place: captured variables that were on the device of the placement already.
    moved: captured variables that were moved to this device; their Python objects are the same.
  """

  function: ConcreteFunction
  in_place: Tuple[CapturedVariable, ...]
  moved: Tuple[CapturedVariable, ...]

  def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: D102
    return self.function(*args, **kwargs)

  def __str__(self) -> str:
    names = listed([f"{variable.name} to {variable.wanted}" for variable in self.moved])
    moved = f" ({names})" if self.moved else ""
    return (f"{counted(len(self.in_place), 'variable')} in place, "
            f"{counted(len(self.moved), 'variable')} moved there{moved}")


def place_function(placement: Mapping[str, str], function: ConcreteFunction) -> PlacedFunction:
  """Makes a placed copy of a ConcreteFunction, and moves the variables that it captures.

  Args:
    placement: op name -> device name, for all ops of the function, calls inlined, as
      `load_graph(function)` names them.
    function: a ConcreteFunction.

  Returns:
    The placed function, and the variables that were moved (for all their users).

  Raises:
    PlacementError: an op has no device, or a capture of the function is on another device than in
      the placement and cannot be moved.
    GraphError: the function cannot be read, or XLA compiles it as a whole.
  """
  graph_def, devices, by_name = _placed(function, placement)
  in_place, moved, moves = [], [], []
  capture = None
  for name, capture in by_name.items():
    found = CapturedVariable(capture.name, devices[name])
    if local_name(capture.device) == local_name(devices[name]):
      in_place.append(found)
    elif capture.fixed:
      raise PlacementError(
          f"the placement wants {capture.name!r} on {devices[name]}, but it is on "
          f"{capture.device} and cannot be moved, because {capture.fixed}; place the function "
          "again, which plans with it where it is")
    else:
      moved.append(found)
      moves.append((capture.variable, devices[name]))
  placed = rebuilt_function(function, graph_def)
  del capture, by_name  # these hold handles, and `held` names all that is held
  # Move the variables after the function is built, so that an earlier error changes nothing.
  held = moving.move_variables(moves)
  if held:
    warnings.warn(
        f"{len(held)} of the variables that were moved are also held by something that is no "
        f"function ({', '.join(held[:3])}), which still reads their old values; make it again",
        stacklevel=3)
  return PlacedFunction(placed, tuple(in_place), tuple(moved))


def trial_function(
    function: ConcreteFunction, placement: Optional[Mapping[str, str]] = None) -> ConcreteFunction:
  """Copies a ConcreteFunction with its variables; steps of the copy do not change the original's.

  Args:
    function: a ConcreteFunction.
    placement: as for `place_function`; None leaves the ops to TensorFlow, as the original does.

  Returns:
    A ConcreteFunction with copies of all variables, which start with the present values. Other
    resources (lookup tables) are shared.

  Raises:
    PlacementError, GraphError: as `place_function`.
  """
  graph_def, devices, by_name = _placed(function, placement)
  # Copies are on the placement's devices, or else on the devices of the original variables.
  captures = captures_of(function)
  copies: Dict[str, tf.Variable] = {}
  try:
    for name, each in by_name.items():
      if each.variable is not None:
        copies[name] = moving.copied(each.variable, devices[name] or each.device)
        captures[name] = copies[name].handle
  except tf.errors.OpError as error:
    raise PlacementError(
        f"there is no room for copies of the variables ({one_line(error, 100)}); place without a "
        "trial") from error
  return rebuilt_function(function, graph_def, captures=captures, copies=list(copies.values()))


def _placed(
    function: ConcreteFunction, placement: Optional[Mapping[str, str]]
) -> Tuple[GraphDef, Dict[str, str], Dict[str, Capture]]:
  """Reads a function: its nodes on their devices, op name -> device, op name -> capture."""
  graph_def = read_concrete_function(function).source.graph_def
  if placement is not None:
    # Calls are inlined, so that the ops inside have devices of their own.
    graph_def, _ = inline_functions(graph_def)
    place_nodes(placement, graph_def.node)
  return (graph_def, {node.name: node.device for node in graph_def.node},
          {each.op: each for each in resource_captures(function)})
