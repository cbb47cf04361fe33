"""Several runs of one search side by side, with seeds of their own, of which the best is kept.

Each is a thread, or a task on Ray, with a view of the problem: its own log, its own simulator's
buffers. What takes time is compiled and runs without the interpreter's lock, so the runs use as
many cores as there are. Limited by evaluations alone, each gets an equal part of them, and the
result depends on the seed and the number of runs, neither on the number of cores nor on who is
faster. Limited by time, there are no more threads than cores.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import itertools
from typing import Any, Callable, List, Optional

import numpy as np

from placeto_tf.errors import PlacementError
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.candidates import best_so_far
from placeto_tf.problem.executors import Executor, InProcess, Shared, result_of
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.problem.search_log import SearchLog

_WATCH_SECONDS = 0.1  # how often runs are looked at, for who observes them


def check_runs(count: Optional[int]) -> None:
  """Raises PlacementError where a number of runs is given and below 1."""
  if count is not None and count < 1:
    raise PlacementError(
        f"independent_runs is {count}; expected at least 1, or None for the default")


def run_seed(seed: int, number: int) -> int:
  """Returns the seed of a run; the first run's is the search's own.

  Args:
    seed: of the search.
    number: of the run, from 0.

  Returns:
    A seed, the same in every process.
  """
  if number == 0:
    return seed
  return int(np.random.SeedSequence([seed, number]).generate_state(1)[0])


@dataclasses.dataclass(frozen=True)
class Runs:
  """How searches run.

  Attributes:
    count: the most runs side by side.
    executor: where; in this process they are threads.
  """

  count: int = 1
  executor: Executor = dataclasses.field(default_factory=InProcess)

  def __post_init__(self) -> None:
    check_runs(self.count)


ONE_RUN = Runs()


def run_independently(
    problem: PlacementProblem, placer: Callable[..., np.ndarray], budget: Budget, seed: int = 0,
    runs: Runs = ONE_RUN) -> np.ndarray:
  """Runs a search several times within one budget.

  Ctrl-C ends all runs; improvements of threads are the problem's then too.

  Args:
    problem: counts the evaluations of all runs, and remembers the best.
    placer: the search, called with a problem, a budget and a seed.
    budget: of all together.
    seed: of the first; the others' follow from it.
    runs: how many, and where.

  Returns:
    The best placement found, [N].
  """
  log, executor = problem.search_log, runs.executor
  left = log.remaining_evaluations(budget)
  # Never more runs than evaluations.
  count = runs.count if left is None else min(runs.count, left)
  if budget.max_seconds is not None and not executor.elsewhere:
    count = min(count, executor.cores)
  if count <= 1:
    return placer(problem, budget, seed)
  # On Ray a view without observers and without the file that the graph came from.
  whole = problem.portable(with_shapes=False) if executor.elsewhere else problem
  before = log.copy()
  # Each run has a copy of the log and buffers of its own; graph and costs are shared.
  views = [dataclasses.replace(
      whole, search_log=dataclasses.replace(before.copy(), improvements=[]),
      simulator=whole.simulator.on_one_thread()) for _ in range(count)]
  logs = [view.search_log for view in views]
  pool: Any = executor if executor.elsewhere else concurrent.futures.ThreadPoolExecutor(count)
  try:
    with contextlib.nullcontext() if executor.elsewhere else pool:
      futures: List[concurrent.futures.Future] = []
      try:
        for i, view in enumerate(views):
          # Equal parts of the evaluations, the first runs taking the remainder.
          part = budget if left is None else dataclasses.replace(
              budget, max_evaluations=before.evaluations + left // count + (i < left % count))
          futures.append(pool.submit(
              _run, executor.share(view), placer, part, run_seed(seed, i)))
        pending = set(futures)
        # Merge while runs go on, so that observers see progress and other runs end on an error.
        while pending:
          done, pending = concurrent.futures.wait(
              pending, _WATCH_SECONDS, concurrent.futures.FIRST_COMPLETED)
          for future in done:
            result_of(future)  # an error ends the others
          _merge(log, before, logs)
        logs = [result_of(future) for future in futures]
      except BaseException:
        if executor.elsewhere:
          executor.shutdown()  # ends the tasks
        raise
      finally:  # also after Ctrl-C
        for each in logs:
          each.stop()
  finally:
    _merge(log, before, logs)
  return best_so_far(problem, log.best_known)


def _run(
    shared: Shared, placer: Callable[..., np.ndarray], budget: Budget, seed: int) -> SearchLog:
  """Runs a search on a view of the problem; returns its log."""
  view = shared.get()
  placer(view, budget, seed)
  return view.search_log


def _merge(log: SearchLog, before: SearchLog, logs: List[SearchLog]) -> None:
  """Rewrites a log as its state before the runs plus the runs' evaluations and improvements.

  The n-th evaluation of a run counts as the last one of every run's first n, so that threads cannot
  change the order.
  """
  # Evaluations of each run since the start.
  each_used = [each.evaluations - before.evaluations for each in logs]
  log.evaluations = before.evaluations + sum(each_used)
  # (turn, run, improvement) in the order in which equal runs would have found them.
  found = sorted((len(logs) * (each.evaluations - before.evaluations), number, each)
                 for number, run in enumerate(logs) for each in list(run.improvements))
  log.improvements = list(before.improvements)
  best = before.best_excess_bytes, before.best_objective_us
  # Only improvements on all that came before are the search's own.
  for turn, _, each in found:
    if (each.excess_bytes, each.objective_us) < best:
      best = each.excess_bytes, each.objective_us
      log.improvements.append(each._replace(
          evaluations=min(before.evaluations + turn, log.evaluations)))
  # Sums run by run with earlier searches, which may have had fewer or more runs.
  log.of_runs = tuple(
      map(sum, itertools.zip_longest(before.of_runs, each_used, fillvalue=0)))
  # Ties keep the earlier best, then the run with the lower number.
  first = min((before, *logs), key=lambda each: (each.best_excess_bytes, each.best_objective_us))
  log.best_placement, log.best_excess_bytes = first.best_placement, first.best_excess_bytes
  log.best_objective_us = first.best_objective_us
  if log.observer is not None:
    log.observer()
