"""`auto`: simple placements, then the policy, from the best so far.

1. The references: the graph's own devices, one device, the human-expert baseline, METIS. List
   schedules and other constructions follow while they leave most of the time to step 2.
2. The policy, which takes turns with annealing; in `auto_unlearned` annealing alone.

The run ends with the budget, or when the best placement meets a lower bound. With
`Budget.stop_within`, step 2 first gets an eighth of the budget. Each further stretch is as long as
the whole run before it. The run ends when such a stretch, which doubles the time, shortens the step
by less than the share `stop_within`.

If only evaluations are limited, the clock has no influence, and equal seeds give equal placements.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Optional

import numpy as np

from placeto_tf.placing import registry, running
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.search.independent_runs import ONE_RUN, Runs
from placeto_tf.search.lower_bounds import lower_bound_us
from placeto_tf.search.starts import in_time, of_a_start

# With `stop_within`, the shortest search before its gain is judged.
FIRST_SECONDS, FIRST_EVALUATIONS, MOST_DOUBLINGS = 5.0, 2000, 3
# A generous estimate of the time to make supernodes for a search; no search begins with less time.
SETUP_SECONDS_AN_OP = 1e-4


def run_auto(
    problem: PlacementProblem, budget: Budget, seed: int = 0, *,
    learned: bool = True, runs: Runs = ONE_RUN, bound_us: Optional[float] = None) -> np.ndarray:
  """Runs references, constructions and the policy within one budget.

  Args:
    problem: the problem; its search log gets a record of each method.
    budget: of all methods together, counted from the making of the problem.
    seed: of all methods.
    learned: whether the policy runs, and not annealing alone.
    runs: the number of independent runs of the search, and their executor.
    bound_us: a lower bound of the step time; by default it is computed.

  Returns:
    The best placement found, [N].
  """
  log = problem.search_log
  # Lower bounds by a billionth, so that rounding errors cannot make them too high.
  optimum_us = (lower_bound_us(problem) if bound_us is None else bound_us) * (1 + 2e-9)
  budget = dataclasses.replace(budget, target_us=max(budget.target_us or 0.0, optimum_us) or None)
  run = functools.partial(running.run, problem, seed=seed, runs=runs)

  # 1. References always run, even if the bound is met, because the table shows them.
  running.run_references(problem, dataclasses.replace(budget, target_us=None), seed)
  # The bound is met, which may be 0, or no op has a choice of devices.
  log.proven = log.best_fits and (
      log.best_objective_us <= optimum_us or not (problem.allowed_ops.sum(axis=1) > 1).any())
  for method in registry.constructions():
    if log.proven or log.exhausted(budget) or not in_time(problem, budget):
      break
    run(method, of_a_start(log, budget))

  # 2. in stretches, each as long as the whole run before it; the last one ends with the budget.
  search = registry.search_of_auto(learned)
  doublings = _doublings(problem, budget)
  for k in range(doublings, -1, -1):
    before_us = log.best_objective_us
    # The first stretch is 1 / 2^K of the rest; each later one is as long as all before it.
    stretch = budget.share(log, 1 / (2**k if k == doublings else 2 ** (k + 1) - 1))
    if not (log.proven or log.exhausted(stretch)) and (
        k == doublings or time_for_a_search(problem, stretch)):
      run(search, stretch)
    elif k == doublings:
      log.skip(search.name)
    gain_us = before_us - log.best_objective_us
    # Judge the gain after a stretch that doubled the time, not after the first or the last one.
    log.saturated = 0 < k < doublings and log.best_fits and not log.exhausted(budget) and (
        gain_us < (budget.stop_within or 0.0) * before_us)
    if log.saturated:
      break
  log.proven |= log.best_fits and log.best_objective_us <= optimum_us
  return log.best_known.copy()


def _doublings(problem: PlacementProblem, budget: Budget) -> int:
  """Returns K, the number of stretches that double the time of the run; 0 for a single stretch.

  With more stretches, the run notices sooner that there is no more to gain. But the last stretch,
  which plans for its time, gets less time.
  """
  if not budget.stop_within:
    return 0
  left, log = math.inf, problem.search_log
  if budget.max_seconds is not None:
    left = (budget.max_seconds - log.seconds) / FIRST_SECONDS
  if budget.max_evaluations is not None:
    left = min(left, (budget.max_evaluations - log.evaluations) / FIRST_EVALUATIONS)
  return min(MOST_DOUBLINGS, int(math.log2(max(1.0, left))))


def time_for_a_search(problem: PlacementProblem, budget: Budget) -> bool:
  """Returns whether the rest of the budget is enough to make the supernodes of a search.

  Args:
    problem: the problem, whose search log counts the used seconds.
    budget: of the search.

  Returns:
    True without a limit on seconds, or if enough of them are left.
  """
  return budget.max_seconds is None or (
      budget.max_seconds - problem.search_log.seconds > SETUP_SECONDS_AN_OP * problem.graph.num_ops)
