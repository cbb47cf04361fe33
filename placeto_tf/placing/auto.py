"""`auto`: simple placements, then the policy, then annealing, each from the best so far.

1. The references: the graph's own devices, one device, the human-expert baseline, METIS. List
   schedules and other constructions follow while they leave most of the time to steps 2 and 3.
2. The policy, in `auto` and not in `auto_unlearned`. It gains most in the first few hundred
   evaluations.
3. Annealing, with the rest of the budget. If the rest is large, annealing starts from the placement
   that the policy started from, because that leads to shorter steps.

The run ends with the budget, or when the best placement meets a lower bound. With
`Budget.stop_within`, steps 2 and 3 first get an eighth of the budget. Each further stretch of
annealing is as long as the whole run before it. The run ends when such a stretch, which doubles the
time, shortens the step by less than the share `stop_within`.

If only evaluations are limited, the clock has no influence, and equal seeds give equal placements.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, Dict, Optional

import numpy as np

from placeto_tf.placing import registry, running
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.search.annealing import PLENTY
from placeto_tf.search.independent_runs import ONE_RUN, Runs
from placeto_tf.search.lower_bounds import lower_bound_us
from placeto_tf.search.starts import in_time, of_a_start

POLICY_SHARE = 0.7  # of the budget, at most; the policy ends after some thousand evaluations
FEW = 300  # evaluations of the policy's short rounds: the policy gets all of so few
# With `stop_within`, the shortest time of the policy and annealing before their gain is judged.
FIRST_SECONDS, FIRST_EVALUATIONS, MOST_DOUBLINGS = 5.0, 2000, 3
# A generous estimate of the time to make supernodes for a search; no search begins with less time.
SETUP_SECONDS_AN_OP = 1e-4


def run_auto(
    problem: PlacementProblem, budget: Budget, seed: int = 0, *,
    learned: bool = True, runs: Runs = ONE_RUN, bound_us: Optional[float] = None) -> np.ndarray:
  """Runs references, constructions, the policy and annealing within one budget.

  Args:
    problem: the problem; its search log gets a record of each method.
    budget: of all methods together, counted from the making of the problem.
    seed: of all methods.
    learned: whether the policy runs.
    runs: the number of independent runs of the policy and of annealing, and their executor.
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
  # If no op has a choice of devices, there is only one placement.
  log.proven = log.best_fits and not (problem.allowed_ops.sum(axis=1) > 1).any()
  for method in registry.constructions():
    if log.proven or log.exhausted(budget) or not in_time(problem, budget):
      break
    run(method, of_a_start(log, budget))

  # 2. and 3. in stretches, each as long as the whole run before it; the last one ends with the
  # budget. Annealing may start again from the best placement before the policy.
  begin, began = log.best_known.copy(), (log.evaluations, log.seconds)
  policy = registry.policy_of_auto() if learned else None
  doublings = _doublings(problem, budget)
  for k in range(doublings, -1, -1):
    before_us = log.best_objective_us
    # The first stretch is 1 / 2^K of the rest; each later one is as long as all before it.
    stretch = budget.share(log, 1 / (2**k if k == doublings else 2 ** (k + 1) - 1))
    if k == doublings and policy is not None:
      if log.proven or log.exhausted(stretch):
        log.skip(policy.name)
      else:
        left = log.remaining_evaluations(stretch) or math.inf
        run(policy, stretch.share(log, max(POLICY_SHARE, min(1.0, FEW / left))))
    if not (log.proven or log.exhausted(stretch)) and time_for_a_search(problem, stretch):
      # Without a policy, annealing starts from the best placement in any case.
      anew = policy is not None and log.expected_evaluations(stretch, *began) >= PLENTY
      own: Dict[str, Any] = {"start": begin} if anew else {}
      run(registry.find("annealing"), stretch, **own)
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
