"""`auto`: simple placements, then the policy, then annealing, each from the best so far.

1. The references: the graph's own devices, one device, the expert split, METIS. List schedules and
   other constructions follow as long as they leave most of the time to the rest.
2. The policy, in `auto` and not in `auto_unlearned`. It gains most in the first few hundred
   evaluations.
3. Annealing, with all that is left. Where that is plenty it begins where the policy began, because
   it ends lower from there.

It ends with the budget, or once the best placement meets a lower bound. With `Budget.stop_within`,
steps 2 and 3 get an eighth of the budget, annealing then as much again as all before it, and the
run ends when twice as much gained less than that share of the step.

With a limit on evaluations alone nothing depends on the clock, and a seed gives the same placement
again.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Optional

import numpy as np

from placeto_tf.placing import registry, running
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.method import Method
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.problem.search_log import NO_BUDGET, NOTHING_LEFT
from placeto_tf.search.annealing import PLENTY
from placeto_tf.search.independent_runs import ONE_RUN, Runs
from placeto_tf.search.lower_bounds import lower_bound_us
from placeto_tf.search.starts import in_time, of_a_start

DEFAULT_BUDGET = Budget(max_seconds=60.0)
POLICY_SHARE = 0.7  # of the budget, at most: the policy ends by itself after some thousands
# With `stop_within`, how long the policy and annealing run at least before they are judged.
FIRST_SECONDS, FIRST_EVALUATIONS, MOST_DOUBLINGS = 5.0, 2000, 3
# A generous estimate of the time to make supernodes for a search; with less, none begins.
SETUP_SECONDS_AN_OP = 1e-4


def run_auto(
    problem: PlacementProblem, budget: Optional[Budget] = None, seed: int = 0, *,
    learned: bool = True, runs: Runs = ONE_RUN, bound_us: Optional[float] = None) -> np.ndarray:
  """Runs references, constructions, the policy and annealing within one budget.

  Args:
    problem: counts and remembers; its log has a record of each method.
    budget: of all methods together, counted from when the problem was made; by default 60 s.
    seed: of all methods.
    learned: whether the policy runs.
    runs: how many runs of the policy and of annealing go on side by side, and where.
    bound_us: a lower bound of the step time; by default it is computed.

  Returns:
    The best placement found, [N].
  """
  log, budget = problem.search_log, budget or DEFAULT_BUDGET
  # Bounds are rounded down by a billionth, so that rounding errors cannot put them too high.
  optimum_us = (lower_bound_us(problem) if bound_us is None else bound_us) * (1 + 2e-9)
  budget = dataclasses.replace(budget, target_us=max(budget.target_us or 0.0, optimum_us) or None)

  def run(method: Method, budget: Budget, **own: Any) -> None:
    """Runs one method and records it in the search log.

    Args:
      method: to run.
      budget: of this method.
      **own: further arguments of the method.
    """
    log.run(method.name, lambda: running.run(problem, method, budget, seed, runs=runs, **own))

  # 1. Readers of the table want to see the references, whatever the bound says.
  for method in registry.references():
    run(method, of_a_start(log, dataclasses.replace(budget, target_us=None)))
  # Where no op has a choice there is only one placement.
  log.proven = log.best_fits and not (problem.allowed_ops.sum(axis=1) > 1).any()
  for method in registry.constructions():
    if log.proven or log.exhausted(budget) or not in_time(problem, budget):
      break
    run(method, of_a_start(log, budget))

  # 2. and 3. in stretches, each as long as all before it; the last one ends with the budget.
  # The best before the policy, where annealing begins anew if there is plenty of time.
  begin, began = log.best_known.copy(), (log.evaluations, log.seconds)
  policy = registry.policy_of_auto() if learned else None
  doublings = _doublings(problem, budget)
  for k in range(doublings, -1, -1):
    before_us = log.best_objective_us
    # The first stretch is 1 / 2^K of what is left; each later one is as long as all before it.
    stretch = budget.share(log, 1 / (2**k if k == doublings else 2 ** (k + 1) - 1))
    if k == doublings and policy is not None:
      if log.proven or log.exhausted(stretch):
        met = log.proven or log.best_fits and log.best_objective_us <= (budget.target_us or 0.0)
        log.skip(policy.name, NOTHING_LEFT if met else NO_BUDGET)
      else:
        run(policy, stretch.share(log, POLICY_SHARE))
    if not (log.proven or log.exhausted(stretch)) and _time_for_a_search(problem, stretch):
      # Without a policy the best placement is where annealing begins anyway.
      anew = policy is not None and log.expected_evaluations(stretch, *began) >= PLENTY
      run(registry.find("annealing"), stretch, **({"start": begin} if anew else {}))
    gain_us = before_us - log.best_objective_us
    # Judged after a stretch that doubled the time, never after the first or the last one.
    log.saturated = 0 < k < doublings and log.best_fits and not log.exhausted(budget) and (
        gain_us < (budget.stop_within or 0.0) * before_us)
    if log.saturated:
      break
  log.proven |= log.best_fits and log.best_objective_us <= optimum_us
  return log.best_known.copy()


def _doublings(problem: PlacementProblem, budget: Budget) -> int:
  """Returns how often the policy and annealing run, each time as long as all before; 0: once.

  The more often, the sooner it can be seen that there is no more to gain, and the less time the
  last run has, which plans for its time.
  """
  if not budget.stop_within:
    return 0
  left, log = math.inf, problem.search_log
  if budget.max_seconds is not None:
    left = (budget.max_seconds - log.seconds) / FIRST_SECONDS
  if budget.max_evaluations is not None:
    left = min(left, (budget.max_evaluations - log.evaluations) / FIRST_EVALUATIONS)
  return min(MOST_DOUBLINGS, int(math.log2(max(1.0, left))))


def _time_for_a_search(problem: PlacementProblem, budget: Budget) -> bool:
  """Returns whether there is time to make the supernodes of a search."""
  return budget.max_seconds is None or (
      budget.max_seconds - problem.search_log.seconds > SETUP_SECONDS_AN_OP * problem.graph.num_ops)
