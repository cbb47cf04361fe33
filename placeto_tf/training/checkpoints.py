"""Checkpoints of a training run: the last one that can be read is the one to resume from.

A directory holds `ckpt-N.index` and `ckpt-N.data-*`, N the iteration, and `checkpoint`, which tells
`tf.train.latest_checkpoint` their names. A resume does not rely on that file: it takes the last
checkpoint that can be read to its last byte, so a damaged file costs only the iterations since the
checkpoint before it. If there are checkpoints and none can be read, it is an error; the run does
not begin again over them. (`tf.train.CheckpointManager` goes by the file `checkpoint` alone.)
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from typing import Any, Dict, List, Tuple

import tensorflow as tf

from placeto_tf.errors import PlacetoError
from placeto_tf.files import outputs, user_files

_PREFIX = "ckpt"
_STATE = "state/.ATTRIBUTES/VARIABLE_VALUE"
_FILE = re.compile(_PREFIX + r"-(\d{1,18})([._].*)\Z", re.DOTALL)
_UNREADABLE = (tf.errors.OpError, ValueError, KeyError, TypeError, IndexError, OSError, MemoryError,
               RuntimeError, OverflowError)


class Checkpoints:
  """Writes checkpoints of a run to a directory, and restores the last one."""

  def __init__(self, directory: str, state: Dict[str, Any], most: int = 2, **tracked: Any):
    """Restores the tracked objects from the last checkpoint that can be read, if there is one.

    Args:
      directory: of the checkpoints.
      state: further state to save, of numbers and text, with the values of a new run.
      most: how many checkpoints are kept.
      **tracked: objects for `tf.train.Checkpoint`.

    Raises:
      PlacetoError: there are checkpoints, and none can be read.
    """
    self.directory, self._most = directory, most
    self._stored = tf.Variable(json.dumps(state), dtype=tf.string, trainable=False)
    self._checkpoint = tf.train.Checkpoint(**tracked, state=self._stored)
    self._kept = _restore(self._checkpoint, directory)

  @property
  def restored(self) -> bool:
    """Returns whether a checkpoint was restored."""
    return bool(self._kept)

  @property
  def state(self) -> Dict[str, Any]:
    """Returns the state as it was last saved; in a new run the given one."""
    return json.loads(self._stored.numpy().decode())

  def save(self, iteration: int, state: Dict[str, Any]) -> None:
    """Writes a checkpoint, and removes those older than the last `most`.

    Args:
      iteration: number of updates so far; it names the files.
      state: further state, numbers and text that JSON can hold.

    Raises:
      PlacetoError: the checkpoint cannot be written.
    """
    # The state is a string variable, so one file holds it and the weights.
    self._stored.assign(json.dumps(state))
    try:
      os.makedirs(self.directory, exist_ok=True)
      # TensorFlow writes to temporary files and renames them, the index last.
      self._checkpoint.write(os.path.join(self.directory, f"{_PREFIX}-{iteration}"))
    except (tf.errors.OpError, OSError) as error:
      reason = " ".join(str(getattr(error, "message", error)).split())[:200]
      raise PlacetoError(
          f"the checkpoint of iteration {iteration} cannot be written to {self.directory!r} "
          f"({reason}); make room and start the run again: it goes on from the checkpoint before"
      ) from None
    # An iteration that is saved twice is listed once, as the latest.
    self._kept = [*(each for each in self._kept if each != iteration), iteration][-self._most:]
    self._note()
    self._remove_older()

  def _note(self) -> None:
    """Writes down the names for `tf.train.latest_checkpoint`."""
    names = [f"{_PREFIX}-{iteration}" for iteration in self._kept]
    lines = [f'model_checkpoint_path: "{names[-1]}"'] + [
        f'all_model_checkpoint_paths: "{name}"' for name in names]
    outputs.write(os.path.join(self.directory, "checkpoint"), ("\n".join(lines) + "\n").encode(),
                 what="the list of checkpoints ", error_type=PlacetoError)

  def _remove_older(self) -> None:
    """Removes checkpoints that are not kept, and temporary files of killed runs."""
    for name in os.listdir(self.directory):
      match = _FILE.match(name)
      path = os.path.join(self.directory, name)
      with contextlib.suppress(OSError):
        # Files of iterations before the oldest that is kept.
        if match and int(match.group(1)) < self._kept[0] and not os.path.isdir(path):
          os.unlink(path)
        elif match and match.group(2).startswith("_temp") and os.path.isdir(path):
          shutil.rmtree(path)


def _restore(checkpoint: tf.train.Checkpoint, directory: str) -> List[int]:
  """Returns the iterations of the checkpoint that was restored and of those before it, in order."""
  found = _found(directory)
  reasons: List[str] = []
  for number, (_, prefix) in enumerate(found):
    try:
      # The whole file is read first: a restore that fails halfway would leave mixed weights.
      _read_whole(prefix)
      checkpoint.restore(prefix)
    except _UNREADABLE as error:
      reason = " ".join(str(getattr(error, "message", None) or error).split())[:120]
      reasons.append(f"{os.path.basename(prefix)}: {reason}")
      continue
    # `found` has the latest first; damaged ones before `number` are not kept.
    return [iteration for iteration, _ in reversed(found[number:])]
  if found:
    raise PlacetoError(
        f"none of the checkpoints in {directory!r} can be read ({'; '.join(reasons)}); choose "
        "another root_dir, or put an undamaged copy back")
  # The list without the files: somebody removed the checkpoints of a run.
  notes = os.path.join(directory, "checkpoint")
  if os.path.lexists(notes):
    raise PlacetoError(
        f"{notes!r} speaks of checkpoints, and there are none beside it; choose another root_dir, "
        "or put the checkpoints back")
  return []


def _found(directory: str) -> List[Tuple[int, str]]:
  """Returns (iteration, prefix of the files) of the checkpoints in a directory, the last one first.

  Raises:
    PlacetoError: something in the directory is no regular file.
  """
  if not os.path.isdir(directory):
    return []
  found = []
  for name in os.listdir(directory):
    path = os.path.join(directory, name)
    if name == "checkpoint" or name.startswith(_PREFIX + "-"):
      # TensorFlow would wait for a pipe. A killed save may leave its temporary directories.
      if not os.path.isdir(path) or name == "checkpoint":
        user_files.check_regular(
            path, what="the checkpoint", remedy="choose another root_dir")
    match = _FILE.match(name)
    if match and match.group(2) == ".index":
      found.append((int(match.group(1)), path[:-len(".index")]))
  return sorted(found, reverse=True)


def _read_whole(prefix: str) -> None:
  """Raises if a checkpoint is damaged anywhere: TensorFlow checks the sums of all that it reads."""
  reader = tf.train.load_checkpoint(prefix)
  # Every variable is read, so that each checksum is compared.
  names = reader.get_variable_to_shape_map()
  for name in names:
    value = reader.get_tensor(name)
    if name == _STATE and not isinstance(json.loads(value.decode()), dict):
      raise ValueError("its state is no object")
  if _STATE not in names:
    raise ValueError("it has no state")
