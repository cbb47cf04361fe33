"""Rules for the scale of an op's result, given the scales of its inputs: `exponent` in `specs`.

A replica's tensor may be `R^exponent` times the global tensor. An op that is homogeneous in its
inputs passes the factor on. Before any other op, the input is multiplied by `R^-exponent`, which
gives the global value.
"""

from __future__ import annotations

from typing import Any, Dict, FrozenSet, List, Optional, Sequence, Tuple

from placeto_tf.graphs.colocation import RESOURCE
from placeto_tf.ops import members, rule_of
from placeto_tf.replication import specs
from placeto_tf.replication.dataflow import Dataflow, Tensor
from placeto_tf.replication.scaling import Scaling

BILINEAR = "bilinear"
# Fixes: changes to an input before an op reads the input.
GLOBAL, SCALE, SLICE, OFFSET = "global", "scale", "slice", "offset"
# (GLOBAL,), (SCALE, exponent), (SLICE, axis), (OFFSET, numbers of an example, its slots)
Fix = Tuple[Any, ...]

HANDLES = (RESOURCE, 21)  # and DT_VARIANT, the handle of a list


class Inputs:
  """The inputs of one op: their specs, and the fixes that are made before it reads them."""

  def __init__(self, flow: Dataflow, scaling: Scaling, op: int, given: Sequence[specs.Spec]):
    self.op = op
    self.specs: List[specs.Spec] = list(given)
    self.given = tuple(given)
    self.fixes: Dict[int, Fix] = {}
    self._flow, self._scaling = flow, scaling

  def exponents(self) -> List[float]:
    """Returns the exponent of each input."""
    # A spec without an exponent is the global value, at exponent 0.
    return [getattr(spec, "exponent", 0.0) for spec in self.specs]

  def is_whole(self, i: int) -> bool:
    """Returns whether an input holds whole numbers or booleans."""
    return self._flow.is_integer(self._flow.inputs[self.op][i])

  def make_global(self, i: int) -> None:
    """Replaces the replica's value of an input by the global value."""
    spec = self.specs[i]
    if spec == specs.REPLICATED or isinstance(spec, specs.Gathered):
      return
    if isinstance(spec, specs.Replicated):
      self.to_exponent(i, 0.0)
      return
    if isinstance(spec, specs.Sharded) and (
        spec.outer > 1 or spec.tagged or spec.local and spec.exponent):
      raise NotFollowed("needs all examples of the batch in an order that replicas do not keep")
    if isinstance(spec, specs.Sharded) and (
        self._flow.dtype(self._flow.inputs[self.op][i]) == RESOURCE):
      raise NotFollowed("needs a variable that keeps examples, and each replica keeps its own ones")
    if isinstance(spec, (specs.Container, specs.Unknown)):
      raise NotFollowed("needs a container of values over the batch")
    if isinstance(spec, specs.Dimensions) and self._scaling.factors(
        self._flow.inputs[self.op][i]) is None:
      raise NotFollowed("needs dimensions of the whole batch that are not known")
    self.fixes[i] = (GLOBAL,)
    self.specs[i] = specs.Gathered() if isinstance(
        spec, (specs.Sharded, specs.SparseRows)) else specs.REPLICATED

  def run_once(self) -> List[specs.Spec]:
    """Makes all inputs global, for an op that exists once; returns the spec of one output."""
    for i in range(len(self.specs)):
      self.make_global(i)
      self.specs[i] = specs.REPLICATED
    return [specs.REPLICATED]

  def scale(self, i: int, by: float) -> None:
    """Multiplies the replica's value of an input by `R^by`.

    Args:
      i: number of the input.
      by: the exponent of R to multiply with.
    """
    spec = self.specs[i]
    if not by:
      return
    # Whole numbers can be multiplied, but not divided.
    if self.is_whole(i) and by < 0:
      raise NotFollowed("needs a part of a whole number that counts examples")
    before = self.fixes.get(i)
    by_now = by + (before[1] if before and before[0] == SCALE else 0.0)
    # An input has one fix: one that is sliced, offset or made global cannot be scaled as well.
    if before and before[0] != SCALE:
      raise NotFollowed("needs positions of examples at another scale")
    self.fixes[i] = (SCALE, by_now)
    self.specs[i] = specs.with_exponent(spec, getattr(spec, "exponent", 0.0) + by)
    if not by_now:
      del self.fixes[i]

  def to_exponent(self, i: int, exponent: float) -> None:
    """Multiplies an input by the power of R that gives the input this exponent."""
    spec = self.specs[i]
    # Zeros are at any exponent, also after they were multiplied.
    if abs(self.exponents()[i]) > specs.FREE / 4:
      self.specs[i] = specs.with_exponent(spec, exponent)
    else:
      self.scale(i, exponent - self.exponents()[i])

  def globalize_indices(self, data: int) -> None:
    """Multiplies indices and sizes that count a replica's examples, which gives global ones.

    Args:
      data: number of the input that they index, which holds the same numbers in all replicas, or
        sums over the examples.
    """
    for i, spec in enumerate(self.specs):
      if i != data and self.is_whole(i) and isinstance(spec, (specs.Replicated, specs.Sharded)):
        self.to_exponent(i, 0.0)

  def as_partial(self, i: int, exponent: float) -> None:
    """Turns an input that is equal in all replicas into 1/R of it, a summand of a partial tensor.
    """
    spec = self.specs[i]
    if isinstance(spec, specs.Replicated):
      if spec.exponent != specs.FREE:
        # A share of a sum: 1/R of the value, at the exponent of the other shares.
        self.scale(i, exponent - 1 - spec.exponent)
      self.specs[i] = specs.Partial("sum", exponent)

  def slice(self, i: int, axis: int) -> None:
    """Replaces a global value by the replica's rows of it.

    Args:
      i: number of the input.
      axis: the axis of the examples.
    """
    self.fixes[i] = (SLICE, axis)
    self.specs[i] = specs.Sharded(axis)

  def offset(self, i: int, batch: int) -> None:
    """Turns positions in a replica's batch into positions in the global batch."""
    spec = self.specs[i]
    assert isinstance(spec, specs.Sharded) and spec.local is not None
    numbers = numbers_of_an_example(self._flow, self._flow.inputs[self.op][i], batch)
    if spec.exponent or numbers is None:
      # Scaled positions, or an unknown number of positions per example, allow no offset.
      raise NotFollowed("computes with positions of examples in the batch")
    self.fixes[i] = (OFFSET, numbers, spec.local.span)
    self.specs[i] = specs.Sharded(spec.axis, spec.outer)


class NotFollowed(Exception):
  """The batch cannot be followed through an op; the text is a clause whose subject is the op."""


def numbers_of_an_example(flow: Dataflow, tensor: Tensor, batch: int) -> Optional[int]:
  """Returns the number of elements that a tensor holds for each example, or None if unknown."""
  numbers, rest = divmod(flow.elements(tensor) or 0, batch)
  return None if rest or not numbers else numbers


def result_exponent(flow: Dataflow, view: Inputs) -> float:
  """Returns the exponent of an op's results, and scales inputs where the op needs that.

  Returns:
    The exponent of R; `FREE` for zeros.

  Raises:
    NotFollowed: a fix would divide whole numbers.
  """
  op, exponents = view.op, view.exponents()
  scale = rule_of(flow.types[op]).scale
  if not any(exponents) or scale is not None and scale.kind == "shape":
    return 0.0
  # A cast to whole numbers rounds, which does not commute with scaling.
  rounds = flow.types[op] == "Cast" and flow.is_integer((op, 0)) and not view.is_whole(0)
  inputs = () if scale is None else members(scale.inputs, len(exponents))
  if scale is None or rounds:
    found = _at_global_value(view)
  # f(c x) = c^degree f(x)
  elif scale.kind == "factor":
    if not isinstance(view.specs[inputs[0]], specs.Sharded):
      view.globalize_indices(inputs[0])
    found = exponents[inputs[0]] * scale.degree
  elif scale.kind == "gradient":
    found = _at_global_value(view, frozenset(inputs))
  elif scale.kind == "alike":
    found = _equal(view, inputs) * scale.degree
  else:
    # Exponents of factors add up; the exponent of a divisor is subtracted.
    found = sum(exponents) if scale.kind == "product" else exponents[0] - exponents[1]
  return specs.FREE if abs(found) > specs.FREE / 4 else found


def _equal(view: Inputs, alike: Sequence[int]) -> float:
  """Scales inputs to one common exponent and returns the exponent."""
  exponents = view.exponents()
  # Inputs of exponent FREE are zeros, and take any exponent.
  if all(exponents[i] == specs.FREE for i in alike):
    return specs.FREE
  whole = any(view.is_whole(i) for i in alike)
  found = [i for i in alike if exponents[i] != specs.FREE]
  rows = [exponents[i] for i in found if isinstance(view.specs[i], specs.Sharded)]
  # Whole numbers are scaled up to the largest exponent, because they cannot be divided.
  exponent = max(exponents[i] for i in found) if whole or not rows else rows[0]
  for i in alike:
    if not isinstance(view.specs[i], specs.Dimensions):
      view.to_exponent(i, exponent)
  return exponent


def _at_global_value(view: Inputs, but: FrozenSet[int] = frozenset()) -> float:
  """Scales inputs to exponent 0, except the inputs of `but`; returns the exponent of the result."""
  found = 0.0
  for i, exponent in enumerate(view.exponents()):
    # The result has the exponent of the input that is not scaled.
    if i in but:
      found = exponent
    elif exponent:
      view.to_exponent(i, 0.0)
  return found
