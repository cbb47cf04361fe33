"""The grouping called "learned": groups that the hierarchical policy learns on the problem itself.

It takes half of the budget of the method that goes on with the groups.
"""

from __future__ import annotations

from typing import Any

from placeto_tf.errors import PlacementError
from placeto_tf.placing import registry
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.method import Kind, deferred
from placeto_tf.problem.placement_problem import PlacementProblem

LEARNED = "learned"
# The row of tables that holds the work of learning the groups.
METHOD = "learned_grouping"
_SHARE = 0.5


def check_grouping(grouping: str, method: str) -> None:
  """Raises: PlacementError if the grouping is learned and the method is auto."""
  if grouping == LEARNED and registry.find(method).kind is Kind.AUTO:
    raise PlacementError(
        "grouping 'learned' is for one method, not for auto, whose placers share the budget; "
        "choose a method such as placeto, or another grouping")


def first_grouping(grouping: str) -> str:
  """The grouping to begin with; groups are learned later, within the budget."""
  return "heavy_edge" if grouping == LEARNED else grouping


def with_learned_groups(
    problem: PlacementProblem, budget: Budget, seed: int = 0) -> PlacementProblem:
  """The problem in groups that the hierarchical policy learns with half of what is left."""
  learn: Any = deferred("placeto_tf.policies.one_graph_search", "learn_grouping")()
  return problem.regrouped(learn(problem, budget.share(problem.account, _SHARE), seed))
