"""Writes TensorBoard events of a placing run.

  StepTime/best_ms     best simulated step time so far against evaluations
  Timeline/best        picture of the best step, below the step of the unplaced graph
  graph                the placed graph without larger attributes
  hparams              the options of the run

Events are written by `tf.compat.v1.summary.FileWriter`, because the writers of TensorFlow 2 run ops
in the user's process, which initializes its devices and depends on its settings. TensorBoard shows
charts in alphabetical order, so a policy's charts of its learning (`Training/`) come last.
"""

from __future__ import annotations

import os
import struct
import time
from typing import Any, Dict

from placeto_tf.placing import tables
from placeto_tf.placing.result import PlacingResult
from placeto_tf.simulation import timeline


def write_events(result: PlacingResult, directory: str) -> None:
  """Writes the events of a finished run into the folder `placing` of a directory.

  Args:
    result: of the run.
    directory: the directory; it need not exist.

  Returns:
    None.
  """
  import tensorflow as tf
  from tensorboard.backend import process_graph
  from tensorboard.plugins.hparams import api_pb2, summary, summary_v2

  with tf.Graph().as_default():  # the writer refuses eager mode, though it runs no op
    writer = tf.compat.v1.summary.FileWriter(os.path.join(directory, "placing"))

  def add(step: int, **value: Any) -> None:
    made = tf.compat.v1.Summary
    writer.add_summary(made(value=[made.Value(**value)]), step)

  # The last point extends the curve to the end of the search, so that it shows its length.
  last = result.evaluations
  curve = [(evaluations, us) for evaluations, _, us in result.history]
  for evaluations, us in [*curve, (last, result.step_time_us)]:
    add(evaluations, tag="StepTime/best_ms", simple_value=us / 1e3)
  for made in (summary_v2.hparams_pb(_hparams(result)),
               summary.session_end_pb(api_pb2.STATUS_SUCCESS)):
    # The plugin may make TensorBoard's own class of Summary, not TensorFlow's.
    writer.add_summary(made.SerializeToString(), last)
  if result.graph.num_ops <= timeline.MAX_PICTURED_OPS:
    png = tables.picture(result)
    # Bytes 16 to 24 of a PNG: width and height of its header.
    width, height = struct.unpack(">II", png[16:24])
    add(last, tag="Timeline/best", image=tf.compat.v1.Summary.Image(
        height=height, width=width, colorspace=4, encoded_image_string=png))
  source = result.graph.source
  if source is not None and source.graph_def is not None:
    placed = result.placement.apply(source.graph_def)
    process_graph.prepare_graph_for_ui(placed)  # removes larger attributes, such as weights
    writer.add_event(tf.compat.v1.Event(
        wall_time=time.time(), graph_def=placed.SerializeToString()))
  writer.close()


def _hparams(result: PlacingResult) -> Dict[str, Any]:
  """Returns plain values for the HPARAMS tab, which compares runs by them."""
  source = result.graph.source
  # Numbers unchanged, all other values as text; options that are not set are left out.
  shown = {name: value if isinstance(value, (int, float)) else str(value)
           for name, value in vars(result.config).items() if value not in (None, (), {})}
  return {**shown, "devices": result.cluster.num_devices, "ops": result.graph.num_ops,
          "graph": (source.path if source else None) or result.graph.fingerprint[:12]}
