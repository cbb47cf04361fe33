"""The optimum, where it can be proven: branch and bound over groups.

The tree. Groups are given devices one after the other, the heaviest first. Devices that are
equal (in speed, memory and links, and allowed to the same groups) are interchangeable, so of
those not yet used only the first is tried.

The bound. A partial placement restricts where ops may run, and ops of a group share a device. With
that, paths and the work over devices (see `lower_bounds`) bound the step time of all its
completions.

The leaves are simulated, so the returned placement is optimal for the simulator with its queues.
A placement that fits is better than any that does not; partial placements whose variables
alone do not fit are cut as soon as a placement that fits is known.

The search is depth first in blocks of partial placements, bounded side by side. It is meant for
about 20 groups; with more it ends with the budget, and reports the gap to the bound.

Dimensions: N ops, G groups, D devices, B partial placements side by side.
"""

from __future__ import annotations

import dataclasses
from typing import List, Optional, Tuple

import numpy as np
from partial_bounds import PartialBounds

from placeto_tf.problem.budget import Budget
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.problem.supernodes import Supernodes
from placeto_tf.search.annealing import anneal_supernodes
from placeto_tf.search.earliest_starts import interchangeable
from placeto_tf.search.starts import best_start

DEFAULT_BUDGET = Budget(max_seconds=60.0)
_UNPLACED = -1
_BLOCK_NUMBERS = 2_000_000  # numbers held at once for the bounds of a block


@dataclasses.dataclass(frozen=True, eq=False)
class ExactResult:
  """The result of branch and bound.

  Attributes:
    placement: [N] the best placement met.
    objective_us: its step time, with the penalty where it does not fit.
    lower_bound_us: no placement of the groups is faster; equal to `objective_us` where proven.
    proven: whether the placement is optimal.
  """

  placement: np.ndarray
  objective_us: float
  lower_bound_us: float
  proven: bool


def prove(
    problem: PlacementProblem, budget: Optional[Budget] = None, seed: int = 0) -> ExactResult:
  """Searches for the best placement of the groups until it is proven or the budget is used up.

  Args:
    problem: evaluates.
    budget: only leaves and starts count as evaluations.
    seed: of the search for a good placement to begin with.
  """
  budget = budget or DEFAULT_BUDGET
  supernodes = Supernodes(problem)
  best_start(problem, budget, seed)
  bounds = PartialBounds(problem)
  g, d = len(supernodes), problem.num_devices
  # A good placement to begin with cuts most of the tree.
  best = problem.search_log.best_placement
  start = np.asarray(problem.project(best), dtype=np.int32) if (
      best is not None) else supernodes.allowed.argmax(axis=1).astype(np.int32)
  incumbent = _Incumbent(problem, supernodes)
  if not problem.search_log.exhausted(budget):
    incumbent.simulate(start[None], budget)
    if supernodes.movable and g > 6 and not problem.search_log.exhausted(budget):
      limit = dataclasses.replace(
          budget.at_most(problem.search_log, 30 * g),
          max_seconds=budget.share(problem.search_log, 0.2).max_seconds)
      placement, _ = anneal_supernodes(
          problem, supernodes, start[supernodes.supernode_of_op], incumbent.objective_us, limit,
          np.random.default_rng(seed), 1e-2)
      if not problem.search_log.exhausted(budget):
        incumbent.simulate(problem.project(placement)[None], budget)

  order = np.argsort(-supernodes.weight_us, kind="stable")
  twins = interchangeable(problem.cluster, supernodes.allowed)
  root = np.full((1, g), _UNPLACED, dtype=np.int32)
  stack: List[Tuple[int, np.ndarray, np.ndarray]] = [(0, root, bounds.lower_us(root))]
  size = max(8, _BLOCK_NUMBERS // (problem.graph.num_ops * d * d))
  while stack and not problem.search_log.exhausted(budget):
    depth, block, lower = stack.pop()
    keep = incumbent.open(lower)
    block, lower = block[keep], lower[keep]
    if len(block) > size:
      stack.append((depth, block[size:], lower[size:]))
      block, lower = block[:size], lower[:size]
    if not len(block):
      continue
    if depth == g:
      done = incumbent.simulate(block, budget)
      if done < len(block):
        stack.append((depth, block[done:], lower[done:]))
      continue
    children = _branch(block, int(order[depth]), supernodes.allowed, twins)
    found = bounds.lower_us(children)
    keep = incumbent.open(found) & ~(incumbent.fits & bounds.overfull(children))
    children, found = children[keep], found[keep]
    best_first = np.argsort(found, kind="stable")
    stack.append((depth + 1, children[best_first], found[best_first]))
  still_open = [lower[incumbent.open(lower)] for _, _, lower in stack]
  left = np.concatenate(still_open) if still_open else np.zeros(0)
  proven = not len(left)
  bound = incumbent.objective_us if proven else min(float(left.min()), incumbent.objective_us)
  return ExactResult(
      (incumbent.devices if incumbent.devices is not None else start)[supernodes.supernode_of_op],
      incumbent.objective_us, bound, proven and incumbent.devices is not None)


class _Incumbent:
  """The best placement of groups met so far."""

  def __init__(self, problem: PlacementProblem, supernodes: Supernodes):
    self._problem, self._supernodes = problem, supernodes
    self.devices: Optional[np.ndarray] = None
    self.objective_us, self.excess_bytes = float("inf"), float("inf")

  @property
  def fits(self) -> bool:
    """Whether it fits in memory."""
    return self.excess_bytes == 0

  def simulate(self, devices: np.ndarray, budget: Budget) -> int:
    """Simulates placements [B, G] as far as the budget goes; returns how many."""
    left = self._problem.search_log.remaining_evaluations(budget)
    devices = devices if left is None else devices[:left]
    if not len(devices):
      return 0
    evaluation = self._problem.evaluate_ops(devices[:, self._supernodes.supernode_of_op])
    b = evaluation.best()
    found = float(evaluation.excess_bytes[b]), float(evaluation.objective_us[b])
    if found < (self.excess_bytes, self.objective_us):
      self.devices, (self.excess_bytes, self.objective_us) = devices[b].copy(), found
    return len(devices)

  def open(self, lower_us: np.ndarray) -> np.ndarray:
    """Whether completions may be better than the best so far, by their bounds [B]."""
    if not self.fits:
      return np.ones(len(lower_us), dtype=bool)
    return lower_us < self.objective_us


def _branch(
    block: np.ndarray, group: int, allowed: np.ndarray, twins: np.ndarray) -> np.ndarray:
  """All partial placements [B', G] that give the group a device in one of `block` [B, G]."""
  children = []
  for d in np.flatnonzero(allowed[group]).tolist():
    # Of equal devices that hold nothing yet, only the first is tried.
    earlier = [e for e in range(d) if twins[e] == twins[d]]
    useful = np.ones(len(block), dtype=bool)
    for e in earlier:
      useful &= (block == e).any(axis=1)
    chosen = block[useful].copy()
    chosen[:, group] = d
    children.append(chosen)
  return np.concatenate(children)
