"""The grouping called "learned": groups that the hierarchical policy learns on the problem itself.

It takes half of the budget of the method that goes on with the groups.
"""

from __future__ import annotations

from typing import Any

from placeto_tf.errors import PlacementError
from placeto_tf.methods import registry
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.method import Kind, deferred
from placeto_tf.problem.placement_problem import PlacementProblem

LEARNED = "learned"
# The method that stands in tables for the work of learning.
METHOD = "learned_grouping"
_SHARE = 0.5


def check_grouping(grouping: str, method: str) -> None:
  """Raises: PlacementError where a grouping that is learned is asked for auto."""
  if grouping == LEARNED and registry.find(method).kind is Kind.AUTO:
    raise PlacementError(
        "grouping 'learned' is for one method, not for auto, whose placers share the budget; "
        "choose a method such as placeto, or another grouping")


def first_grouping(grouping: str) -> str:
  """What is learned is learned within the budget; until then the default has to do."""
  return "heavy_edge" if grouping == LEARNED else grouping


def with_learned_groups(
    problem: PlacementProblem, budget: Budget, seed: int = 0) -> PlacementProblem:
  """The problem in groups that the hierarchical policy learns with half of what is left."""
  learn: Any = deferred("placeto_tf.methods.one_graph.search", "learn_grouping")()
  return problem.regrouped(learn(problem, budget.share(problem, _SHARE), seed))
