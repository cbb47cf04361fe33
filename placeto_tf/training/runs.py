"""The parts that all training runs share: root directory, loop, checkpoints, summaries.

A root directory holds config.json, the configuration; done.json and the picture curves.png once
the run is over; and the files that the trainer writes in between. Files appear when they are
complete.
"""

from __future__ import annotations

import os
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

import numpy as np
import tensorflow as tf
from tensorboard.plugins.hparams import api as hp

from placeto_tf.errors import PlacetoError
from placeto_tf.graphs import atomic, result_directory, user_files
from placeto_tf.training import curves
from placeto_tf.training.checkpoints import Checkpoints
from placeto_tf.training.run_config import RunConfig

Progress = Callable[[int, Dict[str, float]], None]
FIRST_CHECKPOINT = 10  # iterations: within the first minute even on a slow machine
_MOST_NAN_UPDATES = 10  # in a row
_MOST_LISTED = 8  # items of a setting that are shown


def claim(root_dir: str, config: Dict[str, Any]) -> None:
  """Makes the directory of a run with this configuration, or checks that it is one.

  Raises:
    PlacetoError: it holds a run of another configuration.
  """
  result_directory.make(root_dir)
  path = os.path.join(root_dir, "config.json")
  if not os.path.lexists(path):
    for name in ("train", "weights"):
      if os.path.lexists(os.path.join(root_dir, name)):
        raise PlacetoError(
            f"{root_dir!r} holds {name!r} and no config.json, which says of what run; choose "
            "another root_dir, or put config.json back")
    atomic.write_json(path, config)
    return
  stored = user_files.read_json_object(
      path, what="the run's configuration",
      remedy="choose another root_dir, or put an undamaged copy back")
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
      "skipped_updates": skipped, "figures": {
          # JSON has no NaN.
          name: value if np.isfinite(value) else None for name, value in figures.items()}})


def finished(root_dir: str, config: Dict[str, Any]) -> Optional[Dict[str, float]]:
  """The last figures of a run that is over; None where it is not.

  Raises:
    PlacetoError: it was a run of another configuration.
  """
  if not os.path.lexists(os.path.join(root_dir, "done.json")):
    return None
  claim(root_dir, config)
  return read_done(root_dir)["figures"]


def read_done(root_dir: str) -> Dict[str, Any]:
  """The content of done.json: reason, iterations, skipped_updates, figures.

  Raises:
    PlacetoError: there is none, or it is damaged.
  """
  path = os.path.join(root_dir, "done.json")
  remedy = "delete it and start the run again, which goes on from its last checkpoint"
  content = user_files.read_json_object(path, what="the run's end", remedy=remedy)
  figures = content.get("figures")
  if not isinstance(figures, dict) or not all(
      value is None or isinstance(value, (int, float)) for value in figures.values()) or (
          not isinstance(content.get("iterations"), int)):
    raise PlacetoError(f"{path!r} does not say how the run ended; {remedy}")
  content["figures"] = {
      name: float("nan") if value is None else value for name, value in figures.items()}
  return content


def train(
    trainer_type: Callable[..., TrainingRun], config: RunConfig, root_dir: str, *,
    warm_start: Optional[str] = None,
    progress: Progress = lambda *_: None) -> Dict[str, float]:
  """Trains to the end, from the last checkpoint if there is one; returns the last figures.

  A run that is done is left as it is.

  Args:
    trainer_type: makes a trainer from the configuration, the directory and `warm_start`.
    config: of the run.
    root_dir: of the run.
    warm_start: directory of weights for a new run to begin with.
    progress: called with the iteration and its figures.

  Raises:
    PlacetoError: what the trainer raises, the directory holds a run of another configuration, or
      another process trains in it.
  """
  with result_directory.alone(root_dir):
    figures = finished(root_dir, config.to_json())
    if figures is not None:
      return figures
    return trainer_type(config, root_dir, warm_start=warm_start).run(progress=progress)


def hparams(settings: Mapping[str, Any]) -> Dict[str, Any]:
  """What the HPARAMS tab can show and sort by: numbers, text, and short lists as text.

  Args:
    settings: as JSON; those of an object inside are taken up beside the others.
  """
  found: Dict[str, Any] = {}
  for name, value in settings.items():
    if isinstance(value, Mapping):
      found.update(hparams(value))
    elif isinstance(value, (list, tuple)) and len(value) <= _MOST_LISTED:
      found[name] = value[0] if len(value) == 1 and isinstance(
          value[0], (bool, int, float, str)) else ", ".join(map(str, value))
    elif isinstance(value, (bool, int, float, str)):
      found[name] = value
  return found


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
    """The result of `learn`; if it was not `finite`, restores the variables and returns None.

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


class TrainingRun:
  """One training run in its root directory: the loop, checkpoints and summaries of any trainer.

  A subclass makes the objects that it trains, calls `_resume`, and defines an update: `_collect`,
  `_learn`, `_finite` and `_figures`. State that checkpoints do not track is in its `_state`, of
  numbers and text, which `_load_state` restores. One file holds both, so that weights and random
  states always belong together.

  Attributes:
    config: of the run.
    root_dir: its directory.
    iteration: updates so far.
  """

  rate = "steps_a_second"  # name of the figure for speed
  @property
  def _held_out(self) -> Sequence[Any]:
    """The problems for `watch`; without any it is not called."""
    return ()

  @property
  def weights(self) -> Any:
    """The weights that `_export` saves, with `save(directory, **notes)`."""
    raise NotImplementedError

  def __init__(self, config: Any, root_dir: str):
    """Makes the directory, or checks that it is of this run.

    Raises:
      PlacetoError: it holds a run of another configuration.
    """
    claim(root_dir, config.to_json())
    self.config, self.root_dir, self.iteration = config, root_dir, 0
    self._saved: Optional[int] = None
    self._figures_so_far: Dict[str, float] = {}  # the last of each name

  @property
  def skipped(self) -> int:
    """Updates that gave NaN and were undone."""
    return self._guard.skipped

  def run(self, *, until: Optional[int] = None, progress: Progress = lambda *_: None) -> Dict:
    """Trains to the end, or to iteration `until` as if the run were killed there.

    Raises:
      PlacetoError: ten updates in a row gave NaN; the last good checkpoint stays.
    """
    config = self.config
    last = config.iterations if until is None else min(until, config.iterations)
    began, steps = time.monotonic(), 0
    figures = self._figures_so_far
    if self.iteration == 0:
      with self._writer.as_default(step=0):
        hp.hparams(hparams(config.to_json()), trial_id=os.path.abspath(self.root_dir))
      figures.update(self._begin())
    while self.iteration < last and self._reason_to_stop() is None:
      collected = self._collect()
      self.iteration += 1
      learned = self._guard.update(lambda: self._learn(collected), self._finite)  # noqa: B023
      steps += self._steps(collected)
      if learned is None:
        continue
      found = dict(self._figures(collected, learned), skipped=float(self.skipped))
      found.update(self._speeds(steps / (time.monotonic() - began)))
      if self._held_out and (
          self.iteration % config.watch_every == 0 or self.iteration == config.iterations):
        watched = self.watch()
        self._watched(watched)
        found.update(watched)
      figures.update(self._record(found))
      progress(self.iteration, figures)
      if self.iteration % config.checkpoint_every == 0 or self.iteration == FIRST_CHECKPOINT:
        self.save()
    reason = self._reason_to_stop()
    if self.iteration >= config.iterations or reason is not None:
      if self._saved != self.iteration:
        self.save()
      self._finish()
      self._writer.flush()
      curves.draw(self.root_dir)
      finish(self.root_dir, self.iteration, self.skipped, figures,
             reason=reason or "all iterations are done")
    return dict(figures)

  def watch(self) -> Dict[str, float]:
    """The policy's figures on held-out graphs."""
    raise NotImplementedError

  def save(self) -> None:
    """Writes a checkpoint, and the files that are of use without it."""
    self._checkpoints.save(self.iteration, self._whole_state())
    self._saved = self.iteration
    self._export()

  def _resume(self, **tracked: Any) -> None:
    """Restores the last checkpoint that can be read, if there is one.

    Args:
      **tracked: objects that checkpoints hold.

    Raises:
      PlacetoError: there are checkpoints or weights of a run that cannot be resumed.
    """
    self._guard = UpdateGuard(self._variables, self.root_dir)
    directory = os.path.join(self.root_dir, "train")
    self._checkpoints = Checkpoints(directory, self._whole_state(), **tracked)
    weights = os.path.join(self.root_dir, "weights", "weights.json")
    if not self._checkpoints.restored and os.path.lexists(weights):
      raise PlacetoError(
          f"{self.root_dir!r} holds the weights of a run whose checkpoints are gone; choose "
          "another root_dir, where --warm_start can begin with these weights")
    stored = self._checkpoints.state
    try:
      # A run may have been killed before it exported what it had saved, so `_saved` stays None.
      self.iteration = stored.pop("iteration")
      self._guard.skipped = stored.pop("skipped")
      self._figures_so_far = dict(stored.pop("figures", {}))
      self._load_state(stored)
    except (KeyError, TypeError, ValueError, IndexError) as error:
      raise PlacetoError(
          f"the state in the checkpoints of {directory!r} is of another version ({error!r}); "
          "choose another root_dir") from None
    self._writer = tf.summary.create_file_writer(os.path.join(self.root_dir, "train"))

  def _whole_state(self) -> Dict[str, Any]:
    return {"iteration": self.iteration, "skipped": self.skipped,
            "figures": self._figures_so_far, **self._state()}

  def _record(self, scalars: Mapping[str, float]) -> Dict[str, float]:
    """Writes scalars to TensorBoard; returns those that are not of one graph, to be printed.

    Names of figures of one graph have a folder; the others go to Metrics/.
    """
    with self._writer.as_default(step=self.iteration):
      for name, value in scalars.items():
        tf.summary.scalar(name if "/" in name else f"Metrics/{name}", value)
    return {name: value for name, value in scalars.items() if "/" not in name}

  def _begin(self) -> Dict[str, float]:
    """Called before the first update of a new run; returns the first figures."""
    return {}

  def _collect(self) -> Any:
    """The experience for the next update."""

  def _learn(self, collected: Any) -> Any:
    """Updates the policy."""
    raise NotImplementedError

  def _finite(self, learned: Any) -> bool:
    """Whether an update gave finite numbers, from the result of `_learn`."""
    raise NotImplementedError

  def _figures(self, collected: Any, learned: Any) -> Dict[str, float]:
    """The figures of an update, to be printed."""
    raise NotImplementedError

  def _steps(self, collected: Any) -> int:
    """The amount of work in an update, for `rate`."""
    del collected
    return 1

  def _speeds(self, steps_a_second: float) -> Dict[str, float]:
    """The figures for speed, from the steps a second since training began or was resumed."""
    return {self.rate: steps_a_second}

  def _watched(self, figures: Mapping[str, float]) -> None:
    """Called with the results of `watch` during training."""

  def _reason_to_stop(self) -> Optional[str]:
    """Why training ends before all iterations are done; None if it goes on."""
    return None

  def _finish(self) -> None:
    """Writes further files when the run is over."""

  def _variables(self) -> List[tf.Variable]:
    """All variables that an update changes."""
    raise NotImplementedError

  def _state(self) -> Dict[str, Any]:
    raise NotImplementedError

  def _load_state(self, state: Dict[str, Any]) -> None:
    raise NotImplementedError

  def _export(self) -> None:
    """Writes the files that are of use without the trainer: weights for inference."""
    self.weights.save(
        os.path.join(self.root_dir, "weights"), iteration=self.iteration,
        training=self.config.to_json())


def all_finite(variables: List[tf.Variable]) -> bool:
  """Whether every value is a finite number."""
  return all(np.isfinite(variable.numpy()).all() for variable in variables)
