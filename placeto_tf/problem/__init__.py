"""What every placer is given: the placement problem, what it moves, and the count of its work."""

from placeto_tf.problem.budget import Budget
from placeto_tf.problem.placement_problem import Evaluation, PlacementProblem

__all__ = ["Budget", "Evaluation", "PlacementProblem"]
