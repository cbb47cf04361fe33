"""Runs one search several times side by side, with different seeds, and keeps the best result.

Each run is a thread, or a task on Ray, with its own search log and its own buffers of the
simulator. The slow parts are compiled and run without the interpreter's lock, so the runs use all
cores. If only evaluations are limited, each run gets an equal part of them; the result then depends
on the seed and the number of runs alone, not on the number of cores or the speed of a run. If time
is limited, there are no more threads than cores.
"""

from __future__ import annotations

import concurrent.futures
import copy
import dataclasses
from typing import Any, Callable, List, Optional

import numpy as np

from placeto_tf.errors import PlacementError
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.candidates import best_so_far
from placeto_tf.problem.executors import Executor, InProcess, Shared, result_of
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.problem.search_log import SearchLog

_WATCH_SECONDS = 0.1  # interval at which observers are told of the progress of runs


def check_runs(count: Optional[int]) -> None:
  """Raises PlacementError if a number of runs is given and is below 1."""
  if count is not None and count < 1:
    raise PlacementError(
        f"independent_runs is {count}; expected at least 1, or None for the default")


def run_seed(seed: int, number: int) -> int:
  """Returns the seed of a run; the first run's is the search's own."""
  return seed if number == 0 else int(np.random.SeedSequence([seed, number]).generate_state(1)[0])


@dataclasses.dataclass(frozen=True)
class Runs:
  """The number of independent runs and the executor that runs them.

  Attributes:
    count: the largest number of runs side by side.
    executor: runs them; in this process, runs are threads.
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

  Ctrl-C ends all runs; the problem's search log then has the improvements that threads found.

  Args:
    problem: counts the evaluations of all runs, and remembers the best.
    placer: the search, called with a problem, a budget and a seed.
    budget: of all runs together.
    seed: of the first run; the seeds of the others follow from it.
    runs: the number of runs and their executor.

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
  # Views for Ray have no observers and no source file of the graph.
  whole = problem.portable(with_shapes=False) if executor.elsewhere else problem
  before = copy.deepcopy(log)
  # Each run has a copy of the log and buffers of its own; graph and costs are shared.
  views = [dataclasses.replace(
      whole, search_log=dataclasses.replace(copy.deepcopy(before), improvements=[]),
      simulator=whole.simulator.on_one_thread()) for _ in range(count)]
  logs = [view.search_log for view in views]
  pool: Any = executor if executor.elsewhere else concurrent.futures.ThreadPoolExecutor(count)
  try:
    with pool:  # ends the tasks of Ray if there is an error
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
  """Sets a log to its state before the runs plus the evaluations and improvements of the runs.

  The merged log counts as if all runs had advanced evaluation by evaluation in step, so that the
  timing of threads cannot change the order.
  """
  log.evaluations = before.evaluations + sum(
      each.evaluations - before.evaluations for each in logs)
  # (turn, run, improvement), in the order in which runs of equal speed would have found them.
  found = sorted((len(logs) * (each.evaluations - before.evaluations), number, each)
                 for number, run in enumerate(logs) for each in list(run.improvements))
  log.improvements = list(before.improvements)
  best = before.best_excess_bytes, before.best_objective_us
  # Only improvements on everything before them count for the search.
  for turn, _, each in found:
    if (each.excess_bytes, each.objective_us) < best:
      best = each.excess_bytes, each.objective_us
      log.improvements.append(each._replace(
          evaluations=min(before.evaluations + turn, log.evaluations)))
  # Ties keep the earlier best, then the run with the lower number.
  first = min((before, *logs), key=lambda each: (each.best_excess_bytes, each.best_objective_us))
  log.best_placement, log.best_excess_bytes = first.best_placement, first.best_excess_bytes
  log.best_objective_us = first.best_objective_us
  log.observer(log.running)
