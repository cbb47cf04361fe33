"""Trains the device pointer to foresee what moves gain, from moves that searches simulate.

An iteration is an episode on one problem: a coarse-to-fine search from one of the problem's starts
that simulates, at each placement it stands at, some moves that the scorer holds for the best and as
many drawn at random, keeps one that is better, and goes on. What each move gained is what the
scorer learns, by regression on all moves seen so far: expert iteration, where the expert is the
simulator. A root directory holds what `pointer_training` lists, and

  moves/NUMBER.npz         features and targets of each iteration's moves

A run that is killed goes on from the last checkpoint and ends with the same weights on one machine.

Legend: M moves, K of them at one placement, G groups, D devices, F features.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import math
import os
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf

from placeto_tf.encoding.pair_features import NUM_FEATURES
from placeto_tf.environments.moves_environment import MovesProblem
from placeto_tf.errors import PlacetoError, check_above_zero, check_at_least
from placeto_tf.files import atomic
from placeto_tf.policies.device_pointer.best_first import BestFirst, BestFirstConfig
from placeto_tf.policies.device_pointer.placed_groups import group_counts
from placeto_tf.policies.device_pointer.scorer import CAP, GAIN, ScorerWeights
from placeto_tf.problem.budget import Budget
from placeto_tf.training import pointer_problems, runs
from placeto_tf.training.run_config import RunConfig

# A gain of 4 % of the step time counts as 2, and what is more as no more; its root is learned,
# or the few large gains of coarse groups would hide the many small ones.
GAIN_SCALE, GAIN_CLIP = 50.0, 2.0
_HOT_START = 0.35  # share of episodes that begin at another start than the best


@dataclasses.dataclass(frozen=True)
class GainTrainingConfig(RunConfig):
  """What is trained, on what, for how long.

  Attributes:
    graphs, held_out, watch_cluster, iterations, seed: see `RunConfig`; an iteration is an episode.
    clusters: as `Cluster.parse` takes them, or "random[3]", which draws three for each graph.
    max_groups: a number of groups is drawn from these for each problem.
    width: of the scorer's layers.
    learning_rate: of Adam at first; falls to 0 along a cosine.
    steps: of Adam an iteration; batch: moves a step.
    rounds: coarse to fine, an episode; levels: groups over the problem's groups.
    states: placements a level at which moves are simulated; moves: how many at each, half of them
      the best ones by the scorer.
    temperature: of the noise added to scores before these are chosen.
  """

  clusters: Tuple[str, ...] = ("k80:4", "random[1]")
  max_groups: Tuple[int, ...] = (128,)
  width: int = 64
  learning_rate: float = 3e-3
  steps: int = 25
  batch: int = 1024
  rounds: int = 3
  levels: Tuple[float, ...] = (0.0625, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0)
  states: int = 4
  moves: int = 20
  temperature: float = 0.05

  def __post_init__(self) -> None:
    super().__post_init__()
    check_at_least(1, self, "width", "steps", "batch", "rounds", "states", "moves",
                   error_type=PlacetoError)
    check_above_zero(self, "learning_rate", error_type=PlacetoError)
    if not self.levels or min(self.levels) <= 0:
      raise PlacetoError(f"levels is {self.levels}; expected numbers above 0, such as 0.25,1")


def target(fall: np.ndarray) -> np.ndarray:
  """What the scorer learns of moves that let the log of the objective fall by so much."""
  return np.sqrt(np.clip(GAIN_SCALE * fall, 0.0, GAIN_CLIP)).astype(np.float32)


class Episode(BestFirst):
  """A search whose moves are learned from."""

  def simulate_moves(
      self, count: int, temperature: float, rng: np.random.Generator
  ) -> Tuple[np.ndarray, np.ndarray, bool]:
    """Features [K, F] and targets [K] of moves from here, and whether one was made.

    Half of them are those with the best scores, the rest drawn uniformly; of those that are
    better, the best one is made, or any.
    """
    some = self.tables.movable
    if len(some) > self._config.most_groups:
      some = rng.choice(some, self._config.most_groups, replace=False)
    possible = self.tables.allowed[some].copy()
    possible[np.arange(len(some)), self.groups[some]] = False
    pairs = np.flatnonzero(possible)
    noisy = self.scores(some).ravel()[pairs] + temperature * rng.gumbel(size=len(pairs))
    best = pairs[np.argsort(-noisy)[:count // 2]]
    chosen = np.concatenate([best, rng.choice(pairs, count - len(best))])
    rows, devices = np.divmod(chosen, possible.shape[1])
    groups = np.repeat(self.groups[None], count, axis=0)
    groups[np.arange(count), some[rows]] = devices
    placements = self.level.grouping.expand(groups)
    found = self.problem.evaluate_ops(placements, start_times=True)
    fall = np.log(self.objective_us / found.objective_us)
    features = self.features(some[rows])[np.arange(count), devices]
    better = np.flatnonzero(fall > 1e-5)
    if len(better):
      at = int(rng.choice(better)) if rng.random() < 0.5 else int(fall.argmax())
      self.take(placements[at], found, at)
      self.groups = groups[at]
      self.look()
    return features, target(fall), bool(len(better))


class GainTrainer(runs.TrainingRun):
  """One run of the training in its root directory."""

  def __init__(
      self, config: GainTrainingConfig, root_dir: str, *,
      problems: Optional[Sequence[MovesProblem]] = None,
      held_out: Sequence[MovesProblem] = (), warm_start: Optional[str] = None):
    """Takes up the run that the directory holds, or begins one.

    Args:
      config: what is trained.
      root_dir: its directory.
      problems, held_out: instead of those that `config` names.
      warm_start: directory of scorer weights that a new run begins with.

    Raises:
      PlacetoError: the directory holds a run of another configuration, or a graph or cluster is
        wrong.
    """
    super().__init__(config, root_dir)
    if problems is None:
      problems = pointer_problems.make_problems(
          config.graphs, config.clusters, max_groups=config.max_groups, seed=config.seed)
      held_out = pointer_problems.make_problems(config.held_out, (config.watch_cluster,))
    if not problems:
      raise PlacetoError("there is no problem to train on; give graphs and clusters")
    self._problems, self._held_out_problems = list(problems), list(held_out)
    self._rng = np.random.default_rng(config.seed)
    first = ScorerWeights.untrained(config.seed, config.width) if warm_start is None else (
        ScorerWeights.load(warm_start, GAIN))
    self._arrays = [tf.Variable(each) for each in first.arrays]
    self._optimizer = tf.keras.optimizers.Adam(config.learning_rate)
    self._optimizer.build(self._arrays)
    self._step = tf.function(self._one_step)
    self._resume(optimizer=self._optimizer, arrays=tf.train.Checkpoint(arrays=self._arrays))
    stored = [np.load(self._path(number)) for number in range(1, self.iteration + 1)]
    self._features = np.concatenate(
        [np.zeros((0, NUM_FEATURES), np.float32), *(each["features"] for each in stored)])
    self._targets = np.concatenate(
        [np.zeros(0, np.float32), *(each["targets"] for each in stored)])

  @property
  def _held_out(self) -> Sequence[MovesProblem]:
    return self._held_out_problems

  @property
  def weights(self) -> ScorerWeights:
    """Of the scorer now."""
    hidden_1, bias_1, hidden_2, bias_2, output = (each.numpy() for each in self._arrays)
    return ScorerWeights(hidden_1, bias_1, hidden_2, bias_2, output, GAIN)

  def watch(self) -> Dict[str, float]:
    """Objective after the short rounds over the start's, geometric mean over held-out problems."""
    logs = []
    for each in self._held_out:
      search = BestFirst(
          each.problem, each.problem.grouping.expand(each.starts[0]), self.weights)
      start_us = search.objective_us
      search.run(Budget(each.problem.evaluations + sum(BestFirstConfig().rounds)))
      logs.append(np.log(search.objective_us / start_us))
    return {"held_out_ratio": float(np.exp(np.mean(logs)))}

  def _path(self, number: int) -> str:
    return os.path.join(self.root_dir, "moves", f"{number:05d}.npz")

  def _collect(self) -> Tuple[np.ndarray, np.ndarray]:
    """Features [M, F] and targets [M] of an episode's moves."""
    config, rng = self.config, self._rng
    each = self._problems[int(rng.integers(len(self._problems)))]
    at = int(rng.integers(len(each.starts))) if rng.random() < _HOT_START else 0
    search = Episode(each.problem, each.problem.grouping.expand(each.starts[at]), self.weights,
                     seed=int(rng.integers(2**31)))
    found: List[Tuple[np.ndarray, np.ndarray]] = [
        (np.zeros((0, NUM_FEATURES), np.float32), np.zeros(0, np.float32))]
    for _ in range(config.rounds):
      search.renew()
      for level in config.levels:
        search.regroup(group_counts(each.problem, (level * 2 ** rng.uniform(-0.5, 0.5),))[0])
        for state in range(config.states if len(search.tables.movable) else 0):
          features, targets, moved = search.simulate_moves(config.moves, config.temperature, rng)
          found.append((features, targets))
          if not moved and state:
            break
    return (np.concatenate([features for features, _ in found]),
            np.concatenate([targets for _, targets in found]))

  def _learn(self, collected: Tuple[np.ndarray, np.ndarray]) -> float:
    content = io.BytesIO()
    np.savez(content, features=collected[0], targets=collected[1])
    os.makedirs(os.path.join(self.root_dir, "moves"), exist_ok=True)
    atomic.write(self._path(self.iteration), content.getvalue(), what="the moves ")
    self._features = np.concatenate([self._features, collected[0]])
    self._targets = np.concatenate([self._targets, collected[1]])
    config = self.config
    rate = config.learning_rate * 0.5 * (
        1 + math.cos(math.pi * (self.iteration - 1) / config.iterations))
    self._optimizer.learning_rate.assign(rate)
    losses = []
    for _ in range(config.steps):
      chosen = self._rng.integers(len(self._targets), size=config.batch)
      losses.append(self._step(
          tf.constant(self._features[chosen]), tf.constant(self._targets[chosen])))
    return float(np.mean([loss.numpy() for loss in losses]))

  def _one_step(self, features: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    hidden_1, bias_1, hidden_2, bias_2, output = self._arrays
    with tf.GradientTape() as tape:
      first = tf.nn.relu(features @ hidden_1 + bias_1)
      last = tf.linalg.matvec(tf.nn.relu(first @ hidden_2 + bias_2), output)
      loss = tf.reduce_mean((last / (1 + tf.abs(last) / CAP) - targets) ** 2)
    gradients = tape.gradient(loss, self._arrays)
    self._optimizer.apply_gradients(zip(gradients, self._arrays))
    return loss

  def _finite(self, learned: float) -> bool:
    return bool(np.isfinite(learned)) and runs.all_finite(self._arrays)

  def _figures(self, collected: Tuple[np.ndarray, np.ndarray], learned: float) -> Dict[str, float]:
    targets = collected[1]
    return {"loss": learned, "improved": float((targets > 0).mean()) if len(targets) else 0.0}

  def _steps(self, collected: Any) -> int:
    return len(collected[1])

  def _variables(self) -> List[tf.Variable]:
    return self._arrays + runs.optimizer_variables(self._optimizer)

  def _state(self) -> Dict[str, Any]:
    return {"rng": self._rng.bit_generator.state}

  def _load_state(self, state: Dict[str, Any]) -> None:
    self._rng.bit_generator.state = state["rng"]


train = functools.partial(runs.train, GainTrainer)
