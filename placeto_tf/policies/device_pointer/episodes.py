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
from placeto_tf.errors import PlacetoError, check_above_zero, check_at_least
from placeto_tf.policies.device_pointer.best_first import MOST_GROUPS, BestFirst
from placeto_tf.policies.device_pointer.placed_groups import group_counts
from placeto_tf.policies.device_pointer.scorer import ScorerWeights
from placeto_tf.training.problems import StartedProblem
from placeto_tf.training.run_config import RunConfig

# A gain of 4 % of the step time counts as 2, and what is more as no more; its root is learned,
# or the few large gains of coarse groups would hide the many small ones.
GAIN_SCALE, GAIN_CLIP = 50.0, 2.0

Moves = Tuple[np.ndarray, np.ndarray]  # features [M, F], targets [M]


@dataclasses.dataclass(frozen=True)
class GainTrainingConfig(RunConfig):
  """What is trained, on what, for how long.

  Attributes:
    graphs, held_out, watch_cluster, iterations, seed, lag: see `RunConfig`.
    clusters: as `Cluster.parse` takes them, or "random[3]", which draws three for each graph.
    max_groups: a number of groups is drawn from these for each problem.
    width: of the scorer's layers.
    learning_rate: of Adam at first; falls to 0 along a cosine.
    steps: of Adam an iteration; batch: moves a step.
    episodes: an iteration, of which all may be played at once. With N times as many, N times as
      many steps of Adam keep the share of learning.
    rounds: of an episode, coarse to fine.
    levels: groups over the problem's groups.
    states: placements a level at which moves are simulated.
    moves: how many at each, half of them the best ones by the scorer.
    temperature: of the noise added to scores before these are chosen.
  """

  clusters: Tuple[str, ...] = ("k80:4", "random[1]")
  max_groups: Tuple[int, ...] = (128,)
  width: int = 64
  learning_rate: float = 3e-3
  steps: int = 25
  batch: int = 1024
  episodes: int = 1
  rounds: int = 3
  levels: Tuple[float, ...] = (0.0625, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0)
  states: int = 4
  moves: int = 20
  temperature: float = 0.05

  def __post_init__(self) -> None:
    super().__post_init__()
    check_at_least(1, self, "width", "steps", "batch", "episodes", "rounds", "states", "moves",
                   error_type=PlacetoError)
    check_above_zero(self, "learning_rate", error_type=PlacetoError)
    if not self.levels or min(self.levels) <= 0:
      raise PlacetoError(f"levels is {self.levels}; expected numbers above 0, such as 0.25,1")


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
    if len(some) > MOST_GROUPS:
      some = rng.choice(some, MOST_GROUPS, replace=False)
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
    features = self.state.features(some[rows])[np.arange(count), devices]
    better = np.flatnonzero(fall > 1e-5)
    if len(better):
      at = int(rng.choice(better)) if rng.random() < 0.5 else int(fall.argmax())
      self.take(placements[at], found, at)
      self.groups = groups[at]
      self.look()
    return features, target(fall), bool(len(better))


class EpisodeCollector:
  """Plays episodes on its problems."""

  def __init__(self, config: GainTrainingConfig, problems: Sequence[StartedProblem]):
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
