"""One placement in one session: set up, run, traced, and compared with the placement.

Fed values stand on their devices, like examples of an input pipeline. TensorFlow receives all fed
values on the first worker, which sends them on when a thread is free. With a single thread, this
can be after all other ops of the first worker, so a second worker that could begin at once begins
when the first one has ended (docs/results/replicas.md). This delay is no part of the graph's step,
and it is not simulated. So a placeholder on a CPU gets a constant beside it, which it passes on
(and which no optimizer folds).
"""

from __future__ import annotations

import itertools
from typing import Any, Dict, Mapping

import numpy as np

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.errors import MeasurementError, PlacementError
from placeto_tf.graphs import feeds as feeds_lib
from placeto_tf.graphs import shapes, variables
from placeto_tf.graphs.colocation import RESOURCE
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.graphs.tensor_names import control_inputs
from placeto_tf.on_use import GraphDef, tf
from placeto_tf.placements import Placement
from placeto_tf.runtime import session as session_lib
from placeto_tf.runtime.workers import Runtime

# A copy that newer TensorFlow makes of a small constant for each device that reads it.
_REPLICA = "/replicate/"
_MOST_BYTES = 1e9  # of constants; a graph has 2 GB at most


def feed_values(
    graph: ComputationGraph, feeds: feeds_lib.Feeds = "random", seed: int = 0
) -> Dict[str, np.ndarray]:
  """Makes the values of a graph's feeds.

  Args:
    graph: read from a file or graph that TensorFlow can run.
    feeds, seed: see `make_feeds`.

  Raises:
    MeasurementError: the graph cannot be run, or the feeds are not for this graph.
  """
  if graph.source is None or graph.source.graph_def is None:
    raise MeasurementError(
        "the graph cannot be run: it has costs but no ops that TensorFlow knows; give the graph "
        "itself (GraphDef, MetaGraphDef, SavedModel)")
  # Placed anywhere, so that functions are inlined as they will be, and readers of feeds are seen.
  anywhere = Placement.from_indices(
      graph, Cluster.parse("cpu:1"), np.zeros(graph.num_ops, np.int32))
  with tf.Graph().as_default() as tf_graph:
    tf.import_graph_def(anywhere.apply(graph.source.graph_def), name="")
  return feeds_lib.make_feeds(graph, tf_graph, feeds, seed)


def hold(graph_def: GraphDef, values: Mapping[str, np.ndarray]) -> Dict[str, np.ndarray]:
  """Gives placeholders on CPUs their values as constants, in place.

  Args:
    graph_def: placed, with full device names.
    values: name of a fed tensor -> its value.

  Returns:
    The values that are still to be fed: those on GPUs, and those of ops that are no placeholders.
  """
  left, taken = dict(values), {node.name for node in graph_def.node}
  if sum(value.nbytes for value in values.values()) > _MOST_BYTES:
    return left
  for node in list(graph_def.node):
    if f"{node.name}:0" not in left or node.op not in shapes.FEEDABLE or (
        "CPU:" not in node.device or node.attr["dtype"].type == RESOURCE):
      continue
    # A name that no node of the graph has.
    held = next(name for k in itertools.count() if (name := f"{node.name}/held_{k}") not in taken)
    constant = graph_def.node.add(name=held, op="Const", device=node.device)
    constant.attr["dtype"].type = dtype = node.attr["dtype"].type
    constant.attr["value"].tensor.CopyFrom(
        tf.make_tensor_proto(left.pop(f"{node.name}:0"), tf.dtypes.as_dtype(dtype)))
    # The placeholder keeps its name and its colocation, so that its readers do not change.
    node.op, node.input[:] = shapes.WITH_DEFAULT, [held, *control_inputs(node)]
    # No dimensions may stand for an unknown shape in old graphs.
    node.attr["shape"].shape.unknown_rank = not node.attr["shape"].shape.dim
  return left


class PlacedRun(session_lib.BoundedSession):
  """A session on a placed graph, with initialised variables, and feeds on their devices."""

  def __init__(
      self,
      graph: ComputationGraph,
      placement: Placement,
      devices: Mapping[str, str],
      runtime: Runtime,
      values: Mapping[str, np.ndarray],
      *,
      config: Any = None,
      timeout_seconds: float = 120.0,
  ):
    """Opens the session.

    Args:
      graph: read from a file or graph that TensorFlow can run.
      placement: of its ops.
      devices: device of the placement -> canonical device of the runtime.
      runtime: see `workers`.
      values: of the feeds, from `feed_values`.
      config: ConfigProto of the session; by default one that runs the graph exactly as placed.
      timeout_seconds: of one step.
    """
    self.graph, self.placement = graph, placement
    self.wanted = {op: devices[placement[op]] for op in graph.op_names}
    mapped = Placement(
        {op: devices[device] for op, device in placement.items()},
        tuple(dict.fromkeys(devices.values())))
    self.tf_graph, placed = tf.Graph(), mapped.apply(graph.origin.graph_def)
    # Other feeds are handed over in each step.
    self.feeds = hold(placed, values)
    with self.tf_graph.as_default():
      tf.import_graph_def(placed, name="")
    initializers, initial_values = variables.initializers(graph, self.tf_graph)
    self._fetches = [
        self.tf_graph.as_graph_element(name, allow_tensor=True, allow_operation=True)
        for name in graph.fetches]
    config = config or session_lib.session_config(num_cpus=runtime.num_cpus)
    # Variables belong to the session, so that variables of earlier placements are freed.
    config.isolate_session_state = bool(runtime.target)
    super().__init__(runtime.target, self.tf_graph, config, timeout_seconds)
    self.run(initializers, initial_values)

  def step(self) -> float:
    """Runs the fetches once and returns the seconds that took."""
    return self.run(self._fetches, self.feeds)

  def traced_step(self) -> Any:
    """Runs the fetches once and returns the RunMetadata, traced."""
    return self.traced_run(self._fetches, self.feeds)

  def check(self, metadata: Any) -> None:
    """Checks that each op ran on its device.

    Args:
      metadata: RunMetadata of a traced step.

    Raises:
      PlacementError: an op ran elsewhere, or was removed.
    """
    executed = session_lib.executed_devices(metadata)
    partitioned = session_lib.partitioned_devices(metadata)
    copied = {name.partition(_REPLICA)[0] for name in partitioned if _REPLICA in name}
    missing = []
    for op, op_type in zip(self.graph.op_names, self.graph.op_types):
      found = executed.get(op, set()) | partitioned.get(op, set())
      if found and found != {self.wanted[op]}:
        raise PlacementError(
            f"op {op!r} ran on {' and '.join(sorted(found))}, expected {self.wanted[op]}; colocate "
            "it with the op that it follows")
      # Ops that are fed do not run; copies of constants have other names.
      fed = op_type == "Placeholder" or f"{op}:0" in self.feeds
      if not found and not fed and op not in copied:
        missing.append(op)
    # oneDNN swaps and fuses kernels after the graph is split, and drops fused ops.
    if missing and not session_lib.swaps_kernels():
      raise PlacementError(
          f"op {missing[0]!r} was not run under its name, expected it on "
          f"{self.wanted[missing[0]]} (one of {len(missing)} ops); use a version of TensorFlow "
          "from 2.15 to 2.21, which run a graph unchanged")
