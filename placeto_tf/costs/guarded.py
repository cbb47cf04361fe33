"""`analyse` run in a process of its own, because TensorFlow's C++ aborts on some graphs.

Where Python would raise, grappler and shape functions end the whole process with a failed check,
or never return. So the analysis runs in a child that is forked from this process, which takes
milliseconds where a new interpreter would import TensorFlow for seconds. The child's last message
becomes the reason of a `CostError`.

Limits are of CPU time, which the system counts and ends the child by: a busy machine, or one that
was suspended, takes nothing from an analysis that goes on.

A fork has one thread, and may wait for a lock that another thread of this process held. Such a
child sleeps and uses no CPU time; it is ended, and a new interpreter does the analysis.

The child writes, in this order: 8 bytes of length, that many bytes of JSON ("error", or "estimates"
as {name: [flops, moved, temporary]} and "guessed"), and the outputs as an OpPerformanceList.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any, List, Optional, Tuple

from placeto_tf.costs import shape_analysis
from placeto_tf.costs.grappler import OpEstimate
from placeto_tf.errors import CostError

_LIMIT_S = 10.0  # of CPU time
_LIMIT_PER_OP_S = 0.005  # ten times what it takes
_IMPORT_S = 60.0  # of CPU time, for a new interpreter to import TensorFlow
_IDLE_S = 4.0  # asleep, after which a fork counts as stuck
_UNTOLD_IDLE_S = 600.0  # the same where the system does not tell whether it is asleep
_POLL_S = 0.5
_PR_SET_PDEATHSIG = 1  # of prctl(2)


class _Stuck(Exception):
  """Raised where the child waits for something that does not come."""


def analyse(graph_def: Any, counts: bool = True) -> shape_analysis.Analysis:
  """Analyses as `shape_analysis.analyse` does; a crash or hang of TensorFlow is a CostError.

  Raises:
    CostError: grappler cannot read the graph, crashes on it, or does not end.
  """
  if not hasattr(os, "fork"):
    return shape_analysis.analyse(graph_def, counts)
  limit_s = _LIMIT_S + _LIMIT_PER_OP_S * len(graph_def.node)
  try:
    answer = _ask_fork(graph_def, counts, limit_s)
  except (_Stuck, OSError):  # or there was no room for a fork
    answer = _ask_interpreter(graph_def, limit_s + _IMPORT_S, counts)
  return _decode(answer)


def serve(counts: bool, limit_s: float) -> None:
  """What the new interpreter runs: a GraphDef on stdin, the answer on stdout."""
  _limit_resources(limit_s)
  from tensorflow.core.framework import graph_pb2

  graph_def = graph_pb2.GraphDef.FromString(sys.stdin.buffer.read())
  sys.stdout.buffer.write(_answer(graph_def, counts))
  sys.stdout.buffer.flush()


def _ask_fork(graph_def: Any, counts: bool, limit_s: float) -> bytes:
  """The answer of a fork of this process."""
  import tensorflow  # noqa: F401  (imported once, not again by every fork)

  reader, writer = os.pipe()
  parent = os.getpid()
  with tempfile.TemporaryFile() as said:
    child = os.fork()
    if not child:
      _run_child(parent, graph_def, counts, limit_s, reader, writer, said.fileno())
    os.close(writer)
    ended = False
    try:
      answer = _read(child, reader, _IDLE_S)
      ended = True
    finally:
      os.close(reader)
      if not ended:
        os.kill(child, signal.SIGKILL)
      _, status = os.waitpid(child, 0)
    if answer and not status:
      return answer
    raise _failure(os.waitstatus_to_exitcode(status), limit_s, said)


def _end_with(parent: int) -> None:
  """Has the system end this fork with its parent, of whose locks and pipes it has copies."""
  with contextlib.suppress(AttributeError, OSError):  # not Linux
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
      os._exit(1)


def _run_child(
    parent: int, graph_def: Any, counts: bool, limit_s: float, reader: int, writer: int,
    errors: int) -> None:
  """Answers and ends without running anything that belongs to the parent."""
  try:
    import faulthandler
    import gc

    _end_with(parent)
    faulthandler.disable()
    gc.disable()  # it would touch, and so copy, all the memory that is shared with the parent
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    os.close(reader)
    os.dup2(errors, 2)
    _limit_resources(limit_s)
    view = memoryview(_answer(graph_def, counts))
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


def _read(child: int, reader: int, idle_s: float) -> bytes:
  """All that the child writes until it closes its end.

  Raises:
    _Stuck: it was asleep for `idle_s`.
  """
  chunks: List[bytes] = []
  last_busy = time.monotonic()
  used = -1.0
  while True:
    ready, _, _ = select.select([reader], [], [], _POLL_S)
    now = time.monotonic()
    if ready:
      chunk = os.read(reader, 1 << 20)
      if not chunk:
        return b"".join(chunks)
      chunks.append(chunk)
      last_busy = now
      continue
    found = _activity(child)
    if found is None:
      idle_s = max(idle_s, _UNTOLD_IDLE_S)
    elif found[1] > used or found[0] in "RD":  # it runs, waits for a core, or for a disk
      used, last_busy = found[1], now
    if now - last_busy > idle_s:
      raise _Stuck


def _activity(process: int) -> Optional[Tuple[str, float]]:
  """State and CPU time of a process, or None where the system does not tell."""
  try:
    with open(f"/proc/{process}/stat", encoding="ascii", errors="replace") as file:
      fields = file.read().rpartition(")")[2].split()
    return fields[0], (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
  except (OSError, ValueError, IndexError):
    return None


def _ask_interpreter(graph_def: Any, limit_s: float, counts: bool = True) -> bytes:
  """The answer of a new interpreter."""
  path = os.pathsep.join(entry for entry in sys.path if entry)
  with tempfile.TemporaryFile() as asked, tempfile.TemporaryFile() as said:
    asked.write(graph_def.SerializeToString())
    asked.seek(0)
    with subprocess.Popen(
        [sys.executable, "-c",
         f"from placeto_tf.costs import guarded; guarded.serve({counts}, {limit_s})"],
        stdin=asked, stdout=subprocess.PIPE, stderr=said,
        env={**os.environ, "PYTHONPATH": path}) as child:
      assert child.stdout is not None  # it is a pipe
      try:
        answer = _read(child.pid, child.stdout.fileno(), _UNTOLD_IDLE_S)
      except BaseException as error:
        child.kill()
        if isinstance(error, _Stuck):
          raise CostError(
              "TensorFlow cannot analyse the graph, it waits for something that does not come; "
              "give measured costs instead") from None
        raise
    if child.returncode or not answer:
      raise _failure(child.returncode, limit_s, said)
  return answer


def _answer(graph_def: Any, counts: bool) -> bytes:
  """The analysis as bytes; an exception as its message."""
  from tensorflow.core.grappler.costs import op_performance_data_pb2

  try:
    found = shape_analysis.analyse(graph_def, counts)
  except CostError as error:
    return _frame({"error": str(error)})
  except Exception as error:  # of TensorFlow's, in many kinds
    reason = " ".join(str(error).split())[:200]
    return _frame({
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
  return _frame(head) + outputs.SerializeToString()


def _frame(head: Any) -> bytes:
  text = json.dumps(head).encode("utf-8")
  return len(text).to_bytes(8, "little") + text


def _decode(answer: bytes) -> shape_analysis.Analysis:
  from tensorflow.core.grappler.costs import op_performance_data_pb2

  size = int.from_bytes(answer[:8], "little")
  head = json.loads(answer[8:8 + size])
  if "error" in head:
    raise CostError(head["error"])
  outputs = op_performance_data_pb2.OpPerformanceList.FromString(answer[8 + size:])
  return shape_analysis.Analysis(
      {name: OpEstimate(*numbers) for name, numbers in head["estimates"].items()},
      {each.node: list(each.op.outputs) for each in outputs.op_performance},
      tuple((name, port) for name, port in head["guessed"]))


def _failure(code: int, limit_s: float, said: Any) -> CostError:
  """How the child ended, by its exit code or, below 0, signal, and the last thing that it said."""
  said.seek(0)
  lines = [line for line in said.read().decode("utf-8", "replace").splitlines() if line.strip()]
  fatal = [line for line in lines if "Check failed" in line or line.startswith("F")] or lines[-1:]
  reason = f": {' '.join(fatal[-1].split())[:200]}" if fatal else ""
  if code == -getattr(signal, "SIGXCPU", 0):
    ending = f"it was stopped after {math.ceil(limit_s)} s of CPU time"
  else:
    ending = f"it ended with {signal.Signals(-code).name if code < 0 else f'code {code}'}"
  return CostError(
      f"TensorFlow cannot analyse the graph, {ending}{reason}; check its shapes and attributes, "
      "or give measured costs instead")
