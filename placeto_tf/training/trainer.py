"""`Trainer`: the training loop, checkpoints, resuming and summaries for all policies.

The learner is in this process; it gets experience in the order in which it sampled the specs. So
the result does not depend on the collectors or their number.
"""

from __future__ import annotations

import os
import time
from typing import Any, Callable, Dict, List, Optional

import tensorflow as tf

from placeto_tf.errors import PlacetoError, option
from placeto_tf.files import outputs
from placeto_tf.problem.executors import CALLS_A_CORE, Executor, InProcess, executor_at
from placeto_tf.training import runs
from placeto_tf.training.checkpoints import Checkpoints
from placeto_tf.training.collecting import Collecting
from placeto_tf.training.learner import Learner
from placeto_tf.training.trainable import RunConfig
from placeto_tf.training.updates import attempt

Progress = Callable[[int, Dict[str, float]], None]
FIRST_CHECKPOINT = 10  # iterations; within the first minute even on a slow machine
_MOST_NAN_UPDATES = 10  # in a row


def train(
    make: Callable[..., Learner], config: RunConfig, root_dir: str, *,
    warm_start: Optional[str] = None, progress: Progress = lambda *_: None,
    ray: Optional[str] = None, actors: Optional[int] = None) -> Dict[str, float]:
  """Trains to the end, from the last checkpoint if there is one.

  A finished run is not changed.

  Args:
    make: makes the learner from the configuration, the directory and `warm_start`.
    config: of the run.
    root_dir: of the run.
    warm_start: directory of the initial weights of a new run.
    progress: see `agents.train`.
    ray: where actors collect, see `executors.executor_at`; None collects in this process.
    actors: number of actors; by default one for each core of Ray's; only with `ray`.

  Returns:
    The last figures of the run, by name.

  Raises:
    PlacetoError: the errors of the learner, the directory holds a run of another configuration,
      another process trains in it, actors are given without Ray, or Ray is not available, or lost
      the actors too often.
  """
  if ray is None and actors is not None:
    raise PlacetoError(f"actors is {actors} without ray, which they are of; give it, or none")
  with outputs.alone(root_dir):
    figures = runs.finished(root_dir, config.to_json())
    if figures is not None:
      return figures
    with executor_at(ray) as executor:  # before problems are made, which may take minutes
      trainer = Trainer(make, config, root_dir, warm_start=warm_start, progress=progress)
      return trainer.run(progress=progress, executor=executor, actors=actors)


def watched_every(config: RunConfig) -> int:
  """Returns the iterations between two tries on held-out graphs: ten tries in a short run."""
  return min(config.watch_every, max(10, config.iterations // 10))


class Trainer:
  """One training run in its root directory.

  One file holds the learner's variables and its state, so that weights and random states always
  belong together.

  Attributes:
    learner: of the run.
    iteration, skipped: number of updates so far, and of updates that gave NaN and were undone.
  """

  def __init__(
      self, make: Callable[..., Learner], config: RunConfig, root_dir: str, **options: Any):
    """Resumes the run in the directory, or begins one.

    Args:
      make: makes the learner from `config`, `root_dir` and `options`.
      config: of the run.
      root_dir: its directory.
      **options: of the learner, such as `problems` instead of those that `config` names.

    Raises:
      PlacetoError: the directory holds a run of another configuration, or one that cannot be
        resumed; and the errors of the learner.
    """
    runs.claim(root_dir, config.to_json())
    self._config, self._root_dir = config, root_dir
    self.iteration, self.skipped, self._skipped_in_a_row = 0, 0, 0
    self._figures: Dict[str, float] = {}  # the last figure of each name
    self.learner = make(config, root_dir, **options)
    self._restore()
    self._writer = tf.summary.create_file_writer(os.path.join(root_dir, "train"))

  def run(
      self, *, until: Optional[int] = None, progress: Progress = lambda *_: None,
      executor: Optional[Executor] = None, actors: Optional[int] = None) -> Dict[str, float]:
    """Trains to the end, or to iteration `until` as if the run were killed there.

    Args:
      until: iterations.
      progress: called with the iteration and its figures.
      executor: collects experience; None collects in this process.
      actors: number of actors; by default one for each core of the executor, but no more than can
        work at the same time.

    Returns:
      The last figures, by name.

    Raises:
      PlacetoError: Ray has too few cores for the actors, or ten updates in a row gave NaN; the last
        good checkpoint is kept.
    """
    learner, executor = self.learner, executor or InProcess()
    cores = executor.cores
    # No more actors than specs that can be under way at once.
    count = actors or min(cores, learner.at_once)
    if not 0 < count <= cores * CALLS_A_CORE:
      raise PlacetoError(
          f"Ray has {cores} cores, which take {cores * CALLS_A_CORE} actors at most, not "
          f"{count}; give fewer actors, or start Ray on more nodes")
    problems = learner.portable(1 if executor.elsewhere else None)
    with Collecting(executor, count, learner.collector, problems) as collecting:
      self._train(collecting, until, progress)
    if self.iteration >= self._config.iterations:
      self._end()
    return dict(self._figures)

  def _train(self, collecting: Collecting, until: Optional[int], progress: Progress) -> None:
    """Makes the updates up to iteration `until`, or all."""
    config, learner = self._config, self.learner
    began, steps, every = time.monotonic(), 0.0, watched_every(config)
    if self.iteration == 0:
      self._begin()
    last = config.iterations if until is None else min(until, config.iterations)
    while self.iteration < last:
      self.iteration += 1
      # Specs are sampled here, in the order of updates, whoever collects them.
      learned = self._learn(collecting.collect(learner.weights, learner.specs(self.iteration)))
      # The update was undone: no figures, and no checkpoint of this iteration.
      if not learned:
        continue
      steps += learned.pop("steps")
      found = dict(learned, skipped=float(self.skipped))
      found[learner.rate] = steps / max(1e-9, time.monotonic() - began)
      if learner.held_out and (
          self.iteration % every == 0 or self.iteration == config.iterations):
        found.update(learner.watch())
      self._figures.update(self._record(found))
      progress(self.iteration, self._figures)
      if self.iteration % config.checkpoint_every == 0 or self.iteration == FIRST_CHECKPOINT:
        self.save()

  def save(self) -> None:
    """Writes a checkpoint, and the files that are used without the trainer."""
    self._checkpoints.save(self.iteration, self._state())
    self.learner.export(os.path.join(self._root_dir, "weights"), iteration=self.iteration,
                        training=self._config.to_json())

  def _begin(self) -> None:
    """Writes a first checkpoint and the figures of the untrained policy."""
    self.save()  # a checkpoint must exist before anything that takes long
    if self.learner.held_out:
      self._figures.update(self._record(self.learner.watch()))

  def _end(self) -> None:
    self.save()
    self.learner.finish()
    self._writer.flush()
    runs.finish(self._root_dir, self.iteration, self.skipped, self._figures)

  def _learn(self, experiences: List[Any]) -> Dict[str, float]:
    """Returns the figures of an update; empty if the update gave NaN and was undone."""
    learned = attempt(
        lambda: self.learner.learn(experiences, self.iteration), self.learner.variables)
    self._skipped_in_a_row = 0 if learned else self._skipped_in_a_row + 1
    self.skipped += not learned
    if self._skipped_in_a_row == _MOST_NAN_UPDATES:
      raise PlacetoError(
          f"{_MOST_NAN_UPDATES} updates in a row gave NaN; training stopped, the last good "
          f"checkpoint is in {os.path.join(self._root_dir, 'train')}; lower the learning rate")
    return learned

  def _record(self, figures: Dict[str, float]) -> Dict[str, float]:
    """Writes figures to TensorBoard, and returns them."""
    with self._writer.as_default(step=self.iteration):
      for name, value in figures.items():
        tf.summary.scalar(f"Metrics/{name}", float(value))
    return figures

  def _state(self) -> Dict[str, Any]:
    return {"iteration": self.iteration, "skipped": self.skipped, "figures": self._figures,
            **self.learner.state()}

  def _restore(self) -> None:
    """Resumes from the last checkpoint that can be read, if there is one.

    Raises:
      PlacetoError: there are checkpoints or weights of a run that cannot be resumed.
    """
    directory = os.path.join(self._root_dir, "train")
    self._checkpoints = Checkpoints(directory, self._state(), **self.learner.tracked)
    weights = os.path.join(self._root_dir, "weights", "weights.json")
    if not self._checkpoints.restored and os.path.lexists(weights):
      raise PlacetoError(
          f"{self._root_dir!r} holds the weights of a run whose checkpoints are gone; choose "
          f"another root_dir, where {option('warm_start')} can begin with these weights")
    stored = self._checkpoints.state
    try:
      self.iteration, self.skipped = stored.pop("iteration"), stored.pop("skipped")
      self._figures = dict(stored.pop("figures"))
      self.learner.load_state({**stored, "iteration": self.iteration})
    except (KeyError, TypeError, ValueError, IndexError) as error:
      raise PlacetoError(
          f"the state in the checkpoints of {directory!r} is of another version ({error!r}); "
          "choose another root_dir") from None
