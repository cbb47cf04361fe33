"""The relation of a replica's tensor to the same tensor at the global batch.

  SAME      equal: it does not depend on the batch, or only on its size
  Rows      the replica's examples of it: along one axis it holds one slice for each example
  MEAN      the mean over the replicas is the value at the global batch: a sum or average over the
            examples, or a linear function of one (gradients, losses, statistics)
  AFTER     a nonlinear function of such means: to be computed once, from the means
  SPARSE    rows of an IndexedSlices that updates a variable: those of all replicas, one after the
            other, are the value at the global batch
  Box       a container (TensorArray, TensorList, stack) of tensors of one kind
  Unclear   the value at the global batch cannot be computed from those of the replicas, or it is
            not known how; `op` is where that began and `reason` says why

`Rows(axis, outer)`: of the axis of size `outer * b * inner`, b is the batch.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Iterable, Union


@dataclasses.dataclass(frozen=True)
class Rows:
  """One slice for each example; see the module."""

  axis: int
  outer: int = 1


@dataclasses.dataclass(frozen=True)
class Unclear:
  """Cannot be combined; see the module.

  Attributes:
    op: index of the op where it began.
    reason: a clause on what the op does.
  """

  op: int
  reason: str


@dataclasses.dataclass(frozen=True)
class Box:
  """A container of tensors of one kind."""

  content: Any


@dataclasses.dataclass(frozen=True)
class _Plain:
  name: str

  def __repr__(self) -> str:
    return self.name


SAME, MEAN, AFTER, SPARSE = (_Plain(name) for name in ("SAME", "MEAN", "AFTER", "SPARSE"))
Kind = Union[_Plain, Rows, Unclear, Box]
MIXES_ROWS = "combines examples of the batch with one another"


def join(kinds: Iterable[Kind], op: int) -> Kind:
  """The kind of a tensor that is one of several, as behind a Merge."""
  result: Kind = SAME
  for kind in kinds:
    if kind == result or kind is SAME:
      continue
    if result is SAME or isinstance(kind, Unclear):
      result = kind
    elif isinstance(result, Unclear):
      pass
    elif isinstance(kind, Box) and isinstance(result, Box):
      result = Box(join((result.content, kind.content), op))
    elif {kind, result} <= {MEAN, AFTER}:
      result = AFTER
    else:
      result = Unclear(op, "gives now one thing of the batch and now another")
  return result
