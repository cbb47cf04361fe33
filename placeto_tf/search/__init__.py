"""Placers that do not learn, and lower bounds to compare every placer with.

Each placer is a function `(problem, budget=None, seed=0) -> [N] int32`, the device of each op in
the best placement it found; it evaluates through the problem, which counts evaluations.
Its module declares it as a `Method`.
"""

from types import MappingProxyType

from placeto_tf.problem.method import declared_in
from placeto_tf.search.lower_bounds import lower_bound_us
from placeto_tf.search.starts import best_start, reference_placers

# The placers by the names of their methods.
PLACERS = MappingProxyType({method.name: method.load() for method in declared_in(__name__)})

__all__ = ["PLACERS", "best_start", "lower_bound_us", "reference_placers"]
