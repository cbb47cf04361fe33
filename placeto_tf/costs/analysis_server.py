"""A process that analyses graphs and runs steps, one after the other, for `guarded`.

A request is a tuple: the name of a function of `_functions`, its GraphDef, its other arguments by
name, and the limit of CPU time in s. The answer is the function's result, or a CostError.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import signal
import time
from multiprocessing.connection import Connection
from typing import Any, Callable, Dict

from placeto_tf.costs import shape_analysis, step_run
from placeto_tf.errors import CostError, one_line

_PR_SET_PDEATHSIG = 1  # of prctl(2)


def main() -> None:
  """Answers requests in a new interpreter, whose connection is stdin."""
  with Connection(os.dup(0)) as connection:
    serve(connection)


def serve(connection: Connection) -> None:
  """Answers requests until the other side ends."""
  import faulthandler

  faulthandler.disable()
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the other side's
  with contextlib.suppress(EOFError, OSError):
    while True:
      name, graph_def, arguments, limit_s = connection.recv()
      _limit_resources(limit_s)
      connection.send(_answer(name, graph_def, arguments))


def _functions() -> Dict[str, Callable[..., Any]]:
  return {"analyse": shape_analysis.analyse, "run": step_run.run}


def end_with(parent: int) -> None:
  """Asks the system to end this fork with its parent, of whose pipes it has copies."""
  with contextlib.suppress(AttributeError, OSError):  # not Linux
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
      os._exit(1)


def _limit_resources(limit_s: float) -> None:
  """Sets limits: so much more CPU time, no core files, and ended first where memory is short."""
  with contextlib.suppress(ImportError, OSError, ValueError):
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    seconds = math.ceil(time.process_time() + limit_s)
    if hard == resource.RLIM_INFINITY or seconds < hard:
      resource.setrlimit(resource.RLIMIT_CPU, (seconds, hard))
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
      file.write("1000")


def _answer(name: str, graph_def: Any, arguments: Dict[str, Any]) -> Any:
  """Returns the result of a function, or the CostError that stands for its exception."""
  try:
    return _functions()[name](graph_def, **arguments)
  except CostError as error:
    return CostError(str(error))  # without its cause
  except Exception as error:  # of TensorFlow's, in many kinds
    return CostError(
        f"grappler cannot analyse the graph ({type(error).__name__}: {one_line(error)}); "
        "give measured costs instead")
