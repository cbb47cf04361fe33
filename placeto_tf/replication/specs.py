"""The relation of a replica's tensor to the same tensor of the graph at the global batch.

Replicas hold `R^exponent` times the global value: a replica's number of examples has exponent -1,
the gradient of a mean loss at each example has exponent 1.

  Replicated      the global value, the same in all replicas
  Sharded         the replica's examples of it: along one axis one slice for each example
  Gathered        the global value, of the examples of all replicas
  Partial         the replicas' values together are the global one: their sum, maximum, ...
  LocalStatistic  a statistic of the replica's own batch in batch normalization, or computed from
                  one; where one value is needed, the sum
  SparseRows      rows of a variable's gradient (IndexedSlices): those of all replicas, one after
                  the other, are the global ones
  Dimensions      dimensions, some of which count examples
  Container       a container (TensorArray, TensorList, stack) of tensors of one spec
  Unknown         the global value cannot be computed from those of the replicas, or it is not known
                  how; `op` is where that began and `reason` says why

`Sharded(axis, outer)`: of the axis of size `outer * b * inner`, b is the batch; with `outer` 0 all
slices are equal. GSPMD (Xu et al. 2021, section 3) calls the first three replicated, tiled and
gathered, and Partial a partial reduction.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Iterable, Optional, Sequence, Tuple, Union


@dataclasses.dataclass(frozen=True)
class Replicated:
  """The same in all replicas; see the module."""

  exponent: float = 0.0


@dataclasses.dataclass(frozen=True)
class Positions:
  """Numbers of slots, of which each example has `span` in a row; the replica's first is at 0.

  Attributes:
    span: see the class.
    slack: a number below this may be added without leaving the slots of the example.
  """

  span: int = 1
  slack: int = 1


@dataclasses.dataclass(frozen=True)
class Sharded:
  """One slice for each example; see the module.

  Attributes:
    axis, outer, exponent: see the module.
    local: if it holds positions of examples, counted from the replica's first.
    tagged: whether the first column of its last axis holds such positions.
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
  """To be combined over the replicas.

  Attributes:
    how: "sum", "max", "min", "all", "any".
    exponent: see the module.
  """

  how: str
  exponent: float = 0.0


@dataclasses.dataclass(frozen=True)
class LocalStatistic:
  """A replica's own statistic; `exponent` is that of its sum over the replicas."""

  exponent: float = 1.0


@dataclasses.dataclass(frozen=True)
class SparseRows:
  """Rows one after the other; see the module."""

  exponent: float = 0.0


@dataclasses.dataclass(frozen=True)
class Dimensions:
  """Dimensions of a replica's tensor; see the module.

  Attributes:
    axis: of which of them it is known that it alone counts examples.
  """

  axis: Any = None


@dataclasses.dataclass(frozen=True)
class Unknown:
  """Cannot be combined; see the module.

  Attributes:
    op: index of the op where it began.
    reason: a clause on what the op does.
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
# The exponent of zeros, at which a loop begins: any.
FREE = 1e9
MIXES_ROWS = "combines examples of the batch with one another"


def with_exponent(kind: Spec, exponent: float) -> Spec:
  """Returns the spec at another exponent; one that has none as it is.

  Args:
    kind: a spec.
    exponent: the exponent of R.

  Returns:
    The spec at that exponent.
  """
  if isinstance(kind, (Replicated, Sharded, Partial, LocalStatistic, SparseRows)):
    return dataclasses.replace(kind, exponent=exponent)
  return kind


def meets_all_examples(
    tensors: Sequence[Tuple[Spec, Optional[Sequence[Optional[int]]]]]) -> bool:
  """Returns whether rows are broadcast against the examples of all replicas, or may be.

  What is the same everywhere has one element, or no axis, where the rows have their examples.

  Args:
    tensors: (kind, shape) of each.
  """
  # Axes of the examples, counted from the last one, as broadcasting aligns them.
  batch = {kind.axis - len(shape) for kind, shape in tensors
           if isinstance(kind, Sharded) and shape is not None}
  for kind, shape in tensors:
    if isinstance(kind, Gathered) and batch:
      return True
    # A tensor that is the same everywhere must have one element there.
    if isinstance(kind, Replicated) and shape is not None and any(
        len(shape) + axis >= 0 and shape[axis] != 1 for axis in batch):
      return True
  return False


def is_unknown(kind: Spec) -> bool:
  """Returns whether a spec is unclear, or a container of an unclear one."""
  while isinstance(kind, Container):
    kind = kind.content
  return isinstance(kind, Unknown)


def merged_spec(specs: Iterable[Spec], op: int) -> Spec:
  """Returns the spec of a tensor that is one of several, as behind a Merge.

  Args:
    kinds: the specs that the tensor may have.
    op: the op that gives the tensor.

  Returns:
    The spec that fits all of them; `Unknown` where none does.
  """
  found = list(dict.fromkeys(specs))
  if not found:
    return REPLICATED
  unknown = next((kind for kind in found if isinstance(kind, Unknown)), None)
  if unknown is not None:
    return unknown
  if not any(isinstance(kind, Partial) for kind in found):
    # Zeros and global values give way to any other spec.
    found = [kind for kind in found if kind not in (REPLICATED, Replicated(FREE))] or [
        REPLICATED if REPLICATED in found else found[0]]
  if all(isinstance(kind, Container) for kind in found):
    return Container(merged_spec(
        (kind.content for kind in found if isinstance(kind, Container)), op))
  varied = [kind for kind in found if not _is_vague(kind)]
  # Vague rows fit the first spec that varies.
  if varied:
    found = [kind for kind in found if kind in varied or not _fits(kind, varied[0])]
  elif len(found) > 1:
    found = [kind for kind in found if getattr(kind, "exponent", 0.0) != FREE] or found[:1]
  return found[0] if len(found) == 1 else Unknown(
      op, "gives now one thing of the batch and now another")


def _is_vague(kind: Spec) -> bool:
  """Returns whether rows may stand for others: all of them are equal, or zero."""
  return isinstance(kind, Sharded) and (kind.outer == 0 or kind.exponent == FREE)


def _fits(vague: Spec, rows: Spec) -> bool:
  """Returns whether rows that are all equal may stand for such rows."""
  return isinstance(vague, Sharded) and isinstance(rows, Sharded) and vague.axis == rows.axis and (
      vague.exponent in (rows.exponent, FREE)) and vague.outer in (0, rows.outer)
