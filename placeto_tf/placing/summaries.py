"""TensorBoard of a placing run, written while the search runs.

  StepTime/best_ms     best simulated step time against evaluations, as it is found
  Throughput/evaluations_a_second  of the search
  Timeline/best        picture of the best step, below the step of the graph as it was
  graph                the placed graph without the values of larger constants, which TensorBoard
                       does not show
  simulated step       RunMetadata of the graph: when each op runs and the memory of its outputs,
                       so that the graph can be coloured by device, compute time and memory
  hparams              the inputs and options of the run

Events are written by TensorBoard's own writer: `tf.summary` would run TensorFlow ops in the user's
process, whose settings they depend on. TensorBoard shows charts in alphabetical order, so that a
policy's charts of its learning (`Training/`) come last.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Tuple

import numpy as np

from placeto_tf.clusters import device_names
from placeto_tf.costs import OpCosts
from placeto_tf.graphs import ComputationGraph
from placeto_tf.placing import tables
from placeto_tf.placing.observing import Observer, Progress
from placeto_tf.placing.result import PlacingResult
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.simulation import SimulationResult, timeline

if TYPE_CHECKING:
  from tensorflow.core.framework.graph_pb2 import GraphDef
  from tensorflow.core.protobuf.config_pb2 import RunMetadata

RUN_METADATA_TAG = "simulated step"
_FLUSH_SECONDS = 5
_RATE_SECONDS = 2  # over which evaluations a second are taken
_KEPT_CONSTANT_BYTES = 64  # axes, shapes and numbers stay readable


class Recorded(Observer):
  """Tells another observer how a run goes, and writes TensorBoard's events of its search.

  Use as a context manager, which closes the files. Events are flushed every few seconds.
  """

  def __init__(self, observer: Observer, directory: str):
    """Opens the file of events.

    Args:
      observer: is told as well.
      directory: the events go to its folder `placing`.
    """
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    super().__init__()
    self._observer = observer
    self.say, self.stage = observer.say, observer.stage  # type: ignore[method-assign]
    self._improvements = 0  # of the history, those that are written
    self._counted: Tuple[float, int] = (0.0, 0)  # seconds and evaluations
    self._writer = EventFileWriter(os.path.join(directory, "placing"), flush_secs=_FLUSH_SECONDS)

  def __enter__(self) -> Recorded:
    return self

  def __exit__(self, *_: object) -> None:
    self._writer.close()

  @contextlib.contextmanager
  def search(self, budget: Budget) -> Iterator[Progress]:
    """Gives the observer's function for a search, which also records events."""
    with self._observer.search(budget) as progress:

      def both(problem: PlacementProblem, placer: str) -> None:
        """Records events and tells the observer.

        Args:
          problem: whose search log is recorded.
          placer: that works on it.
        """
        self._record(problem)
        progress(problem, placer)

      yield both

  def _record(self, problem: PlacementProblem) -> None:
    """Writes the improvements since the last call and, now and then, evaluations a second."""
    search_log, (before_s, before) = problem.search_log, self._counted
    self._write_history(search_log.history, time.time() - search_log.seconds)
    if search_log.seconds > before_s + _RATE_SECONDS:
      self._counted = search_log.seconds, search_log.evaluations
      self._write(search_log.evaluations, tag="Throughput/evaluations_a_second",
                  simple_value=(search_log.evaluations - before) / (search_log.seconds - before_s))

  def finish(self, result: PlacingResult) -> None:
    """Writes the final results: figures, the picture, the graph and its simulated step."""
    from tensorboard.compat.proto import event_pb2, summary_pb2
    from tensorboard.plugins.hparams import api_pb2, summary, summary_v2

    now, last = time.time(), result.evaluations
    self._write_history(result.history, now - result.seconds)
    # The line goes on to the end of the search, so that its length is seen too.
    self._write(last, tag="StepTime/best_ms", simple_value=result.step_time_us / 1e3)
    for made in (summary_v2.hparams_pb(_hparams(result)),
                 summary.session_end_pb(api_pb2.STATUS_SUCCESS)):
      # Which class of Summary the plugin makes depends on whether TensorFlow is there.
      self._add(step=last, summary=summary_pb2.Summary.FromString(made.SerializeToString()))
    if result.graph.num_ops <= timeline.MAX_PICTURED_OPS:
      png = tables.picture(result)
      # Bytes 16 to 24 of a PNG: width and height of its header.
      width, height = struct.unpack(">II", png[16:24])
      self._write(last, tag="Timeline/best", image=summary_pb2.Summary.Image(
          height=height, width=width, colorspace=4, encoded_image_string=png))
    source = result.graph.source
    if source is not None and source.graph_def is not None:
      placed = without_constants(result.placement.apply(source.graph_def))
      self._add(graph_def=placed.SerializeToString())
      metadata = run_metadata(result.graph, result.costs, result.simulated)
      self._add(tagged_run_metadata=event_pb2.TaggedRunMetadata(
          tag=RUN_METADATA_TAG, run_metadata=metadata.SerializeToString()))

  def _write_history(self, history: List[Any], began: float) -> None:
    """Writes the improvements that are not written yet.

    Args:
      history: of the run, [(evaluations, seconds, objective_us)].
      began: time of the run's begin, in seconds of the system's clock.
    """
    for evaluations, seconds, objective_us in history[self._improvements:]:
      self._write(evaluations, began + seconds, tag="StepTime/best_ms",
                  simple_value=objective_us / 1e3)
    self._improvements = len(history)

  def _write(self, step: int, wall_time: Optional[float] = None, **value: Any) -> None:
    """Adds a summary of one value."""
    from tensorboard.compat.proto import summary_pb2

    found = summary_pb2.Summary(value=[summary_pb2.Summary.Value(**value)])
    self._add(wall_time, step=step, summary=found)

  def _add(self, wall_time: Optional[float] = None, **content: Any) -> None:
    """Adds an event, by default with the present time."""
    from tensorboard.compat.proto import event_pb2

    self._writer.add_event(event_pb2.Event(wall_time=wall_time or time.time(), **content))


def _hparams(result: PlacingResult) -> Dict[str, Any]:
  """Returns plain values for the HPARAMS tab, which compares runs by them."""
  config, source = result.config, result.graph.source
  names = ("method", "seed", "grouping", "max_groups", "max_seconds", "max_evaluations", "costs",
           "existing_devices", "cost")
  found = {name: getattr(config, name) for name in names if getattr(config, name) is not None}
  if config.pins:
    found["pins"] = ", ".join(f"{regex}:{device}" for regex, device in config.pins)
  found["costs"] = str(config.costs)
  found["graph"] = (source.path if source is not None else None) or result.graph.fingerprint[:12]
  found["devices"] = result.cluster.num_devices
  found["ops"] = result.graph.num_ops
  return found


def without_constants(graph_def: GraphDef) -> GraphDef:
  """Removes larger values of constants and other attributes in place, and returns the GraphDef."""
  from tensorboard.backend import process_graph

  nodes = [graph_def.node, *(function.node_def for function in graph_def.library.function)]
  for node in (node for group in nodes for node in group):
    if node.op == "Const" and node.attr["value"].tensor.ByteSize() > _KEPT_CONSTANT_BYTES:
      tensor = node.attr["value"].tensor
      kept = type(tensor)(dtype=tensor.dtype, tensor_shape=tensor.tensor_shape)
      tensor.CopyFrom(kept)
  process_graph.prepare_graph_for_ui(graph_def)
  return graph_def


def run_metadata(
    graph: ComputationGraph, costs: OpCosts, simulated: SimulationResult) -> RunMetadata:
  """Returns a simulated step as the RunMetadata that TensorFlow would return for a real one.

  Times are whole microseconds, at least 1 for an op that takes any time; the memory of an op is
  that of its outputs, temporaries and variables.

  Args:
    graph: whose ops are listed.
    costs: of its ops.
    simulated: when and where they run; its cluster names the devices.

  Returns:
    The metadata, with a list of ops for each device.
  """
  from tensorflow.core.protobuf import config_pb2

  found = config_pb2.RunMetadata()
  devices = [found.step_stats.dev_stats.add(device=device_names.canonical(name) or name)
             for name in simulated.cluster.device_names]
  # [N] bytes; outputs are added below.
  held_bytes = costs.temporary_bytes + costs.persistent_bytes
  # Output i belongs to the op whose range in `output_offsets` contains i.
  np.add.at(held_bytes, np.repeat(np.arange(graph.num_ops), np.diff(graph.output_offsets)),
            costs.output_bytes)
  rows = zip(graph.op_names, simulated.placement.tolist(), simulated.start_us.tolist(),
             simulated.end_us.tolist(), held_bytes.tolist())
  for name, d, start_us, end_us, held in rows:
    took = max(1, round(end_us - start_us)) if end_us > start_us else 0
    stats = devices[d].node_stats.add(
        node_name=name, all_start_micros=round(start_us), op_end_rel_micros=took,
        all_end_rel_micros=took)
    if held:
      stats.memory.add(allocator_name=devices[d].device, total_bytes=round(held))
  return found
