"""How numba compiles the inner loops of simulation and features, and where it keeps the code.

Numba's cache is machine code behind a pickle, so reading it runs it. By default it would be read
from `__pycache__` beside the source, or from NUMBA_CACHE_DIR, whoever may write there. Here it is a
folder that is the user's alone.
"""

from __future__ import annotations

import functools
import os
from typing import Any, Dict, Optional

import numba
from absl import logging

from placeto_tf.errors import SetupError
from placeto_tf.graphs import private_folder

_NAME = "compiled"


def compiled(**options):
  """`numba.njit` that caches on disk where it can: a read-only home directory is no error.

  Raises:
    SetupError: NUMBA_CACHE_DIR is set to a folder that others may write to.
  """

  def decorate(function):
    folder = _folder()
    if folder is None:
      return numba.njit(**options)(function)
    config: Any = numba.core.config
    before, config.CACHE_DIR = config.CACHE_DIR, folder  # read while a function is decorated
    try:
      return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # it cannot be written
      return numba.njit(**options)(function)
    finally:
      config.CACHE_DIR = before

  return decorate


@functools.cache
def _folder() -> Optional[str]:
  """Where compiled code is kept, or None for nowhere."""
  chosen = os.environ.get("NUMBA_CACHE_DIR")
  try:
    return private_folder.make_private(
        os.path.join(chosen, "placeto_tf") if chosen else private_folder.cache_folder(_NAME))
  except SetupError as error:
    if chosen:
      raise SetupError(f"NUMBA_CACHE_DIR: {error}") from None
    logging.warning("Compiled code is not kept, so that each program compiles it anew: %s", error)
  except OSError:
    pass
  return None


# For the parts of a loop: they become part of what calls them, so a call costs nothing.
inlined = numba.njit(inline="always")
# For the parts of several loops that are too large for that. Only compiled code may call them: a
# call from Python ends the process. It saves compiling what would convert their arguments.
_NO_WRAPPERS: Dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
part = numba.njit(**_NO_WRAPPERS)
