"""A process that analyses graphs, one after the other, for `guarded`.

A request is two messages: JSON ("options" of the analysis, or "step" in them for a run of one,
"limit_s" of CPU time), and the GraphDef. The answer is JSON ("error", or the fields of the
`Analysis` but its outputs, each estimate as a list), a zero byte, and the outputs as an
OpPerformanceList.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import math
import os
import signal
import time
from multiprocessing.connection import Connection
from typing import Any

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

  from tensorflow.core.framework import graph_pb2

  faulthandler.disable()
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the other side's
  with contextlib.suppress(EOFError, OSError):
    while True:
      request = json.loads(connection.recv_bytes())
      graph = graph_pb2.GraphDef.FromString(connection.recv_bytes())
      _limit_resources(request["limit_s"])
      connection.send_bytes(_answer(graph, request["options"]))


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


def _answer(graph_def: Any, options: Any) -> bytes:
  """Returns the analysis as bytes; an exception as its message."""
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
  # All fields but the outputs, which are protos.
  head = {field.name: getattr(found, field.name) for field in dataclasses.fields(found)
          if field.name != "outputs"}
  head["estimates"] = {
      name: dataclasses.astuple(each) for name, each in found.estimates.items()}
  return _framed(head) + outputs.SerializeToString()


def _framed(head: Any) -> bytes:
  return json.dumps(head).encode("ascii") + b"\0"
