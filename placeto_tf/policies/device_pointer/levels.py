"""Groups of any number of ops that a placement has on one device, made in a few milliseconds.

Small units are made once from the ops; larger groups are merged from these, along heavy edges
where both ends are on one device, so that a sweep begins from exactly what the last one found.

Legend: N ops, U units, D devices.
"""

from __future__ import annotations

import numpy as np

from placeto_tf.grouping.contraction import number_groups, topological_rank
from placeto_tf.grouping.grouping import Grouping
from placeto_tf.grouping.heavy_edge import PlacedSets
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.problem.units import placed_units


class PlacedLevels:
  """Groups made from units of ops that have been moved together since the units were made."""

  def __init__(self, problem: PlacementProblem, placement: np.ndarray, finest: int):
    """Makes about `finest` units of ops that a placement [N] has on one device."""
    units = placed_units(problem, placement, finest)
    self._sets = PlacedSets(problem.graph, problem.costs, problem.allowed_ops, units.unit_of_op)
    self._op_rank = topological_rank(problem.graph)

  def groups(self, placement: np.ndarray, count: int) -> Grouping:
    """About `count` groups, or the units where these are no more; placement: [N]."""
    contraction = self._sets.contraction
    if count >= contraction.num_nodes:
      return number_groups(contraction.node_of_op, self._op_rank)
    return number_groups(self._sets.merged(placement, count), self._op_rank)
