"""Trains the device pointer to foresee what moves gain, from moves that searches simulate.

An iteration is an episode, or a few, each on a problem of its own: a search whose moves are
simulated, see `episodes`. What each move gained is what the scorer learns, by regression on
all moves seen so far: expert iteration, where the expert is the simulator. A root directory holds
what `runs` lists, and

  train/                   checkpoints and TensorBoard's events
  weights/                 the scorer for compiled inference: weights.npz, weights.json
  moves/NUMBER.npz         features and targets of each iteration's moves

A run that is killed goes on from the last checkpoint and ends with the same weights on one machine.

Legend: M moves, F features.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import math
import os
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

import placeto_tf.training  # noqa: F401  its check comes before TensorFlow
from placeto_tf.encoding.pair_features import NUM_FEATURES
from placeto_tf.errors import PlacetoError
from placeto_tf.graphs import atomic, user_files
from placeto_tf.policies.device_pointer import scorer
from placeto_tf.policies.device_pointer.best_first import BestFirst, BestFirstConfig
from placeto_tf.policies.device_pointer.episodes import (
  EpisodeCollector,
  EpisodeSpec,
  GainTrainingConfig,
  Moves,
  joined,
)
from placeto_tf.policies.device_pointer.scorer import CAP, ScorerWeights
from placeto_tf.problem.budget import Budget
from placeto_tf.training import problems as training_problems
from placeto_tf.training import trainer
from placeto_tf.training.collecting import Maker
from placeto_tf.training.learner import Learner
from placeto_tf.training.problems import StartedProblem
from placeto_tf.training.trainable import Trainable
from placeto_tf.training.updates import optimizer_variables

import tensorflow as tf  # isort: skip

_HOT_START = 0.35  # share of episodes that begin at another start than the best


class GainLearner(Learner):
  """The scorer, and the moves of all iterations, from which it learns."""

  policy = "device_pointer"
  config: GainTrainingConfig
  _features: np.ndarray  # [M, F] of the moves of all iterations
  _targets: np.ndarray  # [M]

  def __init__(
      self, config: GainTrainingConfig, root_dir: str, *, warm_start: Optional[str] = None,
      **given: Any):
    """See the base class. Args: warm_start: directory of scorer weights to begin with."""
    super().__init__(config, root_dir, **given)
    first = ScorerWeights.untrained(config.seed, config.width) if warm_start is None else (
        ScorerWeights.load(warm_start))
    self._arrays = [tf.Variable(each) for each in first.arrays]
    self._optimizer = tf.keras.optimizers.Adam(config.learning_rate)
    self._optimizer.build(self._arrays)
    self._step = tf.function(self._one_step)
    self.at_once = config.episodes
    self.tracked = {
        "optimizer": self._optimizer, "arrays": tf.train.Checkpoint(arrays=self._arrays)}

  def make_problems(
      self, graphs: Sequence[str], clusters: Sequence[str]) -> Sequence[StartedProblem]:
    """See the base class."""
    return training_problems.make_problems(
        graphs, clusters, max_groups=self.config.max_groups, seed=self.config.seed)

  @property
  def weights(self) -> ScorerWeights:
    """Of the scorer now."""
    return ScorerWeights(*(each.numpy() for each in self._arrays))

  def watch(self) -> Dict[str, float]:
    """Objective after the short rounds over the start's, geometric mean over held-out problems."""
    logs = []
    for each in (self.problems[number] for number in self.held_out):
      search = BestFirst(
          each.problem, each.problem.grouping.expand(each.starts[0]), self.weights)
      start_us = search.objective_us
      search.run(Budget(each.problem.account.evaluations + sum(BestFirstConfig().rounds)))
      logs.append(np.log(search.objective_us / start_us))
    return {"held_out_ratio": float(np.exp(np.mean(logs)))}

  def _path(self, number: int) -> str:
    return os.path.join(self.root_dir, "moves", f"{number:05d}.npz")

  def _stored(self, number: int) -> Tuple[np.ndarray, np.ndarray]:
    """Features [M, F] and targets [M] of an iteration. Raises: PlacetoError: damaged or missing."""
    path, remedy = self._path(number), "choose another root_dir, or put an undamaged copy back"
    arrays = user_files.read_arrays(path, what="the moves", remedy=remedy)
    features, targets = arrays.get("features"), arrays.get("targets")
    if features is None or targets is None or features.shape != (len(targets), NUM_FEATURES) or (
        targets.ndim != 1 or {features.dtype, targets.dtype} != {np.dtype(np.float32)}) or not (
            np.isfinite(features).all() and np.isfinite(targets).all()):
      raise PlacetoError(f"{path!r} holds something else than moves; {remedy}")
    return features, targets

  @property
  def collector(self) -> Maker:
    """Plays `EpisodeSpec`s."""
    return functools.partial(EpisodeCollector, self.config)

  def portable(self, num_threads: Optional[int]) -> List[StartedProblem]:
    """See the base class."""
    found = []
    for each in self.problems[:self.num_training]:
      problem = each.problem.portable(with_shapes=False)  # with a simulator of its own
      problem.simulator.num_threads = num_threads or problem.simulator.num_threads
      found.append(dataclasses.replace(each, problem=problem))
    return found

  def specs(self, iteration: int) -> List[EpisodeSpec]:
    """See the base class."""
    del iteration
    rng, specs = self.rng, []
    for _ in range(self.config.episodes):
      problem = int(rng.integers(self.num_training))
      starts = len(self.problems[problem].starts)
      start = int(rng.integers(starts)) if rng.random() < _HOT_START else 0
      specs.append(EpisodeSpec(problem, start, int(rng.integers(2**31))))
    return specs

  def steps_of(self, experience: Moves) -> int:
    """Moves."""
    return len(experience[1])

  def learn(self, experiences: List[Moves], iteration: int) -> Dict[str, float]:
    """Keeps the moves, and learns from some of all of them."""
    features, targets = joined(experiences)
    content = io.BytesIO()
    np.savez(content, features=features, targets=targets)
    os.makedirs(os.path.join(self.root_dir, "moves"), exist_ok=True)
    atomic.write(self._path(iteration), content.getvalue(), what="the moves ")
    self._features = np.concatenate([self._features, features])
    self._targets = np.concatenate([self._targets, targets])
    config = self.config
    rate = config.learning_rate * 0.5 * (
        1 + math.cos(math.pi * (iteration - 1) / config.iterations))
    self._optimizer.learning_rate.assign(rate)
    losses = []
    for _ in range(config.steps):
      chosen = self.rng.integers(len(self._targets), size=config.batch)
      losses.append(self._step(
          tf.constant(self._features[chosen]), tf.constant(self._targets[chosen])))
    return {"loss": float(np.mean([loss.numpy() for loss in losses])),
            "improved": float((targets > 0).mean()) if len(targets) else 0.0}

  def _one_step(self, features: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    hidden_1, bias_1, hidden_2, bias_2, output = self._arrays
    with tf.GradientTape() as tape:
      first = tf.nn.relu(features @ hidden_1 + bias_1)
      last = tf.linalg.matvec(tf.nn.relu(first @ hidden_2 + bias_2), output)
      loss = tf.reduce_mean((last / (1 + tf.abs(last) / CAP) - targets) ** 2)
    gradients = tape.gradient(loss, self._arrays)
    self._optimizer.apply_gradients(zip(gradients, self._arrays))
    return loss

  @property
  def variables(self) -> List[tf.Variable]:
    """See the base class."""
    return self._arrays + optimizer_variables(self._optimizer)

  def load_state(self, state: Dict[str, Any]) -> None:
    """Restores the generator, and reads the moves of all iterations."""
    super().load_state(state)
    stored = [self._stored(number) for number in range(1, state["iteration"] + 1)]
    self._features = np.concatenate(
        [np.zeros((0, NUM_FEATURES), np.float32), *(features for features, _ in stored)])
    self._targets = np.concatenate([np.zeros(0, np.float32), *(targets for _, targets in stored)])

  def export(self, iteration: int) -> None:
    """Writes weights/."""
    self.weights.save(
        os.path.join(self.root_dir, "weights"), iteration=iteration,
        training=self.config.to_json())


train = functools.partial(trainer.train, GainLearner)


def trainable() -> Trainable:
  """The record for `scripts/train.py`."""
  return Trainable("device_pointer", GainTrainingConfig(()), train, on_ray=True,
                   pretrained=scorer.pretrained_directory)
