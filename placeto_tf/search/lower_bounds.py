"""Lower bounds: step times that no placement can beat, whatever the order of queues.

`earliest_starts` gives each op on each class of devices a head (how early it can start) and a
tail (the time from its end to the end of the step). The bound is the larger of two bounds:

- Path. The step is no shorter than the sum of the head, the busy time and the tail of any op, on
  the class of devices where that sum is least.
- Work in a window (Fernandez and Bussell, "Bounds on the number of processors and time for
  multiprocessor optimal schedules", 1973). Ops with heads of at least a and tails of at least b
  run after the first a and before the last b of the step. For weights y >= 0 of devices that add up
  to 1, the step is at least a + b + the sum over colocated sets of min_d y_d work(set, d): the dual
  of the linear program that spreads the work over the devices. Any y gives a true bound; equal
  weights and weights by speed are tried.

Dimensions: N ops, D devices, C classes of equal devices.
"""

from __future__ import annotations

from typing import Iterator

import numpy as np

from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.search.earliest_starts import MOST_LATE, Paths, interchangeable
from placeto_tf.simulation.compiling import compiled

_MOST_WINDOWS = 1000  # the largest number of heads at which windows begin
_ROUNDING = 1 - 1e-9  # so that rounding never lifts a bound above a true step time


def lower_bound_us(problem: PlacementProblem) -> float:
  """Computes a lower bound on the step time of all placements that fit, in us."""
  bounds = LowerBounds(problem)
  return max(bounds.path_us(), bounds.window_us()) * _ROUNDING


class LowerBounds:
  """The two bounds of one problem, before they are multiplied by `_ROUNDING`."""

  def __init__(self, problem: PlacementProblem):
    self._problem = problem
    graph = problem.graph
    # [D] for each device the first device equal to it; one class stands for all its devices.
    classes = interchangeable(problem.cluster, problem.allowed_ops)
    self._paths = paths = Paths.of(problem, classes)
    self._class = np.unique(classes, return_inverse=True)[1].reshape(-1)  # [D]
    # Ops of one colocated set share a device, so they need no transfers between them.
    together = graph.colocation.astype(np.int64)
    heads = paths.heads_us(paths.allowed, together, MOST_LATE)
    tails = paths.tails_us(paths.allowed, together, MOST_LATE)
    # [N] each, on the class of devices where the sum of head, busy time and tail is least.
    self._through_us = (heads + paths.busy_us + tails).min(axis=1)
    self._heads_us, self._tails_us = heads.min(axis=1), tails.min(axis=1)

  def path_us(self) -> float:
    """Returns the bound by paths."""
    return float(self._through_us.max())

  def window_us(self) -> float:
    """Returns the bound by the work in windows."""
    # Windows begin where some op can start; of too many starts, evenly spread ones are taken.
    begins_us = np.unique(self._heads_us)
    if len(begins_us) > _MOST_WINDOWS:
      begins_us = begins_us[np.linspace(0, len(begins_us) - 1, _MOST_WINDOWS).astype(np.int64)]
    order = np.argsort(-self._tails_us, kind="stable")
    sets = np.unique(self._problem.graph.colocation[order], return_inverse=True)[1].reshape(-1)
    heads_us, tails_us = self._heads_us[order], self._tails_us[order]
    paths, best = self._paths, 0.0
    # Every y gives a true bound: take the largest.
    for y in self._weights():
      work_us = np.where(paths.allowed, paths.busy_us * y, np.inf)
      best = max(best, _window_us(begins_us, heads_us, tails_us, sets, work_us[order]))
    return best

  def _weights(self) -> Iterator[np.ndarray]:
    """Yields weights y [C], one per device of each class."""
    paths, cluster = self._paths, self._problem.cluster
    # [C] a device of each class.
    first = np.array([int(np.argmax(self._class == c)) for c in range(len(paths.members))])
    hosts = np.array([cluster.devices[d].host for d in first])
    # Simple weights: all devices alike, all but hosts, only hosts; the sum over devices is 1.
    for y in (np.ones(len(hosts)), (~hosts).astype(float), hosts.astype(float)):
      if y.any():
        yield y / (y * paths.members).sum()
    # Of unequal kinds, hosts excepted: by speed on the ops that all of them may run, so that such
    # ops weigh the same on each.
    time_us = paths.busy_us[paths.allowed[:, ~hosts].all(axis=1)].sum(axis=0)
    if (time_us[~hosts] > 0).all() and not hosts.all():
      y = ~hosts / np.maximum(time_us, 1e-9)
      yield y / (y * paths.members).sum()


@compiled()
def _window_us(begins_us, heads_us, tails_us, sets, work_us):
  """Returns the largest bound by the work of ops with late heads and long tails.

  Args:
    begins_us: heads at which windows begin, in us.
    heads_us, tails_us: [N] float64, of ops by falling tail.
    sets: [N] int64, the colocated set of each op.
    work_us: [N, C] weighted busy time on each class, inf where an op may not run.
  """
  best = 0.0
  n, c = work_us.shape
  # For each set: its weighted work on each class so far, and the least of them over classes.
  of_set_us, least_us = np.empty((n, c)), np.empty(n)
  for begin_us in begins_us:
    of_set_us[:] = 0.0
    least_us[:] = 0.0
    total_us = 0.0
    # Adding ops by falling tails keeps b, the least tail of the window, at the last op's tail.
    for i in range(n):
      if heads_us[i] >= begin_us:
        least = np.inf
        for k in range(c):
          of_set_us[sets[i], k] += work_us[i, k]
          least = min(least, of_set_us[sets[i], k])
        # Only the increase of the set's least work counts.
        total_us += least - least_us[sets[i]]
        least_us[sets[i]] = least
        best = max(best, begin_us + total_us + tails_us[i])
  return best
