"""What every training run in a root directory needs, whatever it trains.

A root directory holds config.json, what is trained; done.json once the run is over; and what the
trainer writes in between. Files appear when they are complete.
"""

from __future__ import annotations

import json
import os
from typing import Any, Callable, Dict, List, Optional

import numpy as np

from placeto_tf import atomic
from placeto_tf.encoding.legacy_keras import check_legacy_keras
from placeto_tf.errors import PlacetoError

check_legacy_keras()

import tensorflow as tf  # noqa: E402  the check must come first

FIRST_CHECKPOINT = 10  # iterations: within the first minute however slow the machine
_MOST_NAN_UPDATES = 10  # in a row


def claim(root_dir: str, config: Dict[str, Any]) -> None:
  """Makes the directory that of a run with this configuration, or makes sure that it is.

  Raises:
    PlacetoError: it holds a run of another configuration.
  """
  os.makedirs(root_dir, exist_ok=True)
  path = os.path.join(root_dir, "config.json")
  if not os.path.exists(path):
    atomic.write_json(path, config)
    return
  try:
    with open(path, encoding="utf-8") as file:
      stored = json.load(file)
  except ValueError as error:
    raise PlacetoError(f"{path} was not understood ({error}); choose another root_dir") from None
  for name, value in config.items():
    if stored.get(name) != value:
      raise PlacetoError(
          f"{root_dir} holds a run with {name}={stored.get(name)!r}, now it is {value!r}; choose "
          "another root_dir, or the old setting to resume")


def finish(
    root_dir: str, iterations: int, skipped: int, figures: Dict[str, float], *,
    reason: str = "all iterations are done") -> None:
  """Writes done.json."""
  atomic.write_json(os.path.join(root_dir, "done.json"), {
      "reason": reason, "iterations": iterations,
      "skipped_updates": skipped, "figures": figures})


def finished(root_dir: str, config: Dict[str, Any]) -> Optional[Dict[str, float]]:
  """The last figures of a run that is over; None where it is not.

  Raises:
    PlacetoError: it was a run of another configuration.
  """
  done = os.path.join(root_dir, "done.json")
  if not os.path.exists(done):
    return None
  claim(root_dir, config)
  with open(done, encoding="utf-8") as file:
    return json.load(file)["figures"]


def train(
    trainer_type: Callable[..., Any], config: Any, root_dir: str, *,
    warm_start: Optional[str] = None,
    progress: Callable[[int, Dict[str, float]], None] = lambda *_: None) -> Dict[str, float]:
  """Trains, or goes on training, to the end; returns the last figures.

  A run that is done is left as it is.

  Args:
    trainer_type: makes a trainer from the configuration, the directory and `warm_start`.
    config: what is trained; has `to_json`.
    root_dir: of the run.
    warm_start: directory of weights for a new run to begin with.
    progress: called with the iteration and its figures.

  Raises:
    PlacetoError: what the trainer raises, or the directory holds a run of another configuration.
  """
  figures = finished(root_dir, config.to_json())
  if figures is not None:
    return figures
  return trainer_type(config, root_dir, warm_start=warm_start).run(progress=progress)


def optimizer_variables(optimizer) -> List[tf.Variable]:
  """Slots and step of an optimizer of either Keras."""
  variables = optimizer.variables
  return list(variables() if callable(variables) else variables)


class UpdateGuard:
  """Undoes updates that give NaN, counts them, and ends the run after ten in a row.

  Attributes:
    skipped: updates undone so far.
  """

  def __init__(
      self, variables: Callable[[], List[tf.Variable]], root_dir: str, skipped: int = 0):
    """Args: variables: all that an update changes."""
    self._variables, self._root_dir = variables, root_dir
    self.skipped, self._in_a_row = skipped, 0

  def update(self, learn: Callable[[], Any], finite: Callable[[Any], bool]) -> Optional[Any]:
    """What `learn` returns; None, and all as it was before, where that was not `finite`.

    Raises:
      PlacetoError: the tenth time in a row.
    """
    before = [variable.numpy() for variable in self._variables()]
    try:
      info = learn()
    except tf.errors.InvalidArgumentError:  # tf-agents found the loss infinite or not a number
      info = None
    if info is not None and finite(info):
      self._in_a_row = 0
      return info
    for variable, value in zip(self._variables(), before):
      variable.assign(value)
    self._in_a_row, self.skipped = self._in_a_row + 1, self.skipped + 1
    if self._in_a_row == _MOST_NAN_UPDATES:
      raise PlacetoError(
          f"{self._in_a_row} updates in a row gave NaN; training stopped, the last good checkpoint "
          f"is in {os.path.join(self._root_dir, 'train')}; lower the learning rate")
    return None


def all_finite(variables: List[tf.Variable]) -> bool:
  """Whether every value is a finite number."""
  return all(np.isfinite(variable.numpy()).all() for variable in variables)
