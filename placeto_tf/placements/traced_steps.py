"""Traces training steps, which are Python functions, for the arguments of a call.

The arguments of a call are a nest. Its leaves are tensors, which become inputs of a trace, and
other objects (a model, a flag, None), which are built into the trace, as in a `tf.function`.
"""

from __future__ import annotations

import inspect
import itertools
import re
from typing import Any, Callable, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from placeto_tf.errors import GraphError, PlacetoError
from placeto_tf.graphs import concrete_functions, keras_models, shapes
from placeto_tf.on_use import ConcreteFunction, tf

Batch = Any  # tensors and other objects, nested as the step takes them
Specs = Any  # the same nest with a `tf.TypeSpec` for each tensor

_PLAIN = (bool, int, float, complex, str, bytes)
_OF_STRATEGIES = r"Strategy|strategy\.|replica context|(Mirrored|OnRead)Variable"
_OUTSIDE = ("make model and optimizer outside of the strategy's scope, leave strategy.run out of "
            "the step, and give replicas= instead")


class TracedStep:
  """A training step that is traced for batches of given specs.

  Attributes:
    name: of the step, for messages.
    owners: objects that keep the step's variables alive; TensorFlow's graphs have only weak
      references to variables.
    remedy: advice if the step cannot be traced, for messages.
    wide: whether one trace takes batches of any size.
    batch_size: examples of a batch that the step takes from an iterator; None if not known.
  """

  remedy = "check that it runs on these arguments inside a tf.function"
  wide = False
  batch_size: Optional[int] = None

  def __init__(
      self, name: str, step: Callable[[Batch], Any], owners: Tuple[Any, ...] = (),
      convert: bool = False):
    """Holds a step."""
    self.name, self.owners, self._step, self._convert = name, owners, step, convert

  def trace(self, specs: Specs) -> ConcreteFunction:
    """Traces the step for batches of these specs.

    Variables that the step creates in its first call are created; no values change.

    Args:
      specs: of the batch.

    Returns:
      A ConcreteFunction of the tuple of the batch's tensors, in the order of the flattened nest.

    Raises:
      GraphError: the step cannot be traced for such batches.
    """
    from tensorflow.python.autograph.core import ag_ctx

    leaves = tf.nest.flatten(specs)
    status = ag_ctx.Status.ENABLED if self._convert else ag_ctx.Status.DISABLED
    graphs = []  # of this trace; also known if the trace fails

    # Takes the tensors as a flat tuple; other leaves are built into the trace.
    def flat(tensors: Sequence[Any]) -> Any:
      graphs.append(tf.compat.v1.get_default_graph())
      given = iter(tensors)
      batch = tf.nest.pack_sequence_as(specs, [
          next(given) if isinstance(leaf, tf.TypeSpec) else leaf for leaf in leaves])
      with ag_ctx.ControlStatusCtx(status):
        return self._step(batch)

    try:
      with keras_models.without_xla():
        function = tf.function(flat, autograph=False).get_concrete_function(
            tuple(leaf for leaf in leaves if isinstance(leaf, tf.TypeSpec)))
    except PlacetoError:
      raise
    except Exception as error:  # whatever the user's code raises
      self._check_strategy(graphs)
      cause = keras_models.cause_of(error)
      # Variables of a strategy cannot be updated outside of its scope, or of its replicas.
      remedy = _OUTSIDE if re.search(_OF_STRATEGIES, cause) else self.remedy
      raise GraphError(
          f"the training step {self.name!r} cannot be traced ({cause}); {remedy}") from error
    self._check_strategy(graphs)
    # Keep the owners alive, because TensorFlow's graphs have weak references to variables.
    function._placeto_model = self.owners
    return function

  def _check_strategy(self, graphs: Sequence[Any]) -> None:
    """Raises GraphError if a distribution strategy owns a variable of the traced FuncGraphs."""
    # Plain variables belong to no strategy (None).
    strategies = {
        type(getattr(variable, "_distribute_strategy", None)).__name__
        for graph in graphs for variable in graph._watched_variables} - {"NoneType"}
    if strategies:
      raise GraphError(
          f"the training step {self.name!r} belongs to a {sorted(strategies)[0]}, which places its "
          f"variables itself and divides batches; {_OUTSIDE}")


class FunctionStep(TracedStep):
  """A step that is a `tf.function`, a Python function or a ConcreteFunction.

  Attributes:
    function: the given function.
    compiled: whether XLA compiles the whole unplaced step.
  """

  def __init__(
      self, function: Callable, input_signature: Optional[Sequence[Any]] = None,
      batch_size: Optional[int] = None):
    """Reads the function and its signature.

    Args:
      function: the step.
      input_signature: `tf.TensorSpec`s of the positional arguments, whose unknown dimensions a
        trace leaves open; by default the signature of the `tf.function`.
      batch_size: see the class; by default the batch size of the iterator's dataset.

    Raises:
      GraphError: the function cannot be called, or the batch size is wrong.
    """
    from tensorflow.python.eager.polymorphic_function import autograph_util

    check_eager()
    shapes.check_batch_size(batch_size)
    if not callable(function) or keras_models.is_keras_model(function):
      raise GraphError(
          f"expected a training step, a function, got {type(function).__name__}; for a compiled "
          "Keras model call compile_placed or plan_training")
    self.function, self.batch_size = function, batch_size
    python: Any = function
    convert = True
    if concrete_functions.is_function(function):
      python, convert = python.python_function, getattr(function, "_autograph", True)
      input_signature = input_signature or getattr(function, "input_signature", None)
    elif concrete_functions.is_concrete_function(function):
      convert = False
      self.remedy = ("a ConcreteFunction takes batches of its own shapes; hand over the "
                     "tf.function that it is a trace of")
    self.compiled = bool(getattr(function, "_jit_compile", False))
    # AutoGraph converts the function as its own tf.function would.
    called = autograph_util.py_func_from_autograph(python) if convert else python
    # A ConcreteFunction binds its arguments itself.
    self._signature = inspect.signature(
        (lambda *args, **kwargs: None) if concrete_functions.is_concrete_function(function)
        else python)
    self._input_signature = None if input_signature is None else self._bound(input_signature, {})
    name = getattr(function, "__name__", getattr(function, "name", type(function).__name__))
    super().__init__(
        name.decode() if isinstance(name, bytes) else str(name),
        # A batch is (positional, keyword) arguments.
        lambda batch: called(*batch[0], **batch[1]), (function,), convert)

  def _bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tuple[Any, Any]:
    """Returns (positional, keyword) arguments, with the defaults of omitted ones.

    Raises:
      TypeError: the function does not take these arguments.
    """
    found = self._signature.bind(*args, **kwargs)
    found.apply_defaults()
    return tuple(found.args), dict(found.kwargs)

  def batch(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Batch:
    """Returns the arguments of a call as a batch, with arrays and numbers as tensors.

    Args:
      args, kwargs: arguments of the function; specs are not changed.

    Returns:
      (positional, keyword) arguments with defaults.

    Raises:
      TypeError: the function does not take them.
      GraphError: an argument belongs to a distribution strategy.
    """
    bound = self._bound(args, kwargs)
    return tf.nest.pack_sequence_as(bound, [
        self._converted(leaf, spec) for leaf, spec in zip(tf.nest.flatten(bound),
                                                          self._wanted(bound))])

  def _wanted(self, bound: Any) -> List[Optional[tf.TypeSpec]]:
    """Returns the spec of the input signature for each leaf of bound arguments, or None."""
    found: List[Optional[tf.TypeSpec]] = []
    # A signature covers the positional arguments; missing ones have no spec.
    signature = () if self._input_signature is None else self._input_signature[0]
    for argument, specs in itertools.zip_longest(bound[0], signature[:len(bound[0])]):
      leaves, wanted = len(tf.nest.flatten(argument)), tf.nest.flatten(specs)
      found += [spec if isinstance(spec, tf.TypeSpec) else None for spec in wanted] if (
          len(wanted) == leaves) else [None] * leaves
    return found + [None] * len(tf.nest.flatten(bound[1]))

  def _converted(self, leaf: Any, spec: Optional[tf.TypeSpec] = None) -> Any:
    if isinstance(leaf, tf.distribute.DistributedValues) and not isinstance(leaf, tf.Variable):
      raise GraphError(
          f"an argument of the step {self.name!r} is a {type(leaf).__name__} of a distribution "
          "strategy, which divides batches itself; hand over batches of a plain tf.data.Dataset, "
          "and leave strategy.run out of the step")
    # The dataset of an iterator shows the batch size of the step.
    if isinstance(leaf, tf.data.Iterator):
      self.batch_size = self.batch_size or _batch_size_of(leaf)
    if isinstance(leaf, tf.TypeSpec) or is_tensor(leaf):
      return leaf
    if isinstance(leaf, (np.ndarray, np.generic)) or isinstance(spec, tf.TensorSpec) and (
        isinstance(leaf, _PLAIN)):
      return tf.convert_to_tensor(leaf, None if spec is None else spec.dtype)
    return leaf

  def specs(self, batch: Batch) -> Specs:
    """Returns the specs to trace a batch with: of the input signature, or of the batch."""
    def spec_of(leaf: Any, wider: Optional[tf.TypeSpec]) -> Any:
      """Returns the spec of a leaf.

      Args:
        leaf: of the batch.
        wider: the spec of the input signature, or None.

      Returns:
        The wider spec if it fits, else the leaf's own spec; the leaf itself if it is no tensor.
      """
      if not is_tensor(leaf):
        return leaf
      own = tf.type_spec_from_value(leaf)
      return wider if wider is not None and wider.is_compatible_with(own) else own

    return tf.nest.pack_sequence_as(batch, [
        spec_of(leaf, wider) for leaf, wider in zip(tf.nest.flatten(batch), self._wanted(batch))])


def check_eager() -> None:
  """Raises GraphError unless TensorFlow runs eagerly, because a step is called eagerly."""
  if not tf.executing_eagerly():
    raise GraphError(
        "a training step is placed and called where TensorFlow runs eagerly, but this is inside of "
        "a graph or tf.function, or TensorFlow 2's behavior is disabled; call it outside, or hand "
        "the tf.Graph to placeto_tf.place")


def _batch_size_of(iterator: Any) -> Optional[int]:
  """Returns the batch size of an iterator's dataset, or None."""
  dataset = getattr(iterator, "_dataset", None)
  # Through maps and shuffles back to the op that made batches.
  while dataset is not None and not hasattr(dataset, "_batch_size"):
    dataset = getattr(dataset, "_input_dataset", None)
  size: Any = getattr(dataset, "_batch_size", None)
  return int(size) if hasattr(size, "__int__") else None


def is_tensor(value: object) -> bool:
  """Returns whether a value is an input of a trace: a tensor, or composed of tensors."""
  return isinstance(value, tf.Tensor) or (
      hasattr(value, "_type_spec") and not isinstance(value, tf.Variable))


def tensors_of(batch: Batch) -> Tuple[Any, ...]:
  """Returns the tensors of a batch, as a trace of the step takes them."""
  return tuple(leaf for leaf in tf.nest.flatten(batch) if is_tensor(leaf))


def takes(specs: Specs, others: Specs) -> bool:
  """Returns whether a step that was traced with some specs takes batches of other specs.

  Args:
    specs: specs of the trace.
    others: specs of the batches.

  Returns:
    True if the nests are equal and each spec of the trace allows the batch's spec.
  """
  try:
    tf.nest.assert_same_structure(specs, others)
  except (TypeError, ValueError):
    return False

  def fits(one: Any, other: Any) -> bool:
    """Returns whether a leaf of the trace allows a leaf of a batch.

    Returns:
      True for compatible specs, the same object or equal plain values.
    """
    if isinstance(one, tf.TypeSpec) and isinstance(other, tf.TypeSpec):
      return one == other or one.is_compatible_with(other)
    # Other objects are built into the trace: the same object, or an equal plain value.
    return one is other or (
        isinstance(one, _PLAIN) and type(one) is type(other) and bool(one == other))

  return all(
      fits(one, other) for one, other in zip(tf.nest.flatten(specs), tf.nest.flatten(others)))


def opened(specs: Specs, others: Specs) -> Specs:
  """Makes those dimensions of specs unknown in which other specs differ.

  Args:
    specs, others: two nests of specs.

  Returns:
    The specs with unknown dimensions; unchanged if the nests or ranks differ.
  """
  def opened_one(one: Any, other: Any) -> Any:
    both = isinstance(one, tf.TensorSpec) and isinstance(other, tf.TensorSpec)
    if not both or one.shape.rank != other.shape.rank:
      return one
    return one.most_specific_common_supertype([other]) or one

  try:
    return tf.nest.map_structure(opened_one, specs, others)
  except (TypeError, ValueError):
    return specs


def component_shapes(batch: Batch) -> List[Tuple[int, ...]]:
  """Returns the shapes of a batch's tensors, including components of composite tensors.

  The result is [] if any dimension is unknown.
  """
  found = [
      leaf.shape for leaf in tf.nest.flatten(
          [leaf for leaf in tf.nest.flatten(batch)
           if isinstance(leaf, tf.TypeSpec) or is_tensor(leaf)], expand_composites=True)]
  # All shapes or none: a single open dimension leaves the batch unknown.
  known = all(shape.is_fully_defined() for shape in found)
  return [tuple(shape.as_list()) for shape in found] if known else []


def size_of_shapes(shapes: Sequence[Tuple[int, ...]]) -> Optional[int]:
  """Returns the batch size of a batch's tensors, the most frequent first dimension, or None."""
  # Among equally frequent dimensions, take the first.
  sizes = [shape[0] for shape in shapes if shape]
  return max(sizes, key=sizes.count) if sizes else None


def with_batch(specs: Specs, size: Optional[int], other: Optional[int]) -> Specs:
  """Replaces the first dimension of specs where it is the batch size.

  A tensor with another first dimension, such as class weights or a scalar, is the same for all.

  Args:
    specs: of a batch.
    size: its batch size.
    other: the new batch size; None for an unknown one.

  Returns:
    The specs, in the same nest.
  """
  def changed(spec: Any) -> Any:
    if not isinstance(spec, tf.TensorSpec) or not spec.shape.rank or spec.shape[0] != size:
      return spec
    return tf.TensorSpec([other, *spec.shape.as_list()[1:]], spec.dtype, spec.name)

  return tf.nest.map_structure(changed, specs)


def check_divides(size: Optional[int], replicas: int) -> int:
  """Checks that replicas divide a batch.

  Args:
    size: the batch size, None if unknown.
    replicas: R.

  Raises:
    GraphError: the size is not known, or R does not divide it.
  """
  if size is None:
    raise GraphError(
        "no argument of the step is a batch of known size, which replicas would divide; take the "
        "batch outside of the step, as by next(iterator), and hand over its tensors, which may be "
        "nested in tuples, dicts and named tuples")
  shapes.divided(size, replicas)
  return size


def divided(specs: Specs, size: Optional[int], replicas: int) -> Specs:
  """Divides the specs of a batch among R replicas.

  Args:
    specs: of the whole batch.
    size: its batch size; None if unknown.
    replicas: R.

  Returns:
    The specs of one replica, with 1/R of the examples.

  Raises:
    GraphError: the batch size is not known, R does not divide it, or a tensor is not dense.
  """
  size = check_divides(size, replicas)
  for spec in tf.nest.flatten(specs):
    if isinstance(spec, tf.TypeSpec) and not isinstance(spec, tf.TensorSpec):
      raise GraphError(
          f"{spec} of a batch of {size} is not divided among replicas; expected dense tensors")
  return with_batch(specs, size, size // replicas)
