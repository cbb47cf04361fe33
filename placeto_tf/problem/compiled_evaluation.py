"""Evaluations inside compiled loops, counted in the search log.

A search with compiled moves evaluates in blocks: it runs many moves without the interpreter, then
adds them to the search log. So threads that search side by side wait for the interpreter's lock
once per block, not at every move. A block ends at a new best placement (the log has its evaluation
and time), at the end of the budget, or after some milliseconds, so that clocks and Ctrl-C are
checked.

  with CompiledEvaluations(problem, budget) as evaluations:
    while evaluations.more():
      moves(evaluations.evaluator, ...)  # calls `evaluate` until `over`

Dimensions: N ops, D devices.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple, Optional, Tuple

import numpy as np

from placeto_tf.errors import PlacementError
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.placement_problem import MEMORY_PENALTY_US_PER_BYTE, PlacementProblem
from placeto_tf.simulation.compiled_step import address_of, simulate_step
from placeto_tf.simulation.compiling import copy_into, inlined

BLOCK_SECONDS = 0.01
FIRST_BLOCK, LONGEST_BLOCK = 4, 4096  # evaluations
USED, LIMIT, IMPROVED = 0, 1, 2  # of `counts`


class Evaluator(NamedTuple):
  """Arrays with which a compiled loop evaluates."""

  row: np.ndarray  # [1, N] int32, the placement to evaluate; the loop changes it
  address: int  # of the engine's event loop
  arguments: Tuple[Any, ...]  # of the engine
  start_us: np.ndarray  # [1, N] float64 starts in the placement evaluated last
  step_time_us: np.ndarray  # [1] float64 its step time
  peak_bytes: np.ndarray  # [1, D] float64 its peaks
  memory_bytes: np.ndarray  # [D] float64
  best: np.ndarray  # [2] float64 of the problem's best placement: bytes over memory, objective
  best_row: np.ndarray  # [N] int32, the last placement that was the best so far
  counts: np.ndarray  # [3] int64: evaluations of this block, their limit, whether the best is new


@inlined
def evaluate(evaluator):
  """Evaluates evaluator.row; returns its objective in us, see `PlacementProblem.evaluate_ops`."""
  simulate_step(
      evaluator.address, evaluator.row, evaluator.arguments, evaluator.start_us,
      evaluator.step_time_us, evaluator.peak_bytes)
  # Bytes over the limits of all devices, with the penalty of the problem's objective.
  excess = 0.0
  for d in range(evaluator.memory_bytes.shape[0]):
    excess += max(evaluator.peak_bytes[0, d] - evaluator.memory_bytes[d], 0.0)
  objective_us = evaluator.step_time_us[0] + MEMORY_PENALTY_US_PER_BYTE * excess
  best, counts = evaluator.best, evaluator.counts
  counts[USED] += 1
  # As in the search log: fewer bytes over the limits are better, then the lower objective.
  if excess < best[0] or (excess == best[0] and objective_us < best[1]):
    best[0], best[1] = excess, objective_us
    copy_into(evaluator.best_row, evaluator.row[0])
    counts[IMPROVED] = 1
  return objective_us


@inlined
def over(evaluator):
  """Returns whether the block has ended: at its limit, or with a new best placement."""
  counts = evaluator.counts
  return counts[USED] >= counts[LIMIT] or counts[IMPROVED] > 0


class CompiledEvaluations:
  """The blocks of one search.

  Attributes:
    evaluator: for the compiled loop, which must stop when `over` returns True.
  """

  def __init__(self, problem: PlacementProblem, budget: Budget):
    if problem.clock is not None:
      raise PlacementError(
          f"a compiled search simulates, but step times are of {problem.search_log.clock!r}; run a "
          "policy, or place with timing='session'")
    self._problem, self._budget = problem, budget
    n, d = problem.graph.num_ops, problem.num_devices
    # A workspace per loop, so that loops of several threads share no buffers.
    self._workspace = problem.simulator.take_workspace()
    engine = problem.simulator.engine
    row, arguments = np.zeros((1, n), np.int32), engine.arguments(self._workspace)
    results = np.empty((1, n)), np.empty(1), np.empty((1, d))
    self.evaluator = Evaluator(
        row, address_of(engine.simulate_range, row, 0, 1, *arguments, *results), arguments,
        *results, np.array(problem.cluster.memory_bytes, dtype=np.float64), np.zeros(2),
        np.empty(n, np.int32), np.zeros(3, np.int64))
    self._length, self._began = FIRST_BLOCK, 0.0

  def __enter__(self) -> CompiledEvaluations:
    return self

  def __exit__(self, *exception: object) -> None:
    self._book()
    self._problem.simulator.return_workspace(self._workspace)

  def more(self) -> bool:
    """Logs the last block and sets the limit of the next; False if the budget is used up."""
    self._book()
    if self._problem.search_log.exhausted(self._budget):
      return False
    left: Optional[int] = self._problem.search_log.remaining_evaluations(self._budget)
    counts, best, search_log = self.evaluator.counts, self.evaluator.best, self._problem.search_log
    counts[:] = 0, self._length if left is None else min(left, self._length), 0
    # Other methods may have found a better placement in the meantime.
    best[:] = search_log.best_excess_bytes, search_log.best_objective_us
    self._began = time.perf_counter()
    return True

  def _book(self) -> None:
    """Adds the last block to the search log, and adapts the length of the next to its rate."""
    used, _, improved = self.evaluator.counts.tolist()
    if not used:
      return
    rate = used / max(time.perf_counter() - self._began, 1e-9)
    # As many evaluations as fit in a block's time, at most twice as many as before.
    self._length = int(min(max(1, rate * BLOCK_SECONDS), 2 * self._length, LONGEST_BLOCK))
    self.evaluator.counts[USED] = 0
    rank = self.evaluator.best.tolist()
    self._problem.search_log.book(
        used, (self.evaluator.best_row.copy(), *rank) if improved else None)
