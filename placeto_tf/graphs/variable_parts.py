"""`VariableParts`: a live variable that a function trains as slices of its columns, or as copies.

The program goes on to use the whole variable, in checkpoints, callbacks, `get_weights` and
`evaluate`. Each access from Python first joins the slices that have been trained since, and before
the next step slices and copies take what the program may have written. Functions that were traced
before use the whole variable without an access from Python: call `lend` before them.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Mapping, Optional

import numpy as np

from placeto_tf.errors import GraphError
from placeto_tf.graphs import captures
from placeto_tf.on_use import ConcreteFunction, tf

_PARTS, _OF = "_placeto_parts", "_placeto_part_of"


@dataclasses.dataclass(frozen=True)
class Part:
  """Which part of a captured variable an op holds: its op, the part's number, and of how many."""

  variable: str
  index: int
  count: int


class VariableParts:
  """A variable [V, D] with its slices [V, D / S] or copies [V, D]; those of plans hold no values.

  Attributes:
    whole: the variable of the program.
    copies: whether the parts are copies, the first of which is the variable itself.
    parts: the slices, in the order of the columns, or the copies.
  """

  def __init__(self, whole: tf.Variable, count: int, copies: bool):
    from tensorflow.python.ops import resource_variable_ops

    self.whole, self.copies = whole, copies
    self.parts: List[tf.Variable] = [whole] if copies else []
    self._ahead, self._written = False, True  # whether the slices, or the program, changed values
    self._class = type(whole)
    shape = whole.shape if copies else whole.shape[:-1].concatenate([whole.shape[-1] // count])
    with tf.init_scope(), tf.device("/CPU:0"):
      for _ in range(count - len(self.parts)):
        part = resource_variable_ops.UninitializedVariable(
            trainable=whole.trainable, shape=shape, dtype=whole.dtype,
            name=f"{whole.name.partition(':')[0]}_part")
        setattr(part, _OF, self)
        self.parts.append(part)

  def push(self) -> None:
    """Gives the parts, for a step, the variable's values, if the program may have written them."""
    if self._written:
      with tf.init_scope():
        value = self._raw().read_value()
        values = [value] * len(self.parts) if self.copies else tf.split(
            value, len(self.parts), axis=-1)
        for part, value in zip(self.parts[self.copies:], values[self.copies:]):
          part.assign(value)
      self._written = False
    self._ahead = not self.copies

  def pull(self) -> None:
    """Gives the variable the values of the slices, if these were trained since."""
    if self._ahead:
      self._ahead = False
      with tf.init_scope(), tf.device("/CPU:0"):
        self._raw().assign(tf.concat([part.read_value() for part in self.parts], axis=-1))

  def lend(self) -> None:
    """Joins the slices, for a program that may read and write the variable."""
    self.pull()
    self._written = True

  def look(self) -> None:
    """Notes whether the program has written a copied variable without an access from Python."""
    self._written = self._written or self.copies and not np.array_equal(
        self._raw().numpy(), self.parts[-1].numpy(), equal_nan=self.whole.dtype.is_floating)

  def watch(self) -> None:
    """Follows accesses to the variable from now on."""
    parts = self

    class Watched(self._class):  # type: ignore[name-defined]
      """A variable whose handle joins its slices when it is used."""

      @property
      def handle(self) -> tf.Tensor:  # noqa: D102
        parts.lend()
        return self._handle

    Watched.__name__ = Watched.__qualname__ = self._class.__name__
    self.whole.__class__ = Watched

  def release(self) -> None:
    """Joins the slices and gives the variable back to the program."""
    self.pull()
    self.whole.__class__ = self._class
    self.whole.__dict__.pop(_PARTS, None)

  def _raw(self) -> tf.Variable:
    """Returns the variable as an object whose accesses are not followed."""
    found = object.__new__(self._class)
    found.__dict__.update(self.whole.__dict__)
    return found


def captured_parts(
    function: ConcreteFunction, parts: Mapping[str, Part], copies: bool = False) -> Dict[str, Any]:
  """Returns arguments of `rebuilt_function` that put parts in place of captured variables.

  Args:
    function: a function; all traces of a step have the same parts.
    parts: op of the rebuilt function -> the part that it holds.
    copies: whether the parts are copies, not slices.

  Raises:
    GraphError: a variable cannot be divided or copied, because it cannot be moved.
  """
  variables = {each.op: each for each in captures.resource_captures(function)}
  handles, owned = captures.captures_of(function), []
  for name, part in parts.items():
    capture = variables[part.variable]
    if capture.variable is None or capture.fixed:
      raise GraphError(f"variable {capture.name!r} cannot be copied or split, because "
                       f"{capture.fixed}; give mirrored_variables=False and slices=1")
    whole = captures.unwrapped(capture.variable)
    known = whole.__dict__.setdefault(_PARTS, {})
    if (part.count, copies) not in known:
      known[part.count, copies] = VariableParts(whole, part.count, copies)
    owned.append(known[part.count, copies].parts[part.index])
    if not copies:
      handles.pop(part.variable, None)
    handles[name] = owned[-1].handle
  return {"captures": handles, "copies": owned}


def parts_of(function: ConcreteFunction) -> List[VariableParts]:
  """Returns the variables whose parts a function trains."""
  return list(dict.fromkeys(filter(None, (
      owner_of(variable) for variable in captures.live_variables(function.graph)))))


def owner_of(variable: tf.Variable) -> Optional[VariableParts]:
  """Returns the variable that a variable is a slice or copy of, or None."""
  return getattr(variable, _OF, None)
