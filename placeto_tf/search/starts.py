"""Where searches start: the best of the placements that need no search.

Which of them is best differs by graph: METIS and the expert split on recurrent networks, list
schedules on convolutional ones. An annealer keeps most of the lead that its start has.
"""

from __future__ import annotations

from typing import Tuple

import numpy as np

from placeto_tf.problem.placement_problem import Budget, PlacementProblem
from placeto_tf.search.baechi import m_etf, m_etf_links
from placeto_tf.search.expert import expert, expert_fewer
from placeto_tf.search.heft import heft, heft_links
from placeto_tf.search.metis import metis, metis_groups
from placeto_tf.search.simple import single

# In the order in which a small budget is best spent.
STARTS = (expert, m_etf, heft, metis_groups, metis, expert_fewer, heft_links, m_etf_links)
# What the slowest of them takes an op, generously, and how much of the time starts may take.
_SECONDS_AN_OP = 2e-4
_SHARE_OF_TIME = 0.3


def best_start(
    problem: PlacementProblem, budget: Budget, seed: int = 0) -> Tuple[np.ndarray, float]:
  """The problem's best placement so far, [N], and its objective.

  Where nothing has been evaluated yet, single device and all of `STARTS` are, as far as the
  budget goes; METIS partitions groups too, because what it cuts is then what a search can move.
  """
  if problem.best_placement is None:
    placement = single(problem, budget)
    if problem.best_placement is None:  # the budget was used up before the first evaluation
      return placement, float("inf")
    for placer in STARTS:
      if problem.exhausted(budget) or not in_time(problem, budget):
        break
      placer(problem, budget, seed)
  return problem.best_placement.copy(), problem.best_objective_us


def in_time(problem: PlacementProblem, budget: Budget) -> bool:
  """Whether one more start is sure to leave most of the time to the search."""
  if budget.max_seconds is None:
    return True
  needed = problem.graph.num_ops * _SECONDS_AN_OP
  return problem.seconds + needed <= max(2 * needed, _SHARE_OF_TIME * budget.max_seconds)
