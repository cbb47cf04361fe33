"""Checkpoints of a training run, by `tf.train.CheckpointManager`: a resume takes the last one.

A directory holds `ckpt-N.index` and `ckpt-N.data-*` of iteration N, and TensorFlow's list
`checkpoint`. A damaged checkpoint costs only the iterations since the previous one. If there are
checkpoints and none can be read, the run ends with an error instead of overwriting them.
"""

from __future__ import annotations

import glob
import json
import os
from typing import Any, Dict

import tensorflow as tf

from placeto_tf.errors import PlacetoError
from placeto_tf.files import user_files

_UNREADABLE = (tf.errors.OpError, LookupError, MemoryError, OSError, RuntimeError, TypeError,
               ValueError)


class Checkpoints:
  """Writes checkpoints of a run to a directory, and restores the last one.

  Attributes:
    restored: whether a checkpoint was restored.
  """

  def __init__(self, directory: str, state: Dict[str, Any], **tracked: Any):
    """Restores the tracked objects from the last checkpoint that can be read, if there is one.

    Args:
      directory: of the checkpoints.
      state: further state (numbers and text) that is saved, with the values of a new run.
      **tracked: objects for `tf.train.Checkpoint`.

    Raises:
      PlacetoError: there are checkpoints, and none can be read.
    """
    for name in os.listdir(directory) if os.path.isdir(directory) else ():
      path = os.path.join(directory, name)
      # TensorFlow would wait for a pipe. A killed save may leave its temporary directories.
      if name == "checkpoint" or name.startswith("ckpt-") and not os.path.isdir(path):
        user_files.check_regular(path, what="the checkpoint", remedy="choose another root_dir")
    self._directory = directory
    # The state is a string variable, so that one file holds it and the weights.
    self._stored = tf.Variable(json.dumps(state), dtype=tf.string, trainable=False)
    self._checkpoint = tf.train.Checkpoint(**tracked, state=self._stored)
    self.restored = self._restore()

  @property
  def state(self) -> Dict[str, Any]:
    """Returns the last saved state; in a new run, the state that the constructor received."""
    return json.loads(self._stored.numpy().decode())

  def save(self, iteration: int, state: Dict[str, Any]) -> None:
    """Writes a checkpoint, and removes those older than the last two.

    Args:
      iteration: number of updates so far; it names the files.
      state: further state, numbers and text that JSON can hold.

    Raises:
      PlacetoError: the checkpoint cannot be written.
    """
    self._stored.assign(json.dumps(state))
    try:
      self._manager.save(iteration)
    except (tf.errors.OpError, OSError) as error:
      raise PlacetoError(
          f"the checkpoint of iteration {iteration} cannot be written to {self._directory!r} "
          f"({_brief(error)}); make room and start the run again: it goes on from the checkpoint "
          "before") from None

  def _restore(self) -> bool:
    """Restores the last checkpoint that can be read, if there is one; returns whether it did."""
    directory, reasons = self._directory, []
    try:
      self._manager = tf.train.CheckpointManager(
          self._checkpoint, directory, max_to_keep=2, checkpoint_name="ckpt")
      known = self._manager.checkpoints
    except ValueError as error:  # of TensorFlow's list
      known, reasons = [], [_brief(error)]
    for prefix in reversed(known):
      try:
        # Values of a restore that fails halfway are overwritten by the next one, or not used.
        self._checkpoint.restore(prefix)
        return True
      except _UNREADABLE as error:
        reasons.append(f"{os.path.basename(prefix)}: {_brief(error)}")
    if reasons or glob.glob(os.path.join(glob.escape(directory), "*.index")):
      raise PlacetoError(
          f"none of the checkpoints in {directory!r} can be read "
          f"({'; '.join(reasons) or 'their list is gone'}); choose another root_dir, or put an "
          "undamaged copy back")
    return False


def _brief(error: Exception) -> str:
  """Returns the message of an error in one line."""
  return " ".join(str(getattr(error, "message", None) or error).split())[:200]
