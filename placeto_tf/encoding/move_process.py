"""`MoveProcess`: the decision process in which Placeto learns and improves placements.

A placement is improved on levels, from coarse groups to fine ones. A step moves one or several
groups to other devices; the moves are simulated together, once, and undone if the placement gets
worse. For training, several moves are simulated side by side from each placement, and a better one
is made. A level ends when all moves from the placement have been tried or the level's evaluations
are used up; the process ends after some rounds of all levels. Levels without moves cost nothing.

Environments of tf-agents (`placeto_tf.policies.placeto.environment`) and of Gymnasium
(`gym_environment`) present the process to learners; `placeto_tf.policies.placeto.best_first` is the
compiled search by a trained policy.

Dimensions: N ops, G groups, M groups that may move now (M <= G), D devices, F pair features.
"""

from __future__ import annotations

import dataclasses
from typing import List, Tuple

import numpy as np

from placeto_tf.encoding.placed_groups import PlacedGroups, group_counts
from placeto_tf.errors import PlacementError, check_at_least
from placeto_tf.problem.placement_problem import PlacementProblem

_LEAST_FALL = 1e-5  # smaller gains are roundings


@dataclasses.dataclass(frozen=True)
class ProcessConfig:
  """Settings of the length of the process.

  Attributes:
    rounds: number of passes through all levels.
    levels: number of groups of each level divided by the problem's number of groups, coarse to
      fine.
    evaluations: the most evaluations of a level.
    vary: levels are up to 2^vary times as fine or as coarse.
  """

  rounds: int = 3
  levels: Tuple[float, ...] = (0.0625, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0)
  evaluations: int = 60
  vary: float = 0.5

  def __post_init__(self) -> None:
    check_at_least(1, self, "rounds", "evaluations")
    check_at_least(0, self, "vary")
    if not self.levels or min(self.levels) <= 0:
      raise PlacementError(f"levels is {self.levels}; expected numbers above 0, such as 0.25,1")


class MoveProcess(PlacedGroups):
  """One episode on one problem.

  Attributes:
    some: [M] int32 groups that may move now, at most `most_observed`.
    open: [G, D] bool moves that have not been tried from this placement.
    pairs: [M, D, F] float32 features of the option edges of `some`.
    states: number of placements so far; a new level counts as a new placement.
    over: whether the episode is over.
  """

  def __init__(
      self, problem: PlacementProblem, start: np.ndarray, config: ProcessConfig, most_observed: int,
      rng: np.random.Generator):
    """Evaluates the start and enters the first level that has moves.

    Args:
      problem: evaluates placements.
      start: [N] devices of ops.
      config: of the process.
      most_observed: the most groups that are observed at once; of more groups a random sample is
        observed.
      rng: samples the sizes of levels and the observed groups.
    """
    super().__init__(problem, start, max(group_counts(problem, config.levels)))
    self._config, self._most_observed, self._rng = config, most_observed, rng
    # Every round goes through all levels, coarse to fine.
    self._to_come: List[Tuple[int, float]] = [
        (number, level) for number in range(config.rounds) for level in config.levels]
    # `_left` counts the evaluations that the present level may still use.
    self._round, self._left, self.states, self.over = 0, 0, 0, False
    self.some, self.open = self.tables.movable, self.tables.allowed.copy()
    self._go_on()

  def step(self, groups: np.ndarray, devices: np.ndarray) -> float:
    """Simulates moves that are made together, and undoes them if they make the placement worse.

    Args:
      groups: [K] groups that move.
      devices: [K] their new devices.

    Returns:
      The decrease of the logarithm of the objective; below 0 if the moves were undone.
    """
    # One evaluation for all moves together.
    proposed = self.groups[None].copy()
    proposed[0, groups] = devices
    placements, found = self.simulate(proposed)
    fall = float(np.log(self.objective_us / found.objective_us[0]))
    # A move is tried once from a placement, with any outcome.
    self.open[groups, devices] = False
    # Placements with equal objectives are kept, too, which lets the search cross plateaus.
    if fall >= 0:
      self.keep(proposed, placements, found)
      # A better placement opens all moves again; an equal one does not, or two could alternate.
      if fall > 0:
        self.open[:] = self.tables.allowed
      self._stand()
    self._left -= 1
    self._go_on()
    return fall

  def step_side_by_side(
      self, groups: np.ndarray, devices: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Simulates moves from the present placement, each alone, and makes one of the better ones.

    After two placements of a level without a better move, the level ends.

    Args:
      groups: [K] group of each move.
      devices: [K] new devices.
      rng: chooses the move that is made: the best one or any better one, each with probability 1/2.

    Returns:
      [K] decreases of the logarithm of the objective.
    """
    # [K, G]: the present placement with one move each.
    proposed = np.repeat(self.groups[None], len(groups), axis=0)
    proposed[np.arange(len(groups)), groups] = devices
    placements, found = self.simulate(proposed)
    falls = np.log(self.objective_us / found.objective_us)
    better = np.flatnonzero(falls > _LEAST_FALL)
    is_first = self._left == self._config.evaluations
    self._left = max(0, self._left - len(groups))
    if len(better):
      at = int(rng.choice(better)) if rng.random() < 0.5 else int(falls.argmax())
      self.keep(proposed, placements, found, at)
      self.open[:] = self.tables.allowed
      self._stand()
    elif not is_first:
      self._left = 0
    self._go_on()
    return falls

  def pass_level(self) -> None:
    """Ends the level, for a policy that moves nothing."""
    self._left = 0
    self._go_on()

  def _go_on(self) -> None:
    """Enters the next level that has moves, if the present level is over."""
    while not self.over and (self._left == 0 or not self.open[self.some].any()):
      if not self._to_come:
        self.over = True
        return
      number, level = self._to_come.pop(0)
      # A new round forms the finest groups again, from ops that now share a device.
      if number != self._round:
        self._round = number
        self.renew()
      # Sizes vary log-uniformly, so that group borders differ between rounds.
      level *= 2 ** self._rng.uniform(-self._config.vary, self._config.vary)
      self.regroup(group_counts(self.problem, (level,))[0])
      self._left, self.open = self._config.evaluations, self.tables.allowed.copy()
      self._stand()

  def _stand(self) -> None:
    """Chooses the observed groups, and computes their features, at a new placement or level."""
    self.open[np.arange(len(self.groups)), self.groups] = False
    some = self.tables.movable  # [M], groups with more than one allowed device
    if len(some) > self._most_observed:
      some = np.sort(self._rng.choice(some, self._most_observed, replace=False))
    self.some, self.pairs = some, self.state.features(some)
    self.states += 1
