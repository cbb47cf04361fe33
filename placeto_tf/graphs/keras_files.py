"""Keras models in files: `.keras` archives and HDF5, of Keras 2 and Keras 3.

A file names the version of Keras that wrote it, and is loaded with that Keras. A Lambda layer whose
code is in the file runs this code when the model is loaded, so such a file is loaded only if the
caller trusts it. The check is here because not every version of Keras checks HDF5 files.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import zipfile
import zlib
from types import ModuleType
from typing import Any, Iterator, Tuple

from placeto_tf.errors import GraphError, SetupError, one_line, option
from placeto_tf.files import user_files
from placeto_tf.on_use import keras

SUFFIXES = (".keras", ".h5", ".hdf5")
_REMEDY = "give a file that model.save has written"
# Exceptions that zipfile, zlib, json and h5py raise for damaged files.
_DAMAGED = (
    OSError, KeyError, ValueError, RuntimeError, TypeError, AttributeError, EOFError, MemoryError,
    NotImplementedError, RecursionError, zipfile.BadZipFile, zlib.error)


def is_keras_file(path: user_files.Path) -> bool:
  """Returns whether a path has the suffix of a Keras model."""
  return str(path).lower().endswith(SUFFIXES)


def load_model(path: user_files.Path, trusted: bool = False) -> keras.Model:
  """Loads the Keras model in a file, not compiled.

  Args:
    path: of a `.keras`, `.h5` or `.hdf5` file.
    trusted: whether code in the file may be run.

  Returns:
    The model, as an object of the Keras that wrote the file.

  Raises:
    GraphError: the file cannot be read, holds only weights, needs custom objects, or contains code
      and is not trusted.
    SetupError: the Keras that wrote the file is not installed.
  """
  path = os.fspath(path)
  user_files.check_regular(
      path, what="the Keras model", remedy=_REMEDY, error_type=GraphError)
  # Both kinds of files hold the configuration as JSON, and the version of their Keras.
  try:
    version, config = _read_archive(path) if path.lower().endswith(".keras") else _read_hdf5(path)
  except _DAMAGED as error:
    raise GraphError(
        f"cannot read the Keras model {path!r} ({one_line(error)}); {_REMEDY}") from None
  code = next(_code_in(config), None)
  if code is not None and not trusted:
    raise GraphError(
        f"the Keras model {path!r} holds code of its own ({code}), which would be run; load it "
        f"with {option('trusted', True)} if you trust where it comes from")
  keras = _keras_of(version, path)
  try:
    if keras.__version__ < "3" and path.lower().endswith(".keras"):
      # The archive names modules as the Keras that wrote it does, `keras` or `tf_keras`.
      model = keras.saving.deserialize_keras_object(
          {**_in_words_of(keras, config), "compile_config": None}, safe_mode=not trusted)
      model.load_weights(path)
      return model
    return keras.models.load_model(path, compile=False, safe_mode=not trusted)
  except Exception as error:  # layers, also unknown ones, may raise any exception
    raise GraphError(
        f"Keras {keras.__version__} cannot load the model {path!r} ({one_line(error, 300)}); if it "
        "has layers of your own, load it yourself and hand over the model") from error


def _read_archive(path: str) -> Tuple[str, Any]:
  """Returns the Keras version and configuration in a `.keras` file."""
  with zipfile.ZipFile(path) as archive:
    metadata = json.loads(archive.read("metadata.json"))
    return str(metadata.get("keras_version", "")), json.loads(archive.read("config.json"))


def _read_hdf5(path: str) -> Tuple[str, Any]:
  """Returns the Keras version and configuration in an HDF5 file."""
  import h5py

  with h5py.File(path, "r") as file:
    config, version = file.attrs.get("model_config"), file.attrs.get("keras_version", "")
  if config is None:
    raise GraphError(
        f"{path!r} holds no model, only weights or other data; save the whole model with "
        "model.save")
  return _text(version), json.loads(_text(config))


def _text(value: object) -> str:
  return value.decode("utf-8") if isinstance(value, bytes) else str(value)


def _code_in(config: Any) -> Iterator[str]:
  """Yields the names of the parts of a configuration that are code."""
  # A walk over nested lists and dicts, without recursion.
  pending = [config]
  while pending:
    found = pending.pop()
    if isinstance(found, list):
      pending += found
    if not isinstance(found, dict):
      continue
    inner = found.get("config")
    if found.get("class_name") == "__lambda__":
      yield "a lambda"
    elif found.get("class_name") == "Lambda" and isinstance(inner, dict) and (
        # Code has a type "lambda", or is a list of its bytes, defaults and closure.
        "lambda" in (inner.get(f"{name}_type") for name in ("function", "output_shape", "mask"))
        or isinstance(inner.get("function"), list)):
      yield f"the Lambda layer {inner.get('name', '')!r}"
    pending += found.values()


def _keras_of(version: str, path: str) -> ModuleType:
  """Returns the installed Keras that reads files of this version."""
  wants_3 = not version.startswith(("1.", "2."))
  for name in ("keras",) if wants_3 else ("tf_keras", "keras"):
    try:
      package = importlib.import_module(name)
    except ImportError:
      continue
    if (int(package.__version__.partition(".")[0]) >= 3) == wants_3 and _makes_own_layers(package):
      return package
  raise SetupError(
      f"the model {path!r} was written by Keras {version or 'of an unknown version'}, which is not "
      f"installed; install {'keras>=3' if wants_3 else 'tf_keras'}")


def _makes_own_layers(package: ModuleType) -> bool:
  """Returns whether this Keras makes layers of its own classes from a file's configuration.

  `keras` 2 and `tf_keras` register their classes with TensorFlow under the same names. TensorFlow
  gives both packages the classes of the package that was imported last. Building a model of one
  package with layers of the other would never end.
  """
  if package.__version__ >= "3":
    return True
  layer = package.saving.deserialize_keras_object({
      "module": "keras.layers", "class_name": "InputLayer", "registered_name": None,
      "config": {"batch_input_shape": [None, 1], "name": "probe"}})
  return isinstance(layer, package.layers.InputLayer)


def _in_words_of(package: ModuleType, config: Any) -> Any:
  """Returns the configuration of a Keras 2 archive, with module names of the installed package.

  The configuration names classes by their modules in the package that wrote the file, `keras` or
  `tf_keras`.
  """
  if isinstance(config, list):
    return [_in_words_of(package, inner) for inner in config]
  if not isinstance(config, dict):
    return config
  found = {name: _in_words_of(package, inner) for name, inner in config.items()}
  if isinstance(found.get("module"), str) and "class_name" in found:
    found["module"] = re.sub(r"^(tf_)?keras\.src\.", f"{package.__name__}.src.", found["module"])
  return found
