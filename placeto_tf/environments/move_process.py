"""`MoveProcess`: the decision process in which Placeto learns and improves placements.

A placement is improved on levels, from coarse groups to fine ones, in the rounds of a `Schedule`.
On a level all moves of a group to another device are offered at once. A move is simulated; if it
makes the placement no worse, it is kept, and all moves are offered again from the new simulation.
If not, it is undone, is not offered again from this placement, and is preferred less for the rest
of the level. At the begin of the first levels several moves are gathered and simulated together.

A policy scores the offered moves, and the move with the largest sum of score and the process's own
preference (`preferences`) is made. It takes its steps one by one (`step`, `stop`), or all at once
(`run`), where the moves run compiled; both simulate the same placements in the same order. For
training, several moves are simulated side by side from each placement (`step_side_by_side`).

The environments of tf-agents (`move_environment`) and of Gymnasium (`gym_environment`) present the
process to learners.

Dimensions: N ops, G groups, M groups that are offered (M <= G), D devices, F pair features.
"""

from __future__ import annotations

from typing import Callable, Dict, Iterator, List, Optional, Tuple

import numpy as np

from placeto_tf.encoding.placed_groups import PlacedGroups, group_counts
from placeto_tf.environments.compiled_moves import BLOCK_OVER, NONE_LEFT, TAKEN, try_moves
from placeto_tf.environments.schedule import Schedule
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.compiled_evaluation import CompiledEvaluations
from placeto_tf.problem.placement_problem import PlacementProblem

MOST_GROUPS = 256  # the most groups that are offered at once; each time another random sample
RELIEF = np.float32(20.0)  # scores of policies are between -10 and 10; this comes before all
_MOST_AT_ONCE = 32  # the most groups that move together
_TIE = 1e-4  # preferences have random amounts below this, which decide between equal scores
_LEAST_FALL = 1e-5  # smaller gains of moves side by side are roundings


class MoveProcess(PlacedGroups):
  """One improvement of one problem's placement.

  Attributes:
    some: [M] int32 groups whose moves are offered.
    pairs: [M, D, F] float32 features of their option edges.
    open: [M, D] bool moves that may be made now.
    shown: [M, D] bool moves that were open when they were offered.
    gathering: whether the next moves are gathered, and simulated together later.
    most: the most moves that are gathered.
    over: whether the process is over.
  """

  def __init__(
      self, problem: PlacementProblem, placement: np.ndarray, schedule: Optional[Schedule] = None,
      *, budget: Optional[Budget] = None, rng: Optional[np.random.Generator] = None,
      most_groups: int = MOST_GROUPS):
    """Evaluates the placement from which the process begins, and enters the first level.

    Args:
      problem: evaluates placements.
      placement: [N] devices of ops.
      schedule: rounds and levels.
      budget: of the whole process.
      rng: of all samples.
      most_groups: the most groups that are offered at once; of more groups a random sample is.
    """
    self._schedule = schedule = schedule or Schedule()
    self._rng = rng or np.random.default_rng(0)
    self._most_groups = most_groups
    # The finest level of all decides the size of the supernodes.
    super().__init__(problem, placement, max(group_counts(problem, schedule.levels)))
    self._began = problem.search_log.evaluations
    self.over = self.gathering = False
    self._fresh, self._stands, self._passed = True, False, False
    self.open: np.ndarray  # [M, D] bool
    self._relief: np.ndarray  # [M, D] float32, as _noise
    self._noise: np.ndarray
    self.most = schedule.most
    self._failures = np.zeros(self.tables.allowed.shape, np.float32)
    self._offer(self.tables.movable[:0])  # nothing, should there be no level
    self._states = self._play(budget or Budget())
    self._go_on()

  @property
  def least_score(self) -> float:
    """Returns the least score of a move that is gathered; half of the best one is another limit."""
    return self._schedule.least_score

  # Steps of a policy.

  def step(self, row: int, device: int) -> float:
    """Makes an open move, or gathers it while the process gathers moves.

    Args:
      row: index of the group among the offered ones.
      device: its new device.

    Returns:
      The decrease of the logarithm of the objective; 0 if the move was undone or gathered.
    """
    before_us = self.objective_us
    if self.gathering:
      self._gathered.append((int(self.some[row]), int(device)))
      self.open[row] = False  # a group moves once
    else:
      group = self.some[row]
      # A move is tried once from a placement, and counts as a failure even if it is kept.
      self.open[row, device] = self._untried[group, device] = False
      self._failures[group, device] += 1
      if self._simulated([(group, device)]):
        self._moved(group, before_us)
    self._go_on()
    # A step of ops that cost nothing takes no time, before and after.
    return float(np.log(before_us / self.objective_us)) if self.objective_us else 0.0

  def stop(self) -> float:
    """Simulates the gathered moves together; without gathered moves, ends the level.

    Returns:
      The decrease of the logarithm of the objective; 0 if the moves were undone.
    """
    before_us = self.objective_us
    self._passed, self.gathering = not self.gathering, False
    self._go_on()
    return float(np.log(before_us / self.objective_us))

  def step_side_by_side(
      self, rows: np.ndarray, devices: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Simulates moves from the present placement, each alone, and makes one of the better ones.

    A level ends if its first placement has no better move twice, or a later one once.

    Args:
      rows: [K] index of the group of each move among the offered ones.
      devices: [K] new devices.
      rng: chooses the move that is made: the best one or any better one, each with probability 1/2.

    Returns:
      [K] decreases of the logarithm of the objective.
    """
    # [K, G]: the present placement with one move each.
    proposed = np.repeat(self.groups[None], len(rows), axis=0)
    proposed[np.arange(len(rows)), self.some[rows]] = devices
    placements, found = self.simulate(proposed)
    falls = np.log(self.objective_us / found.objective_us)
    better = np.flatnonzero(falls > _LEAST_FALL)
    if len(better):
      before_us = self.objective_us
      at = int(rng.choice(better)) if rng.random() < 0.5 else int(falls.argmax())
      self.keep(proposed, placements, found, at)
      self._moved(self.some[rows[at]], before_us)
    self._passed = not (len(better) or self._fresh)
    self._fresh = False
    self._go_on()
    return falls

  def preferences(self) -> np.ndarray:
    """Returns [M, D] float32, what the process adds to scores.

    While the placement does not fit, moves that take away bytes over the limits come before all
    other moves. Moves that failed on this level come later.
    """
    return self._relief + self._noise - self._schedule.forget * self._failures[self.some]

  # The whole process compiled.

  def run(self, score: Callable[[MoveProcess], np.ndarray]) -> None:
    """Makes the moves with the best scores until the process is over.

    Moves are compiled where the simulator times them, and single steps where another clock does.

    Args:
      score: the process -> [M, D] float32 scores of the offered moves.
    """
    while not self.over:
      if self.gathering:
        self._gather_best(self.scores(score))
      elif self.problem.clock is None:
        self._run_level(score)
      else:
        some, scores = self.some, self.scores(score)
        while self.some is some and not self.over:
          self.step(*divmod(int(np.where(self.open, scores, -np.inf).argmax()), scores.shape[1]))

  def scores(self, score: Callable[[MoveProcess], np.ndarray]) -> np.ndarray:
    """Returns [M, D] float32 sums of scores and preferences; -inf for moves that are not open."""
    found = score(self) + self.preferences()
    found[~self.open] = -np.inf
    return found

  def _gather_best(self, scores: np.ndarray) -> None:
    """Gathers the best move of each group, as many as have a score near the best one."""
    best, devices = scores.max(axis=1), scores.argmax(axis=1)
    order = np.argsort(-best, kind="stable")[:self.most]
    chosen = order[best[order] > max(self.least_score, 0.5 * best[order[0]])]
    # With as many as may be gathered, they are simulated at once.
    complete = len(chosen) == min(self.most, int(self.open.any(axis=1).sum()))
    for row in chosen:
      self.step(row, devices[row])
    if not complete:
      self.stop()

  def _run_level(self, score: Callable[[MoveProcess], np.ndarray]) -> None:
    """Makes single moves in the order of their scores until the level ends, in compiled blocks."""
    limit = self._limit
    with CompiledEvaluations(self.problem, limit) as evaluations:
      evaluator, more = evaluations.evaluator, evaluations.more()
      while self._limit is limit and not self.over:
        scores = self.scores(score)
        # The evaluator's row is the present placement; `try_moves` changes it in place.
        evaluator.row[0] = self.level.grouping.expand(self.groups)
        end = BLOCK_OVER
        while more and end == BLOCK_OVER:
          group, device, now_us, end = try_moves(
              scores, self.some, self.tables.op_groups, self.groups, self._failures, self._untried,
              self.objective_us, evaluator)
          if end == TAKEN:
            before_us, self.groups[group] = self.objective_us, device
            # Copies: the evaluator's rows are overwritten by the next evaluation.
            step_time_us = float(evaluator.step_time_us[0])
            self._take(evaluator.row[0].copy(), now_us, step_time_us, (
                evaluator.start_us[0].copy(), step_time_us, evaluator.peak_bytes[0].copy()))
            self.look()
            self._moved(group, before_us)
          more = evaluations.more()
        if end == NONE_LEFT:
          self.open[:] = False
        self._go_on()

  # The process itself.

  def _play(self, budget: Budget) -> Iterator[None]:
    """Goes through all levels, and waits wherever a move is to be chosen."""
    # The objective never rises: objective -> moves that failed from it, on whichever level.
    failed: Dict[float, np.ndarray] = {}
    numbers = np.random.default_rng(0).random(self.problem.graph.num_ops)
    for limit in self._levels(budget):
      self._limit = limit
      # [G, D] counts of failures on this level.
      self._failures = np.zeros(self.tables.allowed.shape, np.float32)
      self._passed, self._fresh, movable = False, True, self.tables.movable
      yield from self._gather()
      # [G, D], equal to the last bit for equal sets of ops, whose numbers are added in one order.
      moves = np.bincount(self.level.grouping.group_of_op, numbers)[:, None] * np.arange(
          1, self.problem.num_devices + 1)
      # Moves not tried since the placement changed.
      self._untried = self.tables.allowed & ~np.isin(moves, failed.get(self.objective_us, ()))
      while not self._passed and not self._exhausted(limit):
        # Groups with a move that was not tried from this placement.
        some = movable[self._untried[movable].any(axis=1)]
        if len(some) == 0:
          break
        self._offer(some)
        self._untried[self.some, self.groups[self.some]] = False
        self.open = self._untried[self.some]
        self.shown, self._stands = self.open.copy(), True
        while (self._stands and not self._passed and self.open.any()
               and not self._exhausted(limit)):
          yield
      failed[self.objective_us] = np.union1d(
          failed.get(self.objective_us, ()), moves[~self._untried])
    self.over = True
    yield

  def _gather(self) -> Iterator[None]:
    """Moves several groups at once, early in the process and as long as that gains."""
    schedule, self.most = self._schedule, self._schedule.most
    while self.most > 1 and len(self.tables.movable) and not self._exhausted(self._limit) and (
        self.problem.search_log.evaluations - self._began < schedule.several):
      self._offer(self.tables.movable)
      self.open[np.arange(len(self.some)), self.groups[self.some]] = False
      self.shown, self.gathering = self.open.copy(), True
      self._gathered: List[Tuple[int, int]] = []
      while self.gathering and len(self._gathered) < self.most and self.open.any():
        yield
      self.gathering = False
      if len(self._gathered) < 2:
        return  # a single group is left to single moves
      before_us = self.objective_us
      self._simulated(self._gathered)
      # Twice as many groups after a gain, else a third.
      self.most = (min(2 * self.most, _MOST_AT_ONCE) if self.objective_us < before_us
                   else len(self._gathered) // 3)

  def _levels(self, budget: Budget) -> Iterator[Budget]:
    """Enters all levels of all rounds, as far as the budget allows; the budget of each."""
    search_log, schedule = self.problem.search_log, self._schedule
    for number, evaluations in enumerate(schedule.rounds):
      if self._exhausted(budget):
        return
      self.renew()
      part = budget.at_most(search_log, evaluations)
      # The first round keeps the given levels; later ones shift all levels together.
      factor = 2 ** self._rng.uniform(-schedule.vary, schedule.vary) if number else 1.0
      for i, level in enumerate(schedule.levels):
        if self._exhausted(part):
          break
        self.regroup(group_counts(self.problem, (factor * level,))[0])
        # A level's share is relative to the remaining levels, which get its unused evaluations.
        yield part.share(search_log, 1 / (len(schedule.levels) - i))

  def _go_on(self) -> None:
    """Goes on to the next state in which a move is to be chosen, or to the end."""
    if not self.over:
      next(self._states)

  def _exhausted(self, budget: Budget) -> bool:
    """Returns whether the budget is used up."""
    return self.problem.search_log.exhausted(budget)

  def _offer(self, some: np.ndarray) -> None:
    """Offers all moves of some groups, or of a random sample of them."""
    if len(some) > self._most_groups:
      some = self._rng.choice(some, self._most_groups, replace=False)
    self.some, self.pairs = some, self.state.features(some)
    self.open = self.shown = self.tables.allowed[some]
    # If the placement does not fit, moves that relieve full devices come first, the most relief
    # before all others.
    relief = self._relieved_share()
    self._relief = RELIEF * ((relief > 0) + relief)
    self._noise = _TIE * self._rng.random(self.open.shape, dtype=np.float32)

  def _relieved_share(self) -> np.ndarray:
    """Returns [M, D] float32, the share of the bytes over the limits that each move takes away."""
    free_bytes = self.tables.memory_bytes - self._seen[2]  # [D], of the peaks simulated last
    over_bytes = np.maximum(-free_bytes, 0)
    if not over_bytes.any():
      return np.zeros(self.open.shape, np.float32)
    held, here = self.state.held_bytes[self.some], self.groups[self.some]  # [M, D], [M]
    # The bytes over the limit of the device that the group leaves, and of the one that it enters.
    freed = np.minimum(over_bytes[here], held[np.arange(len(here)), here])
    added = np.maximum(held - free_bytes, 0) - over_bytes
    return ((freed[:, None] - added) / over_bytes.sum()).astype(np.float32)

  def _simulated(self, moves: List[Tuple[int, int]]) -> bool:
    """Simulates moves (group, device) together, and keeps them if they make nothing worse."""
    # Placements with equal objectives are kept, too, which lets the process cross plateaus.
    groups = self.groups[None].copy()
    for group, device in moves:
      groups[0, group] = device
    placements, found = self.simulate(groups)
    kept = bool(found.objective_us[0] <= self.objective_us)
    if kept:
      self.keep(groups, placements, found)
    return kept

  def _moved(self, group: int, before_us: float) -> None:
    """Books a move that was kept, after which all moves are offered anew."""
    self._stands = False
    # The other moves of a group that moved count as failures, so they come later.
    self._failures[group] += 1
    # Failed moves are tried again after a gain, but not after a placement that is equal.
    if self.objective_us < before_us:
      self._untried[:] = self.tables.allowed
