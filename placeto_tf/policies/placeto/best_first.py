"""Best-first search with a scorer of gains: the move with the best score is simulated first.

On a level, all moves of a group to another device are scored at once, and the move with the best
score is simulated. If it improves the placement, it is kept, and all moves are scored again from
the new simulation. If not, it is not tried again from this placement, and its later scores on this
level are lowered. A round goes through levels from coarse to fine: first a handful of large groups,
which moves whole layers at once, then smaller and smaller groups, formed from the placement so far.
The first rounds are short, so that few evaluations go to groups of a poor placement. A long round
then uses a share of the remaining evaluations, and samples among moves with nearly equal scores.

Dimensions: N ops, G groups, M groups that are scored (M <= G), D devices.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Optional, Sequence, Tuple

import numpy as np

from placeto_tf.encoding.grouped_graph import GroupedGraph
from placeto_tf.encoding.placed_groups import PlacedGroups, group_counts
from placeto_tf.policies.placeto.scorer import CAP, ScorerWeights
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.compiled_evaluation import CompiledEvaluations, Evaluator, evaluate, over
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.problem.supernodes import COARSE_TO_FINE
from placeto_tf.search.annealing import PLENTY
from placeto_tf.simulation.compiling import compiled, part

MOST_GROUPS = 256  # the most groups that are scored at once; each time another random sample
LONG_EVALUATIONS = 3000  # the most evaluations of a long round
LONG_OF_PLENTY = 1000  # the most of the first long round, if plenty are left: see `BestFirst.run`
_MOST_AT_ONCE = 32  # the most groups that move together
_TIE = 1e-4  # scores get random amounts below this, which decide between equal scores


@dataclasses.dataclass(frozen=True)
class BestFirstConfig:
  """Settings of the search's rounds, levels and samples.

  Attributes:
    rounds: evaluations of each short round; its levels get equal parts.
    levels: number of groups of each level of a short round, divided by the problem's number of
      groups, coarse to fine.
    vary: after the first short round, levels are up to 2^vary times as fine or as coarse, so that
      groups differ between rounds.
    long_levels: (number of groups divided by the problem's, share of the round) of each level of
      the long round.
    long_share: the long round's share of the budget that the short rounds leave.
    temperature: of the samples in the long round, in units of scores.
    forget: amount by which each failure lowers a move's score for the rest of a level.
    several: moves of several groups at once are made during so many first evaluations of the
      search.
    most: number of groups that move together at first; it doubles after an improvement, else it
      falls to a third.
    least_score: least score of a group that moves with others; half of the best score is a second
      limit.
  """

  rounds: Tuple[int, ...] = (20, 40, 80, 160)
  levels: Tuple[float, ...] = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0)
  vary: float = 0.25
  long_levels: Tuple[Tuple[float, float], ...] = COARSE_TO_FINE
  long_share: float = 1.0
  temperature: float = 0.01
  forget: float = 0.1
  several: int = 21
  most: int = 8
  least_score: float = 0.15


class BestFirst(PlacedGroups):
  """Improves one problem's placement."""

  def __init__(
      self, problem: PlacementProblem, placement: np.ndarray, weights: ScorerWeights, *,
      config: Optional[BestFirstConfig] = None, seed: int = 0):
    """Evaluates the placement from which the search starts.

    Args:
      problem: evaluates placements.
      placement: [N] devices of ops.
      weights: weights of the scorer.
      config: of the search.
      seed: of the search's samples.
    """
    self._config = config or BestFirstConfig()
    self._rng = np.random.default_rng(seed)
    self._weights = weights
    # The finest level of all decides the size of the supernodes.
    factors = self._config.levels + tuple(factor for factor, _ in self._config.long_levels)
    super().__init__(problem, placement, max(group_counts(problem, factors)))
    self._began = problem.search_log.evaluations

  def run(self, budget: Budget) -> bool:
    """Runs the short rounds and a long round, as far as the budget allows.

    Args:
      budget: of all rounds.

    Returns:
      True if enough evaluations are left to anneal separately from the start, and then to improve
      the better of both results by another long round (docs/results/placeto.md).
    """
    search_log, config = self.problem.search_log, self._config
    began = search_log.evaluations, search_log.seconds
    for number, evaluations in enumerate(config.rounds):
      if search_log.exhausted(budget):
        return False
      # The first round keeps the given levels; later ones shift all levels together.
      factor = 2 ** self._rng.uniform(-config.vary, config.vary) if number else 1.0
      levels = [(factor * level, 1.0) for level in config.levels]
      self.round(levels, budget.at_most(search_log, evaluations))
    # If only time is limited, the rate so far gives an estimate of the evaluations that are left.
    plenty = search_log.expected_evaluations(budget, *began) >= PLENTY
    at_most = LONG_OF_PLENTY if plenty else LONG_EVALUATIONS
    self.long_round(budget.share(search_log, config.long_share).at_most(search_log, at_most))
    return plenty

  def long_round(self, budget: Budget) -> None:
    """Improves the placement with sampled moves, until the budget or the moves are used up.

    Args:
      budget: of the round.
    """
    if not self.problem.search_log.exhausted(budget):
      # Only long rounds have a temperature.
      self.round(self._config.long_levels, budget, self._config.temperature)

  def round(
      self, levels: Sequence[Tuple[float, float]], budget: Budget, temperature: float = 0.0
  ) -> None:
    """Improves the placement level by level, each with its share of the budget.

    Args:
      levels: (number of groups divided by the problem's, share of the budget), coarse to fine.
      budget: of all levels.
      temperature: of the samples; 0 takes the best move.
    """
    self.renew()
    for i, (factor, share) in enumerate(levels):
      if self.problem.search_log.exhausted(budget):
        return
      self.regroup(group_counts(self.problem, (factor,))[0])
      # A level's share is relative to the remaining levels, which get its unused evaluations.
      left = sum(later for _, later in levels[i:])
      self.level_search(budget.share(self.problem.search_log, share / left), temperature)

  def several_moves(self, budget: Budget) -> None:
    """Moves several groups at once, early in the search and as long as that improves placements.

    Args:
      budget: of the level.
    """
    search_log, tables, most = self.problem.search_log, self.tables, self._config.most
    # 1. Score all moves of all groups, or of a random sample of groups.
    while most > 1 and len(tables.movable) and not search_log.exhausted(budget) and (
        search_log.evaluations - self._began < self._config.several):
      some = tables.movable
      if len(some) > MOST_GROUPS:
        some = self._rng.choice(some, MOST_GROUPS, replace=False)
      # 2. Take each group's best move away from its device: [M].
      scores = np.where(tables.allowed[some], self.scores(some), -np.inf)
      scores[np.arange(len(some)), self.groups[some]] = -np.inf
      devices = scores.argmax(axis=1)
      best = scores[np.arange(len(some)), devices]
      # 3. Keep the best groups, all of them with a score near the best one.
      order = np.argsort(-best, kind="stable")[:most]
      order = order[best[order] > max(self._config.least_score, 0.5 * best[order[0]])]
      if len(order) < 2:
        return  # a single group is left to `level_search`
      # 4. Move them together in one evaluation, which is undone if the placement gets worse.
      groups = self.groups[None].copy()
      groups[0, some[order]] = devices[order]
      before_us = self.objective_us
      placements, found = self.simulate(groups)
      if found.objective_us[0] <= before_us:
        self.keep(groups, placements, found)
      # 5. Double the number of groups after a gain, else cut it to a third.
      most = min(2 * most, _MOST_AT_ONCE) if self.objective_us < before_us else len(order) // 3

  def level_search(self, budget: Budget, temperature: float = 0.0) -> None:
    """Improves the placement by moves of this level's groups until all moves have been tried.

    Args:
      budget: of the level.
      temperature: of the samples; 0 takes the best move.
    """
    self.several_moves(budget)
    problem, config, tables = self.problem, self._config, self.tables
    failures = np.zeros(tables.allowed.shape, np.float32)  # [G, D]
    untried = tables.allowed.copy()  # since the placement changed
    # Blocks of evaluations run compiled; between blocks the budget is checked.
    with CompiledEvaluations(problem, budget) as evaluations:
      more = evaluations.more()
      while more:
        # Groups with a move that was not tried from this placement.
        some = tables.movable[untried[tables.movable].any(axis=1)]
        if len(some) == 0:
          return
        if len(some) > MOST_GROUPS:
          some = self._rng.choice(some, MOST_GROUPS, replace=False)
        # Moves that failed on this level, from any placement, come later.
        scores = self.scores(some) - config.forget * failures[some]
        untried[some, self.groups[some]] = False
        scores[~untried[some]] = -np.inf
        # The evaluator's row is the present placement; `_try_moves` changes it in place.
        evaluations.evaluator.row[0] = self.level.grouping.expand(self.groups)
        end = BLOCK_OVER
        while more and end == BLOCK_OVER:
          group, device, now_us, end = _try_moves(
              scores, some, tables.op_groups, self.groups, failures, untried, self.objective_us,
              float(temperature), self._rng, evaluations.evaluator)
          if end == TAKEN:
            # The other moves of a group that moved count as failures, so they come later.
            failures[group] += 1
            # Failed moves are tried again after a gain, but not after a placement that is equal.
            if now_us < self.objective_us:
              untried[:] = tables.allowed
            self._move(group, device, now_us, evaluations.evaluator)
          more = evaluations.more()

  def _move(self, group: int, device: int, objective_us: float, evaluator: Evaluator) -> None:
    """Keeps the move that was evaluated last."""
    self.placement, self.objective_us = evaluator.row[0].copy(), objective_us
    # Copies: the evaluator's rows are overwritten by the next evaluation.
    self._seen = (evaluator.start_us[0].copy(), float(evaluator.step_time_us[0]),
                  evaluator.peak_bytes[0].copy())
    self.groups[group] = device
    self.look()

  def scores(self, groups: np.ndarray) -> np.ndarray:
    """Scores every move of groups, with features from the placement's last simulation.

    While the placement does not fit, moves from devices with too little memory to devices with
    space for the group come before all other moves.

    Args:
      groups: [M] int32.

    Returns:
      [M, D] float32; a random amount below `_TIE` is added, which decides between equal scores.
    """
    # Without messages a pair's score depends on its own features alone.
    if self._weights.messages:
      found = self._scores_by_messages()[groups]
    else:
      pairs = self.state.features(groups)
      # [M D, F] -> [M, D]
      found = self._weights.scores(pairs.reshape(-1, pairs.shape[-1])).reshape(pairs.shape[:2])
    free_bytes = self.tables.memory_bytes - self._seen[2]  # [D], of the peaks simulated last
    full = free_bytes[self.groups[groups]] < 0  # [M]
    space = self.tables.held_bytes[groups][:, None] <= free_bytes  # [M, D]
    # If the placement does not fit, moves away from full devices come first.
    found = found + np.float32(2 * CAP) * (full[:, None] & space)
    return found + _TIE * self._rng.random(found.shape, dtype=np.float32)

  def _scores_by_messages(self) -> np.ndarray:
    """Returns [G, D] scores of all option edges, because messages need all groups; 0 elsewhere."""
    allowed = self.tables.allowed
    pairs = self.state.features(np.arange(len(allowed), dtype=np.int32))
    grouped, found = GroupedGraph.of(self.level), np.zeros(allowed.shape, np.float32)
    found[allowed] = self._weights.scores(
        pairs[allowed], np.stack(np.nonzero(allowed), axis=1), grouped.flow_ends)
    return found


NONE_LEFT, BLOCK_OVER, TAKEN = range(3)  # the three outcomes of `_try_moves`


@compiled(nogil=True, _nrt=False)
def _try_moves(
    scores, some, group_of_op, groups, failures, untried, objective_us, temperature, rng,
    evaluator):
  """Evaluates moves in the order of their scores, until one makes the placement no worse.

  Args:
    scores: [M, D] float32; -inf for moves that must not be tried.
    some: [M] int32 groups of the rows of `scores`.
    group_of_op: [N] int32; groups: [G] int32 devices.
    failures: [G, D] float32; untried: [G, D] bool.
    objective_us: of the placement.
    temperature: of the samples; 0 takes the best move.
    rng: decides the samples.
    evaluator: `Evaluator`; its row is the placement.

  Returns:
    (group, device, objective_us) of the move that was kept, and the outcome.
  """
  row = evaluator.row[0]
  while not over(evaluator):
    if not _any_left(scores):  # and nothing is sampled
      return -1, -1, objective_us, NONE_LEFT
    best, best_i, best_device = np.float32(-np.inf), -1, -1
    for i in range(scores.shape[0]):
      for d in range(scores.shape[1]):
        value = scores[i, d]
        # Gumbel noise on scores samples from their softmax at this temperature.
        if temperature > 0:
          value += np.float32(temperature * _gumbel(rng))
        if value > best:
          best, best_i, best_device = value, i, d
    group = some[best_i]
    # Marks the move as tried from this placement; even if kept, it counts as a failure from now on.
    scores[best_i, best_device], untried[group, best_device] = -np.inf, False
    failures[group, best_device] += 1
    _put(row, group_of_op, group, best_device)
    now_us = evaluate(evaluator)
    if now_us <= objective_us:
      return group, best_device, now_us, TAKEN
    # The placement got worse: undo the move, and go on with the next best one.
    _put(row, group_of_op, group, groups[group])
  return -1, -1, objective_us, BLOCK_OVER


@part
def _any_left(scores):
  """Returns whether any score [M, D] is above -inf."""
  for i in range(scores.shape[0]):
    for d in range(scores.shape[1]):
      if scores[i, d] > -np.inf:
        return True
  return False


@part
def _gumbel(rng):
  """Returns a sample as numpy's `Generator.gumbel` makes it."""
  u = 1.0 - rng.random()  # in (0, 1], and 1 is rejected: log(-log(1)) is infinite
  while u >= 1.0:
    u = 1.0 - rng.random()
  return -math.log(-math.log(u))


@part
def _put(placement, group_of_op, group, device):
  """Puts a group on a device in a placement [N]."""
  for op in range(placement.shape[0]):
    if group_of_op[op] == group:
      placement[op] = device
