"""`analyse` run in a process of its own, because TensorFlow's C++ aborts on some graphs.

Where Python would raise, grappler and shape functions end the whole process with a failed check,
or never return. So a fork of `analysis_server` does the analysis, and its last message becomes the
reason of a `CostError`. The server is a fork of a program that has just imported TensorFlow
(`prepare`); a process that may have threads starts a new interpreter instead, which takes
seconds, once.

Limits are of CPU time, which the system counts and ends the fork by: a busy machine, or one that
was suspended, takes nothing from an analysis that goes on.
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
import warnings
from multiprocessing.connection import Connection, Pipe
from typing import TYPE_CHECKING, Any, BinaryIO, Mapping, Optional

from placeto_tf.costs import analysis_server, shape_analysis
from placeto_tf.costs.grappler import OpEstimate
from placeto_tf.errors import CostError
from placeto_tf.graphs.functions import recursive_function

if TYPE_CHECKING:
  from tensorflow.core.framework.graph_pb2 import GraphDef

_LIMIT_S = 10.0  # of CPU time
_LIMIT_PER_OP_S = 0.005  # ten times what it takes
_SILENT_S = 600.0  # without an answer, beyond the limit: it waits for something
# Threads of their libraries would be there before the server forks.
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
# What -I leaves out is given, and no more: modules of the working directory are not the program's.
_SERVER = ("import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
           "from placeto_tf.costs import analysis_server; analysis_server.main()")


def analyse(graph_def: GraphDef, counts: bool = True, **options: Any) -> shape_analysis.Analysis:
  """Analyses as `shape_analysis.analyse` does; a crash or hang of TensorFlow is a CostError.

  Args:
    graph_def, counts, options: its arguments; the options have to be what JSON can hold.

  Raises:
    CostError: grappler cannot read the graph, crashes on it, or does not end.
  """
  recursive = recursive_function(graph_def)
  if recursive is not None:
    raise CostError(
        f"function {recursive!r} calls itself, which TensorFlow's analysis does not survive; give "
        "measured costs instead, or place the graph without it")
  if not hasattr(os, "fork"):
    return shape_analysis.analyse(graph_def, counts, **options)
  limit_s = _LIMIT_S + _LIMIT_PER_OP_S * len(graph_def.node)
  return _decode(_ask(graph_def, {"counts": counts, **options}, limit_s))


def _ask(graph_def: GraphDef, options: Mapping[str, Any], limit_s: float) -> bytes:
  """Asks the server, or another one where it has ended meanwhile. Raises CostError."""
  with _lock:
    for last in (False, True):
      server = _running()
      try:
        return server.ask(graph_def, options, limit_s)
      except (EOFError, OSError):  # ended by somebody else
        if last:
          said = server.last_words() or "it gave no answer"
          raise CostError(
              f"TensorFlow cannot analyse the graph, the process that does it ended ({said}); give "
              "measured costs instead") from None
      finally:
        if server.asked:  # and has not answered: the next request needs another one
          _close()
  raise AssertionError("not reached")


def run_step(graph_def: GraphDef, request: Mapping[str, Any], limit_s: float) -> Mapping[str, Any]:
  """Runs a step as `step_run.run` does, in a fork of the server.

  Args:
    graph_def, request: its arguments.
    limit_s: of CPU time.

  Raises:
    CostError: the step cannot be run, crashes, or does not end in time.
  """
  if not hasattr(os, "fork"):
    raise CostError("steps are run in a fork of a process, which this system does not have")
  answer, _, _ = _ask(graph_def, {"step": request}, limit_s).partition(b"\0")
  return _checked(json.loads(answer))


def prepare() -> None:
  """Forks the server from this process, which has imported TensorFlow and run nothing yet.

  The only threads are those of NumPy's libraries, which stop them for a fork; Python's warning of
  forks with threads does not apply.
  """
  global _server
  if hasattr(os, "fork") and threading.active_count() == 1:
    with _lock:
      _close()
      with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        _server = _Server.forked()


class _Server:
  """The process that analyses, and the connection to it."""

  def __init__(self, pid: int, connection: Connection, said: Optional[BinaryIO] = None,
               process: Optional[subprocess.Popen[bytes]] = None):
    self.owner = os.getpid()
    self.asked = False
    self._pid, self._connection, self._said, self._process = pid, connection, said, process

  @classmethod
  def forked(cls) -> _Server:
    """A fork of this process."""
    ours, theirs = Pipe()
    parent = os.getpid()
    child = os.fork()
    if not child:
      try:
        analysis_server.end_with(parent)
        ours.close()
        analysis_server.serve(theirs)
      finally:
        os._exit(0)
    theirs.close()
    return cls(child, ours)

  @classmethod
  def started(cls) -> _Server:
    """A new interpreter."""
    ours, theirs = Pipe()
    said = tempfile.TemporaryFile()
    with theirs:
      process = subprocess.Popen(
          [sys.executable, "-I", "-c", _SERVER, json.dumps([p for p in sys.path if p])],
          stdin=theirs.fileno(), stdout=subprocess.DEVNULL, stderr=said,
          env={**os.environ, **_ONE_THREAD})
    return cls(process.pid, ours, said, process)

  def ask(self, graph_def: GraphDef, options: Mapping[str, Any], limit_s: float) -> bytes:
    """The analysis of a graph.

    Raises:
      CostError: TensorFlow ended the fork, or it gives no answer.
      EOFError, OSError: the server has ended.
    """
    self.asked = True
    connection = self._connection
    connection.send_bytes(json.dumps({"options": options, "limit_s": limit_s}).encode("ascii"))
    connection.send_bytes(graph_def.SerializeToString())
    # Under a whole machine's load CPU time is longer than it was counted.
    if not connection.poll(limit_s + _SILENT_S):
      raise CostError(
          "TensorFlow cannot analyse the graph, it waits for something that does not come; "
          "give measured costs instead")
    head, said, answer = (connection.recv_bytes() for _ in range(3))
    self.asked = False
    code = json.loads(head)["code"]
    if code or not answer:
      raise _failure(code, limit_s, said)
    return answer

  def last_words(self) -> str:
    """What a new interpreter said before it ended."""
    if self._said is None:
      return ""
    self._said.seek(0)
    lines = self._said.read().decode("utf-8", "replace").split("\n")
    return next((" ".join(line.split())[:200] for line in reversed(lines) if line.strip()), "")

  def close(self) -> None:
    """Ends the process."""
    self._connection.close()
    if self._said is not None:
      self._said.close()
    if self.owner != os.getpid():
      return  # a fork's copy
    with contextlib.suppress(ProcessLookupError):
      os.kill(self._pid, signal.SIGKILL)
    if self._process is not None:
      self._process.wait()
    else:
      with contextlib.suppress(ChildProcessError):
        os.waitpid(self._pid, 0)


_lock = threading.Lock()
_server: Optional[_Server] = None


def _running() -> _Server:
  global _server
  if _server is None or _server.owner != os.getpid():
    _close()
    _server = _Server.started()
  return _server


@atexit.register
def _close() -> None:
  global _server
  if _server is not None:
    _server.close()
    _server = None


def _after_fork() -> None:
  """A fork of this process has neither its lock nor its server."""
  global _lock
  _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
  os.register_at_fork(after_in_child=_after_fork)


def _checked(head: Any) -> Any:
  """The head of an answer. Raises CostError where it says that there is none."""
  if "error" in head:
    raise CostError(head["error"])
  return head


def _decode(answer: bytes) -> shape_analysis.Analysis:
  from tensorflow.core.grappler.costs import op_performance_data_pb2

  text, _, tensors = answer.partition(b"\0")
  head = _checked(json.loads(text))
  outputs = op_performance_data_pb2.OpPerformanceList.FromString(tensors)
  return shape_analysis.Analysis(
      {name: OpEstimate(*numbers) for name, numbers in head["estimates"].items()},
      {each.node: list(each.op.outputs) for each in outputs.op_performance},
      tuple((name, port) for name, port in head["guessed"]), head["executions"], head["rounds"],
      head["capped"], head["growing"], head["sums"])


def _failure(code: int, limit_s: float, said: bytes) -> CostError:
  """How the fork ended, by its exit code or, below 0, signal, and the last thing that it said."""
  lines = [line for line in said.decode("utf-8", "replace").splitlines() if line.strip()]
  fatal = [line for line in lines if "Check failed" in line or line.startswith("F")] or lines[-1:]
  reason = f": {' '.join(fatal[-1].split())[:200]}" if fatal else ""
  if code == -getattr(signal, "SIGXCPU", 0):
    ending = f"it was stopped after {math.ceil(limit_s)} s of CPU time"
  else:
    ending = f"it ended with {signal.Signals(-code).name if code < 0 else f'code {code}'}"
  return CostError(
      f"TensorFlow cannot analyse the graph, {ending}{reason}; check its shapes and attributes, "
      "or give measured costs instead")
