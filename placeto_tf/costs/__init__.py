"""Costs of each op of a graph on each kind of device."""

from placeto_tf.costs.estimate import estimate_costs
from placeto_tf.costs.op_costs import OpCosts

__all__ = ["OpCosts", "estimate_costs"]
