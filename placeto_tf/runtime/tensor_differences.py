"""Measures the difference of two tensors, and the difference that rounding alone may cause.

Tolerances are relative to the change of a variable, so that a variable that changes little may
differ only little.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

# Relative to the largest element of a tensor, by bits of its type.
_TOLERANCE = {64: 1e-7, 32: 1e-4}
_DEVIATIONS = 12 ** 0.5  # a uniform number times this has a deviation of 1
_ROUNDINGS = 32.0  # observed difference of kernels for different batches
_UNTOLD = 0.05  # with a larger tolerance, the comparison of a variable shows nothing


class SeenDifference(NamedTuple):
  """The measured difference of a fetch or variable.

  Attributes:
    name: of the fetch or variable.
    difference: the largest difference of elements, relative to the largest element.
    tolerance: for roundings, on the same scale.
    is_finite: whether all elements of the graph's tensor are numbers.
    change: change by the steps, relative to the largest element.
  """

  name: str
  difference: float
  tolerance: float
  is_finite: bool
  change: float = 1.0  # by the steps, relative to its largest element

  @classmethod
  def of(
      cls, name: str, one: ArrayLike, other: ArrayLike, change: float = 1.0) -> SeenDifference:
    """Compares a tensor of the graph with the replicas'."""
    return cls(name, difference(one, other), tolerance(one, change), is_finite(one), change)

  @property
  def is_wrong(self) -> bool:
    """Returns whether the difference is more than rounding."""
    return self.difference > self.tolerance

  @property
  def is_large(self) -> bool:
    """Returns whether the difference is a large part of the change, as no roundings are."""
    return self.difference > _UNTOLD * self.change

  @property
  def tells(self) -> bool:
    """Returns whether the comparison would have shown a wrong value."""
    return self.is_finite and self.tolerance <= _UNTOLD

  @property
  def moves(self) -> bool:
    """Returns whether steps change the tensor by much more than rounding."""
    return self.is_finite and self.tolerance <= _UNTOLD * self.change


def difference(one: ArrayLike, other: ArrayLike) -> float:
  """Returns the ratio of the largest difference to the largest element; infinite for other shapes.

  Args:
    one: a tensor of the graph.
    other: the same tensor of the replicas.
  """
  one, other = _real(one), _real(other)
  if one.shape != other.shape:
    return float("inf")
  if not one.size:
    return 0.0
  # Texts and the like are equal or not.
  if one.dtype.kind not in "fiub" and "float" not in str(one.dtype):
    return 0.0 if np.array_equal(one, other) else float("inf")
  # Integers and 16-bit floats: differences in double precision.
  if one.dtype not in (np.float32, np.float64):
    one, other = one.astype(np.float64), other.astype(np.float64)
  # Equal infinities and NaN in the same places count as equal.
  same = (one == other) | (np.isnan(one) & np.isnan(other))
  with np.errstate(invalid="ignore", over="ignore"):
    gap = np.where(same, 0.0, np.abs(one - other)).max()
  largest = np.abs(one).max(where=np.isfinite(one), initial=0.0)
  return float("inf") if np.isnan(gap) else float(gap / (largest or 1.0))


def _real(value: ArrayLike) -> np.ndarray:
  """Returns an array, with real and imaginary parts of complex numbers along one more axis."""
  value = np.asarray(value)
  return np.stack([value.real, value.imag], -1) if value.dtype.kind == "c" else value


def tolerance(value: ArrayLike, change: float = 1.0) -> float:
  """Returns the largest difference that counts as rounding in any graph.

  Args:
    value: a tensor.
    change: distance of a variable from its first value, relative to its largest element. The
      tolerance grows with the change, starting at the rounding of the variable itself.
  """
  dtype = _real(value).dtype
  if dtype not in (np.float32, np.float64):
    return 0.0  # of other numbers, such as texts; those of 16 bits are lifted
  most = _TOLERANCE[8 * dtype.itemsize]
  # Linear in the change, plus the rounding of the variable itself.
  return min(most, most * change + rounding(value))


def rounding(value: ArrayLike) -> float:
  """Returns the relative difference that sums in another order alone may cause."""
  dtype = _real(value).dtype
  return _ROUNDINGS * float(np.finfo(dtype).eps) if dtype.kind == "f" else 0.0


def is_finite(value: ArrayLike) -> bool:
  """Returns whether all elements are finite; infinities agree even if the step is wrong."""
  value = _real(value)
  return (value.dtype.kind != "f" and "float" not in str(value.dtype)) or bool(
      np.isfinite(value).all())


def varied(value: np.ndarray, rng: np.random.Generator) -> np.ndarray:
  """Returns a first value with different elements.

  If all elements of a tensor are equal at first, as in all random tensors here, an exchange of its
  parts would not show. If all are zero, such as the weights of a last layer, errors in earlier ops
  would not show. Also, sums of equal numbers always round in the same direction. Weights of one
  sign enlarge roundings the least.

  Args:
    value: the first value; it is changed if all its elements are equal.
    rng: the source of randomness.

  Returns:
    An array of the same shape and type; the value itself if its elements differ already.
  """
  if value.dtype.kind != "f" or value.size < 2 or (value != value.flat[0]).any():
    return value
  first = float(value.flat[0]) or 0.04
  # 0.5 to 1.5 times the first value, all of one sign.
  return (first * (0.5 + rng.random(value.shape, np.float32))).astype(value.dtype)


def rounded(value: np.ndarray, rng: np.random.Generator) -> np.ndarray:
  """Returns a value with random changes of the size of some roundings.

  Returns:
    A new array, or the value itself where it has no floating-point type.
  """
  if value.dtype.kind != "f":
    return value
  # A uniform relative change with a standard deviation of `_ROUNDINGS` roundings.
  change = _ROUNDINGS * float(np.finfo(value.dtype).eps) * _DEVIATIONS
  sampled = rng.random(value.shape, np.float64 if value.dtype == np.float64 else np.float32)
  return (value * (1 + change * (sampled - 0.5))).astype(value.dtype)
