"""Converts batches of Keras, and traces the training step of a Keras model.

Works with Keras 2 and Keras 3 without importing either.
"""

from __future__ import annotations

from typing import Any, Optional, Sequence, Tuple

import numpy as np

from placeto_tf.errors import GraphError
from placeto_tf.graphs import keras_models
from placeto_tf.on_use import keras, tf
from placeto_tf.placements import traced_steps


def as_batch(data: Any, floatx: str = "float32") -> traced_steps.Batch:
  """Converts the arrays of a batch to tensors, and drops missing sample weights.

  Args:
    data: a tensor or array, or (inputs, targets) or (inputs, targets, sample weights), each nested
      as the model takes it; a missing part is None or an empty Optional.
    floatx: dtype that Keras converts floating-point arrays to.

  Returns:
    The batch; a tuple if it has several parts.
  """
  def convert(value: object) -> Any:
    if value is None or isinstance(value, tf.experimental.Optional):
      return None
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
      return tf.convert_to_tensor(value, floatx)
    return value if traced_steps.is_tensor(value) else tf.convert_to_tensor(value)

  data = tf.nest.map_structure(convert, data)
  if isinstance(data, (tuple, list)) and not hasattr(data, "_fields"):
    # Keras also takes lists of (inputs, targets); trailing empty parts are left out.
    data = tuple(data)
    while len(data) > 1 and data[-1] is None:
      data = data[:-1]
  return data


def specs_of(
    batch: traced_steps.Batch, data: Any = None,
    element_spec: Optional[traced_steps.Specs] = None, *, wide: bool = False
) -> traced_steps.Specs:
  """Returns the TypeSpecs of a batch, with the same nesting; specs and None are not changed.

  Args:
    batch: a result of `as_batch`.
    data: the source of the batch.
    element_spec: the element spec of the batch's iterator, whose unknown dimensions differ between
      batches. They are unknown in the specs of composite tensors, too.
    wide: whether they are also unknown in the specs of dense tensors; see `random_by_trace`.

  Returns:
    The specs, in the batch's nest.
  """
  # Tensors of this batch -> the iterator's specs, whose dimensions differ from batch to batch.
  wider = {}
  if element_spec is not None:
    values, specs = tf.nest.flatten(data), tf.nest.flatten(element_spec)
    if len(values) == len(specs):
      wider = {id(value): spec for value, spec in zip(values, specs)}

  def spec_of(value: object) -> Optional[tf.TypeSpec]:
    if value is None or isinstance(value, tf.TypeSpec):
      return value
    own = tf.type_spec_from_value(value)
    spec = wider.get(id(value), own)
    composite = not isinstance(value, tf.Tensor)
    return spec if composite or wide and spec.is_compatible_with(own) else own

  return tf.nest.map_structure(spec_of, batch)


def random_by_trace(model: keras.Model) -> bool:
  """Returns whether random numbers differ between traces of the step, as in layers of Keras 2.

  Such a step is traced once for batches of all sizes, like in Keras, to get equal random numbers.
  """
  return hasattr(model, "_train_counter") and any(
      hasattr(layer, "_random_generator") for layer in getattr(model, "submodules", ()))


def check_trainable(model: object) -> None:
  """Raises GraphError unless the argument is a Keras model whose training can be placed."""
  traced_steps.check_eager()
  if not keras_models.is_keras_model(model):
    raise GraphError(
        f"expected a Keras model, got {type(model).__name__}; for a training step of your own call "
        "compile_step or plan_step")
  name = getattr(model, "name", "")
  if getattr(model, "optimizer", None) is None:
    raise GraphError(
        f"the Keras model {name!r} is not compiled with an optimizer; compile it first")
  if getattr(model, "run_eagerly", False):
    raise GraphError(
        f"the Keras model {name!r} is compiled with run_eagerly=True, so that its step is no "
        "graph; compile it with run_eagerly=False")
  strategy = type(getattr(model, "distribute_strategy", None)).__name__
  if strategy not in ("_DefaultDistributionStrategy", "NoneType"):
    raise GraphError(
        f"the Keras model {name!r} was made or is placed under {strategy}, which places variables "
        "itself; make it, and place it, outside of the strategy's scope")


def without_xla(model: keras.Model) -> Any:
  """Turns XLA off for the model's functions, because XLA compiles a step for a single device.

  Returns:
    The earlier value of the model's `jit_compile`; False if the model has none.
  """
  found = getattr(model, "jit_compile", None) or False
  # Functions that Keras traced before were compiled with XLA; None makes Keras trace them again.
  if found:
    model.jit_compile = False
  for name in ("train_function", "test_function", "predict_function"):
    setattr(model, name, None)
  return found


class KerasStep(traced_steps.TracedStep):
  """The `train_step` of a compiled Keras model.

  Attributes:
    model: the model.
  """

  remedy = "check that model.fit runs with this data"

  def __init__(self, model: keras.Model):
    """Checks a compiled model, and holds its step.

    Raises:
      GraphError: the model's training cannot be placed.
    """
    from tensorflow.python.eager.polymorphic_function import autograph_util

    check_trainable(model)

    def step(data: traced_steps.Batch) -> Any:
      return model.train_step(data)

    # Keras 2 has AutoGraph convert a train_step of the user's own, Keras 3 does not.
    convert = hasattr(model, "_train_counter")
    super().__init__(
        getattr(model, "name", ""),
        autograph_util.py_func_from_autograph(step) if convert else step,
        (model, model.optimizer), convert)
    self.model = model
    self.wide = random_by_trace(model)  # not if replicas divide the batches

  @property
  def floatx(self) -> str:
    """Returns the floating-point type of the model's Keras."""
    package = keras_models.package_of(self.model)
    return package.backend.floatx() if hasattr(package.backend, "floatx") else "float32"


def compiled_state(model: keras.Model) -> Tuple[Any, ...]:
  """Returns all objects that compiling a model replaces; an id may be that of a later object."""
  fields = vars(model)
  return model.optimizer, *(fields.get(name) for name in (
      "_compile_loss", "_compile_metrics", "compiled_loss", "compiled_metrics"))


def steps_per_execution(model: keras.Model) -> int:
  """Returns the number of steps in one call of the train function."""
  found: Any = getattr(model, "_steps_per_execution", None)  # a variable in Keras 2
  if not hasattr(found, "numpy"):
    # Keras 3 holds a number, and calls the property without an underscore.
    found = getattr(model, "steps_per_execution", 1)
  return int(found.numpy()) if hasattr(found, "numpy") else int(found or 1)


def read_example(
    step: KerasStep, batch_size: Optional[int], data: Any,
) -> Optional[Tuple[traced_steps.Specs, Sequence[Tuple[int, ...]]]]:
  """Reads the batches that a user describes.

  Args:
    step: of the model.
    batch_size, data: as for `compile_placed`.

  Returns:
    (specs, shapes of the tensors or [] if unknown); None if neither argument is given.

  Raises:
    GraphError: both are given, or the given one leaves specs unknown.
  """
  model = step.model
  if data is None and batch_size is None:
    return None
  if data is not None and batch_size is not None:
    raise GraphError("data has a batch size of its own; give either data or batch_size")
  if batch_size is not None:
    specs = tuple(keras_models.step_specs(model, batch_size))
    # No shapes if a dimension besides the batch size is unknown.
    shapes = traced_steps.component_shapes(specs)
    if not shapes:
      raise GraphError(
          f"the batches of the Keras model {step.name!r} have dimensions that batch_size does not "
          "say; give data=, an example batch, or its specs with your sizes for None, and targets "
          f"as your loss takes them: {specs}")
    # A wide trace takes all batch sizes, but the shapes have this batch size.
    return (tuple(keras_models.step_specs(model, None)) if step.wide else specs), shapes
  element_spec = None
  if isinstance(data, tf.data.Dataset):
    # One element shows the shapes; the spec shows which dimensions differ.
    element_spec, data = data.element_spec, next(iter(data.take(1)))
  if any(isinstance(leaf, tf.TypeSpec) for leaf in tf.nest.flatten(data)):
    return tuple(data), traced_steps.component_shapes(data)
  batch = as_batch(data, step.floatx)
  return specs_of(batch, data, element_spec, wide=step.wide), traced_steps.component_shapes(batch)
