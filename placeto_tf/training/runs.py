"""The root directory of a training run.

It holds config.json, the configuration; done.json once the run is over; and the files that the
trainer writes in between. Files appear when they are complete.
"""

from __future__ import annotations

import os
from typing import Any, Dict, Optional

import numpy as np

from placeto_tf.errors import PlacetoError
from placeto_tf.files import outputs, user_files


def claim(root_dir: str, config: Dict[str, Any]) -> None:
  """Makes the directory of a run with this configuration, or checks that it is one.

  Args:
    root_dir: of the run.
    config: as `RunConfig.to_json` gives it.

  Raises:
    PlacetoError: the directory holds a run of another configuration.
  """
  # train/c* are checkpoints and TensorFlow's list of them. Events alone are of no use to a run.
  outputs.claim(root_dir, config, "training", begun=("done.json", "weights", "train/c*"))


def finish(root_dir: str, iterations: int, skipped: int, figures: Dict[str, float]) -> None:
  """Writes done.json.

  Args:
    root_dir: of the run.
    iterations: number of updates.
    skipped: number of updates that gave NaN and were undone.
    figures: the last figure of each name; NaN and infinity, which JSON lacks, are left out.
  """
  outputs.write_json(os.path.join(root_dir, "done.json"), {
      "reason": "all iterations are done", "iterations": iterations, "skipped_updates": skipped,
      "figures": {name: value for name, value in figures.items() if np.isfinite(value)}})


def finished(root_dir: str, config: Dict[str, Any]) -> Optional[Dict[str, float]]:
  """Returns the last figures of a run that is over.

  Returns:
    Name -> figure; None if the run is not over.

  Raises:
    PlacetoError: the directory holds a run of another configuration.
  """
  if not os.path.lexists(os.path.join(root_dir, "done.json")):
    return None
  claim(root_dir, config)
  return read_done(root_dir)["figures"]


def read_done(root_dir: str) -> Dict[str, Any]:
  """Returns the content of done.json: reason, iterations, skipped_updates, figures.

  Raises:
    PlacetoError: the file is missing or damaged.
  """
  path = os.path.join(root_dir, "done.json")
  remedy = "delete it and start the run again, which goes on from its last checkpoint"
  content = user_files.read_json_object(path, what="the run's end", remedy=remedy)
  figures = content.get("figures")
  if not isinstance(figures, dict) or not isinstance(content.get("iterations"), int) or not all(
      isinstance(value, (int, float)) for value in figures.values()):
    raise PlacetoError(f"{path!r} does not say how the run ended; {remedy}")
  return content
