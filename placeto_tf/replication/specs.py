"""Sharding specs: relations of a replica's tensor to the same tensor at the global batch.

Replicas hold `R^exponent` times the global value: a replica's number of examples has exponent -1,
the gradient of a mean loss at each example has exponent 1.

  Replicated      the global value, equal in all replicas
  Sharded         the replica's examples of the global value: one axis has a slice for each example
  Gathered        the global value, which holds the examples of all replicas
  Partial         the sum, maximum, ... over the replicas is the global value
  LocalStatistic  a statistic of the replica's own batch in batch normalization, or a value computed
                  from one; the sum over the replicas stands for the global value
  SparseRows      rows of a variable's gradient (IndexedSlices); the concatenation over the replicas
                  gives the global rows
  Dimensions      dimensions, some of which count examples
  Container       a container (TensorArray, TensorList, stack) of tensors of one spec
  Unknown         the global value cannot be computed from the replicas' values, or no rule is
                  known; `op` is the first such op and `reason` says why

`Sharded(axis, outer)`: the axis has the size `outer * b * inner`, where b is the batch. If `outer`
is 0, all slices are equal. GSPMD (Xu et al. 2021, section 3) calls the first three replicated,
tiled and gathered, and Partial a partial reduction.
"""

from __future__ import annotations

import dataclasses
from typing import Iterable, Optional, Sequence, Tuple, Union


@dataclasses.dataclass(frozen=True)
class Replicated:
  """Equal in all replicas; see the module."""

  exponent: float = 0.0


@dataclasses.dataclass(frozen=True)
class Positions:
  """Indices of slots: each example has `span` consecutive slots; a replica's slots begin at 0.

  Attributes:
    span: slots of each example.
    slack: adding any number from 0 to `slack - 1` gives another slot of the same example.
  """

  span: int = 1
  slack: int = 1


@dataclasses.dataclass(frozen=True)
class Sharded:
  """One slice for each example; see the module.

  Attributes:
    axis, outer, exponent: see the module.
    local: the positions that the tensor holds, counted from the replica's first example; or None.
    tagged: whether the first column of the tensor's last axis holds such positions.
  """

  axis: int
  outer: int = 1
  exponent: float = 0.0
  local: Optional[Positions] = None
  tagged: bool = False


@dataclasses.dataclass(frozen=True)
class Gathered:
  """The examples of all replicas, in their order."""


@dataclasses.dataclass(frozen=True)
class Partial:
  """A value to be reduced over the replicas.

  Attributes:
    how: "sum", "max", "min", "all", "any".
    exponent: see the module.
  """

  how: str
  exponent: float = 0.0


@dataclasses.dataclass(frozen=True)
class LocalStatistic:
  """A replica's own statistic; `exponent` is the exponent of the sum over the replicas."""

  exponent: float = 1.0


@dataclasses.dataclass(frozen=True)
class SparseRows:
  """Rows to be concatenated over the replicas; see the module."""

  exponent: float = 0.0


@dataclasses.dataclass(frozen=True)
class Dimensions:
  """Dimensions of a replica's tensor; see the module."""


@dataclasses.dataclass(frozen=True)
class Unknown:
  """Cannot be combined; see the module.

  Attributes:
    op: index of the first op whose result is unknown.
    reason: a clause whose subject is the op.
  """

  op: int
  reason: str


@dataclasses.dataclass(frozen=True)
class Container:
  """A container of tensors of one sharding spec."""

  content: Spec


@dataclasses.dataclass(frozen=True)
class Either:
  """The content of a container that both branches of a cond fill, each for its own gradient.

  Attributes:
    predicate: (op, port) of the tensor that decides between them.
    true, false: specs of the tensors that the branches put into it.
  """

  predicate: Tuple[int, int]
  true: Spec
  false: Spec


Spec = Union[
    Replicated, Sharded, Gathered, Partial, LocalStatistic, SparseRows, Dimensions, Container,
    Either, Unknown]
REPLICATED = Replicated()
# The exponent of zeros, such as the start of a sum in a loop. Zeros fit any exponent.
FREE = 1e9
MIXES_ROWS = "combines examples of the batch with one another"


def with_exponent(spec: Spec, exponent: float) -> Spec:
  """Returns the spec with another exponent; a spec without an exponent is returned unchanged."""
  if isinstance(spec, (Replicated, Sharded, Partial, LocalStatistic, SparseRows)):
    return dataclasses.replace(spec, exponent=exponent)
  return spec


def meets_all_examples(
    tensors: Sequence[Tuple[Spec, Optional[Sequence[Optional[int]]]]]) -> bool:
  """Returns whether sharded rows are, or may be, broadcast against the examples of all replicas.

  A replicated tensor may be broadcast against rows only if it has one element, or no axis, at the
  axis of the examples.
  """
  # Axes of the examples, counted from the last one, as broadcasting aligns them.
  batch = {spec.axis - len(shape) for spec, shape in tensors
           if isinstance(spec, Sharded) and shape is not None}
  if max(batch, default=-1) >= 0:
    return True  # a shape that its spec contradicts
  for spec, shape in tensors:
    if isinstance(spec, Gathered) and batch:
      return True
    # A replicated tensor must have one element along the axis of the examples.
    if isinstance(spec, Replicated) and shape is not None and any(
        len(shape) + axis >= 0 and shape[axis] != 1 for axis in batch):
      return True
  return False


def is_unknown(spec: Spec) -> bool:
  """Returns whether a spec is `Unknown`, or a container of tensors of `Unknown` spec."""
  while isinstance(spec, Container):
    spec = spec.content
  return isinstance(spec, Unknown)


def merged_spec(specs: Iterable[Spec], op: int) -> Spec:
  """Returns the spec of a tensor that is one of several tensors, such as the output of a Merge.

  Args:
    specs: the specs of these tensors.
    op: the op that outputs the tensor.

  Returns:
    A spec that fits all of them; `Unknown` where none does.
  """
  found = list(dict.fromkeys(specs))
  if not found:
    return REPLICATED
  unknown = next((spec for spec in found if isinstance(spec, Unknown)), None)
  if unknown is not None:
    return unknown
  if not any(isinstance(spec, Partial) for spec in found):
    # Zeros give way to any other spec, global values to examples, but not to what counts them.
    others = [spec for spec in found if spec not in (REPLICATED, Replicated(FREE))]
    kept = REPLICATED in found and any(
        isinstance(spec, (Replicated, Dimensions)) or getattr(spec, "local", None)
        for spec in others)
    found = [REPLICATED] * kept + others or [REPLICATED if REPLICATED in found else found[0]]
  if all(isinstance(spec, Container) for spec in found):
    return Container(merged_spec(
        (spec.content for spec in found if isinstance(spec, Container)), op))
  varied = [spec for spec in found if not _is_vague(spec)]
  # Rows that are all equal or zero take the first spec that is not so.
  if varied:
    found = [spec for spec in found if spec in varied or not _fits(spec, varied[0])]
  elif len(found) > 1:
    found = [spec for spec in found if getattr(spec, "exponent", 0.0) != FREE] or found[:1]
  return found[0] if len(found) == 1 else Unknown(
      op, "gives now one thing of the batch and now another")


def _is_vague(spec: Spec) -> bool:
  """Returns whether all rows are equal or zero, so that they fit any sharded spec of the axis."""
  return isinstance(spec, Sharded) and (spec.outer == 0 or spec.exponent == FREE)


def _fits(vague: Spec, rows: Spec) -> bool:
  """Returns whether rows that are all equal or zero fit another spec."""
  return isinstance(vague, Sharded) and isinstance(rows, Sharded) and vague.axis == rows.axis and (
      vague.exponent in (rows.exponent, FREE)) and vague.outer in (0, rows.outer) and (
          vague.local == rows.local)
