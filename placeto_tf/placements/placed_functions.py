"""Places a ConcreteFunction: makes a new one with the same signature and its ops on their devices.

The variables that a function captures exist already, each on a device. By default they are moved to
the devices of the placement. They remain the same Python objects, and every function in the process
keeps using them (`moving`). On request they stay, together with the ops that touch them, or the
function gets copies of its own.
"""

from __future__ import annotations

import dataclasses
import warnings
from typing import TYPE_CHECKING, Any, Dict, Mapping, Optional, Tuple

from placeto_tf.errors import PlacementError, listed, one_line
from placeto_tf.graphs.captures import resource_captures
from placeto_tf.graphs.colocation import colocate
from placeto_tf.graphs.concrete_functions import PLACED_NAMES, read_concrete_function
from placeto_tf.graphs.functions import inline_functions
from placeto_tf.graphs.node_table import read_nodes
from placeto_tf.graphs.rebuilt_functions import captures_of, rebuilt_function
from placeto_tf.placements import moving
from placeto_tf.placements.node_devices import place_nodes

if TYPE_CHECKING:
  import tensorflow as tf
  from tensorflow.core.framework.graph_pb2 import GraphDef
  from tensorflow.types.experimental import ConcreteFunction


@dataclasses.dataclass(frozen=True)
class CapturedVariable:
  """A variable, or another resource, that the function captures.

  Attributes:
    name: of the variable.
    device: where it was.
    wanted: where the placement has it.
  """

  name: str
  device: str
  wanted: str


@dataclasses.dataclass(frozen=True, eq=False)
class PlacedFunction:
  """A placed function and what happened to its variables; called like the original.

  Attributes:
    function: a new ConcreteFunction; the original is unchanged.
    in_place: captured variables that were where the placement wants them.
    moved: captured variables that are there now; their Python objects are the same.
    stayed: captured variables that are elsewhere; the ops that touch them run there too.
    recreated: captured variables that the function no longer uses, because it has copies.
    variables: name of each recreated variable -> the copy, which starts with the same value.
  """

  function: ConcreteFunction
  in_place: Tuple[CapturedVariable, ...]
  moved: Tuple[CapturedVariable, ...]
  stayed: Tuple[CapturedVariable, ...]
  recreated: Tuple[CapturedVariable, ...]
  variables: Dict[str, tf.Variable]

  def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: D102
    return self.function(*args, **kwargs)

  def __str__(self) -> str:
    lines = [f"{len(self.in_place)} variables were where the placement wants them"]
    if self.moved:
      lines.append(f"{len(self.moved)} were moved there ({_names(self.moved)})")
    if self.stayed:
      lines.append(
          f"{len(self.stayed)} stay elsewhere ({_names(self.stayed)}), and the ops that touch them "
          "with them")
    if self.recreated:
      lines.append(
          f"{len(self.recreated)} were made again ({_names(self.recreated)}): the function no "
          "longer shares them with the model")
    return "; ".join(lines)


def place_function(
    placement: Mapping[str, str], function: ConcreteFunction, *, move_variables: bool = True,
    recreate_variables: bool = False,
) -> PlacedFunction:
  """Makes a placed copy of a ConcreteFunction.

  Args:
    placement: op name -> device name, for all ops of the function, calls inlined, as
      `load_graph(function)` names them.
    function: a ConcreteFunction.
    move_variables: whether captured variables that are elsewhere are moved to their devices, for
      this function and all else that uses them. If not, they stay, and the ops that touch them
      stay with them: such a step may take far longer than the placement promises.
    recreate_variables: whether those variables are copied to their devices instead, for this
      function alone.

  Returns:
    The placed function, and which variables were moved, left where they are or copied.

  Raises:
    PlacementError: an op has no device, or a capture of the function is elsewhere than the
      placement wants it and cannot be moved.
    GraphError: the function cannot be read, or XLA compiles it as a whole.
  """
  # Calls are inlined, so that the ops inside have devices of their own.
  graph_def, _ = inline_functions(read_concrete_function(function)[0].source.graph_def)
  place_nodes(placement, graph_def.node)
  # A function that was placed before has other names for its captures than its original.
  names = getattr(function, PLACED_NAMES, {})
  by_name = {names.get(each.op, each.op): each for each in resource_captures(function)}
  captures = captures_of(function)
  devices = {node.name: node.device for node in graph_def.node}
  in_place, moved, stayed, recreated, copies = [], [], [], [], {}
  moves = []
  anchors: Dict[str, str] = {}  # captured op -> where it stays
  capture = None
  # Each capture is in place, copied, left where it is, or moved.
  for name, capture in by_name.items():
    found = CapturedVariable(capture.name, capture.device, devices[name])
    if moving.local_device(capture.device) == moving.local_device(devices[name]):
      in_place.append(found)
    elif recreate_variables and capture.variable is not None:
      recreated.append(found)
      copies[capture.variable.name] = _copy(capture.variable, devices[name])
      captures[name] = copies[capture.variable.name].handle
    elif not move_variables:
      stayed.append(found)
      anchors[name] = capture.device
    elif capture.fixed:
      raise PlacementError(
          f"the placement wants {capture.name!r} on {devices[name]}, but it is on "
          f"{capture.device} and cannot be moved, because {capture.fixed}; place the function "
          "again, which plans with it where it is")
    else:
      moved.append(found)
      moves.append((capture.variable, devices[name]))
  # Ops go to the variables that stay, before the function is built.
  _keep_together(graph_def, anchors)
  placed = rebuilt_function(
      function, graph_def, captures=captures, copies=list(copies.values()))
  del capture, by_name, captures  # these hold handles, and `held` names all that is held
  # The variables move after the function is built: an error until here changes nothing.
  held = moving.move_variables(moves).held
  if held:
    warnings.warn(
        f"{len(held)} of the variables that were moved are also held by something that is no "
        f"function ({', '.join(held[:3])}), which still reads their old values; make it again",
        stacklevel=3)
  return PlacedFunction(
      placed, tuple(in_place), tuple(moved), tuple(stayed), tuple(recreated), copies)


def trial_function(
    function: ConcreteFunction, placement: Optional[Mapping[str, str]] = None) -> ConcreteFunction:
  """Copies a ConcreteFunction, whose steps change no variable of the original.

  Args:
    function: a ConcreteFunction.
    placement: as for `place_function`; None leaves the ops to TensorFlow, as the original does.

  Returns:
    A ConcreteFunction with copies of all variables, which start with the present values. Other
    resources (lookup tables) are shared.

  Raises:
    PlacementError, GraphError: as `place_function`.
  """
  import tensorflow as tf

  graph_def = read_concrete_function(function)[0].source.graph_def
  devices: Mapping[str, str] = {}
  if placement is not None:
    graph_def, _ = inline_functions(graph_def)
    place_nodes(placement, graph_def.node)
    devices = {node.name: node.device for node in graph_def.node}
  names = getattr(function, PLACED_NAMES, {})
  # Copies go to the placement's devices, or to those where the variables are.
  captures = captures_of(function)
  copies: Dict[str, tf.Variable] = {}
  try:
    for each in resource_captures(function):
      name = names.get(each.op, each.op)
      if each.variable is not None:
        copies[name] = _copy(each.variable, devices.get(name, each.device))
        captures[name] = copies[name].handle
  except tf.errors.OpError as error:
    raise PlacementError(
        f"there is no room for copies of the variables ({one_line(error, 100)}); place without a "
        "trial") from error
  return rebuilt_function(function, graph_def, captures=captures, copies=list(copies.values()))


def _keep_together(graph_def: GraphDef, moved: Dict[str, str]) -> None:
  """Puts the ops that touch a variable on its device, as TensorFlow would silently."""
  if not moved:
    return
  table = read_nodes(graph_def)
  sets = colocate(table)
  # Colocation set -> device of the variable in it.
  stays = {int(sets[table.index[name]]): device for name, device in moved.items()}
  for node, label in zip(table.nodes, sets.tolist()):
    if label in stays:
      node.device = stays[label]


def _copy(variable: tf.Variable, device: str) -> tf.Variable:
  """Returns a variable with the same value on another device."""
  import tensorflow as tf

  with tf.init_scope(), tf.device(device):
    return tf.Variable(
        variable.read_value(), trainable=variable.trainable, dtype=variable.dtype,
        shape=variable.shape, name=variable.name.partition(":")[0])


def _names(variables: Tuple[CapturedVariable, ...]) -> str:
  return listed([f"{variable.name} on {variable.device}" for variable in variables])
