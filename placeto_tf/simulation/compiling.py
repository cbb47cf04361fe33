"""How numba compiles the inner loops of simulation and features."""

from __future__ import annotations

from typing import Any, Dict

import numba


def compiled(**options):
  """`numba.njit` that caches on disk where it can: a read-only home directory is no error."""

  def decorate(function):
    try:
      return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no place to cache in
      return numba.njit(**options)(function)

  return decorate


# For the parts of a loop: they become part of what calls them, so a call costs nothing.
inlined = numba.njit(inline="always")
# For the parts of several loops that are too large for that. Only compiled code may call them: a
# call from Python ends the process. It saves compiling what would convert their arguments.
_NO_WRAPPERS: Dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
part = numba.njit(**_NO_WRAPPERS)
