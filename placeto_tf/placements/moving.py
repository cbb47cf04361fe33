"""Moves live variables to other devices.

A variable of TensorFlow 2 is a Python object that holds a handle; the handle names a resource on
one device. `move_variables` makes a new resource with the same value on the other device and puts
its handle into the same Python object, so the model, its optimizer, checkpoints and callbacks keep
their variable. Functions that were traced before captured the old handle. In all functions of the
process, the new handle replaces it, so that no function uses the old value.
"""

from __future__ import annotations

import gc
import weakref
from typing import Dict, Sequence, Tuple

from placeto_tf.clusters.device_names import local_name
from placeto_tf.errors import PlacementError, one_line
from placeto_tf.graphs import captures
from placeto_tf.on_use import tf


def move_variables(moves: Sequence[Tuple[tf.Variable, str]]) -> Tuple[str, ...]:
  """Moves variables to other devices, and keeps their Python objects.

  Args:
    moves: (variable, device) pairs of variables that are on another device and can be moved. A
      variable of Keras 3 or of mixed precision stands for the variable that it wraps.

  Returns:
    Names of variables whose old handle is still held by an object that is no function; that object
    reads the old value from now on.

  Raises:
    PlacementError: a device is missing or out of memory. Variables that were moved before the error
      are consistent.
  """
  if not moves:
    return ()
  # All devices are checked before the first variable is moved.
  _check_devices([device for _, device in moves])
  replaced: Dict[int, Tuple[tf.Tensor, tf.Tensor]] = {}  # id of the old handle -> (old, new)
  old = {}
  try:
    # Keep only a weak reference, which shows later whether another object holds the old handle.
    for wrapper, device in moves:
      variable = captures.unwrapped(wrapper)
      handle = variable.handle
      old[variable.name] = weakref.ref(handle)
      replaced[id(handle)] = (handle, _replace_handle(variable, device))
      del handle
  finally:
    _rebind(replaced)
    replaced.clear()
  # Collect old handles in reference cycles; other objects hold the handles that are left.
  gc.collect()
  return tuple(name for name, handle in old.items() if handle() is not None)


def _check_devices(wanted: Sequence[str]) -> None:
  present = set(filter(None, (
      local_name(device.name) for device in tf.config.list_logical_devices())))
  for device in wanted:
    if local_name(device) not in present:
      raise PlacementError(
          f"variables are to be moved to {device!r}, but this process has "
          f"{', '.join(sorted(present))}; place on a cluster of these devices, such as 'local'")


def _replace_handle(variable: tf.Variable, device: str) -> tf.Tensor:
  """Gives a variable a resource on another device, with its value; returns the new handle."""
  old = variable.handle
  try:
    new = copied(variable, device).handle
  except tf.errors.OpError as error:
    raise PlacementError(
        f"the variable {variable.name!r} cannot be moved to {device} ({one_line(error)}); give "
        "the cluster the memory that the device really has") from error
  # Identity and shape data of the old handle, by which TensorFlow knows the variable.
  for name in ("_name", "_unique_id", "_handle_data"):
    if hasattr(old, name):
      setattr(new, name, getattr(old, name))
  new._parent_trackable = weakref.ref(variable)
  variable._handle = new
  # A value that the variable caches is on the old device.
  if getattr(variable, "_cached_value", None) is not None:
    variable._cached_value = variable.read_value()
  return new


def copied(variable: tf.Variable, device: str) -> tf.Variable:
  """Returns a variable with the same value on another device."""
  # Run eagerly, even if the caller is tracing a function.
  with tf.init_scope(), tf.device(device):
    return tf.Variable(
        variable.read_value(), trainable=variable.trainable, dtype=variable.dtype,
        shape=variable.shape, name=variable.name.partition(":")[0])


def _rebind(replaced: Dict[int, Tuple[tf.Tensor, tf.Tensor]]) -> None:
  """Replaces handles among the captures of every function in the process.

  Args:
    replaced: id of the old handle -> (old handle, new handle).
  """
  if not replaced:
    return
  from tensorflow.python.eager.polymorphic_function import concrete_function
  from tensorflow.python.framework import func_graph

  # Graphs hold the captures of functions that are traced later; functions hold their own inputs.
  for each in list(captures.live_objects(
      concrete_function.ConcreteFunction, func_graph.FuncGraph)):
    if isinstance(each, func_graph.FuncGraph):
      _rebind_graph(each, replaced)
      continue
    inputs = getattr(each, "_captured_inputs", None) or []
    if any(id(tensor) in replaced for tensor in inputs):
      each._captured_inputs = type(inputs)(
          replaced[id(tensor)][1] if id(tensor) in replaced else tensor for tensor in inputs)


def _rebind_graph(graph: tf.Graph, replaced: Dict[int, Tuple[tf.Tensor, tf.Tensor]]) -> None:
  """Replaces handles among the captures of a graph; functions made from it later get them."""
  container = graph.function_captures
  keys = list(container.by_val_external)
  if replaced.keys().isdisjoint(keys):
    return
  # All captures are added again, because they have the order of the function's inputs.
  for key in keys:
    outer, inner, traced = container.pop(key)
    if key in replaced:
      _, outer = replaced[key]
      key = id(outer)
    container.add_or_replace(key, outer, inner, traced)
  _ = graph.captures  # recomputes the container's cache, which has old handles
