"""Files of trained weights: weights.npz has the arrays by name, weights.json describes them."""

from __future__ import annotations

import dataclasses
import io
import os
from typing import Any, Dict, Iterator, List, Mapping, Sequence, Tuple, Type, TypeVar

import numpy as np

from placeto_tf.errors import PlacementError, PlacetoError
from placeto_tf.files import outputs, user_files

ARRAYS, SIDECAR = "weights.npz", "weights.json"
_Config = TypeVar("_Config")
_MOST = 1 << 20  # the largest size that a configuration may have


def write(directory: str, arrays: Mapping[str, np.ndarray], sidecar: Dict[str, Any]) -> None:
  """Writes both files; each appears when it is complete.

  Args:
    directory: made where it does not exist.
    arrays: name -> array.
    sidecar: the content of weights.json.

  Raises:
    PlacetoError: the files cannot be written.
  """
  os.makedirs(directory, exist_ok=True)
  content = io.BytesIO()
  savez: Any = np.savez  # its types take every keyword for allow_pickle
  savez(content, **arrays)
  outputs.write(os.path.join(directory, ARRAYS), content.getvalue(), what="the weights ")
  outputs.write_json(os.path.join(directory, SIDECAR), sidecar)


def read(
    directory: str, *, remedy: str, error_type: Type[PlacetoError] = PlacetoError
) -> Tuple[Dict[str, Any], Dict[str, np.ndarray]]:
  """Reads both files of a directory.

  Args:
    directory: of the weights, or of the training run that wrote them.
    remedy: advice about a wrong file, for the error.
    error_type: type of the error that is raised if a file is wrong.

  Returns:
    The content of weights.json; and name -> array, all of finite numbers.

  Raises:
    error_type: a file is missing or damaged, or an array holds NaN or infinity.
  """
  # A training run has its weights in a directory of their own.
  inner = os.path.join(directory, "weights")
  if not os.path.exists(os.path.join(inner, SIDECAR)):
    inner = directory
  options: Dict[str, Any] = dict(remedy=remedy, error_type=error_type)
  sidecar = user_files.read_json_object(
      os.path.join(inner, SIDECAR), what="the description of weights", **options)
  return sidecar, user_files.read_arrays(
      os.path.join(inner, ARRAYS), what="the weights", check=_check_finite, **options)


def write_network(
    directory: str, values: Sequence[np.ndarray], config: Any, **notes: Any) -> None:
  """Writes the weights of a network; its arrays are named by their numbers.

  Args:
    directory: made where it does not exist.
    values: in the order of the network's variables.
    config: dataclass with the network's configuration.
    **notes: further content of weights.json.
  """
  write(directory, {str(i): value for i, value in enumerate(values)},
        {"config": dataclasses.asdict(config), **notes})


def read_network(
    directory: str, config_type: Type[_Config], flags: str, **expected: Any
) -> Tuple[Dict[str, Any], _Config, List[np.ndarray]]:
  """Reads the weights that `write_network` wrote.

  Args:
    directory: of the weights, or of the training run that wrote them.
    config_type: type of the configuration; all its fields have defaults.
    flags: of scripts/train.py for training such weights, for the error.
    **expected: content of weights.json, such as the version.

  Returns:
    The content of weights.json, the configuration, and the arrays.

  Raises:
    PlacementError: the files are missing, damaged, or have other content than expected.
  """
  remedy = f"give a directory that placeto-train {flags} wrote"
  sidecar, arrays = read(directory, remedy=remedy, error_type=PlacementError)
  try:
    # Inputs of another version would run through the network without an error.
    for name, value in expected.items():
      if sidecar.get(name) != value:
        raise ValueError(f"{name} is {sidecar.get(name)!r}, expected {value!r}")
    values = [arrays[str(i)] for i in range(len(arrays))]
    return sidecar, config_of(config_type, sidecar["config"]), values
  except (KeyError, TypeError, ValueError, PlacetoError) as error:
    raise PlacementError(
        f"the weights in {directory} were not understood ({error}); {remedy}") from None


def assign(variables: Sequence[Any], values: Sequence[np.ndarray]) -> None:
  """Assigns values to the variables of a network.

  Args:
    variables, values: in the same order.

  Raises:
    PlacetoError: the shape of a value differs from its variable's.
  """
  found, expected = ([tuple(each.shape) for each in row] for row in (values, variables))
  if found != expected:
    raise PlacetoError(
        f"the weights are of another network: shapes {found}, expected {expected}; train them "
        "for as many devices and with the same network options")
  for variable, value in zip(variables, values):
    variable.assign(value)


def config_of(config_type: Type[_Config], content: Any) -> _Config:
  """Builds a dataclass from the content of a JSON file.

  Args:
    config_type: the dataclass; all its fields have defaults.
    content: field -> value; missing fields have their defaults.

  Raises:
    PlacetoError: a field is unknown (for example from a later version), or its value is wrong.
  """
  from placeto_tf.training import settings  # needs the packages for training

  return settings.changed(config_type(), list(_settings("", content)))


def _settings(name: str, value: Any) -> Iterator[str]:
  """Yields `name=value` of each field of nested dictionaries."""
  from placeto_tf.training.settings import to_text

  if isinstance(value, dict):
    for inner, each in value.items():
      yield from _settings(f"{name}.{inner}".lstrip("."), each)
    return
  # A huge size would exhaust memory before any array is compared.
  if not name or isinstance(value, (int, float)) and abs(value) > _MOST:
    raise PlacetoError(f"{name or 'the configuration'} is {user_files.brief(value)}")
  yield f"{name}={to_text(value)}"


def _check_finite(name: str, array: np.ndarray) -> None:
  """Raises ValueError if an array holds other values than finite numbers."""
  if array.dtype.kind not in "fiu":  # float, int, unsigned
    raise ValueError(f"the array {name!r} is of {array.dtype}, expected numbers")
  if not np.isfinite(array).all():
    raise ValueError(
        f"the array {name!r} holds NaN or infinity: take the weights of an earlier checkpoint")
