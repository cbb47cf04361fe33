"""Improves a placement with the scorer: sweeps of blocks of moves, worse blocks undone.

A sweep visits the groups that can move in topological order. The scorer moves some; after a few
moves (a block) the placement is simulated, kept if it is no worse and undone otherwise. The first
sweeps take the best score; later ones draw from the softmax, with smaller blocks once blocks are
undone more often than kept. The rest of the budget goes to annealing.

Legend: N ops, G groups, D devices.
"""

from __future__ import annotations

import dataclasses
from typing import Optional, Tuple

import numpy as np

from placeto_tf.encoding.pair_features import NUM_FEATURES, PairState
from placeto_tf.encoding.pair_tables import PairTables
from placeto_tf.errors import PlacementError
from placeto_tf.grouping.contraction import number_groups, topological_rank
from placeto_tf.policies.device_pointer.scorer import ScorerWeights, run_block
from placeto_tf.search.annealing import annealing, share_of
from placeto_tf.search.problem import Budget, PlacementProblem
from placeto_tf.search.results import best_so_far
from placeto_tf.search.units import placed_units


@dataclasses.dataclass(frozen=True)
class SweepConfig:
  """How the scorer is put to work.

  Attributes:
    block: moves between two simulations, at most and at first.
    greedy: how many sweeps of a level take the best score before the draws begin.
    temperature: of those draws.
    levels: (groups over the problem's groups, evaluations a movable group) one after the other,
      each on finer groups that keep what was found.
    patience: sweeps in a row without any gain that end a level.
    anneal: whether the rest of the budget goes to annealing.
    scorer_share: how much of the budget the scorer takes at most where annealing follows.
  """

  block: int = 8
  greedy: int = 1
  temperature: float = 1.0
  levels: Tuple[Tuple[float, float], ...] = ((1.0, 0.5), (4.0, 0.5))
  patience: int = 4
  anneal: bool = True
  scorer_share: float = 1.0

  def __post_init__(self):
    for name in ("block", "temperature", "patience", "scorer_share"):
      if not getattr(self, name) > 0:
        raise PlacementError(f"{name} is {getattr(self, name)}; expected more than 0")
    if not self.levels:
      raise PlacementError("levels is empty; expected at least one, as in ((1.0, 1.0),)")


class Sweeper:
  """Sweeps over the groups of one problem from one placement.

  Attributes:
    placement: [G] int32, the best so far; objective_us: its objective.
  """

  def __init__(
      self, problem: PlacementProblem, placement: np.ndarray, weights: ScorerWeights, *,
      config: Optional[SweepConfig] = None, seed: int = 0):
    """Evaluates the placement [G] once."""
    self._problem, self._config = problem, config or SweepConfig()
    self._rng = np.random.default_rng(seed)
    self._tables = PairTables.build(problem)
    self._state = PairState(self._tables, 1)
    d = problem.num_devices
    self._buffers = (np.zeros((6, d)), np.zeros((d, NUM_FEATURES), np.float32))
    self._weights, self._scores = weights.arrays, np.zeros(d, np.float32)
    self._block = float(self._config.block)
    self.objective_us = float("inf")
    self.placement = np.array(placement, dtype=np.int32)
    self._try(self.placement)

  def _try(self, placement: np.ndarray) -> bool:
    """Whether a placement is no worse; the features go on from the better one."""
    found = self._problem.evaluate(placement, start_times=True)
    objective_us = float(found.objective_us[0])
    kept = objective_us <= self.objective_us
    if kept:
      self.placement, self.objective_us = placement.copy(), objective_us
      self._seen = (
          found.start_us[0], float(found.step_time_us[0]), found.peak_memory_bytes[0].copy())
    self._state.observe(0, self.placement, *self._seen)
    return kept

  def sweep(self, budget: Budget, greedy: bool) -> float:
    """Visits every group once; returns by how much the objective fell, in us."""
    order, before = self._tables.movable, self.objective_us
    noise = np.zeros((len(order), self._problem.num_devices), np.float32)
    if not greedy:
      noise[:] = self._config.temperature * self._rng.gumbel(size=noise.shape)
    scratch, pairs = self._buffers
    cursor, moves = 0, 0
    while cursor < len(order) and not self._problem.exhausted(budget):
      cursor, moves = run_block(
          order, cursor, max(1, int(self._block)), noise, self._tables.pair_arguments,
          self._state.states[0], scratch, pairs, self._weights, self._scores)
      if moves:
        kept = self._try(self._state.states[0][0].copy())
        self._block = min(self._config.block, self._block * 1.5) if kept else max(
            1.0, self._block * 0.7)
    return before - self.objective_us

  def run(self, budget: Budget) -> None:
    """Sweeps until the budget ends or sweeps no longer gain anything."""
    idle, greedy = 0, self._config.greedy
    while idle < self._config.patience and not self._problem.exhausted(budget):
      evaluations = self._problem.evaluations
      gained = self.sweep(budget, greedy > 0)
      idle = 0 if gained > 0 else idle + 1
      if self._problem.evaluations == evaluations and greedy <= 0:
        break  # the scorer moves nothing any more
      greedy -= 1


def improve(
    problem: PlacementProblem,
    start: np.ndarray,
    weights: ScorerWeights,
    budget: Budget,
    seed: int = 0,
    *,
    config: Optional[SweepConfig] = None,
) -> np.ndarray:
  """[N] the best placement found from a start [N] within the budget; never worse than the start.

  Args:
    problem: evaluates; its best placement counts as found.
    start: [N] where to begin.
    weights: of the scorer.
    budget: as for every search.
    seed: of the draws and of annealing.
    config: how the scorer is put to work.
  """
  config = config or SweepConfig()
  placement = np.asarray(start, dtype=np.int32)
  if problem.best_placement is None and not problem.exhausted(budget):
    problem.evaluate_ops(placement)
  part = share_of(problem, budget, config.scorer_share) if config.anneal else budget
  for factor, per_group in config.levels:
    if problem.exhausted(part):
      break
    units = placed_units(problem, placement, max(1, int(problem.num_groups * factor)))
    level = problem.regrouped(number_groups(units.unit_of_op, topological_rank(problem.graph)))
    most = problem.evaluations + max(1, int(per_group * len(units.movable)))
    if part.max_evaluations is not None:
      most = min(most, part.max_evaluations)
    sweeper = Sweeper(level, level.project(placement), weights, config=config, seed=seed)
    sweeper.run(Budget(most, part.max_seconds, part.target_us))
    placement = best_so_far(problem, placement)
  if config.anneal and not problem.exhausted(budget):
    return annealing(problem, budget, seed)
  return best_so_far(problem, placement)
