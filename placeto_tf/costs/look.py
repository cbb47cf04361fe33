"""A look at a step: it is run once on this machine's CPU, in a process of its own.

A run shows shapes and trip counts that inference cannot find: the trace of one step has the shape
of every output and every run of an op in a loop. Feeds are random, as for the check of replicas.
Variables get the values of a checkpoint: that of a SavedModel, or `model.index` beside
`model.meta`. Without one, they get their initializers' values, or small random numbers.

With `auto`, the step is run if a shape, a trip count, or how often a branch in a loop is taken is
unknown, no op has an effect outside of the step's variables, and the known part of the step is
small. With `no`, nothing is run, and the result of an earlier look is not used.

The process always has a limit of CPU time, and ends when it waits. Ops that take what another
program or step puts into a queue or a staging area are fed; a step that waits for something else is
not run.
"""

from __future__ import annotations

import contextlib
import contextvars
import copy
import hashlib
import json
import os
import re
from typing import Any, Callable, Container, Dict, Iterator, List, Optional, Tuple

from placeto_tf.costs import guarded, no_side_effects, step_run
from placeto_tf.costs.shape_guesses import known_dims
from placeto_tf.errors import CostError
from placeto_tf.graphs import variables
from placeto_tf.graphs.computation_graph import ComputationGraph, GraphSource
from placeto_tf.graphs.exported_protos import clear_uncalled
from placeto_tf.on_use import GraphDef

MODES = ("auto", "yes", "no")
EARLIER = "earlier"  # outside of `looking`: results of earlier looks are used, and nothing is run
# In notes.
RAN = "the step was run once on this machine's CPU, with made-up feeds"
FAILED = "the step cannot be run here"

# Limits of a step that `auto` runs, for its known ops: about ten seconds of one core.
_MOST_FLOPS = 5e10
_MOST_MOVED_BYTES = 2e10
_MOST_HELD_BYTES = 2e9
_LIMIT_S = {"auto": 30.0, "yes": 600.0}  # of CPU time

# Ops that wait until another step, program or process puts something into a queue, and ops that
# wait for other members of their group. The former need nothing of the step, and can be fed.
_TAKES = re.compile("QueueDequeue|(OrderedMap|Map)?Unstage|(Map|OrderedMap)Peek|StagePeek"
                    "|BarrierTakeMany|ReaderRead|InfeedDequeue|_?(Host)?Recv")
_MEETS = re.compile("Collective|Nccl|.*AccumulatorTakeGradient")

_mode: contextvars.ContextVar[Tuple[str, Callable[[str], object]]] = contextvars.ContextVar(
    "look", default=(EARLIER, str))


@contextlib.contextmanager
def looking(mode: str, show: Callable[[str], object] = str) -> Iterator[None]:
  """Sets the mode of looks for costs that are estimated within the context.

  Args:
    mode: one of `MODES`.
    show: called with a line before a step is run.

  Raises:
    CostError: the mode is unknown.
  """
  if mode not in MODES:
    raise CostError(f"look is {mode!r}; expected auto, yes or no")
  token = _mode.set((mode, show))
  try:
    yield
  finally:
    _mode.reset(token)


def mode() -> str:
  """Returns whether costs that are estimated now look at steps."""
  return _mode.get()[0]


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
  request = _request(graph)
  made = _taken(graph_def)
  request["feeds"].update(made)
  if mode == "auto":
    _check_harmless(graph_def, {name.rpartition(":")[0] for name in made}, work)
  _mode.get()[1](f"the step runs once here, for {_LIMIT_S[mode]:.0f} s of CPU time at most")
  try:
    return guarded.call(step_run.run, _LIMIT_S[mode], _whole(graph), request)
  except CostError as error:
    raise CostError(f"{FAILED}: {error}") from None


def _taken(graph_def: GraphDef) -> Dict[str, List[int]]:
  """Returns the shapes of tensors that a step takes from a queue, which are fed instead.

  Raises:
    CostError: the step waits for something that cannot be fed.
  """
  takes = [node for node in graph_def.node if _TAKES.match(node.op)]
  meets = next((node for node in graph_def.node if _MEETS.match(node.op)), None)
  if meets is not None:
    raise CostError(f"{FAILED}: op {meets.name!r} ({meets.op}) waits for other processes")
  outputs = guarded.analyse(graph_def, counts=False).outputs if takes else {}
  found = {}
  for node in takes:
    for port in range(len(outputs[node.name])):
      dims = known_dims(outputs, (node.name, port))
      if dims is None:
        raise CostError(
            f"{FAILED}: op {node.name!r} ({node.op}) waits for what another step puts into its "
            f"queue, of unknown shape; feed {node.name}:{port}")
      found[f"{node.name}:{port}"] = dims
  return found


def _check_harmless(graph_def: GraphDef, fed: Container[str], work: Any) -> None:
  """Raises CostError if a step may act outside of itself, or is too large to be run unasked."""
  nodes = [node for node in graph_def.node if node.name not in fed]
  effect = next(no_side_effects.acting(nodes, graph_def.library), None)
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
    node.attr.pop("_output_shapes", None)  # those of another version of TensorFlow may differ
  clear_uncalled(graph_def)
  return graph_def


def _request(graph: ComputationGraph) -> Dict[str, Any]:
  """Returns the request for a run of a graph's step; see `step_run.run`."""
  source = graph.origin
  return {
      "fetches": list(graph.fetches), "variables": variables.of_graph(graph),
      "initializers": variables.own_initializers(graph),
      "checkpoint": _checkpoint(source), "values": dict(source.feed_values),
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
