"""`analyse` run in a process of its own, because TensorFlow's C++ aborts on some graphs.

Where Python would raise, grappler and shape functions end the whole process with a failed check,
or never return. So the analysis runs in a child that is forked from this process, which takes
milliseconds where a new interpreter would import TensorFlow for seconds. The child's last message
becomes the reason of a `CostError`.

A fork has one thread, and may wait for a lock that another thread of this process held. Such a
child uses no CPU time; it is ended, and a new interpreter does the analysis.

The child writes, in this order: 8 bytes of length, that many bytes of JSON ("error", or "estimates"
as {name: [flops, moved, temporary]} and "guessed"), and the outputs as an OpPerformanceList.
"""

from __future__ import annotations

import contextlib
import json
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

_LIMIT_S = 10.0
_LIMIT_PER_OP_S = 0.005  # ten times what it takes
_IDLE_S = 4.0  # without CPU time, after which a fork counts as stuck
_POLL_S = 0.5


class _Stuck(Exception):
  """Raised where the fork waits for a thread that it does not have."""


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
    answer = _ask_interpreter(graph_def, limit_s, counts)
  return _decode(answer)


def serve(counts: bool) -> None:
  """What the new interpreter runs: a GraphDef on stdin, the answer on stdout."""
  from tensorflow.core.framework import graph_pb2

  graph_def = graph_pb2.GraphDef.FromString(sys.stdin.buffer.read())
  sys.stdout.buffer.write(_answer(graph_def, counts))
  sys.stdout.buffer.flush()


def _ask_fork(graph_def: Any, counts: bool, limit_s: float) -> bytes:
  """The answer of a fork of this process."""
  import tensorflow  # noqa: F401  (imported once, not again by every fork)

  reader, writer = os.pipe()
  with tempfile.TemporaryFile() as said:
    child = os.fork()
    if not child:
      _run_child(graph_def, counts, reader, writer, said.fileno())
    os.close(writer)
    try:
      answer, problem = _read(child, reader, limit_s)
    finally:
      os.close(reader)
      with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
      _, status = os.waitpid(child, 0)
    if problem is None and answer:
      return answer
    raise _failure(problem or f"it ended with {_ending(status)}", said)


def _run_child(graph_def: Any, counts: bool, reader: int, writer: int, errors: int) -> None:
  """Answers and ends without running anything that belongs to the parent."""
  try:
    import faulthandler
    import gc

    faulthandler.disable()
    gc.disable()  # it would touch, and so copy, all the memory that is shared with the parent
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    os.close(reader)
    os.dup2(errors, 2)
    _limit_resources()
    view = memoryview(_answer(graph_def, counts))
    while view:
      view = view[os.write(writer, view):]
  finally:
    os._exit(0)


def _limit_resources() -> None:
  """Sets limits: no core files, no more memory than there is; the kernel ends this one first."""
  with contextlib.suppress(ImportError, OSError, ValueError):
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
      file.write("1000")
    with open("/proc/self/statm", encoding="ascii") as file:
      used = int(file.read().split()[0])
    pages = used + os.sysconf("SC_PHYS_PAGES")
    limit = pages * os.sysconf("SC_PAGE_SIZE")
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    if hard == resource.RLIM_INFINITY or limit < hard:
      resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def _read(child: int, reader: int, limit_s: float) -> Tuple[bytes, Optional[str]]:
  """Reads all that the child writes; returns it and what is wrong with it."""
  chunks: List[bytes] = []
  started = last_busy = time.monotonic()
  used = -1.0
  while True:
    ready, _, _ = select.select([reader], [], [], _POLL_S)
    now = time.monotonic()
    if ready:
      chunk = os.read(reader, 1 << 20)
      if not chunk:
        return b"".join(chunks), None
      chunks.append(chunk)
      last_busy = now
      continue
    found = _cpu_s(child)
    if found is None or found > used:
      used, last_busy = found if found is not None else used, now
    elif now - last_busy > _IDLE_S:
      raise _Stuck
    if now - started > limit_s:
      return b"", f"it was stopped after {limit_s:.0f} s"


def _cpu_s(process: int) -> Optional[float]:
  """CPU time of a process, or None where the system does not tell."""
  try:
    with open(f"/proc/{process}/stat", encoding="ascii", errors="replace") as file:
      fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
  except (OSError, ValueError, IndexError):
    return None


def _ask_interpreter(graph_def: Any, limit_s: float, counts: bool = True) -> bytes:
  """The answer of a new interpreter."""
  limit_s += 60.0  # it imports TensorFlow first
  path = os.pathsep.join(entry for entry in sys.path if entry)
  with tempfile.TemporaryFile() as said:
    try:
      done = subprocess.run(
          [sys.executable, "-c",
           f"from placeto_tf.costs import guarded; guarded.serve({counts})"],
          input=graph_def.SerializeToString(), stdout=subprocess.PIPE, stderr=said,
          timeout=limit_s, env={**os.environ, "PYTHONPATH": path}, check=False)
    except subprocess.TimeoutExpired:
      raise _failure(f"it was stopped after {limit_s:.0f} s", said) from None
    if done.returncode or not done.stdout:
      raise _failure(f"it ended with code {done.returncode}", said)
  return done.stdout


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


def _ending(status: int) -> str:
  if os.WIFSIGNALED(status):
    return signal.Signals(os.WTERMSIG(status)).name
  return f"code {os.WEXITSTATUS(status)}"


def _failure(problem: str, said: Any) -> CostError:
  """With the last thing that TensorFlow said."""
  said.seek(0)
  lines = [line for line in said.read().decode("utf-8", "replace").splitlines() if line.strip()]
  fatal = [line for line in lines if "Check failed" in line or line.startswith("F")] or lines[-1:]
  reason = f": {' '.join(fatal[-1].split())[:200]}" if fatal else ""
  return CostError(
      f"TensorFlow cannot analyse the graph, {problem}{reason}; check its shapes and attributes, "
      "or give measured costs instead")
