"""Improves a placement with the scorer: sweeps of blocks of moves, coarse to fine.

A sweep visits the groups that can move in topological order. The scorer moves some; after a few
moves (a block) the placement is simulated, kept if it is no worse and undone otherwise, with
smaller blocks once blocks are undone more often than kept. A round is a sweep at each level: a
handful of large groups first, which moves whole layers at once, then smaller and smaller ones, made
from the placement so far. The first round takes the best score. The second is thorough: each group
is proposed to go to the best of its other devices, one at a time, even where the scorer would
leave it. Later ones draw from the softmax. The rest of the budget goes to annealing.

Legend: N ops, G groups, D devices.
"""

from __future__ import annotations

import dataclasses
from typing import Optional, Tuple

import numpy as np

from placeto_tf.encoding.pair_features import NUM_FEATURES
from placeto_tf.errors import PlacementError
from placeto_tf.policies.device_pointer.placed_groups import PlacedGroups, group_counts
from placeto_tf.policies.device_pointer.scorer import ScorerWeights, run_block
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.placement_problem import PlacementProblem

_TIE = 1e-3  # of scores


@dataclasses.dataclass(frozen=True)
class SweepConfig:
  """How the scorer is put to work.

  Attributes:
    levels: groups over the problem's groups, swept one after the other in every round but the
      thorough ones.
    rounds: how many, at most.
    greedy: how many rounds take the best score, where that is not to leave the group.
    thorough: how many rounds then move one group at a time, to the best of its other devices, but
      where the scorer is sure that it should stay. Draws begin after these.
    thorough_levels: as `levels`, of these rounds.
    sure: by how much the own device must be ahead of the best other one to be sure.
    block: moves between two simulations, at most and at first.
    temperature: of the draws.
    grow, shrink: what the length of a block is multiplied by after it was kept, and undone.
    patience: rounds in a row without any gain that end the scorer's work.
    anneal: whether the rest of the budget goes to annealing.
    scorer_share: how much of the budget the scorer takes at most where annealing follows.
  """

  levels: Tuple[float, ...] = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
  rounds: int = 1000
  greedy: int = 1
  thorough: int = 1
  thorough_levels: Tuple[float, ...] = (
      0.0625, 0.09, 0.125, 0.18, 0.25, 0.35, 0.5, 0.7, 1.0, 2.0, 4.0, 8.0)
  sure: float = 5.0
  block: int = 4
  temperature: float = 3.0
  grow: float = 1.5
  shrink: float = 0.7
  patience: int = 6
  anneal: bool = True
  scorer_share: float = 0.7

  def __post_init__(self) -> None:
    for name in ("rounds", "block", "temperature", "patience", "scorer_share"):
      if not getattr(self, name) > 0:
        raise PlacementError(f"{name} is {getattr(self, name)}; expected more than 0")
    for name in ("levels", "thorough_levels"):
      levels = getattr(self, name)
      if not levels or min(levels) <= 0:
        raise PlacementError(f"{name} is {levels}; expected numbers above 0, such as (0.25, 1.0)")


class Sweeper(PlacedGroups):
  """Sweeps over one problem from one placement."""

  def __init__(
      self, problem: PlacementProblem, placement: np.ndarray, weights: ScorerWeights, *,
      config: Optional[SweepConfig] = None, seed: int = 0):
    """Evaluates the placement [N] once."""
    self._config = config or SweepConfig()
    self._rng = np.random.default_rng(seed)
    d = problem.num_devices
    self._buffers = (np.zeros((6, d)), np.zeros((d, NUM_FEATURES), np.float32))
    self._weights, self._scores = weights.arrays, np.zeros(d, np.float32)
    self._block = float(self._config.block)
    super().__init__(problem, placement, max(group_counts(
        problem, self._config.levels + self._config.thorough_levels)))

  def sweep(self, budget: Budget, greedy: bool, thorough: bool = False) -> float:
    """Visits every group once; returns by how much the objective fell, in us.

    Args:
      budget: when to stop.
      greedy: whether to take the best score; else to draw.
      thorough: whether to move one group at a time, to the best of its other devices.
    """
    order, before = self.tables.movable, self.objective_us
    config = self._config
    scratch, pairs = self._buffers
    noise = np.zeros((len(order), self.problem.num_devices), np.float32)
    if thorough:
      noise[:] = _TIE * self._rng.random(noise.shape)  # where all score alike, any other device
      noise[np.arange(len(order)), self.groups[order]] = -config.sure
    elif not greedy:
      noise[:] = config.temperature * self._rng.gumbel(size=noise.shape)
    cursor, state = 0, self.state.states[0]
    while cursor < len(order) and not self.problem.exhausted(budget):
      cursor, moves = run_block(
          order, cursor, 1 if thorough else max(1, int(self._block)), noise,
          self.tables.pair_arguments, state, scratch, pairs, self._weights, self._scores)
      if moves:
        groups = state[0].copy()
        kept = self.keep_if_no_worse(self.level.grouping.expand(groups))
        if kept:
          self.groups = groups
        self.look()
        if not thorough:
          self._block = min(config.block, self._block * config.grow) if kept else max(
              1.0, self._block * config.shrink)
    return before - self.objective_us

  def run(self, budget: Budget) -> None:
    """Sweeps round after round until the budget ends or rounds no longer gain anything."""
    problem, config, idle = self.problem, self._config, 0
    for number in range(config.rounds):
      evaluations, gained = problem.evaluations, 0.0
      thorough = config.greedy <= number < config.greedy + config.thorough
      if number > 0:
        self.renew()
      for count in group_counts(problem, config.thorough_levels if thorough else config.levels):
        if problem.exhausted(budget):
          return
        self.regroup(count)
        gained += self.sweep(budget, number < config.greedy, thorough)
      idle = 0 if gained > 0 else idle + 1
      drew = number >= config.greedy + config.thorough
      if idle == config.patience or (drew and problem.evaluations == evaluations):
        return  # nothing is gained, or the scorer moves nothing any more
