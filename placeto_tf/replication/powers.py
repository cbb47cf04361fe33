"""Rules for the scale of an op's result, given that of its inputs: `power` in `kinds`.

A replica's tensor may be `R^power` times the global one. An op that is homogeneous in its inputs
passes that on; before any other op the input is multiplied so that it is the global value.
"""

from __future__ import annotations

import math
from typing import Any, Dict, FrozenSet, List, Optional, Sequence, Tuple

from placeto_tf.ops import members, rule_of
from placeto_tf.replication.dataflow import Dataflow, Tensor, known_dims
from placeto_tf.replication.kinds import (
  FREE,
  SAME,
  Box,
  Kind,
  Partial,
  Rows,
  Same,
  Sizes,
  Sparse,
  Unclear,
  Whole,
  with_power,
)

BILINEAR = "bilinear"
# What is done to an input before an op reads it.
JOIN, SCALE, SLICE, OFFSET = "join", "scale", "slice", "offset"
# (JOIN,), (SCALE, power), (SLICE, axis), (OFFSET, numbers of an example, its slots)
Fix = Tuple[Any, ...]

RESOURCE = 20  # DT_RESOURCE: the handle of a variable


class Inputs:
  """The inputs of one op: their specs, and the fixes that are made before it reads them."""

  def __init__(self, flow: Dataflow, op: int, kinds: Sequence[Kind]):
    self.op = op
    self.kinds: List[Kind] = list(kinds)
    self.given = tuple(kinds)
    self.fixes: Dict[int, Fix] = {}
    self._flow = flow

  def powers(self) -> List[float]:
    """Returns the power of each input."""
    # A spec without a power is the global value, at power 0.
    return [getattr(kind, "power", 0.0) for kind in self.kinds]

  def is_whole(self, i: int) -> bool:
    """Returns whether an input holds whole numbers or booleans."""
    return self._flow.is_integer(self._flow.inputs[self.op][i])

  def join(self, i: int) -> None:
    """Makes an input the global value instead of the replica's."""
    kind = self.kinds[i]
    if kind == SAME or isinstance(kind, Whole):
      return
    if isinstance(kind, Same):
      self.to_power(i, 0.0)
      return
    if isinstance(kind, Rows) and (
        kind.outer > 1 or kind.tagged or kind.local and kind.power):
      raise NotFollowed("needs all examples of the batch in an order that replicas do not keep")
    if isinstance(kind, Rows) and self._flow.dtype(self._flow.inputs[self.op][i]) == RESOURCE:
      raise NotFollowed("needs a variable that keeps examples, of which each replica has its own")
    if isinstance(kind, (Box, Unclear)):
      raise NotFollowed("needs a container of what was found over the batch")
    self.fixes[i] = (JOIN,)
    self.kinds[i] = Whole() if isinstance(kind, (Rows, Sparse)) else SAME

  def scale(self, i: int, by: float) -> None:
    """Multiplies the replica's value of an input by `R^by`.

    Args:
      i: number of the input.
      by: the exponent of R to multiply with.
    """
    kind = self.kinds[i]
    if not by:
      return
    # Whole numbers can be multiplied, but not divided.
    if self.is_whole(i) and by < 0:
      raise NotFollowed("needs a part of a whole number that counts examples")
    before = self.fixes.get(i)
    by_now = by + (before[1] if before and before[0] == SCALE else 0.0)
    # Positions are moved to their place, and cannot be scaled at the same time.
    if before and before[0] != SCALE:
      raise NotFollowed("needs positions of examples at another scale")
    self.fixes[i] = (SCALE, by_now)
    self.kinds[i] = with_power(kind, getattr(kind, "power", 0.0) + by)
    if not by_now:
      del self.fixes[i]

  def to_power(self, i: int, power: float) -> None:
    """Brings an input to this power, by a factor.

    Args:
      i: number of the input.
      power: the exponent of R.
    """
    kind = self.kinds[i]
    if self.powers()[i] == FREE:
      self.kinds[i] = with_power(kind, power)
    else:
      self.scale(i, power - self.powers()[i])

  def as_partial(self, i: int, power: float) -> None:
    """Makes a share of a sum over the replicas of an input that is the same everywhere.

    Args:
      i: number of the input.
      power: the exponent of R.
    """
    kind = self.kinds[i]
    if isinstance(kind, Same):
      if kind.power != FREE:
        # A share of a sum: 1/R of the value, at the power of the other shares.
        self.scale(i, power - 1 - kind.power)
      self.kinds[i] = Partial("sum", power)

  def slice(self, i: int, axis: int) -> None:
    """Makes an input the replica's rows of the global value.

    Args:
      i: number of the input.
      axis: the axis.
    """
    self.fixes[i] = (SLICE, axis)
    self.kinds[i] = Rows(axis)

  def offset(self, i: int, batch: int) -> None:
    """Makes positions of a replica, which has `batch` examples, positions among all examples.

    Args:
      i: number of the input.
      batch: examples of a replica.
    """
    kind = self.kinds[i]
    assert isinstance(kind, Rows) and kind.local is not None
    numbers = numbers_of_an_example(self._flow, self._flow.inputs[self.op][i], batch)
    if kind.power or numbers is None:
      # Positions at another power, or of an unknown number, cannot be moved.
      raise NotFollowed("computes with positions of examples in the batch")
    self.fixes[i] = (OFFSET, numbers, kind.local.span)
    self.kinds[i] = Rows(kind.axis, kind.outer)


class NotFollowed(Exception):
  """Why the batch cannot be followed through an op, as a clause whose subject is the op."""


def numbers_of_an_example(flow: Dataflow, tensor: Tensor, batch: int) -> Optional[int]:
  """Returns how many numbers a tensor holds for each example, or None if not known.

  Args:
    flow: the dataflow of the graph.
    tensor: (op, output port).
    batch: examples of a replica.

  Returns:
    The number of elements.
  """
  shape = flow.shape(tensor)
  if shape is None or None in shape:
    return None
  numbers, rest = divmod(math.prod(known_dims(shape)), batch)
  return None if rest or not numbers else numbers


def result_power(flow: Dataflow, view: Inputs) -> float:
  """Returns the power of an op's results; see `_result_power`.

  Args:
    flow: the dataflow of the graph.
    view: the inputs of the op.

  Returns:
    The exponent of R.
  """
  power = _result_power(flow, view)
  return FREE if abs(power) > FREE / 4 else power


def _result_power(flow: Dataflow, view: Inputs) -> float:
  """Returns the power of an op's results; inputs are multiplied where the op needs that.

  Raises:
    NotFollowed: whole numbers would have to be divided.
  """
  op, powers = view.op, view.powers()
  scale = rule_of(flow.types[op]).scale
  if not any(powers) or scale is not None and scale.kind == "shape":
    return 0.0
  # Rounding does not go with scaling.
  rounds = flow.types[op] == "Cast" and flow.is_integer((op, 0)) and not view.is_whole(0)
  if scale is None or rounds:
    return _at_global_value(view)
  inputs = scale.members(len(powers))
  # f(c x) = c^degree f(x)
  if scale.kind == "factor":
    return powers[inputs[0]] * scale.degree
  if scale.kind == "gradient":
    return _at_global_value(view, frozenset(inputs))
  if scale.kind == "alike":
    return _equal(view, inputs) * scale.degree
  # Exponents of factors add up, those of a divisor are subtracted.
  return sum(powers) if scale.kind == "product" else powers[0] - powers[1]


def _equal(view: Inputs, members: Sequence[int]) -> float:
  """Brings inputs to one power."""
  powers = view.powers()
  # Members of power FREE are zeros, and take any power.
  if all(powers[i] == FREE for i in members):
    return FREE
  whole = any(view.is_whole(i) for i in members)
  found = [i for i in members if powers[i] != FREE]
  rows = [powers[i] for i in found if isinstance(view.kinds[i], Rows)]
  # Of whole numbers the larger power, which needs no division.
  power = max(powers[i] for i in found) if whole or not rows else rows[0]
  for i in members:
    if not isinstance(view.kinds[i], Sizes):
      view.to_power(i, power)
  return power


def _at_global_value(view: Inputs, but: FrozenSet[int] = frozenset()) -> float:
  """Brings all inputs to power 0 but one, whose power is the result's."""
  found = 0.0
  for i, power in enumerate(view.powers()):
    # One input may keep its power, and gives it to the result.
    if i in but:
      found = power
    elif power:
      view.to_power(i, 0.0)
  return found


def linear_inputs(kind: str, count: int) -> Optional[Sequence[int]]:
  """Returns the inputs in which an op is linear taken together, or None.

  Args:
    kind: an op type.
    count: the number of inputs that the op has.

  Returns:
    Numbers of inputs.
  """
  linear = rule_of(kind).linear
  return None if linear in (None, BILINEAR) else members(linear, count)
