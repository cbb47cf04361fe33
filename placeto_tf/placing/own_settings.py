"""Runs training under fixed settings of TensorFlow and Keras, whatever the calling program has set.

A program may have changed settings that networks depend on: Keras's float type and mixed precision,
behaviour of TensorFlow 1, eager execution of functions, NumPy's behaviour, seeds. Or it may be in a
scope of devices, names, graphs or strategies. Scopes and callbacks, such as those of
`enable_check_numerics`, belong to a thread, so training runs in a thread of its own. The other
settings belong to the process: they are changed during the training and then restored.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
from typing import Any, Callable, List, Tuple, TypeVar

T = TypeVar("T")
Setting = Tuple[Callable[[], Any], Callable[[Any], None], Any]  # get, set, value for training


def run_with_own_settings(call: Callable[[], T], seed: int, stop: Callable[[], None]) -> T:
  """Calls a function that trains, under settings that do not depend on the program.

  Args:
    call: the training; TensorFlow and its libraries have been imported.
    seed: of TensorFlow's random ops.
    stop: called when Ctrl-C is pressed; it makes `call` return soon.

  Returns:
    The result of `call`.
  """
  from tensorflow.python.eager import context

  def eagerly() -> T:
    """Calls the function in eager mode, even if the program has turned eager mode off."""
    with context.eager_mode():
      return call()

  with contextlib.ExitStack() as stack:
    # Restored in reverse order, because later settings may depend on earlier ones.
    for get, put, value in _settings(seed):
      stack.callback(put, get())
      put(value)
    training = stack.enter_context(concurrent.futures.ThreadPoolExecutor(1)).submit(eagerly)
    try:
      return training.result()
    except KeyboardInterrupt:
      stop()
      raise


def _settings(seed: int) -> List[Setting]:
  """Returns all settings of the process that training depends on, in the order of changing them."""
  import tensorflow as tf
  from tensorflow.python import tf2
  from tensorflow.python.framework import ops, tensor, tensor_shape

  v1, keras = tf.compat.v1, tf.keras
  policy = keras.mixed_precision.set_global_policy
  return [
      # Behaviour of TensorFlow 1, which tf.compat.v1.disable_v2_behavior() brings back.
      (tf2.enabled, _switch(tf2.enable, tf2.disable), True),
      (*_attribute(tensor_shape, "_TENSORSHAPE_V2_OVERRIDE"), True),
      (*_attribute(tensor.Tensor, "_USE_EQUALITY"), True),
      (v1.resource_variables_enabled,
       _switch(v1.enable_resource_variables, v1.disable_resource_variables), True),
      (v1.control_flow_v2_enabled,
       _switch(v1.enable_control_flow_v2, v1.disable_control_flow_v2), True),
      # NumPy's type promotion, of tf.experimental.numpy.
      (*_attribute(ops, "_dtype_conversion_mode"), ops.PromoMode.OFF),
      (tf.config.functions_run_eagerly, tf.config.run_functions_eagerly, False),
      (keras.backend.floatx, keras.backend.set_floatx, "float32"),
      # Keras's own getter would create a policy from floatx if none is set.
      (lambda: policy.__globals__["_global_policy"], policy, "float32"),
      # Deterministic ops need a seed.
      (_random_state, _put_random_state, (seed, None)),
  ]


def _switch(on: Callable[[], None], off: Callable[[], None]) -> Callable[[bool], None]:
  """Returns a setter for a setting with separate functions to turn it on and off."""
  return lambda value: on() if value else off()


def _attribute(owner: Any, name: str) -> Tuple[Callable[[], Any], Callable[[Any], None]]:
  """Returns the getter and the setter of an attribute."""
  return lambda: getattr(owner, name), lambda value: setattr(owner, name, value)


def _random_state() -> Tuple[Any, Any]:
  """Returns the global seed, and the generator of the seeds of single ops."""
  from tensorflow.python.eager import context

  own = context.context()
  return own._seed, getattr(own, "_rng", None)


def _put_random_state(state: Tuple[Any, Any]) -> None:
  """Sets the global seed and the generator of seeds, as `_random_state` returns them."""
  from tensorflow.python.eager import context

  seed, generator = state
  own = context.context()
  # This also makes a new generator, so restore the old generator afterwards.
  own._set_global_seed(seed)
  if generator is not None:
    own._rng = generator
