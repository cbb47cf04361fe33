"""A look at a step: it is run once on this machine's CPU, in a process of its own.

A run shows shapes and trip counts that inference cannot find: the trace of one step has the shape
of every output and every run of an op in a loop. Feeds are random, as for the check of replicas.
Variables get the values of a checkpoint: that of a SavedModel, or `model.index` beside
`model.meta`. Without one, they get their initializers' values, or small random numbers.

With `auto`, the step is run if a shape or trip count is unknown, no op has an effect outside of the
step's variables, and the known part of the step is small. The process always has limits of CPU time
and memory. With `no`, nothing is run.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import hashlib
import json
import os
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, Optional, Sequence

import numpy as np

from placeto_tf.costs import guarded, no_side_effects
from placeto_tf.costs.branches import inputs_in_order
from placeto_tf.errors import CostError
from placeto_tf.files import user_files
from placeto_tf.graphs import variables
from placeto_tf.graphs.computation_graph import ComputationGraph, GraphSource
from placeto_tf.graphs.exported_protos import clear_uncalled
from placeto_tf.graphs.loops import MERGE

if TYPE_CHECKING:
  from tensorflow.core.framework.graph_pb2 import GraphDef

MODES = ("auto", "yes", "no")

# Limits of a step that `auto` runs, for its known ops: about ten seconds of one core.
_MOST_FLOPS = 5e10
_MOST_MOVED_BYTES = 2e10
_MOST_HELD_BYTES = 2e9
_LIMIT_S = {"auto": 30.0, "yes": 600.0}  # of CPU time

_mode: contextvars.ContextVar[str] = contextvars.ContextVar("look", default="no")


@dataclasses.dataclass(frozen=True)
class Seen:
  """Shapes and executions in a run of a step.

  Attributes:
    shapes: op name -> dimensions of each output, None for an output without a value. For an op with
      several runs, the dimensions of the output of median size.
    executions: op name -> number of its runs.
  """

  shapes: Mapping[str, Sequence[Optional[Sequence[int]]]]
  executions: Mapping[str, float]

  def of_ops(self, graph: ComputationGraph, otherwise: np.ndarray) -> np.ndarray:
    """Returns the number of runs of each op of a graph.

    Kernels that fuse two ops run under the name of one of them. An op that is missing in the trace
    is assumed to have run as often as all of its inputs had values.

    Args:
      graph: the ops.
      otherwise: [N] of ops that are not in the trace and read nothing.

    Returns:
      [N] float64.
    """
    found = otherwise.astype(np.float64)
    for op, tensors in inputs_in_order(graph):
      if graph.op_names[op] in self.executions:
        found[op] = self.executions[graph.op_names[op]]
      elif tensors:
        # [edges into op]: how often each producer ran, 0 if it gave nothing at that port.
        there = [found[producer] * self._gave(graph.op_names[producer], port)
                 for producer, port in tensors]
        # A Merge runs when any input comes, any other op when all have come.
        found[op] = max(there) if graph.op_types[op] in MERGE else min(there)
    return found

  def _gave(self, name: str, port: int) -> bool:
    """Returns whether an op that ran gave an output: a Switch gives one of two."""
    outputs = self.shapes.get(name)
    return outputs is None or port < 0 or (port < len(outputs) and outputs[port] is not None)


@contextlib.contextmanager
def looking(mode: str) -> Iterator[None]:
  """Sets the mode, one of `MODES`, of looks for costs that are estimated within the context.

  Raises:
    CostError: the mode is unknown.
  """
  if mode not in MODES:
    raise CostError(f"look is {mode!r}; expected auto, yes or no")
  token = _mode.set(mode)
  try:
    yield
  finally:
    _mode.reset(token)


def mode() -> str:
  """Returns whether costs that are estimated now look at steps."""
  return _mode.get()


def refused(graph_def: GraphDef, work: Any, mode: str) -> str:
  """Returns the reason for not running a step.

  Args:
    graph_def: the step's ops.
    work: the `OpWork` of the step, as far as it is known.
    mode: one of `MODES`.

  Returns:
    A sentence without a full stop, or "" if the step may be run.
  """
  if mode == "no":
    return "nothing is run with look=no"
  effect = next(no_side_effects.acting(graph_def.node, graph_def.library), None)
  if effect is not None and mode != "yes":
    return f"op {effect.name!r} ({effect.op}) may have an effect outside of the step"
  # Amounts of one step, as far as they are known, against the limits of `auto`.
  for amount, most, what in (
      ((work.flops * work.executions).sum(), _MOST_FLOPS, "flops"),
      ((work.moved_bytes * work.executions).sum(), _MOST_MOVED_BYTES, "bytes moved"),
      (work.output_bytes.sum() + work.persistent_bytes.sum(), _MOST_HELD_BYTES, "bytes held")):
    if amount > most and mode != "yes":
      return f"the step is too large to be run unasked ({amount:.1e} {what})"
  return ""


def look(graph: ComputationGraph, mode: str) -> Seen:
  """Runs a step of a graph once in a process of its own.

  Args:
    graph: read from anything with nodes.
    mode: "auto" or "yes", which has more time.

  Returns:
    The shapes of outputs and the number of runs of each op.

  Raises:
    CostError: the step cannot be run here, or takes too long.
  """
  found = guarded.run_step(_whole(graph), _request(graph), _LIMIT_S[mode])
  return Seen(found["shapes"], found["executions"])


def identity(graph: ComputationGraph) -> str:
  """Returns a hex digest of a step and of its variables' values: of equal looks it is equal.

  The values are those of the initializers, which are ops of the file, or of the checkpoint, whose
  index has a checksum of each variable.
  """
  request = _request(graph)
  digest = hashlib.sha256(json.dumps(request, sort_keys=True).encode())
  digest.update(_whole(graph).SerializeToString(deterministic=True))
  # Variables get made-up values if the checkpoint cannot be read.
  with contextlib.suppress(CostError):
    if request["checkpoint"]:
      digest.update(user_files.read_bytes(
          request["checkpoint"][-1] + ".index", what="the index of the checkpoint",
          remedy="save it again", error_type=CostError))
  return digest.hexdigest()[:40]


def _whole(graph: ComputationGraph) -> GraphDef:
  """Returns the file's ops, with initializers, for this machine's CPU."""
  source = graph.origin.graph_def
  graph_def = type(source)()
  graph_def.CopyFrom(source)
  # The step runs on this machine's CPU, whatever the file says.
  for node in graph_def.node:
    node.device = ""
  clear_uncalled(graph_def)
  return graph_def


def _request(graph: ComputationGraph) -> Dict[str, Any]:
  """Returns the request for a run of a graph's step; see `step_run.run`."""
  source = graph.origin
  return {
      "fetches": list(graph.fetches), "variables": variables.of_graph(graph),
      "initializers": variables.own_initializers(graph),
      "checkpoint": _checkpoint(source),
      "feeds": {name: list(shape) for name, shape in source.feed_shapes.items()}}


def _checkpoint(source: GraphSource) -> Optional[List[str]]:
  """Returns the op that restores variables, its input for the path, and the path; None without."""
  saver = getattr(source.meta_graph or source.proto, "saver_def", None)
  path = source.path or ""
  path = (os.path.join(path, "variables", "variables") if source.format == "saved_model"
          else os.path.splitext(path)[0])
  if saver is None or not saver.restore_op_name or not os.path.exists(f"{path}.index"):
    return None
  return [saver.restore_op_name, saver.filename_tensor_name, path]
