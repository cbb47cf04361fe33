"""`PlacedGroups`: a placement looked at in groups of any size, which a policy is to move.

Supernodes are made once from the ops; coarse groups are merged from these, along heavy edges
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
from placeto_tf.problem.supernodes import placed_supernodes


class PlacedGroups:
  """Keeps the best placement so far, its groups on one level, and the features of every move.

  Attributes:
    problem: that evaluates placements.
    placement: [N] int32, the best so far; objective_us, step_time_us, fits: of it.
    level: the problem in the present groups; tables: its features' fixed part; state: the rest.
    groups: [G] int32, devices of the present groups.
  """

  def __init__(self, problem: PlacementProblem, placement: np.ndarray, finest: int):
    """Evaluates a placement once and forms the finest groups.

    Args:
      problem: evaluates placements.
      placement: [N] devices of ops.
      finest: about how many groups there are at most.
    """
    self.problem, self._finest = problem, finest
    # Both depend on ops alone: every regrouping shares them.
    self._op_tables, self._op_rank = OpTables.build(problem), topological_rank(problem.graph)
    self.objective_us = float("inf")  # any placement is better
    self.keep_if_no_worse(np.array(placement, dtype=np.int32))
    self.renew()

  def renew(self) -> None:
    """Forms the smallest groups again: ops of an earlier one may now be on different devices."""
    # Supernodes of ops that are on one device now, the finest level.
    supernodes = placed_supernodes(self.problem, self.placement, self._finest)
    self._sets = PlacedSets(
        self.problem.graph, self.problem.costs, self.problem.allowed_ops,
        supernodes.supernode_of_op)
    self.regroup(self._finest)

  def regroup(self, count: int) -> None:
    """Goes on with coarser or finer groups, each of ops that are on one device now; takes a few ms.

    Args:
      count: about how many.
    """
    supernodes = self._sets.contraction
    # [N] coarse group of each op: the supernodes, or supernodes merged along heavy edges.
    labels = (supernodes.node_of_op if count >= supernodes.num_nodes
              else self._sets.merged(self.placement, count))
    # Groups are numbered in the topological order of their first ops.
    self.level = self.problem.regrouped(number_groups(labels, self._op_rank))
    self.tables = PairTables.build(self.level, self._op_tables)
    self.state = PairState(self.tables)
    # No group spans devices, so the projection loses nothing.
    self.groups = self.level.project(self.placement)
    self.look()

  def look(self) -> None:
    """Sets the features to those of the best placement, from its simulation."""
    self.state.observe(self.groups, *self._seen)

  def keep_if_no_worse(self, placement: np.ndarray) -> bool:
    """Simulates a placement and takes it if it is no worse; the features do not follow yet.

    Args:
      placement: [N] int32 devices of ops.

    Returns:
      Whether it was taken.
    """
    found = self.problem.evaluate_ops(placement, start_times=True)
    if found.objective_us[0] > self.objective_us:
      return False
    self.take(placement, found, 0)
    return True

  def take(self, placement: np.ndarray, found: Evaluation, at: int) -> None:
    """Goes on from a placement that was evaluated.

    Args:
      placement: [N] int32 devices of ops.
      found: evaluations with start times.
      at: the placement's index among them.
    """
    assert found.start_us is not None  # they were asked for
    self.placement, self.objective_us = placement, float(found.objective_us[at])
    self.step_time_us, self.fits = float(found.step_time_us[at]), bool(found.fits[at])
    self._seen = (  # arguments of `PairState.observe` besides the groups' devices
        found.start_us[at], float(found.step_time_us[at]), found.peak_memory_bytes[at])


def group_counts(problem: PlacementProblem, levels: Tuple[float, ...]) -> List[int]:
  """Returns the number of groups of each level, in their order, without repetitions.

  No level is coarser than a group a device, or finer than ops that must share a device.

  Args:
    problem: whose number of groups is the measure.
    levels: numbers of groups over the problem's.

  Returns:
    Numbers of groups, at most as many as levels.
  """
  # Ops that must share a device move together at any level.
  finest = max(problem.num_groups, len(np.unique(problem.graph.colocation)))
  counts = [min(finest, max(problem.num_devices, round(problem.num_groups * each)))
            for each in levels]
  return list(dict.fromkeys(counts))  # keeps the order
