"""`PlacedGroups`: a placement and its groups on one level, coarse or fine, for policies.

Supernodes are made once from the ops. Coarse groups are merged from supernodes along heavy edges
whose ends are on one device, so that each level begins from exactly the placement of the last one.

Dimensions: N ops, G groups.
"""

from __future__ import annotations

from typing import List, Tuple

import numpy as np

from placeto_tf.encoding.pair_features import PairState
from placeto_tf.encoding.pair_tables import OpTables, PairTables
from placeto_tf.grouping.contraction import number_groups
from placeto_tf.grouping.heavy_edge import PlacedSets
from placeto_tf.problem.placement_problem import Evaluation, PlacementProblem
from placeto_tf.problem.supernodes import placed_supernodes


class PlacedGroups:
  """Keeps the best placement so far, its groups on one level, and the features of every move.

  Attributes:
    problem: evaluates placements.
    placement: [N] int32, the best so far; objective_us, step_time_us, fits: of that placement.
    level: the problem in the present groups; tables: the part of its features that does not depend
      on placements; state: the other part.
    groups: [G] int32, devices of the present groups.
  """

  def __init__(self, problem: PlacementProblem, placement: np.ndarray, finest: int):
    """Evaluates a placement once and forms the finest groups.

    Args:
      problem: evaluates placements.
      placement: [N] devices of ops.
      finest: approximate largest number of groups.
    """
    self.problem, self._finest = problem, finest
    # Both depend on ops alone: every regrouping shares them.
    self._op_tables, self._op_rank = OpTables.build(problem), problem.graph.topological_rank
    placement = np.array(placement, dtype=np.int32)
    self._take_from(placement, problem.evaluate_ops(placement), 0)
    self.renew()

  def renew(self) -> None:
    """Forms the finest groups again, because ops of one may now be on different devices."""
    # Supernodes of ops that are on one device now, the finest level.
    self._sets = PlacedSets(
        self.problem.graph, self.problem.costs, self.problem.allowed_ops,
        placed_supernodes(self.problem, self.placement, self._finest).supernode_of_op)
    self.regroup(self._finest)

  def regroup(self, count: int) -> None:
    """Forms coarser or finer groups of ops that are on one device now; takes a few ms.

    Args:
      count: approximate number of groups.
    """
    supernodes = self._sets.contraction
    # [N] coarse group of each op: the supernodes, or supernodes merged along heavy edges.
    labels = (supernodes.node_of_op if count >= supernodes.num_nodes
              else self._sets.merged(self.placement, count))
    # Groups are numbered in the topological order of their first ops.
    self.level = self.problem.regrouped(number_groups(labels, self._op_rank))
    self.tables = PairTables.build(self.level, self._op_tables)
    self.state = PairState(self.tables)
    # No group is on two devices, so the projection is exact.
    self.groups = self.level.project(self.placement)
    self.look()

  def look(self) -> None:
    """Sets the features to those of the best placement, from its simulation."""
    self.state.observe(self.groups, *self._seen)

  def simulate(self, groups: np.ndarray) -> Tuple[np.ndarray, Evaluation]:
    """Simulates placements of the present groups; none is kept.

    Args:
      groups: [B, G] int32 devices.

    Returns:
      [B, N] int32 devices of ops, and their evaluation with start times.
    """
    placements = self.level.grouping.expand(groups)
    return placements, self.problem.evaluate_ops(placements)

  def keep(
      self, groups: np.ndarray, placements: np.ndarray, found: Evaluation, at: int = 0) -> None:
    """Makes one of the placements that `simulate` evaluated the present one.

    Args:
      groups: as `simulate` took them; placements, found: as it returned them.
      at: index of the placement.
    """
    self._take_from(placements[at], found, at)
    self.groups = groups[at]
    self.look()

  def _take_from(self, placement: np.ndarray, found: Evaluation, at: int) -> None:
    """Makes a placement [N] the present one, with its index among evaluations; see `look`."""
    self._take(placement, float(found.objective_us[at]), float(found.step_time_us[at]),
               (found.start_us[at], float(found.simulated_us[at]), found.peak_memory_bytes[at]))

  def _take(
      self, placement: np.ndarray, objective_us: float, step_time_us: float,
      seen: Tuple[np.ndarray, float, np.ndarray]) -> None:
    """Makes a placement [N] the present one.

    Args:
      placement, objective_us, step_time_us: of it.
      seen: of its simulation, what features need besides the groups' devices: start [N] of each op,
        step time, peaks [D] of memory.
    """
    self.placement, self.objective_us, self.step_time_us = placement, objective_us, step_time_us
    self._seen, self.fits = seen, bool((seen[2] <= self.problem.cluster.memory_bytes).all())


def group_counts(problem: PlacementProblem, levels: Tuple[float, ...]) -> List[int]:
  """Returns the number of groups of each level, in order, without repetitions.

  No level has fewer groups than devices, or more groups than sets of ops that must share a device.

  Args:
    problem: its number of groups multiplies `levels`.
    levels: number of groups of each level, divided by the problem's number of groups.

  Returns:
    Numbers of groups, at most as many as levels.
  """
  # Ops that must share a device move together at any level.
  finest = max(problem.num_groups, len(np.unique(problem.graph.colocation)))
  counts = [min(finest, max(problem.num_devices, round(problem.num_groups * each)))
            for each in levels]
  return list(dict.fromkeys(counts))  # keeps the order
