"""A program that uses Ray runs in a child, because Ray can end its process without a word.

When the part of Ray that runs on this machine (the raylet) is killed, Ray's C++ code prints what it
knows to stderr and may end the process that uses it before Python hears of it: no `finally` runs.
So the program starts itself once more, and the first process says in one sentence what happened.
(A fork will not do: libraries may have started threads.)
"""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
from typing import BinaryIO, Callable, Dict, Union

from placeto_tf.errors import SetupError

# In a child: "the first process, the descriptor to tell when Python ends the child, that of a file
# for stderr".
_CHILD = "PLACETO_RAY_DRIVER"
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1
_LAST_BYTES = 20_000
_ENDED = b"."  # what the child sends when Python ends it


def continue_in_child() -> None:
  """Starts this program once more and waits for it; returns in the child alone.

  The first process hands its signals to the child and exits as it does; the child ends when the
  first process does. In the child, what C++ code writes to stderr is held back; Python's own
  stderr stays.

  Raises:
    SystemExit: in the first process, when the child has ended.
    SetupError: in the first process, where it was not Python that ended the child.
  """
  if _CHILD in os.environ:
    _begin_child(*map(int, os.environ.pop(_CHILD).split(",")))
    return
  ended, ended_end = os.pipe()
  with tempfile.TemporaryFile() as held:
    child = subprocess.Popen(
        [sys.executable, *sys.argv], env={
            **os.environ, _CHILD: f"{os.getpid()},{ended_end},{held.fileno()}"},
        pass_fds=(ended_end, held.fileno()),
        start_new_session=True)  # so that Ctrl-C comes once, through this process
    os.close(ended_end)
    try:
      code = _wait(child)
      if os.read(ended, 1) == _ENDED or -code in _FORWARDED:
        raise SystemExit(128 - code if code < 0 else code)
      if sys.stderr.isatty():
        print(file=sys.stderr)  # below the bar of progress
      raise SetupError(
          "Ray ended this program while it was used: its process on this machine (the raylet) was "
          f"killed, or memory ran out; run it again{_reason(held)}")
    finally:
      os.close(ended)


def _begin_child(parent: int, ended_end: int, held_end: int) -> None:
  atexit.register(os.write, ended_end, _ENDED)
  prctl = getattr(ctypes.CDLL(None), "prctl", None)
  if prctl is not None:  # Linux
    prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
  if os.getppid() != parent:  # it ended before that, while this process came up
    os._exit(128 + signal.SIGTERM)
  sys.stderr = open(os.dup(2), "w", buffering=1, encoding="utf-8", errors="backslashreplace")
  os.dup2(held_end, 2)


def _wait(child: subprocess.Popen[bytes]) -> int:
  """The child's return code; signals are handed on until it ends."""
  before: Dict[int, Union[Callable, int, None]] = {}
  try:
    for number in _FORWARDED:
      if signal.getsignal(number) is not signal.SIG_IGN:
        before[number] = signal.signal(number, lambda number, _: child.send_signal(number))
    return child.wait()
  finally:
    for forwarded, handler in before.items():
      signal.signal(forwarded, handler)


def _reason(held: BinaryIO) -> str:
  """What C++ said of why it ended the process, if it did."""
  held.seek(0, os.SEEK_END)
  held.seek(max(0, held.tell() - _LAST_BYTES))
  said = [line for line in held.read().decode("utf-8", "replace").splitlines()
          if " C " in line or "Check failed" in line]
  return f" (Ray's words: {''.join(filter(str.isprintable, said[0]))[-300:]})" if said else ""
