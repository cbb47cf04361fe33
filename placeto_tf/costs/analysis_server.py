"""A process without threads that forks itself once for each graph that is analysed.

TensorFlow's C++ aborts on some graphs, so each analysis has a process of its own. A fork of the
user's process would be the quickest, but a fork of a process with threads may wait for ever for a
lock that another thread held. This one has none: it imports TensorFlow, runs nothing, and forks.

A request is two messages: JSON ("options" of the analysis, or "step" in them for a run of one,
"limit_s" of CPU time), and the GraphDef. The reply is three: JSON ("code": exit code or, below 0,
the signal that ended the fork), the last that the fork wrote to stderr, and its answer, empty where
it gave none. The answer is JSON ("error", or "estimates" as {name: [flops, moved, temporary]},
"guessed", and other fields of `Analysis`), a zero byte, and the outputs as an
OpPerformanceList.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import signal
import tempfile
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

from placeto_tf.costs import shape_analysis, step_run
from placeto_tf.errors import CostError, one_line

_PR_SET_PDEATHSIG = 1  # of prctl(2)
_TOLD_BYTES = 1 << 16  # of what a fork wrote to stderr


def main() -> None:
  """What a new interpreter runs; its connection is stdin."""
  with Connection(os.dup(0)) as connection:
    serve(connection)


def serve(connection: Connection) -> None:
  """Answers requests until the other side ends."""
  import tensorflow  # noqa: F401  (imported once, not again by every fork)

  signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the other side's
  with contextlib.suppress(EOFError, OSError):
    while True:
      request = json.loads(connection.recv_bytes())
      _reply(connection, request, connection.recv_bytes())


def _reply(connection: Connection, request: Any, graph: bytes) -> None:
  """Lets a fork answer. Raises EOFError where the other side ended meanwhile."""
  reader, writer = Pipe(duplex=False)
  server = os.getpid()
  with reader, tempfile.TemporaryFile() as said:
    child = os.fork()
    if not child:
      _run_child(server, request, graph, writer, said.fileno())
    writer.close()
    # No request comes before the reply: what the other side sends meanwhile is its end.
    ended = connection in wait([reader, connection])
    answer = b""
    if ended:
      os.kill(child, signal.SIGKILL)
    else:
      with contextlib.suppress(EOFError, OSError):
        answer = reader.recv_bytes()
    _, status = os.waitpid(child, 0)
    if ended:
      raise EOFError
    said.seek(max(0, said.seek(0, os.SEEK_END) - _TOLD_BYTES))
    connection.send_bytes(
        json.dumps({"code": os.waitstatus_to_exitcode(status)}).encode("ascii"))
    connection.send_bytes(said.read())
    connection.send_bytes(answer)


def end_with(parent: int) -> None:
  """Asks the system to end this fork with its parent, of whose locks and pipes it has copies."""
  with contextlib.suppress(AttributeError, OSError):  # not Linux
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
      os._exit(1)


def _run_child(
    parent: int, request: Any, graph: bytes, writer: Connection, errors: int) -> None:
  try:
    import faulthandler
    import gc

    from tensorflow.core.framework import graph_pb2

    end_with(parent)
    faulthandler.disable()
    gc.disable()  # it would touch, and so copy, all the memory that is shared with the parent
    os.dup2(errors, 2)
    _limit_resources(request["limit_s"])
    writer.send_bytes(_answer(graph_pb2.GraphDef.FromString(graph), request["options"]))
  finally:
    os._exit(0)


def _limit_resources(limit_s: float) -> None:
  """Sets limits: CPU time, no core files, no more memory than there is, and ended first of all."""
  with contextlib.suppress(ImportError, OSError, ValueError):
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    seconds = math.ceil(limit_s)
    if hard == resource.RLIM_INFINITY or seconds < hard:
      resource.setrlimit(resource.RLIMIT_CPU, (seconds, hard))
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
      file.write("1000")
    with open("/proc/self/statm", encoding="ascii") as file:
      used = int(file.read().split()[0])
    pages = used + os.sysconf("SC_PHYS_PAGES")
    limit = pages * os.sysconf("SC_PAGE_SIZE")
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    if hard == resource.RLIM_INFINITY or limit < hard:
      resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def _answer(graph_def: Any, options: Any) -> bytes:
  """The analysis as bytes; an exception as its message."""
  from tensorflow.core.grappler.costs import op_performance_data_pb2

  try:
    if "step" in options:
      return _framed(step_run.run(graph_def, options["step"]))
    found = shape_analysis.analyse(graph_def, **options)
  except CostError as error:
    return _framed({"error": str(error)})
  except Exception as error:  # of TensorFlow's, in many kinds
    return _framed({
        "error": f"grappler cannot analyse the graph ({type(error).__name__}: {one_line(error)}); "
                 "give measured costs instead"})
  outputs = op_performance_data_pb2.OpPerformanceList()
  for name, tensors in found.outputs.items():
    outputs.op_performance.add(node=name).op.outputs.extend(tensors)
  head = {
      "estimates": {
          name: [each.flops, each.moved_bytes, each.temporary_bytes]
          for name, each in found.estimates.items()},
      "guessed": list(found.guessed), "executions": found.executions, "rounds": found.rounds,
      "capped": list(found.capped), "growing": list(found.growing),
      "sums": list(found.sums)}
  return _framed(head) + outputs.SerializeToString()


def _framed(head: Any) -> bytes:
  return json.dumps(head).encode("ascii") + b"\0"
