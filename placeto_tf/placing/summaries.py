"""Writes TensorBoard events of a placing run, while the search runs.

  StepTime/best_ms     best simulated step time so far against evaluations
  Throughput/evaluations_a_second  of the search
  Timeline/best        picture of the best step, below the step of the unplaced graph
  graph                the placed graph without the values of larger constants
  hparams              the options of the run

Events are written by `tf.compat.v1.summary.FileWriter`, because the writers of TensorFlow 2 run ops
in the user's process, which initializes its devices and depends on its settings. TensorBoard shows
charts in alphabetical order, so a policy's charts of its learning (`Training/`) come last.
"""

from __future__ import annotations

import dataclasses
import os
import struct
import time
from typing import TYPE_CHECKING, Any, Dict, Tuple

from placeto_tf.placing import tables
from placeto_tf.placing.result import PlacingResult
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.simulation import timeline

if TYPE_CHECKING:
  from tensorflow.core.framework.graph_pb2 import GraphDef

_FLUSH_SECONDS = 5
_RATE_SECONDS = 2  # interval for evaluations a second
_KEPT_CONSTANT_BYTES = 64  # larger constants are removed; axes, shapes and numbers are kept


class Recorded:
  """Writes TensorBoard events of a search.

  It is a context manager, which closes the files. Events are flushed every few seconds.
  """

  def __init__(self, directory: str):
    """Opens the file of events, in the folder `placing` of a directory."""
    import tensorflow as tf

    self._improvements = 0  # number of written entries of the history
    self._counted: Tuple[float, int] = (0.0, 0)  # seconds and evaluations
    with tf.Graph().as_default():  # the writer refuses eager mode, though it runs no op
      self._writer = tf.compat.v1.summary.FileWriter(
          os.path.join(directory, "placing"), flush_secs=_FLUSH_SECONDS)

  def __enter__(self) -> Recorded:
    return self

  def __exit__(self, *_: object) -> None:
    self._writer.close()

  def record(self, problem: PlacementProblem) -> None:
    """Writes the improvements since the last call and, now and then, evaluations a second."""
    log, (before_s, before) = problem.search_log, self._counted
    for evaluations, _, objective_us in log.history[self._improvements:]:
      self._write(evaluations, tag="StepTime/best_ms", simple_value=objective_us / 1e3)
    self._improvements = len(log.history)
    if log.seconds > before_s + _RATE_SECONDS:
      self._counted = log.seconds, log.evaluations
      self._write(log.evaluations, tag="Throughput/evaluations_a_second",
                  simple_value=(log.evaluations - before) / (log.seconds - before_s))

  def finish(self, result: PlacingResult) -> None:
    """Writes the final results: numbers, the picture and the graph."""
    import tensorflow as tf
    from tensorboard.plugins.hparams import api_pb2, summary, summary_v2

    last = result.evaluations
    for evaluations, _, objective_us in result.history[self._improvements:]:
      self._write(evaluations, tag="StepTime/best_ms", simple_value=objective_us / 1e3)
    # Extend the curve to the end of the search, so that it shows the length of the search.
    self._write(last, tag="StepTime/best_ms", simple_value=result.step_time_us / 1e3)
    for made in (summary_v2.hparams_pb(_hparams(result)),
                 summary.session_end_pb(api_pb2.STATUS_SUCCESS)):
      # The plugin may make TensorBoard's own class of Summary, not TensorFlow's.
      self._writer.add_summary(made.SerializeToString(), last)
    if result.graph.num_ops <= timeline.MAX_PICTURED_OPS:
      png = tables.picture(result)
      # Bytes 16 to 24 of a PNG: width and height of its header.
      width, height = struct.unpack(">II", png[16:24])
      self._write(last, tag="Timeline/best", image=tf.compat.v1.Summary.Image(
          height=height, width=width, colorspace=4, encoded_image_string=png))
    source = result.graph.source
    if source is not None and source.graph_def is not None:
      placed = without_constants(result.placement.apply(source.graph_def))
      self._writer.add_event(tf.compat.v1.Event(
          wall_time=time.time(), graph_def=placed.SerializeToString()))

  def _write(self, step: int, **value: Any) -> None:
    """Adds a summary of one value."""
    import tensorflow as tf

    summary = tf.compat.v1.Summary
    self._writer.add_summary(summary(value=[summary.Value(**value)]), step)


def _hparams(result: PlacingResult) -> Dict[str, Any]:
  """Returns plain values for the HPARAMS tab, which compares runs by them."""
  source = result.graph.source
  options = {field.name: getattr(result.config, field.name)
             for field in dataclasses.fields(result.config)}
  # Numbers unchanged, all other values as text; options that are not set are left out.
  shown = {name: value if isinstance(value, (int, float)) else str(value)
           for name, value in options.items() if value not in (None, ())}
  return {**shown, "devices": result.cluster.num_devices, "ops": result.graph.num_ops,
          "graph": (source.path if source else None) or result.graph.fingerprint[:12]}


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
