"""Runs one method on a problem, from the right start.

A method that improves a given placement (`Kind.takes_start`) starts from the first of these:

1. the start that the caller gives, which counts as one evaluation;
2. the best placement that the problem has seen;
3. for a policy, the best baseline; for a search and `auto`, their own best construction.

All other methods make their own placements, whatever was evaluated before.

Searches that can run as islands (`Method.islands`) do, on as many as the problem says.

Legend: N ops.
"""

from __future__ import annotations

import functools
from typing import Any, Optional

import numpy as np

from placeto_tf.problem.budget import Budget
from placeto_tf.problem.method import Kind, Method, Progress
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.search.islands import search_on_islands
from placeto_tf.search.starts import best_start, reference_placers


def prepare(
    problem: PlacementProblem, method: Method, budget: Budget, seed: int = 0, *,
    start: Optional[np.ndarray] = None) -> None:
  """Evaluates the start that the caller gives, or the references for a policy without a start.

  Args:
    problem: counts evaluations.
    method: what will be run.
    budget, seed: of the run.
    start: [N] replaces the method's own start; methods that take none ignore it.
  """
  if start is not None and method.kind.takes_start:
    problem.evaluate_ops(start)
  elif method.kind is Kind.POLICY and problem.best_placement is None:
    for placer in reference_placers().values():
      placer(problem, budget, seed)


def run(
    problem: PlacementProblem,
    method: Method,
    budget: Budget,
    seed: int = 0,
    *,
    weights: Optional[str] = None,
    root_dir: Optional[str] = None,
    progress: Optional[Progress] = None,
    **own: Any,
) -> np.ndarray:
  """[N] the best placement that one method finds within the budget; arguments as for `Run`.

  `own` are more arguments that this method takes.
  """
  prepare(problem, method, budget, seed)
  if method.kind is Kind.POLICY and problem.exhausted(budget):
    return problem.best_known
  load: Any = method.load  # `own` is checked by the method
  placer = functools.partial(load(), weights=weights, **own)
  if not method.islands:
    return placer(problem, budget, seed, root_dir=root_dir, progress=progress)
  # Islands may be on other machines, to which nothing that shows progress can travel; those who
  # observe the problem see what it does.
  if problem.islands > 1 and problem.best_placement is None:
    best_start(problem, budget, seed)  # once, not on every island
  return search_on_islands(problem, placer, budget, seed)
