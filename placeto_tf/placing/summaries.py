"""TensorBoard of a placing run, written while the search runs.

  StepTime/best_ms     best simulated step time against evaluations, as it is found
  Throughput/evaluations_a_second  of the whole search, and Throughput/run_N_a_second of each
                       independent run, where there are several
  Timeline/before      picture of the step with the graph's own devices, if that was simulated
  Timeline/best        picture of the best step
  graph                the placed graph without the values of its constants, which TensorBoard does
                       not show and which are megabytes in a frozen graph
  simulated step       RunMetadata of the graph: when each op runs and the memory of its outputs,
                       so that the graph can be coloured by device, compute time and memory
  hparams              the inputs and options of the run

TensorBoard shows groups of charts in alphabetical order: the step time first, and last a policy's
charts of its learning (`Training/`, see `policies.placeto.search`).

Legend: N ops, D devices.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import time
from typing import TYPE_CHECKING, Any, ContextManager, Dict, Iterator, List, Optional, Tuple

import numpy as np

from placeto_tf.clusters import device_names
from placeto_tf.costs import OpCosts
from placeto_tf.graphs import ComputationGraph
from placeto_tf.placing.explaining import ms_text
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


class PlacingSummaries:
  """Writes a run's events; its call is what `Observer.search` gives.

  Events are flushed every few seconds and when it is closed.
  """

  def __init__(self, directory: str):
    """Args: directory: where the events go; made when the first is written."""
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    self._writer = EventFileWriter(directory, flush_secs=_FLUSH_SECONDS)
    self._improvements = 0  # of the history, those that are written
    self._counted: Tuple[float, Tuple[int, ...]] = (0.0, (0,))  # seconds; evaluations: all, runs

  def close(self) -> None:
    """Writes what is left."""
    self._writer.close()

  def __call__(self, problem: PlacementProblem, placer: str) -> None:
    """Writes the improvements since the last call and, now and then, evaluations a second."""
    history = problem.account.history
    if len(history) > self._improvements:
      self._write_history(history[self._improvements:], time.time() - problem.account.seconds)
      self._improvements = len(history)
    if problem.account.seconds > self._counted[0] + _RATE_SECONDS:
      self._write_rates(problem)

  def flush(self) -> None:
    """Flushes events, which also happens every few seconds."""
    self._writer.flush()

  def finish(self, result: PlacingResult) -> None:
    """Writes the final results: figures, pictures, the graph and its simulated step."""
    from tensorboard.compat.proto import event_pb2
    from tensorboard.plugins.hparams import api_pb2, summary, summary_v2

    now, last = time.time(), result.evaluations
    self._write_history(result.history[self._improvements:], now - result.seconds)
    self._improvements = len(result.history)
    # The line goes on to the end of the search, so that its length is seen too.
    self._scalar("StepTime/best_ms", result.step_time_us / 1e3, last, now)
    self._write(summary_v2.hparams_pb(_hparams(result)), 0, now)
    self._write(summary.session_end_pb(api_pb2.STATUS_SUCCESS), last, now)
    if result.graph.num_ops <= timeline.MAX_PICTURED_OPS:
      self._pictures(result, now)
    source = result.graph.source
    if source is not None and source.graph_def is not None:
      placed = without_constants(result.placement.apply(source.graph_def))
      self._writer.add_event(event_pb2.Event(
          wall_time=now, graph_def=placed.SerializeToString()))
      metadata = run_metadata(result.graph, result.costs, result.simulated)
      self._writer.add_event(event_pb2.Event(
          wall_time=now, tagged_run_metadata=event_pb2.TaggedRunMetadata(
              tag=RUN_METADATA_TAG, run_metadata=metadata.SerializeToString())))

  def _write_history(self, history: List[Any], began: float) -> None:
    """Args: history: (evaluations, seconds, objective_us); began: when, in seconds of the epoch."""
    for evaluations, seconds, objective_us in history:
      self._scalar("StepTime/best_ms", objective_us / 1e3, evaluations, began + seconds)

  def _write_rates(self, problem: PlacementProblem) -> None:
    """Writes evaluations a second since they were written last."""
    account = problem.account
    seconds, counts = account.seconds, (account.evaluations, *account.of_runs)
    for i, (count, before) in enumerate(
        itertools.zip_longest(counts, self._counted[1], fillvalue=0)):
      name = f"run_{i - 1}_a_second" if i else "evaluations_a_second"
      self._scalar(f"Throughput/{name}", (count - before) / (seconds - self._counted[0]),
                   problem.account.evaluations, time.time())
    self._counted = seconds, counts

  def _pictures(self, result: PlacingResult, now: float) -> None:
    """The timelines before and after."""
    from placeto_tf.simulation import Simulator

    pictured = {"best": (result.simulated, result.evaluations)}
    before = result.baselines["current"].placement
    # With replicas the original graph has other ops than the placed one.
    if before is not None and len(before) == result.graph.num_ops and (
        not np.array_equal(before, result.indices)):
      simulator = Simulator(result.graph, result.costs, result.cluster)
      pictured["before"] = simulator.simulate(before), 0
    for name, (simulated, step) in pictured.items():
      figure = timeline.timeline_figure(
          simulated, graph=result.graph, costs=result.costs,
          title=f"One step: {ms_text(simulated.step_time_us)}")
      png = io.BytesIO()
      figure.savefig(png, format="png")
      width, height = figure.canvas.get_width_height()
      self._write(_summary(tag=f"Timeline/{name}", image=dict(
          height=height, width=width, colorspace=4, encoded_image_string=png.getvalue())),
                  step, now)

  def _scalar(self, tag: str, value: float, step: int, wall_time: float) -> None:
    self._write(_summary(tag=tag, simple_value=value), step, wall_time)

  def _write(self, content: Any, step: int, wall_time: float) -> None:
    from tensorboard.compat.proto import event_pb2, summary_pb2

    # Which class of Summary the hparams plugin makes depends on whether TensorFlow is there.
    content = summary_pb2.Summary.FromString(content.SerializeToString())
    self._writer.add_event(event_pb2.Event(wall_time=wall_time, step=step, summary=content))


class Recorded(Observer):
  """Has another observer told, and writes TensorBoard's events of the search.

  Use as a context manager, which closes the files.
  """

  def __init__(self, observer: Observer, directory: str):
    self._observer, self._directory = observer, directory
    self._events: Optional[PlacingSummaries] = None  # once a search begins

  def __enter__(self) -> Recorded:
    return self

  def __exit__(self, *_: object) -> None:
    if self._events is not None:
      self._events.close()

  def stage(self, name: str) -> ContextManager[None]:
    """See `Observer`."""
    return self._observer.stage(name)

  @contextlib.contextmanager
  def search(self, budget: Budget) -> Iterator[Progress]:
    """See `Observer`."""
    events = self._events = PlacingSummaries(os.path.join(self._directory, "placing"))
    with self._observer.search(budget) as progress:

      def both(problem: PlacementProblem, placer: str) -> None:
        progress(problem, placer)
        events(problem, placer)

      yield both

  def finish(self, result: PlacingResult) -> None:
    """Writes what was found to the events of the search."""
    assert self._events is not None  # there is no result without a search
    self._events.finish(result)


def _summary(tag: str, image: Optional[Dict[str, Any]] = None, **value: Any) -> Any:
  from tensorboard.compat.proto import summary_pb2

  if image is not None:
    value["image"] = summary_pb2.Summary.Image(**image)
  return summary_pb2.Summary(value=[summary_pb2.Summary.Value(tag=tag, **value)])


def _hparams(result: PlacingResult) -> Dict[str, Any]:
  """Plain values for the HPARAMS tab, which compares runs by them."""
  config, source = result.config, result.graph.source
  names = ("method", "seed", "grouping", "max_groups", "max_seconds", "max_evaluations", "costs",
           "existing_devices", "cost")
  found = {name: getattr(config, name) for name in names if getattr(config, name) is not None}
  found["graph"] = (source.path if source is not None else None) or result.graph.fingerprint[:12]
  found["devices"] = result.cluster.num_devices
  found["ops"] = result.graph.num_ops
  return found


def without_constants(graph_def: GraphDef) -> GraphDef:
  """The GraphDef without larger values of constants and other attributes, in place; shapes stay."""
  from tensorboard.backend import process_graph

  nodes = [graph_def.node, *(function.node_def for function in graph_def.library.function)]
  for node in (node for group in nodes for node in group):
    if node.op != "Const" or "value" not in node.attr:
      continue
    tensor = node.attr["value"].tensor
    if tensor.ByteSize() > _KEPT_CONSTANT_BYTES:
      kept = type(tensor)(dtype=tensor.dtype, tensor_shape=tensor.tensor_shape)
      tensor.CopyFrom(kept)
  process_graph.prepare_graph_for_ui(graph_def)
  return graph_def


def run_metadata(
    graph: ComputationGraph, costs: OpCosts, simulated: SimulationResult) -> RunMetadata:
  """A simulated step as the RunMetadata that TensorFlow would return for a real one.

  Times are whole microseconds, at least 1 for an op that takes any time; the memory of an op is
  that of its outputs, temporaries and variables.

  Args:
    graph: whose ops are listed.
    costs: of its ops.
    simulated: when and where they run; its cluster names the devices.
  """
  from tensorflow.core.protobuf import config_pb2

  found = config_pb2.RunMetadata()
  devices = [found.step_stats.dev_stats.add(device=device_names.canonical(name) or name)
             for name in simulated.cluster.device_names]
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
