"""The inputs of every placer: the placement problem, its supernodes, and the budget."""

from placeto_tf.problem.budget import Budget
from placeto_tf.problem.placement_problem import Evaluation, PlacementProblem

__all__ = ["Budget", "Evaluation", "PlacementProblem"]
