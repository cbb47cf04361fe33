"""One placement in one session: set up, run, traced, and compared with the placement."""

from __future__ import annotations

from typing import Any, Mapping

from placeto_tf.errors import MeasurementError, PlacementError
from placeto_tf.graphs import feeds as feeds_lib
from placeto_tf.graphs import variables
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.placements import Placement
from placeto_tf.runtime import held_feeds
from placeto_tf.runtime import session as session_lib
from placeto_tf.runtime.workers import Runtime

# A copy that newer TensorFlow makes of a small constant for each device that reads it.
_REPLICA = "/replicate/"


class PlacedRun(session_lib.BoundedSession):
  """A session on a placed graph, with initialised variables, and feeds on their devices."""

  def __init__(
      self,
      graph: ComputationGraph,
      placement: Placement,
      devices: Mapping[str, str],
      runtime: Runtime,
      *,
      feeds: feeds_lib.Feeds = "random",
      config: Any = None,
      timeout_seconds: float = 120.0,
      seed: int = 0,
  ):
    """Opens the session.

    Args:
      graph: read from a file or graph that TensorFlow can run.
      placement: of its ops.
      devices: device of the placement -> canonical device of the runtime.
      runtime: see `workers`.
      feeds, seed: see `make_feeds`.
      config: ConfigProto of the session; by default one that runs the graph exactly as placed.
      timeout_seconds: of one step.

    Raises:
      MeasurementError: the graph cannot be run.
    """
    import tensorflow as tf

    source = graph.source
    if source is None or source.graph_def is None:
      raise MeasurementError(
          "the graph cannot be run: it has costs but no ops that TensorFlow knows; give the graph "
          "itself (GraphDef, MetaGraphDef, SavedModel)")
    self.graph, self.placement = graph, placement
    self.wanted = {op: devices[placement[op]] for op in graph.op_names}
    mapped = Placement(
        {op: devices[device] for op, device in placement.items()},
        tuple(dict.fromkeys(devices.values())))
    self.tf_graph, placed = tf.Graph(), mapped.apply(source.graph_def)
    # Before the import: placeholders on CPUs become reads of variables.
    held = held_feeds.hold(placed, feeds_lib.shapes_of(graph))
    with self.tf_graph.as_default():
      tf.import_graph_def(placed, name="")
    initializers, initial_values = variables.initializers(graph, self.tf_graph)
    values = feeds_lib.make_feeds(graph, self.tf_graph, feeds, seed)
    puts, put_values = held_feeds.put(self.tf_graph, held, values)
    # Other feeds are handed over in each step.
    self.feeds = {name: value for name, value in values.items() if name not in held}
    self._fetches = [
        self.tf_graph.as_graph_element(name, allow_tensor=True, allow_operation=True)
        for name in graph.fetches]
    config = config or session_lib.session_config(num_cpus=runtime.num_cpus)
    # Variables belong to the session, so that variables of earlier placements are freed.
    config.isolate_session_state = bool(runtime.target)
    super().__init__(runtime.target, self.tf_graph, config, timeout_seconds)
    self.run([*initializers, *puts], {**initial_values, **put_values})

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
