"""Batches as Keras hands them to a training step, and the step traced for one of them.

Works with Keras 2 and Keras 3 without importing either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List, Optional, Tuple

import numpy as np

from placeto_tf.errors import GraphError
from placeto_tf.graphs import keras_models

if TYPE_CHECKING:
  import keras
  import tensorflow as tf
  from tensorflow.types.experimental import ConcreteFunction

Batch = Any  # tensors, nested as the model takes them
Specs = Any  # `tf.TypeSpec`s, nested as a batch is


def as_batch(data: Any, floatx: str = "float32") -> Batch:
  """A batch with tensors for arrays, without sample weights where there are none.

  Args:
    data: a tensor or array, or (inputs, targets) or (inputs, targets, sample weights), each nested
      as the model takes it; what is not there is None or an empty Optional.
    floatx: dtype of floating-point arrays, as Keras converts them.
  """
  import tensorflow as tf

  def convert(value: object) -> Any:
    if value is None or isinstance(value, tf.experimental.Optional):
      return None
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
      return tf.convert_to_tensor(value, floatx)
    if isinstance(value, tf.Tensor) or is_composite(value):
      return value
    return tf.convert_to_tensor(value)

  data = tf.nest.map_structure(convert, data)
  if isinstance(data, (tuple, list)) and not hasattr(data, "_fields"):
    data = tuple(data)
    while len(data) > 1 and data[-1] is None:
      data = data[:-1]
  return data


def is_composite(value: object) -> bool:
  """Whether a value is one of several tensors: ragged, sparse, a GraphTensor, ..."""
  return hasattr(value, "_type_spec")


def specs_of(
    batch: Batch, data: Any = None, element_spec: Optional[Specs] = None, *, wide: bool = False
) -> Specs:
  """The TypeSpecs of a batch, nested as it is; specs stay what they are, and None stays None.

  Args:
    batch: as from `as_batch`.
    data, element_spec: what it was made of, and the spec of the iterator that gave it, which
      knows how much differs from batch to batch. Of composite tensors the specs leave that open.
    wide: whether those of dense tensors do so, too, as Keras's own: see `draws_by_trace`.
  """
  import tensorflow as tf

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
    return spec if is_composite(value) or wide and spec.is_compatible_with(own) else own

  return tf.nest.map_structure(spec_of, batch)


def draws_by_trace(model: keras.Model) -> bool:
  """Whether each trace of the step draws random numbers of its own, as layers of Keras 2 do.

  Such a step is traced once for batches of all sizes, as Keras does, to draw the same numbers.
  """
  return hasattr(model, "_train_counter") and any(
      hasattr(layer, "_random_generator") for layer in getattr(model, "submodules", ()))


def takes(specs: Specs, others: Specs) -> bool:
  """Whether a step traced for some specs takes batches of others."""
  import tensorflow as tf

  try:
    tf.nest.assert_same_structure(specs, others)
  except (TypeError, ValueError):
    return False
  return all(
      one == other or one is not None and other is not None and one.is_compatible_with(other)
      for one, other in zip(tf.nest.flatten(specs), tf.nest.flatten(others)))


def component_shapes(batch: Batch) -> List[Tuple[int, ...]]:
  """The shapes of a batch's tensors, those of composite ones included, as functions take them."""
  import tensorflow as tf

  return [tuple(value.shape.as_list())
          for value in tf.nest.flatten(batch, expand_composites=True) if value is not None]


def cast_like(batch: Batch, specs: Specs) -> Batch:
  """The batch with floating-point tensors in the dtypes of specs of the same structure."""
  import tensorflow as tf

  try:
    tf.nest.assert_same_structure(batch, specs)
  except (TypeError, ValueError):
    return batch

  def cast(value: object, spec: Any) -> Any:
    wanted = getattr(spec, "dtype", None)
    if isinstance(value, tf.Tensor) and wanted is not None and value.dtype != wanted and (
        value.dtype.is_floating and wanted.is_floating):
      return tf.cast(value, wanted)
    return value

  return tf.nest.map_structure(cast, batch, specs)


def size_of(specs: Specs) -> Any:
  """The batch size that specs state, or None."""
  import tensorflow as tf

  for spec in tf.nest.flatten(specs):
    shape = getattr(spec, "shape", None)
    if shape is not None and shape.rank:
      return shape[0]
  return None


def divided(specs: Specs, replicas: int) -> Specs:
  """The specs of one of R replicas: of a tensor's examples, a share.

  Raises:
    GraphError: a spec is no dense tensor with as many examples as all others, or R does not divide
      them.
  """
  import tensorflow as tf

  size = size_of(specs)

  def part(spec: Optional[tf.TypeSpec]) -> Optional[tf.TypeSpec]:
    if spec is None:
      return None
    shape = spec.shape.as_list() if isinstance(spec, tf.TensorSpec) and spec.shape.rank else [None]
    if shape[0] is None or shape[0] != size:
      raise GraphError(
          f"{spec} of a batch of {size} is not divided among replicas; expected dense tensors of "
          "as many examples each")
    if size % replicas:
      raise GraphError(
          f"the batch of {size} examples cannot be divided among {replicas} replicas; choose a "
          f"batch that is a multiple of {replicas}, or another number of replicas")
    return tf.TensorSpec([size // replicas, *shape[1:]], spec.dtype, spec.name)

  return tf.nest.map_structure(part, specs)


def check_trainable(model: object) -> None:
  """Raises GraphError for what is no Keras model whose training can be placed."""
  if not keras_models.is_keras_model(model):
    raise GraphError(
        f"expected a Keras model, got {type(model).__name__}; for a function of your own hand its "
        "ConcreteFunction to place() and apply the result to it")
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
        f"the Keras model {name!r} was made under {strategy}, which places its variables itself; "
        "make it outside of the strategy's scope")


def without_xla(model: keras.Model) -> Any:
  """Has Keras run the model's functions op by op: XLA takes a step whole, on one device.

  Returns:
    What the model's `jit_compile` was; False where there is none.
  """
  found = getattr(model, "jit_compile", None) or False
  if found:
    model.jit_compile = False
  for name in ("train_function", "test_function", "predict_function"):
    setattr(model, name, None)
  return found


def trace_step(model: keras.Model, specs: Specs) -> ConcreteFunction:
  """A ConcreteFunction of the model's `train_step` on a batch of these specs.

  It is traced as `fit` traces it: variables of the optimizer and of metrics are made on the way,
  values stay.

  Raises:
    GraphError: the step cannot be traced.
  """
  import tensorflow as tf

  def step(data: Batch) -> Any:
    return model.train_step(data)

  # Keras 2 has AutoGraph convert a train_step of the user's own, Keras 3 does not.
  convert = hasattr(model, "_train_counter")
  try:
    with keras_models.without_xla(model.optimizer):
      function = tf.function(step, autograph=convert).get_concrete_function(specs)
  except Exception as error:  # whatever the user's layers and losses raise
    raise GraphError(
        f"the training step of the Keras model {getattr(model, 'name', '')!r} cannot be traced "
        f"({keras_models.cause_of(error)}); check that model.fit runs with this data") from error
  # TensorFlow's graphs hold their variables weakly.
  function._placeto_model = (model, model.optimizer)
  return function


def compiled_state(model: keras.Model) -> Tuple[int, ...]:
  """What changes when a model is compiled again."""
  fields = vars(model)
  return tuple(
      id(value) for value in (
          model.optimizer, *(fields.get(name) for name in (
              "_compile_loss", "_compile_metrics", "compiled_loss", "compiled_metrics"))))


def steps_per_execution(model: keras.Model) -> int:
  """How many steps Keras wants of one call of the train function."""
  found: Any = getattr(model, "_steps_per_execution", None)  # a variable in Keras 2
  if not hasattr(found, "numpy"):
    found = getattr(model, "steps_per_execution", 1)
  return int(found.numpy()) if hasattr(found, "numpy") else int(found or 1)
