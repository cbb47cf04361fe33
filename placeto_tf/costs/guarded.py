"""Runs `analyse` in a process of its own, because TensorFlow's C++ aborts on some graphs.

On some graphs, grappler and shape functions raise no exception but end the whole process with a
failed check, or never return. So a separate process (`analysis_server`) analyses all graphs. If it
dies, its last message becomes the text of a `CostError`, and the next graph gets a new process. The
first process is a fork of a program that has just imported TensorFlow (`prepare`); later ones are
new interpreters, which take seconds to start.

Limits are limits of CPU time, so that they do not depend on the load of the machine, and a
suspended machine does not end an analysis.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import signal
import sys
import tempfile
import threading
import warnings
from multiprocessing.connection import Connection, Pipe
from typing import TYPE_CHECKING, Any, Callable, List, Mapping, Optional, Sequence, Tuple

from placeto_tf.costs import analysis_server
from placeto_tf.errors import CostError

if TYPE_CHECKING:
  from tensorflow.core.framework.graph_pb2 import GraphDef

  from placeto_tf.costs.shape_analysis import Analysis

_LIMIT_S = 10.0  # of CPU time
_LIMIT_PER_OP_S = 0.005  # ten times the usual time
_SILENT_S = 600.0  # without an answer, beyond the limit: it waits for something
_TOLD_BYTES = 1 << 16  # of its output to stderr
# The analysis has one thread; more would only take memory.
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
# Pass the module path that -I drops, but not the working directory.
_SERVER = ("import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
           "from placeto_tf.costs import analysis_server; analysis_server.main()")


def analyse(graph_def: GraphDef, counts: bool = True, **options: Any) -> Analysis:
  """Analyses as `shape_analysis.analyse` does; a crash or hang of TensorFlow is a CostError.

  Args:
    graph_def, counts, options: its arguments.

  Returns:
    Its analysis.

  Raises:
    CostError: grappler cannot read the graph, crashes on it, or does not end.
  """
  limit_s = _LIMIT_S + _LIMIT_PER_OP_S * len(graph_def.node)
  return _ask("analyse", graph_def, {"counts": counts, **options}, limit_s)


def _ask(name: str, graph_def: GraphDef, arguments: Mapping[str, Any], limit_s: float) -> Any:
  """Asks the process, or another one where somebody killed it. Raises CostError."""
  with _lock:
    # A process that something else killed (SIGKILL) is replaced once; a crash is the graph's fault.
    for last in (False, True):
      server = _running()
      try:
        return server.ask((name, graph_def, arguments, limit_s))
      except (EOFError, OSError):
        code = server.wait()
        if last or code != -signal.SIGKILL:
          raise _failure(code, limit_s, server.last_words()) from None
      finally:
        if server.asked:  # and has not answered: the next request needs another one
          _close()
  raise AssertionError("not reached")


def run_step(graph_def: GraphDef, request: Mapping[str, Any], limit_s: float) -> Mapping[str, Any]:
  """Runs a step as `step_run.run` does, in the process that analyses.

  Args:
    graph_def, request: its arguments.
    limit_s: of CPU time.

  Returns:
    The fields of `look.Seen`.

  Raises:
    CostError: the step cannot be run, crashes, or does not end in time.
  """
  return _ask("run", graph_def, {"request": request}, limit_s)


def prepare() -> None:
  """Forks the server from this process, which has imported TensorFlow and run nothing yet.

  The only threads are those of NumPy's libraries, which stop them for a fork; Python's warning of
  forks with threads does not apply.
  """
  global _server
  if threading.active_count() == 1:
    with _lock:
      _close()
      with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        _server = _Server(_fork)


class _Server:
  """The process that analyses, and the connection to it."""

  def __init__(self, start: Callable[[Connection, Connection, int], int]):
    """Starts the process: `start` takes both ends of the connection and a file for stderr."""
    self.owner = os.getpid()
    self.asked = False
    self._said = tempfile.TemporaryFile()
    self._code: Optional[int] = None
    self._connection, theirs = Pipe()
    with theirs:
      self._pid = start(self._connection, theirs, self._said.fileno())

  def ask(self, request: Tuple[str, GraphDef, Mapping[str, Any], float]) -> Any:
    """Sends a request, see `analysis_server`, and returns the result.

    Raises:
      CostError: there is none, or none in time.
      EOFError, OSError: the process has ended.
    """
    self.asked = True
    self._said.truncate(0)
    self._connection.send(request)
    # The limit is of CPU time; on a loaded machine, more wall-clock time passes.
    if not self._connection.poll(request[-1] + _SILENT_S):
      raise CostError(
          "TensorFlow cannot analyse the graph, it waits for something that does not come; "
          "give measured costs instead")
    answer = self._connection.recv()
    self.asked = False
    if isinstance(answer, CostError):
      raise answer
    return answer

  def wait(self) -> int:
    """Waits for the process to end; returns its exit code or, below 0, signal."""
    if self._code is None:
      try:
        self._code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
      except ChildProcessError:
        self._code = 0
    return self._code

  def last_words(self) -> List[str]:
    """Returns the lines that the process wrote to stderr since it was asked."""
    size = self._said.seek(0, os.SEEK_END)
    self._said.seek(max(0, size - _TOLD_BYTES))
    lines = self._said.read().replace(b"\0", b"").decode("utf-8", "replace").splitlines()
    return [line for line in lines if line.strip()]

  def close(self) -> None:
    """Ends the process."""
    self._connection.close()
    self._said.close()
    if self.owner == os.getpid() and self._code is None:  # and this is no fork's copy
      with contextlib.suppress(ProcessLookupError):
        os.kill(self._pid, signal.SIGKILL)
      self.wait()


def _fork(ours: Connection, theirs: Connection, errors: int) -> int:
  """Starts the process as a fork of this one; returns its id."""
  parent = os.getpid()
  child = os.fork()
  if not child:
    try:
      analysis_server.end_with(parent)
      ours.close()
      os.dup2(errors, 2)
      analysis_server.serve(theirs)
    finally:
      os._exit(0)
  return child


def _spawn(ours: Connection, theirs: Connection, errors: int) -> int:
  """Starts the process as a new interpreter; returns its id."""
  del ours  # which is not inherited
  return os.posix_spawn(
      sys.executable,
      [sys.executable, "-I", "-c", _SERVER, json.dumps([p for p in sys.path if p])],
      {**os.environ, **_ONE_THREAD}, file_actions=[
          (os.POSIX_SPAWN_DUP2, theirs.fileno(), 0),
          (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
          (os.POSIX_SPAWN_DUP2, errors, 2)])


_lock = threading.Lock()
_server: Optional[_Server] = None


def _running() -> _Server:
  global _server
  if _server is None or _server.owner != os.getpid():
    _close()
    _server = _Server(_spawn)
  return _server


@atexit.register
def _close() -> None:
  global _server
  if _server is not None:
    _server.close()
    _server = None


def _after_fork() -> None:
  """Makes the lock anew: a fork of this process has neither its lock nor its server."""
  global _lock
  _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def _failure(code: int, limit_s: float, lines: Sequence[str]) -> CostError:
  """Returns the error of a process that ended.

  Args:
    code: its exit code or, below 0, signal.
    limit_s: of its CPU time.
    lines: the last that it wrote.
  """
  # The last failed check or fatal line explains the end; else the last line of all.
  fatal = [line for line in lines if "Check failed" in line or line.startswith("F")] or lines[-1:]
  reason = f": {' '.join(fatal[-1].split())[:200]}" if fatal else ""
  if code == -signal.SIGXCPU:
    ending = f"it was stopped after {math.ceil(limit_s)} s of CPU time"
  else:
    ending = f"it ended with {signal.Signals(-code).name if code < 0 else f'code {code}'}"
  return CostError(
      f"TensorFlow cannot analyse the graph, {ending}{reason}; check its shapes and attributes, "
      "or give measured costs instead")
