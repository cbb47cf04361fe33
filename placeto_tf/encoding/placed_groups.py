"""`PlacedGroups`: a placement looked at in groups of any size, which a policy is to move.

Small units are made once from the ops; larger groups are merged from these, along heavy edges
where both ends are on one device, so that a sweep begins from exactly what the last one found.

Dimensions: N ops, G groups.
"""

from __future__ import annotations

from typing import List, Tuple

import numpy as np

from placeto_tf.encoding.pair_features import PairState
from placeto_tf.encoding.pair_tables import OpTables, PairTables
from placeto_tf.grouping.contraction import number_groups, topological_rank
from placeto_tf.grouping.heavy_edge import PlacedSets
from placeto_tf.problem.placement_problem import Evaluation, PlacementProblem
from placeto_tf.problem.units import placed_units


class PlacedGroups:
  """The best placement so far, its groups on one level, and the features of every move of one.

  Attributes:
    placement: [N] int32, the best so far; objective_us, step_time_us, fits: of it.
    level: the problem in the present groups; tables: its features' fixed part; state: the rest.
    groups: [G] int32, their devices.
  """

  def __init__(self, problem: PlacementProblem, placement: np.ndarray, finest: int):
    """Evaluates the placement [N] once; the smallest groups will be about `finest`."""
    self.problem, self._finest = problem, finest
    self._op_tables, self._op_rank = OpTables.build(problem), topological_rank(problem.graph)
    self.objective_us = float("inf")
    self.keep_if_no_worse(np.array(placement, dtype=np.int32))
    self.renew()

  def renew(self) -> None:
    """Forms the smallest groups again: ops of an earlier one may now be on different devices."""
    units = placed_units(self.problem, self.placement, self._finest)
    self._sets = PlacedSets(
        self.problem.graph, self.problem.costs, self.problem.allowed_ops, units.unit_of_op)
    self.regroup(self._finest)

  def regroup(self, count: int) -> None:
    """Goes on with about `count` groups, each of ops that are on one device now; a few ms."""
    units = self._sets.contraction
    labels = (units.node_of_op if count >= units.num_nodes
              else self._sets.merged(self.placement, count))
    self.level = self.problem.regrouped(number_groups(labels, self._op_rank))
    self.tables = PairTables.build(self.level, self._op_tables)
    self.state = PairState(self.tables)
    self.groups = self.level.project(self.placement)
    self.look()

  def look(self) -> None:
    """Sets the features to those of the best placement, from its simulation."""
    self.state.observe(self.groups, *self._seen)

  def keep_if_no_worse(self, placement: np.ndarray) -> bool:
    """Simulates a placement [N] and takes it if it is no worse; the features do not follow yet."""
    found = self.problem.evaluate_ops(placement, start_times=True)
    if found.objective_us[0] > self.objective_us:
      return False
    self.take(placement, found, 0)
    return True

  def take(self, placement: np.ndarray, found: Evaluation, at: int) -> None:
    """Goes on from a placement [N], the one at an index of what was evaluated with start times."""
    assert found.start_us is not None  # they were asked for
    self.placement, self.objective_us = placement, float(found.objective_us[at])
    self.step_time_us, self.fits = float(found.step_time_us[at]), bool(found.fits[at])
    self._seen = (
        found.start_us[at], float(found.step_time_us[at]), found.peak_memory_bytes[at])


def group_counts(problem: PlacementProblem, levels: Tuple[float, ...]) -> List[int]:
  """Returns how many groups each level has, given over the problem's own number of groups.

  None is coarser than a group a device or finer than what can be moved by itself.
  """
  finest = max(problem.num_groups, len(np.unique(problem.graph.colocation)))
  counts = [min(finest, max(problem.num_devices, round(problem.num_groups * each)))
            for each in levels]
  return list(dict.fromkeys(counts))
