"""`PartialBounds`: lower bounds on all completions of partial placements, many side by side.

See `lower_bounds` and `earliest_starts` for paths and work, and `exact` for their use.

Dimensions: N ops, G groups, D devices, B partial placements side by side.
"""

from __future__ import annotations

import numpy as np

from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.search.earliest_starts import Paths

_ROUNDING = 1 - 1e-9
_MOST_LATE = 0  # late ops that are looked at; more pruned nothing and took half of the time


class PartialBounds:
  """Bounds partial placements of a problem's groups, [B, G] with -1 for groups without device."""

  def __init__(self, problem: PlacementProblem):
    self._problem = problem
    self._groups = problem.grouping.group_of_op.astype(np.int64)
    g, d = problem.num_groups, problem.num_devices
    self._paths = Paths.of(problem, np.arange(d))
    work = np.zeros((g, d))
    np.add.at(work, self._groups, self._paths.busy_us)
    self._work_us = work  # [G, D]
    self._last_us = float(self._paths.overhead_us.max())
    self._persistent = np.bincount(self._groups, problem.costs.persistent_bytes, minlength=g)

  def lower_us(self, partial: np.ndarray) -> np.ndarray:
    """[B] step times that no completion of each partial placement is below."""
    allowed = np.where(
        (partial >= 0)[:, :, None], partial[:, :, None] == np.arange(self._work_us.shape[1]),
        self._problem.allowed)  # [B, G, D]
    path_us = np.array([self._path_us(each) for each in allowed])
    return np.maximum(path_us, self._load_us(partial, allowed)) * _ROUNDING

  def overfull(self, partial: np.ndarray) -> np.ndarray:
    """[B] whether the variables of the placed groups alone are too much for a device."""
    limit = self._problem.cluster.memory_bytes
    held = np.stack(
        [((partial == d) * self._persistent).sum(axis=1) for d in range(len(limit))], axis=1)
    return np.any(held > limit, axis=1)

  def _path_us(self, allowed: np.ndarray) -> float:
    """The bound by paths with each op where `allowed` [G, D] lets it run."""
    paths = self._paths
    heads = paths.heads_us(allowed[self._groups], self._groups, _MOST_LATE)
    return float((heads + paths.busy_us - paths.overhead_us).min(axis=1).max())

  def _load_us(self, partial: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """[B] the work bounds: of the busiest device so far, and of all work spread evenly."""
    placed = np.where(
        partial[:, :, None] == np.arange(allowed.shape[2]), self._work_us, 0).sum(axis=1)
    least = np.where(allowed, self._work_us, np.inf).min(axis=2)  # [B, G]
    # Devices that no open group may use cannot take a share of the open work.
    useful = ((partial < 0)[:, :, None] & allowed).any(axis=1)  # [B, D]
    spread = np.where(useful, placed, 0).sum(axis=1) + np.where(partial < 0, least, 0).sum(axis=1)
    mean = spread / np.maximum(1, useful.sum(axis=1))
    return np.maximum(placed.max(axis=1), np.where(useful.any(axis=1), mean, 0)) - self._last_us
