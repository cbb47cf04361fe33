"""Analyses graphs and runs steps in a process of its own, because TensorFlow aborts on some graphs.

On some graphs, grappler and shape functions raise no exception but end the whole process with a
failed check, or never return. So one process, a new interpreter, does this work for all graphs. If
it dies, its last message becomes the text of a `CostError`, and the next graph gets a new process.

Limits are limits of CPU time, so that they do not depend on the load of the machine, and a
suspended machine does not end an analysis. A call that waits uses no CPU time: a thread of the
process ends it.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from multiprocessing.connection import Connection, Pipe
from typing import Any, Callable, Mapping, Optional, Tuple

from placeto_tf.costs import shape_analysis
from placeto_tf.errors import CostError, one_line
from placeto_tf.on_use import GraphDef

_LIMIT_S = 10.0  # of CPU time
_LIMIT_PER_OP_S = 0.005  # ten times the usual time
_SILENT_S = 600.0  # without an answer, beyond the limit: the process is suspended
_IDLE_S = 20  # seconds of a call, each without CPU time, after which it waits for something
_LEAST_CPU_S = 0.005  # in a second; the thread that watches takes a hundredth of this
_WAITS = ("TensorFlow cannot analyse the graph, it waits for something that does not come; give "
          "measured costs instead")
# The analysis has one thread; more would only take memory. oneDNN would fuse ops, which then are
# missing in the trace of a step.
_SETTINGS = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
             "TF_ENABLE_ONEDNN_OPTS": "0"}
# Pass the module path that -I drops, but not the working directory.
_PROGRAM = ("import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
            "from placeto_tf.costs import guarded; guarded.serve(int(sys.argv[2]))")

_Call = Tuple[Callable[..., Any], Tuple[Any, ...], Mapping[str, Any], float]


def analyse(
    graph_def: GraphDef, counts: bool = True, **options: Any) -> shape_analysis.Analysis:
  """Analyses as `shape_analysis.analyse` does; a crash or hang of TensorFlow is a CostError.

  Args:
    graph_def, counts, options: its arguments.

  Raises:
    CostError: grappler cannot read the graph, crashes on it, or does not end.
  """
  limit_s = _LIMIT_S + _LIMIT_PER_OP_S * len(graph_def.node)
  return call(shape_analysis.analyse, limit_s, graph_def, counts, **options)


def call(function: Callable[..., Any], limit_s: float, *arguments: Any, **options: Any) -> Any:
  """Calls a function of a module in the process; after a failure the next call gets another one.

  Args:
    function: of a module that the process can import.
    limit_s: of CPU time.
    *arguments: of the function.
    **options: of the function.

  Raises:
    CostError: the function raises an exception, ends the process, or does not end in time.
  """
  with _lock:
    process, answer = _running(), None
    try:
      answer = process.ask((function, arguments, options, limit_s))
    finally:
      if answer is None:
        process.close()
  if isinstance(answer, CostError):
    raise answer
  return answer


def prepare() -> None:
  """Starts the process, which imports TensorFlow while this one does something else."""
  with _lock:
    _running()


def serve(descriptor: int) -> None:
  """Answers calls, as `_Process.ask` sends them, until the other side of a connection ends."""
  import resource

  import tensorflow  # noqa: F401  # before the first call, whose limits do not count it

  busy = threading.Event()
  threading.Thread(target=_watch, args=(busy,), daemon=True).start()
  resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
  hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
  with Connection(descriptor) as connection, contextlib.suppress(EOFError, OSError):
    while True:
      function, arguments, options, limit_s = connection.recv()
      busy.set()
      with contextlib.suppress(ValueError):  # the system allows less
        resource.setrlimit(
            resource.RLIMIT_CPU, (math.ceil(time.process_time() + limit_s), hard))
      try:
        answer = function(*arguments, **options)
      except CostError as error:
        answer = CostError(str(error))  # without its cause
      except Exception as error:  # of TensorFlow's, in many kinds
        answer = CostError(
            f"TensorFlow cannot analyse the graph ({type(error).__name__}: {one_line(error)}); "
            "give measured costs instead, as a CostGraphDef or an OpPerformanceList file")
      busy.clear()
      connection.send(answer)


def _watch(busy: threading.Event) -> None:
  """Ends the process when a call waits: a second is counted while this thread runs, too."""
  idle = 0
  while busy.wait():
    before = time.process_time()
    time.sleep(1)
    idle = idle + 1 if busy.is_set() and time.process_time() - before < _LEAST_CPU_S else 0
    if idle >= _IDLE_S:
      os.kill(os.getpid(), signal.SIGALRM)


class _Process:
  """The process that answers calls, and the connection to it."""

  def __init__(self) -> None:
    self._said = tempfile.TemporaryFile()
    self._connection, theirs = Pipe()
    path = json.dumps([folder for folder in sys.path if folder])
    with theirs:
      # In a session of its own, because Ctrl-C is this side's.
      self._process = subprocess.Popen(
          [sys.executable, "-I", "-c", _PROGRAM, path, str(theirs.fileno())],
          pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
          stderr=self._said, env={**os.environ, **_SETTINGS}, start_new_session=True)

  def is_running(self) -> bool:
    """Returns whether the process waits for calls; a fork of this process has no process."""
    return self._process.poll() is None

  def ask(self, request: _Call) -> Any:
    """Sends a call and returns its result, which is a CostError if there is none."""
    start, limit_s = self._said.seek(0, os.SEEK_END), request[-1]
    try:
      self._connection.send(request)
      # The limit is of CPU time; on a loaded machine, more wall-clock time passes.
      if self._connection.poll(limit_s + _SILENT_S):
        return self._connection.recv()
    except (EOFError, OSError):
      raise self._failure(start, limit_s) from None
    raise CostError(_WAITS)

  def _failure(self, start: int, limit_s: float) -> CostError:
    """Returns the error of a process that ended, with its output to stderr since `start`."""
    code = self._process.wait()
    if code == -signal.SIGALRM:
      return CostError(_WAITS)
    self._said.seek(start)
    lines = self._said.read().decode("utf-8", "replace").split("\n")
    # The last failed check or fatal line explains the end; else the last line of all.
    told = [line for line in lines if "Check failed" in line or line.startswith("F")] or [
        line for line in lines if line.strip()]
    reason = f": {' '.join(told[-1].split())[:200]}" if told else ""
    if code == -signal.SIGXCPU:
      ending = f"it was stopped after {math.ceil(limit_s)} s of CPU time"
    else:
      ending = f"it ended with {signal.Signals(-code).name if code < 0 else f'code {code}'}"
    return CostError(
        f"TensorFlow cannot analyse the graph, {ending}{reason}; check its shapes and attributes, "
        "or give measured costs instead")

  def close(self) -> None:
    """Ends the process."""
    self._connection.close()
    self._process.kill()
    self._process.wait()
    self._said.close()


_lock = threading.Lock()
_process: Optional[_Process] = None


def _running() -> _Process:
  """Returns the process, started anew if it has ended."""
  global _process
  if _process is None or not _process.is_running():
    _close()
    _process = _Process()
  return _process


@atexit.register
def _close() -> None:
  if _process is not None:
    _process.close()
