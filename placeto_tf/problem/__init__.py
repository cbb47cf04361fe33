"""What every placer is given: the placement problem, the supernodes it moves, and its budget."""

from placeto_tf.problem.budget import Budget
from placeto_tf.problem.placement_problem import Evaluation, PlacementProblem

__all__ = ["Budget", "Evaluation", "PlacementProblem"]
