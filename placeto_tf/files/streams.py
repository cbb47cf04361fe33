"""Standard streams of a program that may be started with closed ones, or end with full ones."""

from __future__ import annotations

import io
import os
import sys
from typing import Any


class _Stderr(io.FileIO):
  """Standard error, on which a failing write is no error: there is nowhere to report it."""

  def write(self, data: Any) -> int:
    try:
      return super().write(data)
    except BrokenPipeError:  # its reader has left, which ends a program
      raise
    except OSError:
      return len(data)


def open_streams() -> None:
  """Opens the standard streams that are closed, and makes writes to a full stderr no error.

  Otherwise the next file or socket that is opened gets the descriptor of a closed stream, and
  TensorFlow writes its messages into it.
  """
  # The system gives out the lowest free descriptor.
  while True:
    found = os.open(os.devnull, os.O_RDWR)
    if found > 2:
      os.close(found)
      break
    os.set_inheritable(found, True)
  if sys.stdout is None:
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)
  if sys.stderr is sys.__stderr__:  # not a notebook's or a test's
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(_Stderr(2, "w", closefd=False)), errors="backslashreplace",
        encoding=getattr(sys.stderr, "encoding", "utf-8"), line_buffering=True)
