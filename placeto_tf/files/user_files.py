"""Reads files that a user names: only regular files, with limits of size and content.

A path may be a pipe that never ends, a device, a directory or a huge file; a JSON file may be
nested too deeply or repeat its keys; an archive of arrays may declare terabytes. Such files are
refused before they take memory or time, with the error type that the caller chooses. The message
names the file, the problem, the expected content, and the caller's remedy.
"""

from __future__ import annotations

import collections
import io
import json
import math
import os
import stat
import tokenize
import warnings
import zipfile
import zlib
from typing import Any, Callable, Dict, List, Optional, Tuple, Type, Union

import numpy as np

from placeto_tf.errors import PlacetoError, one_line

GB = 2**30
MOST_BYTES = 2 * GB - 1  # the most that a protocol buffer may hold
MOST_JSON_BYTES = 64 * 2**20  # Python objects take some twenty times as much
MOST_ARRAY_BYTES = GB  # of weights
_MOST_INTEGER = 2**63  # limit of integers in arrays
_KINDS = (
    (stat.S_ISDIR, "a directory"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"))
# Exceptions that zipfile, zlib and NumPy raise for damaged archives.
_DAMAGED = (
    ValueError, EOFError, KeyError, IndexError, OSError, NotImplementedError, RuntimeError,
    SyntaxError, TypeError, OverflowError, MemoryError, RecursionError, tokenize.TokenError,
    zipfile.BadZipFile, zlib.error)
Path = Union[str, os.PathLike]


def read_bytes(
    path: Path, *, what: str, remedy: str, error_type: Type[PlacetoError] = PlacetoError,
    most_bytes: int = MOST_BYTES) -> bytes:
  """Reads a regular file.

  Args:
    path: the file; links are followed.
    what: the kind of file, such as "the cluster file", for the error.
    remedy: the advice in the error.
    error_type: raised where the file cannot be read.
    most_bytes: the most that it may hold.

  Raises:
    error_type: there is no such file, it is not a regular one, too large, or cannot be read.
  """
  path = os.fspath(path)

  def refused(reason: str) -> PlacetoError:
    return error_type(f"cannot read {what} {path!r} ({reason}); {remedy}")

  check_regular(path, what=what, remedy=remedy, error_type=error_type)
  try:
    with open(path, "rb") as file:
      # Files such as those of /proc have a size of 0 and may still be endless.
      # One byte more than allowed tells that there is more.
      content = file.read(most_bytes + 1) if os.path.getsize(path) <= most_bytes else None
  except (OSError, ValueError, MemoryError) as error:  # ValueError: a name with a null character
    raise refused(getattr(error, "strerror", None) or str(error) or "too large for the memory"
                  ) from None
  if content is None or len(content) > most_bytes:
    raise refused(f"it holds more than {most_bytes:,} bytes")
  return content


def read_text(path: Path, **options: Any) -> str:
  """Reads a regular file that holds UTF-8 text.

  Args:
    path: the file.
    options: of `read_bytes`.
  """
  content = read_bytes(path, **options)
  try:
    return content.decode("utf-8")
  except UnicodeDecodeError as error:
    raise _error(options)(
        f"cannot read {options['what']} {os.fspath(path)!r} (it is not text: byte {error.start} is "
        f"not UTF-8); {options['remedy']}") from None


def read_json(path: Path, *, most_bytes: int = MOST_JSON_BYTES, **options: Any) -> Any:
  """Reads a JSON file strictly, see `parse_json`.

  Args:
    path: the file.
    most_bytes: the most that it may hold.
    options: of `read_bytes`.

  Returns:
    The value that the file holds.

  Raises:
    error_type: the file cannot be read, or is not JSON that `parse_json` takes.
  """
  text = read_text(path, most_bytes=most_bytes, **options)
  try:
    return parse_json(text)
  except ValueError as error:
    raise _error(options)(
        f"{options['what']} {os.fspath(path)!r} is not JSON that can be read ({error}); "
        f"{options['remedy']}") from None


def read_json_object(path: Path, **options: Any) -> Dict[str, Any]:
  """Reads a JSON file, which has to be an object.

  Args:
    path: the file.
    options: of `read_json`.

  Raises:
    error_type: the file cannot be read, or holds another value.
  """
  content = read_json(path, **options)
  if not isinstance(content, dict):
    raise _error(options)(
        f"{options['what']} {os.fspath(path)!r} holds {brief(content)}, expected an object; "
        f"{options['remedy']}")
  return content


def parse_json(text: str) -> Any:
  """Parses JSON strictly, so that nothing is lost in reading.

  Raises:
    ValueError: it is not JSON, a key appears twice in one object, a number is too large for 64
      bits, infinite or not a number, or it is nested too deeply.
  """
  try:
    return json.loads(
        text, object_pairs_hook=_no_repeats, parse_constant=_no_constant, parse_int=_integer,
        parse_float=_finite)
  except RecursionError:
    raise ValueError("it is nested too deeply") from None


def read_arrays(
    path: Path, *, most_bytes: int = MOST_ARRAY_BYTES, check: Optional[Callable] = None,
    **options: Any) -> Dict[str, np.ndarray]:
  """Reads the arrays of an .npz file.

  Args:
    path: the file.
    most_bytes: of the file, and of all arrays together.
    check: called with (name, array); raises ValueError for an unusable array.
    options: see `read_bytes`.

  Raises:
    error_type: it is no archive of arrays, it is damaged, or an array would have to be unpickled.
  """
  content = io.BytesIO(read_bytes(path, most_bytes=most_bytes, **options))
  try:
    # The sizes that the archive declares, checked before anything is unpacked.
    with zipfile.ZipFile(content) as archive:
      if sum(member.file_size for member in archive.infolist()) > most_bytes:
        raise ValueError(f"its arrays take more than {most_bytes:,} bytes")
    content.seek(0)
    with warnings.catch_warnings():
      warnings.simplefilter("ignore", UserWarning)  # NumPy tries Python 2's words for a header
      with np.load(content, allow_pickle=False) as arrays:
        found = {name: arrays[name] for name in arrays.files}
    for name, array in found.items():
      if not isinstance(array, np.ndarray):
        raise ValueError(f"{name!r} is no array")
      if check is not None:
        check(name, array)
  except _DAMAGED as error:
    raise _error(options)(
        f"{options['what']} {os.fspath(path)!r} is damaged or no archive of arrays "
        f"({one_line(error)}); {options['remedy']}") from None
  return found


def check_regular(path: Path, *, what: str, remedy: str,
                  error_type: Type[PlacetoError] = PlacetoError) -> None:
  """Refuses a path that exists but is no regular file, before other code opens it.

  Args:
    path: the file; links are followed.
    what: the kind of file, for the error.
    remedy: the advice in the error.
    error_type: raised for such a path.

  Raises:
    error_type: the path leads to a directory, a pipe, a device or another special file.
  """
  try:
    mode = os.stat(path).st_mode
  except (OSError, ValueError):
    return  # there is no such file: opening it gives the reason
  if not stat.S_ISREG(mode):
    kind = next((name for test, name in _KINDS if test(mode)), "a special file")
    raise error_type(f"cannot read {what} {os.fspath(path)!r} (it is {kind}, expected a regular "
                     f"file); {remedy}")


def brief(value: object) -> str:
  """Returns a value as JSON, short enough for a message."""
  try:
    # `repr` stands in for values that JSON cannot hold.
    text = json.dumps(value, ensure_ascii=False, default=repr)
  except (RecursionError, ValueError):
    text = type(value).__name__
  return text if len(text) <= 60 else text[:57] + "..."


def _error(options: Dict[str, Any]) -> Type[PlacetoError]:
  return options.get("error_type", PlacetoError)


def _no_repeats(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
  """Returns an object; JSON would silently keep the last of equal keys."""
  found = dict(pairs)
  if len(found) != len(pairs):
    (key, _), *_ = collections.Counter(key for key, _ in pairs).most_common()
    raise ValueError(f"{key!r} appears twice in one object, keep one of them")
  return found


def _no_constant(name: str) -> Any:
  raise ValueError(f"the file holds {name}, which is no number in JSON")


def _integer(text: str) -> int:
  # Python takes a time that grows with the square of the digits.
  if len(text) > 20 or not -_MOST_INTEGER <= int(text) < _MOST_INTEGER:
    raise ValueError(f"the whole number {text:.24} does not fit in 64 bits")
  return int(text)


def _finite(text: str) -> float:
  value = float(text)
  if not math.isfinite(value):
    raise ValueError(f"the number {text:.24} is too large")
  return value
