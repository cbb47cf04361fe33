"""Captures of a live function: variables, other resources and tensors of the process.

A captured resource is on a device before the function is called, and the ops that use the resource
run on this device. A variable can be moved, because its Python object can be given a new resource.
Captures that cannot be moved are fixed, and a placement must not change their devices.
"""

from __future__ import annotations

import dataclasses
import gc
import sys
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple, Union

from placeto_tf.errors import GraphError
from placeto_tf.graphs.traversal import reachable
from placeto_tf.on_use import ConcreteFunction, FuncGraph, TensorShapeProto, keras, tf

# Attribute of a placed ConcreteFunction: name of each node -> name in the original function's
# graph, in the order of the original graph. With it, both functions give the same graph.
PLACED_NAMES = "_placeto_names"
_STRUCTURED_FUNCTION = "tensorflow.python.data.ops.structured_function"


@dataclasses.dataclass(frozen=True, eq=False)
class Capture:
  """One resource that a function captures.

  Attributes:
    op: name of its placeholder, as `load_graph` names it: in the graph of the original function.
    handle: the tensor outside of the function that holds the resource.
    variable: the `tf.Variable` that owns the resource, or None.
    device: the device of the resource, as TensorFlow writes it.
    fixed: the reason why the resource cannot be moved to another device; "" if it can be moved.
    shape_and_type: TensorShapeProto and DataType of a variable's value, None for other resources.
  """

  op: str
  handle: tf.Tensor
  variable: Optional[tf.Variable]
  device: str
  fixed: str
  shape_and_type: Optional[Tuple[TensorShapeProto, int]]

  @property
  def name(self) -> str:
    """Returns the variable's name, or the placeholder's name if there is no variable."""
    return self.op if self.variable is None else self.variable.name.partition(":")[0]


def resource_captures(function: ConcreteFunction) -> List[Capture]:
  """Returns the variables and other resources that a ConcreteFunction captures, in order.

  Raises:
    GraphError: a capture gets its value only at the call.
  """
  from tensorflow.python.ops import handle_data_util

  graph = function.graph
  if getattr(graph, "deferred_external_captures", None):
    raise GraphError(
        f"the function {function.function_def.signature.name!r} captures values that are only "
        "known at the call; pass them as arguments")
  # By identity: the handle that the graph captured is the variable's own object.
  by_handle = {id(variable.handle): variable for variable in live_variables(graph)}
  found, piped, names = [], None, getattr(function, PLACED_NAMES, {})
  for handle, inner in graph.captures:
    if inner.dtype.base_dtype.name != "resource" or inner.op.type != "Placeholder":
      continue
    variable = by_handle.get(id(handle))
    if variable is None:
      variable = _parent(handle)
    if variable is None:
      # The handle of a variable knows its shape and type, also if the variable's object is gone.
      data = handle_data_util.get_resource_handle_data(inner).shape_and_type
      shape_and_type = (data[0].shape, data[0].dtype) if data else None
      fixed = ("its object is gone: keep the object that owns it, such as the loaded SavedModel"
               if data else "it is not a variable")
    else:
      shape_and_type = (variable.shape.as_proto(), variable.dtype.as_datatype_enum)
      # Search the process's objects only if there is a variable: the search is slow.
      piped = piped_handles() if piped is None else piped
      fixed = why_fixed(variable, piped)
    found.append(Capture(
        names.get(inner.op.name, inner.op.name), handle, variable, handle.device, fixed,
        shape_and_type))
  return found


def captures_of(function: ConcreteFunction) -> Dict[str, tf.Tensor]:
  """Returns name of the op of each capture, as in `Capture` -> the captured tensor.

  Small captured tensors are constants of the graph, and are left out.
  """
  names = getattr(function, PLACED_NAMES, {})
  return {names.get(inner.op.name, inner.op.name): outer
          for outer, inner in function.graph.captures if inner.op.type != "Const"}


def live_variables(graph: FuncGraph) -> List[tf.Variable]:
  """Returns the variables of a function's graph whose objects still exist.

  A function holds the resources of its variables, and runs without their objects. Its graph holds
  the objects by weak references, and `graph.variables` raises an error if one is gone.
  """
  return [variable for variable in (each() for each in graph._weak_variables)
          if variable is not None]


def why_fixed(variable: tf.Variable, piped: Set[int]) -> str:
  """Returns the reason why a variable cannot be moved to another device.

  Args:
    variable: a `tf.Variable` whose handle is eager.
    piped: as from `piped_handles`.

  Returns:
    A sentence without a full stop, or "" if the variable can be moved.
  """
  inner = unwrapped(variable)
  if getattr(inner, "_distribute_strategy", None) is not None:
    return "it belongs to a distribution strategy"
  handle = getattr(inner, "__dict__", {}).get("_handle")
  if handle is None or not hasattr(handle, "backing_device"):  # only eager tensors have it
    return f"it is a {type(inner).__name__}, whose resource cannot be replaced"
  return "a tf.data pipeline reads it" if id(inner.handle) in piped else ""


def unwrapped(variable: Union[tf.Variable, keras.Variable]) -> tf.Variable:
  """Returns the variable that owns the handle, without the wrappers that Keras may have added."""
  # Keras 3 and mixed precision wrap variables, at most a few times.
  for _ in range(5):
    fields = getattr(variable, "__dict__", {})
    inner = fields.get("_variable", fields.get("_value"))
    if "_handle" in fields or inner is None:
      break
    variable = inner
  return variable


def piped_handles() -> Set[int]:
  """Returns the ids of handles that live tf.data pipelines hold and that cannot be replaced."""
  # Without the module no pipeline was made in this process.
  module = sys.modules.get(_STRUCTURED_FUNCTION)
  if module is None:
    return set()
  held: Set[int] = set()
  for wrapper in live_objects(module.StructuredFunctionWrapper):
    function = getattr(wrapper, "_function", None)
    held.update(id(tensor) for tensor in getattr(function, "captured_inputs", ()))
  return held


def live_objects(*bases: type) -> Iterator[Any]:
  """Yields all objects in the process that are instances of one of these classes."""
  kinds = reachable(bases, lambda each: each.__subclasses__())
  # An object refers to its type. The collector finds what refers to a type among a million objects
  # in a fifth of the time that a loop over all objects takes.
  return (each for each in gc.get_referrers(*kinds) if type(each) in kinds)


def _parent(handle: tf.Tensor) -> Optional[tf.Variable]:
  """Returns the variable that made a handle, or None if the variable is no longer alive."""
  owner: Callable = getattr(handle, "_parent_trackable", lambda: None)
  parent = owner()
  return parent if hasattr(parent, "assign") else None  # tables have handles, too
