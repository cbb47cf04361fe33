"""One placement in one session: set up, run, traced, and compared with the placement."""

from __future__ import annotations

import dataclasses
import time
from typing import Any, Mapping, Tuple

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


@dataclasses.dataclass(frozen=True)
class Execution:
  """Where the ops of a graph ran in a traced run.

  Attributes:
    folded: ops whose name is not in the graphs that were run.
    moved: op -> devices it ran on, if these differ from the wanted one.
  """

  folded: Tuple[str, ...]
  moved: Mapping[str, Tuple[str, ...]]


class PlacedRun:
  """A session on a placed graph, with initialised variables, and feeds on their devices."""

  def __init__(
      self,
      graph: ComputationGraph,
      placement: Placement,
      devices: Mapping[str, str],
      runtime: Runtime,
      *,
      feeds: feeds_lib.Feeds = "random",
      optimizations: bool = False,
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
      optimizations: let TensorFlow's optimisers work, and soft placement.
      timeout_seconds: of one step.

    Raises:
      MeasurementError: the graph cannot be run.
    """
    import tensorflow as tf

    v1 = tf.compat.v1
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
    config = _config(runtime, optimizations)
    self._timeout_ms = int(timeout_seconds * 1e3)
    config.operation_timeout_in_ms = self._timeout_ms
    self.session = v1.Session(runtime.target, graph=self.tf_graph, config=config)
    self._run([*initializers, *puts], {**initial_values, **put_values}, v1.RunOptions())

  def step(self) -> float:
    """Runs the fetches once and returns the seconds that took."""
    import tensorflow as tf

    options = tf.compat.v1.RunOptions()
    started = time.perf_counter()
    self._run(self._fetches, self.feeds, options)
    return time.perf_counter() - started

  def traced_step(self) -> Any:
    """Runs the fetches once and returns the RunMetadata, traced."""
    import tensorflow as tf

    metadata = tf.compat.v1.RunMetadata()
    self._run(self._fetches, self.feeds, session_lib.trace_options(), metadata)
    return metadata

  def _run(self, fetches: Any, feeds: Any, options: Any, metadata: Any = None) -> None:
    """Runs the session with its time-out; after an error it lets go of it."""
    options.timeout_in_ms = self._timeout_ms
    try:
      self.session.run(fetches, feeds, options=options, run_metadata=metadata)
    except BaseException:
      self.abandon()
      raise

  def close(self) -> None:
    """Closes the session, unless it was abandoned."""
    self.session.close()

  def abandon(self) -> None:
    """Lets go of the session; see `session.abandon`."""
    session_lib.abandon(self.session)

  def execution(self, metadata: Any) -> Execution:
    """Compares a traced run with the placement."""
    executed = session_lib.executed_devices(metadata)
    partitioned = session_lib.partitioned_devices(metadata)
    replicated = {name.partition(_REPLICA)[0] for name in partitioned if _REPLICA in name}
    folded, moved = [], {}
    for op, op_type in zip(self.graph.op_names, self.graph.op_types):
      found = executed.get(op, set()) | partitioned.get(op, set())
      if not found:
        # Ops that are fed do not run; copies of constants have other names.
        fed = op_type == "Placeholder" or f"{op}:0" in self.feeds
        if not fed and op not in replicated:
          folded.append(op)
      elif found != {self.wanted[op]}:
        moved[op] = tuple(sorted(found))
    return Execution(tuple(folded), moved)

  def check(self, execution: Execution) -> None:
    """Checks that each op ran on its device.

    Args:
      execution: of a traced step.

    Raises:
      PlacementError: an op ran elsewhere, or was removed.
    """
    for op, found in execution.moved.items():
      raise PlacementError(
          f"op {op!r} ran on {' and '.join(found)}, expected {self.wanted[op]}; colocate it with "
          "the op that it follows, or time the graph with optimizations on")
    # oneDNN swaps and fuses kernels after the graph is split, and drops fused ops.
    if execution.folded and not session_lib.swaps_kernels():
      raise PlacementError(
          f"op {execution.folded[0]!r} was not run under its name, expected it on "
          f"{self.wanted[execution.folded[0]]} (one of {len(execution.folded)} ops); time the "
          "graph with optimizations on")


def _config(runtime: Runtime, optimizations: bool) -> Any:
  """Returns the configuration of a session with variables of its own."""
  import tensorflow as tf

  if optimizations:
    config = tf.compat.v1.ConfigProto(
        device_count={"CPU": runtime.num_cpus}, allow_soft_placement=True)
  else:
    config = session_lib.session_config(num_cpus=runtime.num_cpus)
  # Variables belong to the session, so that variables of earlier placements are freed.
  config.isolate_session_state = bool(runtime.target)
  return config
