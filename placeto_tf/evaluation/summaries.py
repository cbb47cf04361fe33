"""TensorBoard summaries of an evaluation: one run per row, its settings as hparams.

The HPARAMS tab compares the rows by graph, cluster, method and seed; the SCALARS tab shows the
best step time so far against evaluations.
"""

from __future__ import annotations

import os
import shutil
import time
from typing import Any, Dict

from placeto_tf.evaluation.histories import read_history

HPARAMS = ("graph", "cluster", "method", "seed")


def write_summaries(row: Dict[str, Any], out: str) -> str:
  """Writes the summaries of one row into `out`/tensorboard; returns the run's directory.

  Args:
    row: as `evaluate` returns it; its history is in `out`.
    out: the directory of results.
  """
  from tensorboard.compat.proto import event_pb2, summary_pb2
  from tensorboard.plugins.hparams import api_pb2, summary, summary_v2
  from tensorboard.summary.writer.event_file_writer import EventFileWriter

  stem = os.path.splitext(os.path.basename(row["placement"]))[0]
  directory = os.path.join(out, "tensorboard", stem)
  shutil.rmtree(directory, ignore_errors=True)  # of a run that was killed before its row was there
  history = read_history(row, out)
  started = time.time() - row["seconds"]
  writer = EventFileWriter(directory)

  def write(content: Any, step: int = 0, seconds: float = 0.0) -> None:
    # Which class of Summary the plugin makes depends on whether TensorFlow is there.
    content = summary_pb2.Summary.FromString(content.SerializeToString())
    writer.add_event(event_pb2.Event(wall_time=started + seconds, step=step, summary=content))

  def scalar(tag: str, value: float) -> Any:
    return summary_pb2.Summary(value=[summary_pb2.Summary.Value(tag=tag, simple_value=value)])

  try:
    write(summary_v2.hparams_pb({name: row[name] for name in HPARAMS}, trial_id=stem))
    for evaluations, seconds, objective_us in history:
      write(scalar("StepTime/best_ms", objective_us / 1e3), int(evaluations), seconds)
    final = {
        "Result/step_time_ms": row["step_time_us"] / 1e3,
        "Result/over_bound": row["step_time_us"] / row["lower_bound_us"],
        "Result/evaluations": row["evaluations"],
        "Result/seconds": row["seconds"],
        "Result/peak_memory_gb": row["peak_memory_bytes"] / 2**30,
    }
    for tag, value in final.items():
      write(scalar(tag, value), row["evaluations"], row["seconds"])
    write(summary.session_end_pb(api_pb2.STATUS_SUCCESS), row["evaluations"], row["seconds"])
  finally:
    writer.close()
  return directory
