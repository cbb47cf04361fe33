"""Compiles the inner loops of simulation and features with numba, and caches the code.

Numba's cache has machine code in a pickle, so reading the cache runs code from it. By default numba
reads `__pycache__` beside the source, or NUMBA_CACHE_DIR, even if other users may write there. This
module uses a folder that belongs to the user alone.

Numba compiles a function again if the function's own file has changed, but not if the functions
that it calls, or the types of its arguments, have changed. So there is a folder for each state of
all sources of compiled code.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import os
import pathlib
import shutil
import time
from typing import Any, Dict, Optional

import numba
from absl import logging

from placeto_tf.errors import SetupError
from placeto_tf.files import outputs

_NAME = "compiled"
_KEPT_SECONDS = 30 * 86_400.0  # after the last use; code in use by other processes must be kept
# Packages whose tables are arguments of compiled code; other sources count if they are compiled.
_FOLDERS = ("simulation", "problem")


def compiled(**options):
  """Compiles like `numba.njit`, cached on disk if the disk can be written.

  Raises:
    SetupError: NUMBA_CACHE_DIR is set to a folder that others may write to.
  """

  # No C code calls these functions, so no wrapper for C is compiled. Divisors are never 0, so
  # divisions are compiled without a branch for 0.
  options = {"no_cfunc_wrapper": True, "error_model": "numpy", **options}

  # The cache folder is a global setting of numba, changed only during the decoration.
  def decorate(function):
    own = folder()
    if own is None:
      return numba.njit(**options)(function)
    config: Any = numba.core.config
    before, config.CACHE_DIR = config.CACHE_DIR, own  # read while a function is decorated
    try:
      return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # the cache cannot be written
      return numba.njit(**options)(function)
    finally:
      config.CACHE_DIR = before

  return decorate


@functools.cache
def folder() -> Optional[str]:
  """Returns the folder of compiled code, or None if no folder can be written."""
  chosen = os.environ.get("NUMBA_CACHE_DIR")
  try:
    states = outputs.make_private(
        os.path.join(chosen, "placeto_tf") if chosen else outputs.cache_folder(_NAME))
    own = outputs.make_private(os.path.join(states, _state_of_sources()))
    # The time of a folder in use is renewed, so that no other process removes the folder as old.
    os.utime(own)
    for state in pathlib.Path(states).iterdir():
      if state.stat().st_mtime < time.time() - _KEPT_SECONDS:
        shutil.rmtree(state, ignore_errors=True)
    return own
  except SetupError as error:
    if chosen:
      raise SetupError(f"NUMBA_CACHE_DIR: {error}") from None
    logging.warning("Compiled code is not kept, so that each program compiles it again: %s", error)
  except OSError:
    pass
  return None


# Called once per process: `folder` is cached.
def _state_of_sources() -> str:
  """Digests the package's sources of compiled code."""
  package = pathlib.Path(__file__).parents[1]
  # Numba finds code by the path of its source, so each copy of the package has its own code.
  digest = hashlib.sha256(os.fsencode(package))
  for path in sorted(package.rglob("*.py")):
    text = path.read_bytes()
    if path.parent.name in _FOLDERS or b"simulation.compiling" in text:
      digest.update(_without_docstrings(text).encode())
  return digest.hexdigest()[:16]


def _without_docstrings(source: bytes) -> str:
  """Returns the code of a module without comments and docstrings, which change no machine code."""
  tree = ast.parse(source)
  for node in ast.walk(tree):
    if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and (
        ast.get_docstring(node, clean=False) is not None):
      del node.body[0]
  return ast.dump(tree)


# For the parts of a loop: they are inlined into their callers, so a call costs nothing.
inlined = numba.njit(inline="always")


@inlined
def copy_into(target, source):
  """Copies a vector in compiled code; assigning an array takes ten times as long to compile.

  Args:
    target: [N], changed.
    source: [N].
  """
  for i in range(target.shape[0]):
    target[i] = source[i]


# For parts of several loops that are too large for inlining. Only compiled code may call them: a
# call from Python ends the process, because no conversion of their arguments is compiled.
_OF_PARTS: Dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True,
                             "error_model": "numpy", "_nrt": False}
part = numba.njit(**_OF_PARTS)
