"""`SlicedVariable`: the columns of a live variable, which a function trains as several variables.

The program goes on to use the whole variable, in checkpoints, callbacks, `get_weights` and
`evaluate`. Each access from Python first joins the slices that have been trained since, and before
the next step the slices take what the program may have written. Functions that were traced before
use the whole variable without an access from Python: call `lend` before them.
"""

from __future__ import annotations

from typing import List

from placeto_tf.graphs import captures
from placeto_tf.on_use import ConcreteFunction, tf

_SLICED, _OF = "_placeto_sliced", "_placeto_slice_of"


class SlicedVariable:
  """A variable [V, D] and its slices [V, D / S]; a plan's slices hold no values and no memory.

  Attributes:
    whole: the variable of the program.
    parts: the slices, in the order of the columns.
  """

  def __init__(self, whole: tf.Variable, count: int):
    from tensorflow.python.ops import resource_variable_ops

    self.whole = whole
    self.parts: List[tf.Variable] = []
    self._ahead, self._written = False, True  # whether the slices, or the program, changed values
    self._class = type(whole)
    shape = whole.shape[:-1].concatenate([whole.shape[-1] // count])
    with tf.init_scope(), tf.device("/CPU:0"):
      for _ in range(count):
        part = resource_variable_ops.UninitializedVariable(
            trainable=whole.trainable, shape=shape, dtype=whole.dtype,
            name=f"{whole.name.partition(':')[0]}_slice")
        setattr(part, _OF, self)
        self.parts.append(part)

  def push(self) -> None:
    """Gives the slices the values of the variable, if the program may have written them."""
    if self._written:
      with tf.init_scope():
        columns = tf.split(self._raw().read_value(), len(self.parts), axis=-1)
        for part, value in zip(self.parts, columns):
          part.assign(value)
      self._written = False

  def pull(self) -> None:
    """Gives the variable the values of the slices, if these were trained since."""
    if self._ahead:
      self._ahead = False
      with tf.init_scope(), tf.device("/CPU:0"):
        self._raw().assign(tf.concat([part.read_value() for part in self.parts], axis=-1))

  def trained(self) -> None:
    """Notes that a step has changed the slices."""
    self._ahead = True

  def lend(self) -> None:
    """Joins the slices, for a program that may read and write the variable."""
    self.pull()
    self._written = True

  def watch(self) -> None:
    """Follows accesses to the variable from now on."""
    sliced = self

    class Watched(self._class):  # type: ignore[name-defined]
      """A variable whose handle joins slices when it is used."""

      @property
      def handle(self) -> tf.Tensor:  # noqa: D102
        sliced.lend()
        return self._handle

    Watched.__name__ = Watched.__qualname__ = self._class.__name__
    self.whole.__class__ = Watched

  def release(self) -> None:
    """Joins the slices and gives the variable back to the program."""
    self.pull()
    self.whole.__class__ = self._class
    self.whole.__dict__.pop(_SLICED, None)

  def _raw(self) -> tf.Variable:
    """Returns the variable as an object whose accesses are not followed."""
    found = object.__new__(self._class)
    found.__dict__.update(self.whole.__dict__)
    return found


def sliced_variable(variable: tf.Variable, count: int) -> SlicedVariable:
  """Returns a variable's slices; those of all traces of a step are the same.

  Args:
    variable: a live variable, perhaps wrapped by Keras.
    count: the number of slices.

  Returns:
    The slices.
  """
  whole = captures.unwrapped(variable)
  known = whole.__dict__.setdefault(_SLICED, {})
  if count not in known:
    known[count] = SlicedVariable(whole, count)
  return known[count]


def slices_of(function: ConcreteFunction) -> List[SlicedVariable]:
  """Returns the variables whose slices a function trains."""
  return list(dict.fromkeys(filter(None, (
      owner_of(variable) for variable in captures.live_variables(function.graph)))))


def owner_of(variable: tf.Variable) -> SlicedVariable:
  """Returns the variable that a variable is a slice of, or None."""
  return getattr(variable, _OF, None)  # type: ignore[return-value]
