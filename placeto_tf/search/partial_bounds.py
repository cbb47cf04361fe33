"""`PartialBounds`: lower bounds on all completions of partial placements, many side by side.

See `lower_bounds` for the critical path and the work over devices, and `exact` for their use.

Legend: N ops, G groups, D devices, B partial placements side by side.
"""

from __future__ import annotations

import numpy as np

from placeto_tf.problem.placement_problem import PlacementProblem

_ROUNDING = 1 - 1e-9


class PartialBounds:
  """Bounds partial placements of a problem's groups, [B, G] with -1 for groups without device."""

  def __init__(self, problem: PlacementProblem):
    graph, cluster = problem.graph, problem.cluster
    self._problem = problem
    self._groups = problem.grouping.group_of_op
    g, d = problem.num_groups, problem.num_devices
    self._compute_us = problem.costs.compute_us[:, cluster.device_kinds]  # [N, D]
    self._overhead_us = cluster.op_overhead_us * (self._compute_us > 0)
    work = np.zeros((g, d))
    np.add.at(work, self._groups, self._compute_us + self._overhead_us)
    self._work_us = work  # [G, D]
    self._last_us = float(self._overhead_us.max())
    self._persistent = np.bincount(self._groups, problem.costs.persistent_bytes, minlength=g)
    self._alike = len(np.unique(cluster.device_kinds)) == 1
    apart = ~np.eye(d, dtype=bool)
    self._us_per_byte = np.where(apart, 1 / np.where(apart, cluster.bandwidth_bytes_per_us, 1), 0)
    self._same = np.eye(d)
    size = problem.costs.edge_bytes(graph)
    inputs: list = [[] for _ in range(graph.num_ops)]
    for u, v, data_bytes in zip(
        graph.edge_producers.tolist(), graph.edge_consumers.tolist(), size.tolist()):
      inputs[v].append((u, data_bytes))
    self._inputs = inputs

  def lower_us(self, partial: np.ndarray) -> np.ndarray:
    """[B] step times that no completion of each partial placement is below."""
    allowed = np.where(
        (partial >= 0)[:, :, None], partial[:, :, None] == np.arange(self._work_us.shape[1]),
        self._problem.allowed)  # [B, G, D]
    return np.maximum(self._path_us(allowed), self._load_us(partial, allowed)) * _ROUNDING

  def overfull(self, partial: np.ndarray) -> np.ndarray:
    """[B] whether the variables of the placed groups alone are too much for a device."""
    limit = self._problem.cluster.memory_bytes
    held = np.stack(
        [((partial == d) * self._persistent).sum(axis=1) for d in range(len(limit))], axis=1)
    return np.any(held > limit, axis=1)

  def _path_us(self, allowed: np.ndarray) -> np.ndarray:
    """[B] the critical-path bound with each op where `allowed` [B, G, D] lets it run."""
    longest = np.zeros(len(allowed))
    end: list = [None] * len(self._inputs)
    for v in self._problem.graph.topological_order.tolist():
      start = 0.0
      for u, size in self._inputs[v]:
        wait = size * self._us_per_byte + self._overhead_us[u][:, None] * self._same  # [D, D]
        start = np.maximum(start, (end[u][:, :, None] + wait).min(axis=1))
      end[v] = np.where(allowed[:, self._groups[v]], start + self._compute_us[v], np.inf)
      longest = np.maximum(longest, end[v].min(axis=1))
    return longest

  def _load_us(self, partial: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """[B] the work bounds: of the busiest device so far, and of all work spread evenly."""
    placed = np.where(
        partial[:, :, None] == np.arange(allowed.shape[2]), self._work_us, 0).sum(axis=1)
    least = np.where(allowed, self._work_us, np.inf).min(axis=2)  # [B, G]
    # Devices that no open group may use cannot take a share of the open work.
    useful = ((partial < 0)[:, :, None] & allowed).any(axis=1)  # [B, D]
    rest = np.where(partial < 0, least, 0).sum(axis=1)
    spread = np.where(useful, placed, 0).sum(axis=1) + rest
    mean = spread / np.maximum(1, useful.sum(axis=1))
    return np.maximum(placed.max(axis=1), np.where(useful.any(axis=1), mean, 0)) - self._last_us
