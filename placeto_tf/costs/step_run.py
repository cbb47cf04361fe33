"""Runs one step of a graph: `Seen`, the shape of every output and the number of runs of every op.

The ops run with all their side effects. `look` calls this module in the process of `guarded`.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import math
from typing import AbstractSet, Any, Dict, List, Mapping, Sequence

from placeto_tf.costs import no_side_effects
from placeto_tf.errors import CostError
from placeto_tf.graphs import feeds as feeds_lib
from placeto_tf.graphs import variables
from placeto_tf.graphs.tensor_names import Tensor, parse
from placeto_tf.on_use import GraphDef, tf

# Ops that fill lookup tables and start iterators, and read no files themselves.
_FILLS = {"InitializeTable", "InitializeTableV2", "LookupTableImport", "LookupTableImportV2",
          "MakeIterator"}
_MOST_TRACED = 1 << 20  # runs of ops, kMaxCollectedNodes in TensorFlow's step_stats_collector.h


@dataclasses.dataclass(frozen=True)
class Seen:
  """Shapes and executions in a run of a step.

  Attributes:
    shapes: (op name, output) -> dimensions, of the outputs that had a value. For an op with several
      runs, the dimensions of the output of median size.
    executions: op name -> number of its runs.
  """

  shapes: Mapping[Tensor, Sequence[int]]
  executions: Mapping[str, float]


def run(graph_def: GraphDef, request: Mapping[str, Any]) -> Seen:
  """Runs a step; to be called in a process of its own.

  Args:
    graph_def: the whole file, with initializers.
    request: "fetches", "variables", "initializers", "checkpoint", "feeds" (tensor -> shape) and
      "values" (tensor -> number), see `look`.

  Returns:
    The shapes and executions in the trace of the step.
  """
  v1 = tf.compat.v1
  config = v1.ConfigProto(device_count={"CPU": 1, "GPU": 0}, intra_op_parallelism_threads=1)
  # Run nodes unchanged: none is folded, fused or moved.
  config.graph_options.optimizer_options.opt_level = v1.OptimizerOptions.L0
  config.graph_options.rewrite_options.disable_meta_optimizer = True
  metadata = v1.RunMetadata()
  with tf.Graph().as_default() as tf_graph:
    tf.graph_util.import_graph_def(graph_def, name="")
    feed = feeds_lib.random_feeds(tf_graph, request["feeds"], 0, request["values"])
    with v1.Session(graph=tf_graph, config=config) as session:
      _initialize(session, tf_graph, graph_def.library, request)
      session.run(
          [tf_graph.as_graph_element(name) if ":" not in name else
           tf_graph.get_tensor_by_name(name).op for name in request["fetches"]],
          feed, v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE), metadata)
  seen = _of_trace(metadata.step_stats)
  # What is fed is not in the trace.
  tensors = {parse(name): dims for name, dims in request["feeds"].items()}
  return Seen({**seen.shapes, **tensors}, {**{op: 1 for op, _ in tensors}, **seen.executions})


def _initialize(session: Any, tf_graph: Any, library: Any, request: Mapping[str, Any]) -> None:
  """Gives variables the values of a checkpoint or of their initializers, or numbers if these fail.

  Initializers that read files or ask servers are not run; made-up numbers stand in. Lookup tables
  are filled, unless from a file.
  """
  names = request["variables"]
  ops, feed = variables.initializers_of(tf_graph, names, request["initializers"])
  if not _ran(session, ops, feed, library):
    session.run(*variables.initializers_of(tf_graph, names, {}, plain=True))
  if request["checkpoint"]:
    op, tensor, path = request["checkpoint"]
    with contextlib.suppress(KeyError, ValueError):
      _ran(session, [tf_graph.get_operation_by_name(op)], {tensor: path}, library, {"RestoreV2"})
  for op in tf_graph.get_operations():
    if op.type in _FILLS:
      _ran(session, [op], {}, library, _FILLS)


def _ran(
    session: Any, ops: Sequence[Any], feed: Mapping[Any, Any], library: Any,
    allowed: AbstractSet[str] = frozenset()) -> bool:
  """Runs ops if all that do more than compute are of allowed types; returns whether they ran."""
  nodes = (op.node_def for op in variables.needed_by(ops))
  if {node.op for node in no_side_effects.acting(nodes, library)} <= allowed:
    with contextlib.suppress(tf.errors.OpError):
      session.run(ops, feed)
      return True
  return False


def _of_trace(step_stats: Any) -> Seen:
  """Returns the shapes of outputs and the numbers of runs in a trace.

  Raises:
    CostError: the trace is not of the whole step.
  """
  runs: Dict[str, int] = collections.Counter()
  shapes: Dict[Tensor, List[List[int]]] = collections.defaultdict(list)  # of each run
  for device in step_stats.dev_stats:
    for node in device.node_stats:
      # An op in a loop is in the trace once for each run.
      runs[node.node_name] += 1
      for output in node.output:
        shapes[node.node_name, output.slot].append(
            [dim.size for dim in output.tensor_description.shape.dim])
  # TensorFlow leaves out the rest of a longer step without a message.
  if sum(runs.values()) >= _MOST_TRACED:
    raise CostError(f"it runs more than the {_MOST_TRACED:,} ops that a trace holds; give the "
                    "rounds of its loops (trip_count)")
  # The shape in the middle, by the number of elements.
  return Seen({tensor: sorted(found, key=math.prod)[len(found) // 2]
               for tensor, found in shapes.items()}, dict(runs))
