"""The start of searches: the best of the placements that need no search.

The best start depends on the graph: METIS and the expert's split on recurrent networks, list
schedules on convolutional networks. An annealer keeps most of the lead that a good start gives.
"""

from __future__ import annotations

import dataclasses
from typing import Dict, List, Tuple

import numpy as np

from placeto_tf.problem.budget import Budget
from placeto_tf.problem.method import Kind, Method, Run, declared_in
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.problem.search_log import SearchLog
from placeto_tf.search.simple import single

# A generous time per op of the slowest of them, and the share of the time for starts.
_SECONDS_AN_OP = 2e-4
_SHARE_OF_TIME = 0.3
_SHARE_OF_EVALUATIONS = 0.02  # for each start, at least 1
_PACKAGE = "placeto_tf.search"


def best_start(
    problem: PlacementProblem, budget: Budget, seed: int = 0) -> Tuple[np.ndarray, float]:
  """Returns the problem's best placement so far and its objective.

  If nothing has been evaluated yet, this evaluates the single device and all methods with a
  `start_rank`, as far as the budget allows, in the order that makes best use of a small budget.
  METIS also partitions groups, because a search can then move the boundaries between its parts.

  Args:
    problem: evaluates.
    budget: of the search that starts there.
    seed: of the methods that sample.

  Returns:
    The placement, [N] int32, and its objective in us; infinite if nothing could be evaluated.
  """
  log = problem.search_log
  # A search that continues after other methods needs no start of its own.
  if log.best_placement is None:
    placement = single(problem, of_a_start(log, budget))
    if log.best_placement is None:  # the budget was used up before the first evaluation
      return placement, float("inf")
    # Then the constructions by `start_rank`, while evaluations and time last.
    for method in start_methods():
      if log.exhausted(budget) or not in_time(problem, budget):
        break
      method.load()(problem, of_a_start(log, budget), seed)
  return log.best_known.copy(), log.best_objective_us


def of_a_start(log: SearchLog, budget: Budget) -> Budget:
  """Returns the part of a budget for one start, at least one evaluation.

  Args:
    log: the search log, which counts the evaluations and seconds used so far.
    budget: of the whole search.

  Returns:
    A budget with a small share of the evaluations and half of the starts' share of the seconds.
  """
  return dataclasses.replace(
      budget.share(log, _SHARE_OF_EVALUATIONS),
      max_seconds=budget.share(log, _SHARE_OF_TIME / 2).max_seconds)


def start_methods() -> List[Method]:
  """Returns the methods of this package with a `start_rank`, sorted by that rank."""
  ranked = [method for method in declared_in(_PACKAGE) if method.start_rank is not None]
  return sorted(ranked, key=lambda method: method.start_rank or 0.0)


def reference_placers() -> Dict[str, Run]:
  """Returns name -> placer of the baselines from which policies start, in training and in use."""
  return {method.name: method.load() for method in declared_in(_PACKAGE)
          if method.kind is Kind.BASELINE}


def in_time(problem: PlacementProblem, budget: Budget) -> bool:
  """Returns whether one more start leaves most of the remaining time to the search.

  Args:
    problem: its search log counts the seconds used so far.
    budget: of the whole search.

  Returns:
    True without a limit on seconds; else whether a start is expected to end within the starts'
    share of the time.
  """
  if budget.max_seconds is None:
    return True
  needed = problem.graph.num_ops * _SECONDS_AN_OP
  # Short limits still admit one start: twice its time is always granted.
  return problem.search_log.seconds + needed <= max(2 * needed, _SHARE_OF_TIME * budget.max_seconds)
