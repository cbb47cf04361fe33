"""Handles errors of TensorFlow on a runtime that may lose a worker, hang, or never answer.

Each run of a session has a time-out, so that a lost or hanging worker ends the run.
"""

from __future__ import annotations

import contextlib
import time
from typing import Iterator

from placeto_tf.errors import MeasurementError, one_line
from placeto_tf.on_use import tf
from placeto_tf.runtime.workers import Runtime

# A broken connection shows before the end of a killed worker's process, which names the cause.
_ENDING_SECONDS, _POLL_SECONDS = 5.0, 0.1
# Errors after which workers may be in a bad state.
_UNSAFE = ("DeadlineExceededError", "UnavailableError", "AbortedError", "CancelledError",
           "InternalError", "UnknownError")


@contextlib.contextmanager
def named_failures(runtime: Runtime) -> Iterator[None]:
  """Raises errors of TensorFlow as MeasurementErrors; closes workers that may be in a bad state.

  Args:
    runtime: the runtime that the work in the context uses.

  Raises:
    MeasurementError: a worker was lost or hangs, or TensorFlow failed.
  """
  try:
    yield
  except KeyboardInterrupt:  # no work may go on in the background
    runtime.close()
    raise
  except tf.errors.OpError as error:
    lost, kind = None, type(error).__name__
    if kind in _UNSAFE:
      until = time.monotonic() + _ENDING_SECONDS
      while (lost := runtime.lost()) is None and time.monotonic() < until:
        time.sleep(_POLL_SECONDS)
      runtime.close()
    if kind == "DeadlineExceededError":
      lost = lost or ("a step did not end within its time-out: a worker hangs, or the time-out is "
                      "too short for this graph")
    raise MeasurementError(
        lost or f"TensorFlow failed with {kind}: {one_line(error, 300)}") from error
