"""Files of trained weights: weights.npz has the arrays by name, weights.json describes them."""

from __future__ import annotations

import dataclasses
import io
import os
from typing import Any, Dict, Mapping, Tuple, Type, TypeVar

import numpy as np

from placeto_tf.errors import PlacetoError
from placeto_tf.files import outputs, user_files

ARRAYS, SIDECAR = "weights.npz", "weights.json"
_Config = TypeVar("_Config")
_MOST = 1 << 20  # of any size in a configuration


def directory_of(directory: str) -> str:
  """Returns the directory of the files: this one, or the `weights` of a training run's directory.

  Args:
    directory: of weights, or of a training run.
  """
  inner = os.path.join(directory, "weights")
  return inner if os.path.exists(os.path.join(inner, SIDECAR)) else directory


def write(directory: str, arrays: Mapping[str, np.ndarray], sidecar: Dict[str, Any]) -> None:
  """Writes both files; each appears when it is complete.

  Args:
    directory: made where it does not exist.
    arrays: name -> array.
    sidecar: the content of weights.json.

  Raises:
    PlacetoError: they cannot be written.
  """
  os.makedirs(directory, exist_ok=True)
  content = io.BytesIO()
  savez: Any = np.savez  # its types take every keyword for allow_pickle
  savez(content, **arrays)
  outputs.write(os.path.join(directory, ARRAYS), content.getvalue(), what="the weights ")
  outputs.write_json(os.path.join(directory, SIDECAR), sidecar)


def read_sidecar(
    directory: str, *, remedy: str, error_type: Type[PlacetoError] = PlacetoError
) -> Dict[str, Any]:
  """Reads weights.json of a directory.

  Args:
    directory: of the weights, or of the training run that wrote them.
    remedy: advice about a wrong file, for the error.
    error_type: raised where the file is wrong.

  Returns:
    Its content.

  Raises:
    error_type: the file is missing or damaged.
  """
  return user_files.read_json_object(
      os.path.join(directory_of(directory), SIDECAR), what="the description of weights",
      remedy=remedy, error_type=error_type)


def read_arrays(
    directory: str, *, remedy: str, error_type: Type[PlacetoError] = PlacetoError
) -> Dict[str, np.ndarray]:
  """Reads the arrays of weights.npz of a directory, all of finite numbers.

  Args:
    directory: of the weights, or of the training run that wrote them.
    remedy: advice about a wrong file, for the error.
    error_type: raised where a file is wrong.

  Returns:
    Name -> array.

  Raises:
    error_type: the file is missing or damaged, or an array holds NaN or infinity.
  """
  return user_files.read_arrays(
      os.path.join(directory_of(directory), ARRAYS), what="the weights", remedy=remedy,
      error_type=error_type, check=_check_finite)


def config_of(config_type: Type[_Config], content: Any) -> _Config:
  """Builds a dataclass from the content of a JSON file.

  Its fields are flags, numbers, names, None, tuples of pairs of numbers, and such dataclasses.

  Args:
    config_type: the dataclass; all its fields have defaults.
    content: field -> value; fields that are missing keep their defaults.

  Returns:
    An instance of `config_type`.

  Raises:
    ValueError: a field is unknown, or its value is not of its default's type.
  """
  if not isinstance(content, dict):
    raise ValueError(f"the {config_type.__name__} is {user_files.brief(content)}")
  defaults: Any = config_type()
  fields = {field.name: field for field in dataclasses.fields(defaults)}
  # Unknown fields are errors: weights of a later version may mean something else by them.
  unknown = sorted(set(content) - set(fields))
  if unknown:
    raise ValueError(f"{', '.join(unknown)} is no field of {config_type.__name__}")
  return config_type(**{
      name: _like(fields[name], getattr(defaults, name), value) for name, value in content.items()})


def size_of(sidecar: Mapping[str, Any], name: str) -> int:
  """Reads a size in weights.json.

  Args:
    sidecar: the content of weights.json.
    name: of the size.

  Returns:
    The size, from 1 to 2^20.

  Raises:
    ValueError: the size is no whole number in this range.
  """
  value = sidecar.get(name)
  # bool is an int, and a huge size would exhaust memory before any array is compared.
  if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST:
    raise ValueError(f"{name} is {user_files.brief(value)}, expected a whole number from 1 on")
  return value


def _check_finite(name: str, array: np.ndarray) -> None:
  """Raises ValueError where an array does not hold finite numbers."""
  if array.dtype.kind not in "fiu":  # float, int, unsigned
    raise ValueError(f"the array {name!r} is of {array.dtype}, expected numbers")
  if not np.isfinite(array).all():
    raise ValueError(
        f"the array {name!r} holds NaN or infinity: take those of an earlier checkpoint")


def _like(field: dataclasses.Field, default: Any, value: Any) -> Any:
  """Returns the value of a field, if it is of its default's type."""
  # Nested dataclasses first, then tuples, which JSON holds as lists of lists.
  if dataclasses.is_dataclass(default):
    return config_of(type(default), value)
  if isinstance(default, tuple):
    try:
      return tuple((float(first), float(second)) for first, second in value)
    except (TypeError, ValueError):
      raise ValueError(
          f"{field.name} is {user_files.brief(value)}, expected pairs of numbers") from None
  # None is allowed where it is the default or the annotation says Optional.
  if value is None and (default is None or "Optional" in str(field.type)):
    return value
  # The default's type decides; without one, any number. An int serves as a float.
  expected: Tuple[type, ...] = {
      bool: (bool,), int: (int,), float: (int, float), str: (str,)}.get(
          type(default), (int, float))
  # bool is an int, but a flag is no number.
  wrong = not isinstance(value, expected) or (isinstance(value, bool) and bool not in expected)
  if wrong or (isinstance(value, (int, float)) and abs(value) > _MOST):
    raise ValueError(f"{field.name} is {user_files.brief(value)}")
  return value
