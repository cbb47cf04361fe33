"""Runs one step of a graph; returns the shape of every output and the number of runs of every op.

The ops run with all their side effects. `analysis_server` calls this module for `look`.
"""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Set

from placeto_tf.costs import no_side_effects
from placeto_tf.errors import CostError, PlacetoError, one_line
from placeto_tf.graphs import feeds as feeds_lib
from placeto_tf.graphs import variables

if TYPE_CHECKING:
  from tensorflow.core.framework.graph_pb2 import GraphDef


def run(graph_def: GraphDef, request: Mapping[str, Any]) -> Dict[str, Any]:
  """Runs a step and returns its trace; to be called in a process of its own.

  Args:
    graph_def: the whole file, with initializers.
    request: "fetches", "variables", "initializers", "checkpoint" and "feeds" (tensor -> shape), see
      `look`.

  Returns:
    The fields of `Seen`.

  Raises:
    CostError: a step cannot be run.
  """
  import tensorflow as tf

  v1 = tf.compat.v1
  config = v1.ConfigProto(device_count={"CPU": 1, "GPU": 0}, intra_op_parallelism_threads=1)
  # Run nodes unchanged: none is folded, fused or moved.
  config.graph_options.optimizer_options.opt_level = v1.OptimizerOptions.L0
  config.graph_options.rewrite_options.disable_meta_optimizer = True
  metadata = v1.RunMetadata()
  try:
    with tf.Graph().as_default() as tf_graph:
      tf.graph_util.import_graph_def(graph_def, name="")
      feed = feeds_lib.random_feeds(tf_graph, request["feeds"], 0)
      with v1.Session(graph=tf_graph, config=config) as session:
        _initialize(session, tf_graph, graph_def.library, request)
        if request["checkpoint"]:
          _restore(session, tf_graph, graph_def.library, *request["checkpoint"])
        session.run(
            [tf_graph.as_graph_element(name) if ":" not in name else
             tf_graph.get_tensor_by_name(name).op for name in request["fetches"]],
            feed, v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE), metadata)
  except (ValueError, TypeError, KeyError, tf.errors.OpError, PlacetoError) as error:
    raise CostError(one_line(error)) from error
  return _of_trace(metadata.step_stats)


def _initialize(
    session: Any, tf_graph: Any, library: Any, request: Mapping[str, Any]) -> None:
  """Initializes the variables; with numbers of the right shape if their initializers fail."""
  import tensorflow as tf

  names = request["variables"]
  ops, feed = variables.initializers_of(tf_graph, names, request["initializers"])
  # Initializers that read files or ask servers are not run; made-up numbers stand in.
  try:
    if not _effects(ops, library):
      session.run(ops, feed)
      return
  except tf.errors.OpError:
    pass
  ops, feed = variables.initializers_of(tf_graph, names, {}, plain=True)
  session.run(ops, feed)


def _restore(session: Any, tf_graph: Any, library: Any, op: str, tensor: str, path: str) -> None:
  """Gives variables the values of a checkpoint, if the op for this reads it and does no more."""
  import tensorflow as tf

  with contextlib.suppress(KeyError, ValueError, tf.errors.OpError):
    if _effects([tf_graph.get_operation_by_name(op)], library) <= {"RestoreV2"}:
      session.run(op, {tensor: path})


def _effects(ops: Sequence[Any], library: Any) -> Set[str]:
  """Returns the types of ops that may do more than compute, of all that a run of `ops` needs."""
  nodes = (op.node_def for op in variables.needed_by(ops))
  return {node.op for node in no_side_effects.acting(nodes, library)}


def _of_trace(step_stats: Any) -> Dict[str, Any]:
  """Returns the shapes of outputs and the numbers of runs in a trace."""
  runs: Dict[str, int] = {}
  shapes: Dict[str, Dict[int, List[List[int]]]] = {}  # op -> output -> dimensions in each run
  for device in step_stats.dev_stats:
    for node in device.node_stats:
      # An op in a loop is in the trace once for each run.
      runs[node.node_name] = runs.get(node.node_name, 0) + 1
      for output in node.output:
        dims = [dim.size for dim in output.tensor_description.shape.dim]
        shapes.setdefault(node.node_name, {}).setdefault(output.slot, []).append(dims)
  return {
      "executions": runs,
      "shapes": {
          name: [_middle(slots.get(slot)) for slot in range(max(slots) + 1)]
          for name, slots in shapes.items()}}


def _middle(shapes: Optional[List[List[int]]]) -> Optional[List[int]]:
  """Returns the dimensions in the middle by size, None of none."""
  # By the number of elements.
  return sorted(shapes, key=math.prod)[len(shapes) // 2] if shapes else None
