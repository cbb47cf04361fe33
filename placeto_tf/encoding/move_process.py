"""`MoveProcess`: the decision process in which Placeto learns and improves placements.

A placement is improved on levels, from coarse groups to fine ones. A decision names a device for
each group; those that move are simulated together, once, and what is worse is undone. A level ends
when no move from the placement is left to be tried or its evaluations are used up, and the process
after some rounds of all levels. Levels without a move cost nothing.

Environments of tf-agents (`placeto_tf.policies.placeto.environment`) and of Gymnasium
(`gym_environment`) show it to learners; `placeto_tf.policies.placeto.best_first` is the compiled
search by a trained policy.

Dimensions: N ops, G groups, M of them that may be moved now, D devices, F pair features.
"""

from __future__ import annotations

import dataclasses
from typing import List, Tuple

import numpy as np

from placeto_tf.encoding.placed_groups import PlacedGroups, group_counts
from placeto_tf.errors import PlacementError, check_at_least
from placeto_tf.problem.placement_problem import PlacementProblem


@dataclasses.dataclass(frozen=True)
class ProcessConfig:
  """The length of the process.

  Attributes:
    rounds: how often all levels are gone through.
    levels: groups over the problem's groups, coarse to fine.
    evaluations: of a level at most.
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
    some: [M] int32 groups that may be moved now, at most `room`.
    open: [G, D] bool moves that are left to be tried from this placement.
    pairs: [M, D, F] float32 features of the option edges of `some`.
    states: how many placements were stood at, levels counted anew.
    over: whether the episode is.
  """

  def __init__(
      self, problem: PlacementProblem, start: np.ndarray, config: ProcessConfig, room: int,
      rng: np.random.Generator):
    """Evaluates the start and enters the first level that has moves.

    Args:
      problem: evaluates placements.
      start: [N] devices of ops.
      config: of the process.
      room: the most groups that are looked at at once; of more, a random sample.
      rng: samples the levels' sizes and these groups.
    """
    super().__init__(problem, start, max(group_counts(problem, config.levels)))
    self._config, self._room, self._rng = config, room, rng
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
      The fall of the logarithm of the objective; below 0 where the moves were undone.
    """
    # One evaluation for all moves together.
    proposed = self.groups.copy()
    proposed[groups] = devices
    placement = self.level.grouping.expand(proposed)
    found = self.problem.evaluate_ops(placement, start_times=True)
    fall = float(np.log(self.objective_us / found.objective_us[0]))
    # A move is tried once from a placement, whatever comes of it.
    self.open[groups, devices] = False
    # Equal objectives are taken too, which lets the search cross plateaus.
    if fall >= 0:
      self.take(placement, found, 0)
      self.groups = proposed
      self.look()
      # A better placement opens all moves again; an equal one does not, or two could alternate.
      if fall > 0:
        self.open[:] = self.tables.allowed
      self._stand()
    self._left -= 1
    self._go_on()
    return fall

  def pass_level(self) -> None:
    """Leaves the level, for a policy that would move nothing."""
    self._left = 0
    self._go_on()

  def _go_on(self) -> None:
    """Enters the next level that has moves, where this one is over."""
    while not self.over and (self._left == 0 or not self.open[self.some].any()):
      if not self._to_come:
        self.over = True
        return
      number, level = self._to_come.pop(0)
      # A new round forms the finest groups anew, from ops that share a device by now.
      if number != self._round:
        self._round = number
        self.renew()
      # Sizes vary log-uniformly, so that group borders differ between rounds.
      level *= 2 ** self._rng.uniform(-self._config.vary, self._config.vary)
      self.regroup(group_counts(self.problem, (level,))[0])
      self._left, self.open = self._config.evaluations, self.tables.allowed.copy()
      self._stand()

  def _stand(self) -> None:
    """Chooses the groups to look at, and their features, at a new placement or level."""
    # Staying is no move.
    self.open[np.arange(len(self.groups)), self.groups] = False
    some = self.tables.movable  # [M], groups with more than one allowed device
    if len(some) > self._room:
      some = np.sort(self._rng.choice(some, self._room, replace=False))
    self.some, self.pairs = some, self.state.features(some)
    self.states += 1
