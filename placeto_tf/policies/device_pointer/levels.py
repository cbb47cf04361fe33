"""Groups of any number of ops that a placement has on one device, made in a few milliseconds.

Small units are made once from the ops; larger groups are merged from these, along heavy edges
where both ends are on one device, so that a sweep begins from exactly what the last one found.

Legend: N ops, U units, D devices.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from placeto_tf.grouping.contraction import contract, number_groups, topological_rank
from placeto_tf.grouping.grouping import Grouping
from placeto_tf.grouping.heavy_edge import merge_stages
from placeto_tf.grouping.merging import Merger
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.problem.units import placed_units


class PlacedLevels:
  """Groups made from units of ops that have been moved together since the units were made."""

  def __init__(self, problem: PlacementProblem, placement: np.ndarray, finest: int):
    """Makes about `finest` units of ops that a placement [N] has on one device."""
    units = placed_units(problem, placement, finest)
    self._contraction = contract(
        problem.graph, problem.costs, problem.allowed_ops, units.unit_of_op)
    self._op_rank = topological_rank(problem.graph)
    self._num_devices = problem.num_devices
    unit_of_op = self._contraction.node_of_op
    self._op_of_unit = np.unique(unit_of_op, return_index=True)[1]

  def groups(self, placement: np.ndarray, count: int) -> Grouping:
    """About `count` groups, or the units where these are no more; placement: [N]."""
    contraction = self._contraction
    if count >= contraction.num_nodes:
      return number_groups(contraction.node_of_op, self._op_rank)
    # Ops without a common device never merge. So each device gets its own copy of all devices.
    masks = [mask << (self._num_devices * device) for mask, device in zip(
        contraction.node_masks, placement[self._op_of_unit].tolist())]
    known = {mask: i for i, mask in enumerate(dict.fromkeys(masks))}
    placed = dataclasses.replace(
        contraction, masks=tuple(known),
        pattern=np.array([known[mask] for mask in masks], dtype=np.int32))
    return number_groups(merge_stages(Merger(placed), placed, count), self._op_rank)
