"""Writes TensorBoard events of a placing run, the curve while the search runs.

  StepTime/best_ms     best simulated step time so far against evaluations
  Timeline/best        picture of the best step, below the step of the unplaced graph
  graph                the placed graph without larger attributes

Events are written by `tf.compat.v1.summary.FileWriter`, because the writers of TensorFlow 2 run ops
in the user's process, which initializes its devices and depends on its settings.
"""

from __future__ import annotations

import os
import struct
import time
from typing import Any

from placeto_tf.on_use import tf
from placeto_tf.placing.result import PlacingResult
from placeto_tf.problem.placement_problem import PlacementProblem

_FLUSH_SECONDS = 5


class Events:
  """The file of events of a run, in the folder `placing` of a directory; closed by `with`."""

  def __init__(self, directory: str):
    """Opens the file, in a directory that need not exist."""
    self._written = 0  # improvements of the history
    with tf.Graph().as_default():  # the writer refuses eager mode, though it runs no op
      self._writer = tf.compat.v1.summary.FileWriter(
          os.path.join(directory, "placing"), flush_secs=_FLUSH_SECONDS)

  def __enter__(self) -> Events:
    return self

  def __exit__(self, *_: object) -> None:
    self._writer.close()

  def record(self, problem: PlacementProblem, _: str) -> None:
    """Writes the improvements of a search that are not written yet.

    Args:
      problem: the problem that is searched.
      _: name of the placer that runs.
    """
    found = problem.search_log.improvements
    for each in found[self._written:]:
      self._write(each.evaluations, tag="StepTime/best_ms", simple_value=each.objective_us / 1e3)
    self._written = len(found)

  def finish(self, result: PlacingResult) -> None:
    """Writes the end of the curve, the picture and the placed graph."""
    from tensorboard.backend import process_graph

    # The last point extends the curve to the end of the search, so that it shows its length.
    last = result.evaluations
    self._write(last, tag="StepTime/best_ms", simple_value=result.step_time_us / 1e3)
    png = result.picture
    # Bytes 16 to 24 of a PNG: width and height of its header.
    width, height = struct.unpack(">II", png[16:24])
    self._write(last, tag="Timeline/best", image=tf.compat.v1.Summary.Image(
        height=height, width=width, colorspace=4, encoded_image_string=png))
    source = result.graph.source
    if source is not None and source.graph_def is not None:
      placed = result.placement.apply(source.graph_def)
      process_graph.prepare_graph_for_ui(placed)  # removes larger attributes, such as weights
      self._writer.add_event(tf.compat.v1.Event(
          wall_time=time.time(), graph_def=placed.SerializeToString()))

  def _write(self, step: int, **value: Any) -> None:
    """Adds a summary of one value."""
    summary = tf.compat.v1.Summary
    self._writer.add_summary(summary(value=[summary.Value(**value)]), step)
