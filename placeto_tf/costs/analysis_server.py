"""A process without threads that forks itself once for each graph that is analysed.

TensorFlow's C++ aborts on some graphs, so each analysis has a process of its own. A fork of the
user's process would be the quickest, but a fork of a process with threads may wait for ever for a
lock that another thread held. This one has none: it imports TensorFlow, runs nothing, and forks.

A request is a frame of JSON ("counts", "limit_s" of CPU time) and a frame of the GraphDef. The
reply is three frames: JSON ("code": exit code or, below 0, the signal that ended the fork), the
last that the fork wrote to stderr, and its answer. A frame is 8 bytes of length and that many
bytes. The answer is a frame of JSON ("error", or "estimates" as {name: [flops, moved, temporary]}
and "guessed"), followed by the outputs as an OpPerformanceList.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import select
import signal
import socket
import tempfile
from typing import Any, Optional

from placeto_tf.costs import shape_analysis
from placeto_tf.errors import CostError

_PR_SET_PDEATHSIG = 1  # of prctl(2)
_TOLD_BYTES = 1 << 16  # of what a fork wrote to stderr


def send_frame(connection: socket.socket, data: bytes) -> None:
  """Sends a length and so many bytes."""
  connection.sendall(_frame(data))


def receive_frame(connection: socket.socket) -> Optional[bytes]:
  """What `send_frame` sent, or None if the other side has ended."""
  head = _receive(connection, 8)
  return None if head is None else _receive(connection, int.from_bytes(head, "little"))


def _receive(connection: socket.socket, size: int) -> Optional[bytes]:
  found = bytearray()
  while len(found) < size:
    chunk = connection.recv(min(size - len(found), 1 << 20))
    if not chunk:
      return None
    found += chunk
  return bytes(found)


def main() -> None:
  """What a new interpreter runs; its connection is stdin."""
  with socket.socket(fileno=os.dup(0)) as connection:
    serve(connection)


def serve(connection: socket.socket) -> None:
  """Answers requests until the other side ends."""
  import tensorflow  # noqa: F401  (imported once, not again by every fork)

  signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the other side's
  while True:
    head = receive_frame(connection)
    graph = None if head is None else receive_frame(connection)
    if head is None or graph is None or not _reply(connection, json.loads(head), graph):
      return


def _reply(connection: socket.socket, request: Any, graph: bytes) -> bool:
  """Has a fork answer; False if the other side ended meanwhile."""
  reader, writer = os.pipe()
  server = os.getpid()
  with tempfile.TemporaryFile() as said:
    child = os.fork()
    if not child:
      _run_child(server, request, graph, writer, said.fileno())
    os.close(writer)
    answer = bytearray()
    waited = True
    while True:
      ready, _, _ = select.select([reader, connection], [], [])
      if reader in ready:
        chunk = os.read(reader, 1 << 20)
        if not chunk:
          break
        answer += chunk
      else:  # no request comes before the reply, so it is the end
        waited = False
        os.kill(child, signal.SIGKILL)
        break
    os.close(reader)
    _, status = os.waitpid(child, 0)
    if not waited:
      return False
    said.seek(max(0, said.seek(0, os.SEEK_END) - _TOLD_BYTES))
    send_frame(connection, json.dumps({"code": os.waitstatus_to_exitcode(status)}).encode("ascii"))
    send_frame(connection, said.read())
    send_frame(connection, bytes(answer))
    return True


def end_with(parent: int) -> None:
  """Has the system end this fork with its parent, of whose locks and pipes it has copies."""
  with contextlib.suppress(AttributeError, OSError):  # not Linux
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
      os._exit(1)


def _run_child(parent: int, request: Any, graph: bytes, writer: int, errors: int) -> None:
  try:
    import faulthandler
    import gc

    from tensorflow.core.framework import graph_pb2

    end_with(parent)
    faulthandler.disable()
    gc.disable()  # it would touch, and so copy, all the memory that is shared with the parent
    os.dup2(errors, 2)
    _limit_resources(request["limit_s"])
    view = memoryview(_answer(graph_pb2.GraphDef.FromString(graph), request["counts"]))
    while view:
      view = view[os.write(writer, view):]
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


def _answer(graph_def: Any, counts: bool) -> bytes:
  """The analysis as bytes; an exception as its message."""
  from tensorflow.core.grappler.costs import op_performance_data_pb2

  try:
    found = shape_analysis.analyse(graph_def, counts)
  except CostError as error:
    return _framed_json({"error": str(error)})
  except Exception as error:  # of TensorFlow's, in many kinds
    reason = " ".join(str(error).split())[:200]
    return _framed_json({
        "error": f"grappler cannot analyse the graph ({type(error).__name__}: {reason}); give "
                 "measured costs instead"})
  outputs = op_performance_data_pb2.OpPerformanceList()
  for name, tensors in found.outputs.items():
    outputs.op_performance.add(node=name).op.outputs.extend(tensors)
  head = {
      "estimates": {
          name: [each.flops, each.moved_bytes, each.temporary_bytes]
          for name, each in found.estimates.items()},
      "guessed": list(found.guessed)}
  return _framed_json(head) + outputs.SerializeToString()


def _framed_json(head: Any) -> bytes:
  return _frame(json.dumps(head).encode("utf-8"))


def _frame(data: bytes) -> bytes:
  return len(data).to_bytes(8, "little") + data
