"""Episodes that train the device pointer: searches whose moves are simulated and learned from.

An episode is a coarse-to-fine search from one of a problem's starts. At each placement it stands at
it simulates some moves that the scorer holds for the best and as many drawn at random, makes one
that is better, and goes on. This module imports no TensorFlow, so that processes that only collect
start soon.

Legend: M moves, K of them at one placement, S starts, G groups, D devices, F features.
"""

from __future__ import annotations

import dataclasses
from typing import List, Sequence, Tuple

import numpy as np

from placeto_tf.encoding.pair_features import NUM_FEATURES
from placeto_tf.policies.device_pointer.best_first import BestFirst
from placeto_tf.policies.device_pointer.placed_groups import group_counts
from placeto_tf.policies.device_pointer.scorer import ScorerWeights
from placeto_tf.training.problems import StartedProblem

# A gain of 4 % of the step time counts as 2, and what is more as no more; its root is learned,
# or the few large gains of coarse groups would hide the many small ones.
GAIN_SCALE, GAIN_CLIP = 50.0, 2.0

Moves = Tuple[np.ndarray, np.ndarray]  # features [M, F], targets [M]


@dataclasses.dataclass(frozen=True)
class EpisodeConfig:
  """What an episode does.

  Attributes:
    rounds: coarse to fine.
    levels: groups over the problem's groups.
    states: placements a level at which moves are simulated.
    moves: how many at each, half of them the best ones by the scorer.
    temperature: of the noise added to scores before these are chosen.
  """

  rounds: int
  levels: Tuple[float, ...]
  states: int
  moves: int
  temperature: float


@dataclasses.dataclass(frozen=True)
class EpisodeSpec:
  """What an episode depends on besides weights: numbers of problem and start, and its seed."""

  graph: int
  start: int
  seed: int


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


class EpisodeCollector:
  """Plays episodes on its problems."""

  def __init__(self, config: EpisodeConfig, problems: Sequence[StartedProblem]):
    self._config, self._problems = config, problems

  def __call__(self, weights: ScorerWeights, spec: EpisodeSpec) -> Moves:
    """The moves of an episode."""
    config, each = self._config, self._problems[spec.graph]
    rng = np.random.default_rng(spec.seed)
    search = Episode(
        each.problem, each.problem.grouping.expand(each.starts[spec.start]), weights,
        seed=int(rng.integers(2**31)))
    found: List[Moves] = [(np.zeros((0, NUM_FEATURES), np.float32), np.zeros(0, np.float32))]
    for _ in range(config.rounds):
      search.renew()
      for level in config.levels:
        search.regroup(group_counts(each.problem, (level * 2 ** rng.uniform(-0.5, 0.5),))[0])
        for state in range(config.states if len(search.tables.movable) else 0):
          features, targets, moved = search.simulate_moves(config.moves, config.temperature, rng)
          found.append((features, targets))
          if not moved and state:
            break
    return joined(found)


def joined(moves: Sequence[Moves]) -> Moves:
  """All moves one after the other."""
  return (np.concatenate([features for features, _ in moves]),
          np.concatenate([targets for _, targets in moves]))
