"""Improves a placement with the scorer: sweeps of blocks of moves, coarse to fine.

A sweep visits the groups that can move in topological order. The scorer moves some; after a few
moves (a block) the placement is simulated, kept if it is no worse and undone otherwise, with
smaller blocks once blocks are undone more often than kept. A round is a sweep at each level: a
handful of large groups first, which moves whole layers at once, then ever smaller ones, made anew
from the placement so far. The first round takes the best score. The second is thorough: each group
is proposed to go to the best of its other devices, one at a time, also where the scorer would leave
it. Later ones draw from the softmax. The rest of the budget goes to annealing.

Legend: N ops, G groups, D devices.
"""

from __future__ import annotations

import dataclasses
from typing import List, NamedTuple, Optional, Tuple

import numpy as np

from placeto_tf.encoding.pair_features import NUM_FEATURES, PairState, observe
from placeto_tf.encoding.pair_tables import OpTables, PairTables
from placeto_tf.errors import PlacementError
from placeto_tf.policies.device_pointer.levels import PlacedLevels
from placeto_tf.policies.device_pointer.scorer import ScorerWeights, run_block
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.compiled_evaluation import CompiledEvaluations, evaluate, over
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.simulation.compiling import compiled

_TIE = 1e-3  # of scores
FINENESS = (1.0, 1.4, 0.7)  # of islands


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

  def on_island(self, island: int) -> SweepConfig:
    """How one of several islands sweeps: larger or smaller groups; every other one only draws."""
    fineness = FINENESS[island % len(FINENESS)]
    return dataclasses.replace(
        self, levels=tuple(fineness * each for each in self.levels),
        thorough_levels=tuple(fineness * each for each in self.thorough_levels),
        greedy=self.greedy if island % 2 == 0 else 0)

  def __post_init__(self) -> None:
    for name in ("rounds", "block", "temperature", "patience", "scorer_share"):
      if not getattr(self, name) > 0:
        raise PlacementError(f"{name} is {getattr(self, name)}; expected more than 0")
    for name in ("levels", "thorough_levels"):
      levels = getattr(self, name)
      if not levels or min(levels) <= 0:
        raise PlacementError(f"{name} is {levels}; expected numbers above 0, such as (0.25, 1.0)")


_OBJECTIVE, _STEP, _BLOCK = 0, 1, 2  # of `_Best.figures`


class _Best(NamedTuple):
  """The best placement so far, as it was simulated."""

  placement: np.ndarray  # [N] int32
  start_us: np.ndarray  # [N] float64
  peak_bytes: np.ndarray  # [D] float64
  figures: np.ndarray  # [3] float64: its objective and step time in us; moves in a block now

  @classmethod
  def start(cls, problem: PlacementProblem, placement: np.ndarray, block: int) -> _Best:
    """A placement [N], which is evaluated."""
    found = problem.evaluate_ops(placement, start_times=True)
    assert found.start_us is not None  # they were asked for
    return cls(
        np.array(placement, dtype=np.int32), found.start_us[0], found.peak_memory_bytes[0].copy(),
        np.array([found.objective_us[0], found.step_time_us[0], block], dtype=np.float64))


@compiled(nogil=True)
def _sweep(
    order, cursor, noise, pair, op, state, scorer, groups, best, lengths, thorough, evaluator):
  """Visits groups from order[cursor] on, as far as the evaluations of a block go.

  Args:
    order, noise, pair, state: see `run_block`; op: see `pair_features.observe`.
    cursor: where to begin.
    scorer: what else `run_block` takes.
    groups: [G] int32, where `best` has them; changed with it.
    best: `_Best`.
    lengths: moves of a block at most; what its length is multiplied by if it is kept, and if not.
    thorough: whether a block is one move.
    evaluator: `Evaluator`.

  Returns:
    The cursor.
  """
  scratch, pairs, weights, scores = scorer
  longest, grow, shrink = lengths
  op_groups, figures = op[0], best.figures
  while cursor < order.shape[0] and not over(evaluator):
    most = 1 if thorough else max(1, int(figures[_BLOCK]))
    cursor, moves = run_block(
        order, cursor, most, noise, pair, state, scratch, pairs, weights, scores)
    if moves == 0:
      continue
    for i in range(op_groups.shape[0]):
      evaluator.row[0, i] = state[0][op_groups[i]]
    objective_us = evaluate(evaluator)
    kept = objective_us <= figures[_OBJECTIVE]
    if kept:
      figures[_OBJECTIVE], figures[_STEP] = objective_us, evaluator.step_time_us[0]
      best.placement[:] = evaluator.row[0]
      best.start_us[:] = evaluator.start_us[0]
      best.peak_bytes[:] = evaluator.peak_bytes[0]
      groups[:] = state[0]
    observe(groups, best.start_us, figures[_STEP], best.peak_bytes, pair, op, state)
    if not thorough:
      figures[_BLOCK] = min(longest, figures[_BLOCK] * grow) if kept else max(
          1.0, figures[_BLOCK] * shrink)
  return cursor


class Sweeper:
  """Sweeps over one problem from one placement.

  Attributes:
    placement: [N] int32, the best so far; objective_us: its objective.
  """

  def __init__(
      self, problem: PlacementProblem, placement: np.ndarray, weights: ScorerWeights, *,
      config: Optional[SweepConfig] = None, seed: int = 0):
    """Evaluates the placement [N] once."""
    self._problem, self._config = problem, (config or SweepConfig()).on_island(problem.island)
    self._rng = np.random.default_rng(seed)
    self._op_tables = OpTables.build(problem)
    d = problem.num_devices
    self._scorer = (np.zeros((6, d)), np.zeros((d, NUM_FEATURES), np.float32), weights.arrays,
                    np.zeros(d, np.float32))
    self._best = _Best.start(problem, placement, self._config.block)
    self.renew()

  @property
  def placement(self) -> np.ndarray:
    """[N] the best so far."""
    return self._best.placement

  @property
  def objective_us(self) -> float:
    """Of the best so far."""
    return float(self._best.figures[_OBJECTIVE])

  def renew(self) -> None:
    """Makes the smallest groups anew: those before may hold what no longer belongs together."""
    finest = _counts(
        self._problem, self._config.levels + self._config.thorough_levels)
    self._levels = PlacedLevels(self._problem, self.placement, max(finest))
    self.regroup(max(finest))

  def _exchange(self) -> None:
    """Goes on from another island's placement, where that is far better."""
    placement, _ = self._problem.exchange(self.placement, self.objective_us)
    if placement is not self.placement:
      self._best = _Best.start(self._problem, placement, self._config.block)
      self.renew()

  def regroup(self, count: int) -> None:
    """Goes on with about `count` groups, each of ops that are on one device now."""
    self._level = self._problem.regrouped(self._levels.groups(self.placement, count))
    self._tables = PairTables.build(self._level, self._op_tables)
    self._state = PairState(self._tables, 1)
    self._groups = self._level.project(self.placement)
    best = self._best
    self._state.observe(0, self._groups, best.start_us, best.figures[_STEP], best.peak_bytes)

  def sweep(self, budget: Budget, greedy: bool, thorough: bool = False) -> float:
    """Visits every group once; returns by how much the objective fell, in us.

    Args:
      budget: when to stop.
      greedy: whether to take the best score; else to draw.
      thorough: whether to move one group at a time, to the best of its other devices.
    """
    order, before = self._tables.movable, self.objective_us
    config = self._config
    noise = np.zeros((len(order), self._problem.num_devices), np.float32)
    if thorough:
      noise[:] = _TIE * self._rng.random(noise.shape)  # where all score alike, any other device
      noise[np.arange(len(order)), self._groups[order]] = -config.sure
    elif not greedy:
      noise[:] = config.temperature * self._rng.gumbel(size=noise.shape)
    tables, cursor = self._tables, 0
    with CompiledEvaluations(self._problem, budget) as evaluations:
      while cursor < len(order) and evaluations.more():
        cursor = _sweep(
            order, cursor, noise, tables.pair_arguments, tables.op_arguments,
            self._state.states[0], self._scorer, self._groups, self._best,
            (float(config.block), config.grow, config.shrink), thorough, evaluations.evaluator)
    return before - self.objective_us

  def run(self, budget: Budget) -> None:
    """Sweeps round after round until the budget ends or rounds no longer gain anything."""
    problem, config, idle = self._problem, self._config, 0
    for number in range(config.rounds):
      evaluations, gained = problem.evaluations, 0.0
      thorough = config.greedy <= number < config.greedy + config.thorough
      if number > 0:
        self.renew()
      for count in _counts(problem, config.thorough_levels if thorough else config.levels):
        if problem.exhausted(budget):
          return
        self._exchange()
        self.regroup(count)
        gained += self.sweep(budget, number < config.greedy, thorough)
      idle = 0 if gained > 0 else idle + 1
      drew = number >= config.greedy + config.thorough
      if idle == config.patience or (drew and problem.evaluations == evaluations):
        return  # nothing is gained, or the scorer moves nothing any more


def _counts(problem: PlacementProblem, levels: Tuple[float, ...]) -> List[int]:
  """How many groups each level has; none is finer than what can be moved by itself."""
  finest = max(problem.num_groups, len(np.unique(problem.graph.colocation)))
  counts = [min(finest, max(problem.num_devices, round(problem.num_groups * each)))
            for each in levels]
  return list(dict.fromkeys(counts))
