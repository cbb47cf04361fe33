"""Costs of placements for environments: their interface, and the simulated cost.

An environment does not know where its costs come from. A cost is a callable

  cost(placements [B, G] int32) -> (objective_us [B] float64, components)

where components maps names to arrays with B rows. The components that environments use if present
are `step_time_us` and `fits` [B], and `start_us` [B, G].
"""

from __future__ import annotations

from typing import Callable, Dict, Optional, Tuple

import numpy as np

from placeto_tf.encoding.grouped_graph import GroupedGraph
from placeto_tf.grouping.grouping import Grouping
from placeto_tf.problem.placement_problem import PlacementProblem

STEP_TIME_US = "step_time_us"
START_US = "start_us"
FITS = "fits"

Cost = Callable[[np.ndarray], Tuple[np.ndarray, Dict[str, np.ndarray]]]


class SimulatedCost:
  """The objective of a `PlacementProblem`, which counts evaluations and keeps the best one."""

  def __init__(
      self, problem: PlacementProblem, grouped: Optional[GroupedGraph] = None,
      grouping: Optional[Grouping] = None):
    """Keeps the problem, and the groups whose start times are reported.

    Args:
      problem: simulates the placements.
      grouped: a group starts with its main op here; None leaves out start times.
      grouping: grouping of the placements; by default the problem's groups.
    """
    self._problem, self._grouping = problem, grouping or problem.grouping
    self._grouped = grouped

  def __call__(self, placements: np.ndarray) -> Tuple[np.ndarray, Dict[str, np.ndarray]]:
    """Simulates placements of groups.

    Args:
      placements: [B, G] int32 device of each group.

    Returns:
      Objectives [B] float64 in us, and components: `step_time_us` [B] in us, `fits` [B] bool and,
      with `grouped`, `start_us` [B, G] in us.
    """
    grouped = self._grouped
    # Groups [B, G] -> ops [B, N].
    evaluation = self._problem.evaluate_ops(
        self._grouping.expand(placements), start_times=grouped is not None)
    components = {STEP_TIME_US: evaluation.step_time_us, FITS: evaluation.fits}
    if grouped is not None and evaluation.start_us is not None:
      # [B, N] of all ops -> [B, G] of the main op of each group.
      components[START_US] = evaluation.start_us[:, grouped.main_op]
    return evaluation.objective_us, components
