"""Work on a runtime that may lose a worker, hang, or never answer."""

from __future__ import annotations

import threading
import time
from typing import Any, Callable, List, Optional

from placeto_tf.errors import MeasurementError, PlacetoError, one_line
from placeto_tf.runtime.protocol import Runtime

POLL_SECONDS = 0.1
# Between a killed worker's connections, which break first, and its end, which the system tells.
_ENDING_SECONDS = 5.0
# Calls that wait for lost workers mostly fail at once. TensorFlow asks a lost first worker again
# and again, until the time-out of the session, which is not waited for.
_GIVE_UP_SECONDS = 1.0
# Errors after which workers may be in a bad state.
_UNSAFE = ("DeadlineExceededError", "UnavailableError", "AbortedError", "CancelledError",
           "InternalError", "UnknownError")


def supervise(
    runtime: Runtime, work: Callable[[Callable[[], None]], Any], timeout_seconds: float) -> Any:
  """Runs `work(beat)` and returns its result, as long as it shows signs of life.

  The work runs in a thread of its own and calls `beat()` after every step of the graph. If a
  worker's process ends, or no beat comes for `timeout_seconds`, the workers are closed, so that
  all calls that wait for them fail.

  Args:
    runtime: on which the work runs.
    work: takes `beat`.
    timeout_seconds: between two beats.

  Returns:
    The result of the work.

  Raises:
    MeasurementError: a worker was lost, or hangs, or TensorFlow failed while it ran.
    PlacetoError: raised by the work itself.
  """
  done = threading.Event()
  # Result and error of the work; written by its thread, read after `done`.
  outcome: List[Any] = [None, None]
  beats = [time.monotonic()]

  def beat() -> None:
    beats[0] = time.monotonic()

  def run() -> None:
    try:
      outcome[0] = work(beat)
    except BaseException as error:  # handed over to the thread that waits
      outcome[1] = error
    finally:
      done.set()

  thread = threading.Thread(target=run, name="placeto_tf measuring", daemon=True)
  thread.start()
  reason = None
  try:
    # Each time it wakes it looks for a lost worker, then for a missing beat.
    while not done.wait(POLL_SECONDS):
      reason = runtime.lost()
      if reason is None and time.monotonic() - beats[0] > timeout_seconds:
        reason = (f"no step ended in {timeout_seconds:g} s: a worker hangs, or the time-out is too "
                  "short for this graph")
      if reason is not None:
        break
  except BaseException:  # Ctrl-C: no work may go on in the background
    runtime.close()
    thread.join(_GIVE_UP_SECONDS)
    raise
  if reason is not None:
    runtime.close()
    thread.join(_GIVE_UP_SECONDS)
    raise MeasurementError(reason)
  error = outcome[1]
  if error is None:
    return outcome[0]
  if isinstance(error, (PlacetoError, KeyboardInterrupt)) or not _is_tensorflow_error(error):
    raise error
  if type(error).__name__ in _UNSAFE:
    # A broken connection shows before the process's end, which names the cause.
    lost = _lost_soon(runtime)
    runtime.close()
    if lost is not None:
      raise MeasurementError(lost) from error
  raise MeasurementError(
      f"TensorFlow failed with {type(error).__name__}: {one_line(error, 300)}") from error


def _lost_soon(runtime: Runtime) -> Optional[str]:
  """Returns a sentence about a worker that is lost or about to be; None if all go on."""
  until = time.monotonic() + _ENDING_SECONDS
  while True:
    lost = runtime.lost()
    if lost is not None or time.monotonic() > until:
      return lost
    time.sleep(POLL_SECONDS)


def _is_tensorflow_error(error: BaseException) -> bool:
  import tensorflow as tf

  return isinstance(error, tf.errors.OpError)
