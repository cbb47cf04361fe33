"""A look at a step: it is run once on this machine's CPU, in a process of its own.

A run shows shapes and trip counts that inference cannot find: the trace of one step has the shape
of every output and every run of an op in a loop. Feeds are random, as for the check of replicas.
Variables get the values of a checkpoint: that of a SavedModel, or `model.index` beside
`model.meta`. Without one, they get their initializers' values, or small random numbers.

With `auto`, the step is run if a shape, a trip count, or how often a branch in a loop is taken is
unknown, no op has an effect outside of the step's variables, and the known part of the step is
small. The process always has a limit of CPU time. With `no`, nothing is run.
"""

from __future__ import annotations

import contextlib
import contextvars
import copy
import hashlib
import json
import os
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional

from placeto_tf.costs import guarded, no_side_effects, step_run
from placeto_tf.errors import CostError
from placeto_tf.graphs import variables
from placeto_tf.graphs.computation_graph import ComputationGraph, GraphSource
from placeto_tf.graphs.exported_protos import clear_uncalled

if TYPE_CHECKING:
  from tensorflow.core.framework.graph_pb2 import GraphDef

MODES = ("auto", "yes", "no")
FAILED = "a run of the step with made-up feeds failed"  # in notes

# Limits of a step that `auto` runs, for its known ops: about ten seconds of one core.
_MOST_FLOPS = 5e10
_MOST_MOVED_BYTES = 2e10
_MOST_HELD_BYTES = 2e9
_LIMIT_S = {"auto": 30.0, "yes": 600.0}  # of CPU time

_mode: contextvars.ContextVar[str] = contextvars.ContextVar("look", default="no")


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


def look(graph: ComputationGraph, graph_def: GraphDef, work: Any, mode: str) -> step_run.Seen:
  """Runs a step of a graph once in a process of its own.

  Args:
    graph: read from anything with nodes.
    graph_def: the step's ops.
    work: the `OpWork` of the step, as far as it is known.
    mode: "auto", or "yes", which has more time and runs any step.

  Returns:
    The shapes of outputs and the number of runs of each op.

  Raises:
    CostError: the step may not be run, cannot be run here, or takes too long.
  """
  if mode == "auto":
    _check_harmless(graph_def, work)
  try:
    return guarded.call(step_run.run, _LIMIT_S[mode], _whole(graph), _request(graph))
  except CostError as error:
    raise CostError(f"{FAILED}: {error}") from None


def _check_harmless(graph_def: GraphDef, work: Any) -> None:
  """Raises CostError if a step may act outside of itself, or is too large to be run unasked."""
  effect = next(no_side_effects.acting(graph_def.node, graph_def.library), None)
  if effect is not None:
    raise CostError(f"op {effect.name!r} ({effect.op}) may have an effect outside of the step")
  # Amounts of one step, as far as they are known, against the limits.
  for amount, most, what in (
      ((work.flops * work.executions).sum(), _MOST_FLOPS, "flops"),
      ((work.moved_bytes * work.executions).sum(), _MOST_MOVED_BYTES, "bytes moved"),
      (work.output_bytes.sum() + work.persistent_bytes.sum(), _MOST_HELD_BYTES, "bytes held")):
    if amount > most:
      raise CostError(f"the step is too large to be run unasked ({amount:.1e} {what})")


def identity(graph: ComputationGraph) -> str:
  """Returns a hex digest of a step and of its variables' values: of equal looks it is equal.

  The values are those of the initializers, which are ops of the file, or of the checkpoint, which
  is identified by the size and time of its index.
  """
  request = _request(graph)
  digest = hashlib.sha256(json.dumps(request, sort_keys=True).encode())
  digest.update(_whole(graph).SerializeToString(deterministic=True))
  if request["checkpoint"]:
    index = os.stat(f"{request['checkpoint'][-1]}.index")
    digest.update(f"{index.st_size} {index.st_mtime_ns}".encode())
  return digest.hexdigest()[:40]


def _whole(graph: ComputationGraph) -> GraphDef:
  """Returns the file's ops, with initializers, for this machine's CPU."""
  graph_def = copy.deepcopy(graph.origin.graph_def)
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
