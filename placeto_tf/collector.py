"""Python's garbage collector, kept out of imports."""

from __future__ import annotations

import contextlib
import gc
from typing import Iterator


@contextlib.contextmanager
def no_collections() -> Iterator[None]:
  """For imports of large libraries, which take a fifth less CPU time like this.

  The collector would look through all that is imported again and again, and find nothing to free.
  It does not look at it afterwards either.
  """
  enabled = gc.isenabled()
  gc.disable()
  try:
    yield
  finally:
    gc.freeze()
    if enabled:
      gc.enable()
