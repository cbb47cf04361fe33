"""The models of the zoo by name, and the specs that choose one: `name:key=value[:key=value]`.

To add a model, write a function in a module of this folder that builds the forward pass in the
default graph and returns a `Model`, and decorate it:

  @registry.model("my_model", batch=integer(32), width=integer(512))
  def my_model(batch, width):
    ...
    return registry.Model(loss=loss, feeds=(tokens,))

and name its module in `_MODULES`. Every model also takes `optimizer=` and `seed=`. Gradients,
the optimizer and the initialisers are added here, the same way for all.
"""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Tuple

from placeto_tf.errors import GraphError
from placeto_tf.on_use import tf
from placeto_tf.zoo import families, training
from placeto_tf.zoo.zoo_graph import ZooGraph

_MODULES = (
    "amoebanet", "bert", "enas", "image_models", "nmt", "recommender", "rnnlm",
    "transformer_xl", "wavenet")


@dataclasses.dataclass(frozen=True)
class Option:
  """One `key=value` of a spec.

  Attributes:
    default: the value when the spec does not give one; its type is the option's type.
    minimum: smallest value of an integer.
    maximum: largest value of an integer, or None for no bound.
    choices: the valid values of a word, or None for an integer.
  """

  default: Any
  minimum: int = 1
  maximum: Optional[int] = None
  choices: Optional[Tuple[str, ...]] = None

  @property
  def expected(self) -> str:
    """Describes a valid value, for messages."""
    if self.choices is not None:
      return "one of " + ", ".join(self.choices)
    if self.maximum is not None:
      return f"an integer from {self.minimum} to {self.maximum}"
    return f"an integer of at least {self.minimum}"

  def parse(self, text: str) -> Any:
    """Returns the value of `text`, or None if it is no valid value."""
    if self.choices is not None:
      return text if text in self.choices else None
    # Plain ASCII digits only: int() would also take "1_0", " 7 " and other scripts' digits.
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
      return None
    value = int(text)
    fits = value >= self.minimum and (self.maximum is None or value <= self.maximum)
    return value if fits else None


def integer(default: int, minimum: int = 1, maximum: Optional[int] = None) -> Option:
  """Makes an option that takes an integer.

  Args:
    default: the value where a spec gives none.
    minimum, maximum: bounds; None for no bound.
  """
  return Option(default, minimum, maximum)


def word(*choices: str) -> Option:
  """Makes an option that takes one of `choices`; the first is the default."""
  return Option(choices[0], choices=choices)


@dataclasses.dataclass(frozen=True)
class Model:
  """The forward pass that a model function built in the default graph.

  Attributes:
    loss: scalar float32 tensor.
    feeds: placeholder tensors.
    updates: ops that belong to a training step beside the optimizer (batch norm statistics).
    clip_norm: global norm that gradients are clipped to, or None.
  """

  loss: tf.Tensor
  feeds: Tuple[tf.Tensor, ...]
  updates: Sequence[tf.Operation] = ()
  clip_norm: Optional[float] = None


_Entry = Tuple[Callable[..., Model], Mapping[str, Option]]  # a model's function and its options
_ENTRIES: Dict[str, _Entry] = {}
_COMMON = {"optimizer": word(*training.OPTIMIZERS), "seed": integer(0, minimum=0)}


def model(name: str, **options: Option) -> Callable[[Callable], Callable]:
  """Decorator that registers a model function under `name` with the options it takes."""

  def enter(function: Callable) -> Callable:
    _ENTRIES[name] = function, {**_COMMON, **options}
    return function

  return enter


def names() -> list:
  """Returns the names of all models, sorted."""
  return sorted(_entries())


def resolve(spec: str) -> Tuple[str, Dict[str, Any]]:
  """Splits a spec into the model's name and the values of all its options.

  A member of a family, "family:ptb[3]", resolves to its model and its sampled options.

  Raises:
    GraphError: unknown name, unknown or repeated key, or a value the key does not take.
  """
  if families.is_family(spec):
    spec = families.member(spec)
  name, *parts = spec.split(":")
  if name not in _entries():
    raise GraphError(f"the zoo has no model {name!r}; choose one of {', '.join(names())}")
  options = _ENTRIES[name][1]
  values = {key: option.default for key, option in options.items()}
  given = set()
  for part in parts:
    key, equals, text = part.partition("=")
    if not equals or key not in options:
      raise GraphError(
          f"zoo model {name!r} has no option {part!r}; write key=value with one of the keys "
          f"{', '.join(sorted(options))}")
    if key in given:
      raise GraphError(f"zoo model {name!r} is given {key!r} twice; give it once")
    given.add(key)
    value = options[key].parse(text)
    if value is None:
      raise GraphError(
          f"option {key!r} of zoo model {name!r} is {text!r}; give {options[key].expected}")
    values[key] = value
  return name, values


def build(spec: str) -> ZooGraph:
  """Builds a new training graph of a spec, "inception_v3:batch=32" or "family:ptb[3]".

  Nothing is downloaded: weights are random. Every random op carries an op seed that follows from
  `seed`, so two sessions on the graph give the same losses; two builds give the same ops.

  Raises:
    GraphError: the spec is wrong, see `resolve`.
    SetupError: an image model needs the legacy Keras, which is not installed.
  """
  name, values = resolve(spec)
  function, _ = _ENTRIES[name]
  arguments = {key: value for key, value in values.items() if key not in _COMMON}
  graph = tf.Graph()
  with graph.as_default():
    tf.compat.v1.set_random_seed(values["seed"])
    with training.python_seed(values["seed"]):
      built = function(**arguments)
    train_op = training.add_training(
        built.loss, built.updates, built.clip_norm, values["optimizer"])
    init_op = tf.compat.v1.global_variables_initializer()
  return ZooGraph(
      name=":".join([name] + [f"{key}={values[key]}" for key in sorted(values)]),
      graph=graph,
      train_op=train_op.name,
      loss=built.loss.name,
      init_op=init_op.name,
      feeds=tuple(tensor.name for tensor in built.feeds),
  )


def _entries() -> Mapping[str, _Entry]:
  """Returns all entries; the modules that hold them are imported on first use."""
  for module in _MODULES:
    importlib.import_module(f"placeto_tf.zoo.{module}")
  return _ENTRIES
