"""Traces the inference of Keras models, and finds the specs of their batches.

Works with models of Keras 2 (`tf_keras`, or `tf.keras` up to TensorFlow 2.15) and of Keras 3 with
its TensorFlow backend. Neither is imported here: the model's own package is used.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any, Iterator, List, Optional

from placeto_tf.errors import GraphError
from placeto_tf.graphs.shapes import check_batch_size
from placeto_tf.on_use import ConcreteFunction, keras, tf

_PACKAGES = ("keras", "tf_keras")


def is_keras_model(source: object) -> bool:
  """Returns whether the source is a Keras model, of the legacy Keras or of Keras 3."""
  return package_of(source) is not None and hasattr(source, "fit")


def inference_function(model: keras.Model, batch_size: Optional[int] = None) -> ConcreteFunction:
  """Traces the model's inference.

  Args:
    model: a Keras model that knows its inputs.
    batch_size: of the inputs; by default the model's batch size, which is often unknown.

  Returns:
    The ConcreteFunction from the inputs to the outputs.

  Raises:
    GraphError: the model does not know its inputs, or its backend is not TensorFlow.
  """
  specs = _input_specs(model, batch_size)

  def infer(inputs):
    return model(inputs, training=False)

  function = tf.function(infer).get_concrete_function(specs)
  function._placeto_model = model  # graphs hold variables by weak references only
  return function


def step_specs(model: keras.Model, batch_size: Optional[int]) -> Any:
  """Returns the specs of a compiled model's batches, as its own `train_step` takes them.

  Args:
    model: a compiled Keras model.
    batch_size: of the batches, or None if it is open.

  Returns:
    (inputs, targets) as TensorSpecs. The targets have the specs of the outputs; those of a sparse
    loss lack the last dimension and have the type int32.

  Raises:
    GraphError: the model does not know its inputs, or there is no loss to derive the targets from;
      or the batch size is wrong.
  """
  check_batch_size(batch_size)
  loss = vars(model).get("loss")  # Keras 3 has a method of the name, too
  if loss is None or loss == {}:
    raise GraphError(
        f"the Keras model {_name(model)!r} is compiled without a loss, so that its targets are not "
        "known; give data=(inputs, targets), an example batch")
  inputs = _input_specs(model, batch_size)
  outputs = _outputs(model, inputs)
  # Sort losses by name into the order of the outputs.
  if isinstance(loss, dict):
    names = sorted(outputs) if isinstance(outputs, dict) else model.output_names
    loss = [loss.get(name) for name in names]
  losses = tf.nest.map_structure(
      lambda one: package_of(model).losses.get(one) if one is not None else None, loss)
  return inputs, _target_specs(outputs, losses, batch_size)


def _input_specs(model: keras.Model, batch_size: Optional[int]) -> Any:
  """Returns TensorSpecs of the inputs, nested as the model takes them."""
  package = package_of(model)
  if package.__name__ == "keras" and hasattr(package, "config") and (
      package.config.backend() != "tensorflow"):
    raise GraphError(
        f"the Keras model {_name(model)!r} runs on the backend {package.config.backend()}; set "
        "KERAS_BACKEND=tensorflow before Keras is imported")
  if not getattr(model, "inputs", None):
    # A subclassed model of Keras 2 keeps the input specs of its first call.
    kept = model.save_spec() if hasattr(model, "save_spec") else None
    if not kept or not kept[0]:
      raise GraphError(
          f"the Keras model {_name(model)!r} does not know its inputs, as Keras keeps none "
          "of a subclass; give data=(inputs, targets), an example batch, to train it placed, or "
          "hand over tf.function(model).get_concrete_function(...)")
    return tf.nest.map_structure(
        lambda spec: _spec([None, *spec.shape[1:]], spec.dtype, batch_size), kept[0][0])
  # Functional models that were made with a dict take a dict; attribute names differ by version.
  nested = _nested(model, "inputs")
  # A model of one input takes the tensor itself.
  if isinstance(nested, (list, tuple)) and len(nested) == 1:
    nested = nested[0]
  specs = tf.nest.map_structure(
      lambda value: _spec(value.shape, value.dtype, batch_size), nested)
  return list(specs) if type(specs) is tuple else specs


def _nested(model: keras.Model, what: str) -> Any:
  """Returns the "inputs" or "outputs" of a functional model, with their original nesting."""
  flat = getattr(model, what)
  # Keras 3 and Keras 2 name the nest differently.
  nested = getattr(model, f"_{what}_struct", getattr(model, f"_nested_{what}", None))
  return flat if nested is None or len(tf.nest.flatten(nested)) != len(flat) else nested


def _outputs(model: keras.Model, inputs: Any) -> Any:
  """Returns the nested outputs of a model, with shapes; calls a subclassed model on its specs."""
  if getattr(model, "outputs", None):
    return _nested(model, "outputs")
  try:
    return tf.function(lambda x: model(x, training=True)).get_concrete_function(
        inputs).structured_outputs
  except Exception as error:  # the user's layers may raise anything
    raise GraphError(
        f"the Keras model {_name(model)!r} cannot be called on {inputs} ({cause_of(error)}); give "
        "data=(inputs, targets), an example batch") from error


def _target_specs(nested: Any, losses: Any, batch_size: Optional[int]) -> Any:
  """Returns TensorSpecs of the targets; a dict if the outputs are a dict."""
  outputs = tf.nest.flatten(nested)
  losses = tf.nest.flatten(losses)
  if len(losses) == 1:
    losses *= len(outputs)
  if len(losses) != len(outputs):
    raise GraphError(
        f"the model has {len(outputs)} outputs, but {len(losses)} losses are given; give one for "
        "every output, or the targets' specs")
  specs = []
  for output, loss in zip(outputs, losses):
    name = getattr(loss, "name", None) or getattr(loss, "__name__", type(loss).__name__)
    # Sparse losses take class ids, without the classes' dimension.
    sparse = "sparse" in str(name).lower()
    specs.append(_spec(
        output.shape[:-1] if sparse else output.shape, tf.int32 if sparse else output.dtype,
        batch_size))
  if isinstance(nested, dict):
    return tf.nest.pack_sequence_as(nested, specs)
  return specs[0] if len(specs) == 1 else specs


def _spec(shape: Any, dtype: tf.DType, batch_size: Optional[int]) -> tf.TensorSpec:
  dims = tf.TensorShape(shape).as_list()
  if dims and dims[0] is None:
    dims[0] = batch_size
  return tf.TensorSpec(dims, dtype)


@contextlib.contextmanager
def without_xla() -> Iterator[None]:
  """Stops optimizers of Keras 2 from compiling their updates with XLA, as they do for GPUs."""
  packages = [sys.modules.get(name) for name in _PACKAGES]
  bases: List[Any] = [base for base in (
      getattr(getattr(package, "optimizers", None), "Optimizer", None) for package in packages)
                      if hasattr(base, "_update_step_xla")]
  # Each optimizer has a flag of its own; a property of the class takes precedence over the flag.
  for base in bases:
    base.jit_compile = property(
        lambda optimizer: False,
        lambda optimizer, value: optimizer.__dict__.update(jit_compile=value))
  try:
    yield
  finally:
    for base in bases:
      del base.jit_compile


def cause_of(error: Exception) -> str:
  """Returns the last part of the text of an exception from user code, in one short line.

  AutoGraph and Keras write the place first and the fault last.
  """
  text = " ".join(str(error).split()) or type(error).__name__
  return text if len(text) <= 300 else f"... {text[-300:]}"


def package_of(model: object) -> Any:
  """Returns the Keras package that the model's classes come from, or None."""
  # The class of a user's model is in the user's module, but a base class is in Keras.
  for base in type(model).__mro__:
    name = base.__module__.partition(".")[0]
    if name in _PACKAGES:
      return sys.modules.get(name)
  return None


def _name(model: keras.Model) -> str:
  return getattr(model, "name", "")
