"""Placements without a search: the graph's own devices, one device, random devices."""

from __future__ import annotations

from typing import Dict, Optional, Tuple

import numpy as np

from placeto_tf.clusters.constraints import allowed_devices, own_devices
from placeto_tf.problem import candidates as candidates_lib
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.method import Kind, Method, plain, unseeded
from placeto_tf.problem.placement_problem import PlacementProblem

RANDOM_PLACEMENTS = 1000  # number of evaluations if the budget does not limit them
_BATCH = 32


def current(problem: PlacementProblem, budget: Optional[Budget] = None) -> np.ndarray:
  """Returns the graph's own devices, and the first device that is no host for other ops.

  The result ignores pins and the devices that a placement may use: it says where the ops run today.
  Only ops without a kernel on their own device are moved. The nearest placement that respects pins
  and allowed devices is evaluated, so that searches can start from it.

  Args:
    problem: evaluates.
    budget: of the evaluation.

  Returns:
    [N] int32, device of each op.
  """
  graph, cluster = problem.graph, problem.cluster
  own = own_devices(graph, cluster)
  # Ops without a device run on the first device that is no host.
  own = np.where(own >= 0, own, candidates_lib.compute_devices(problem)[0])
  # Evaluated for the search log alone; the placement returned is the graph's own.
  candidates_lib.best_of(problem, candidates_lib.allowed_or_nearest(problem, own), budget)
  # Ops keep their own devices where they have a kernel.
  return candidates_lib.nearest_allowed(cluster, allowed_devices(graph, cluster), own)


def single(problem: PlacementProblem, budget: Optional[Budget] = None) -> np.ndarray:
  """Evaluates placements on a single device; ops that cannot run there go to its host.

  Tries the first device of each kind and memory size, except hosts.

  Args:
    problem: evaluates.
    budget: of the evaluations; None evaluates all.

  Returns:
    [N] int32, the best placement.
  """
  # (kind, memory) -> its first device; equal devices give equal placements.
  tried: Dict[Tuple[int, int], int] = {}
  for d in candidates_lib.compute_devices(problem):
    device = problem.cluster.devices[d]
    tried.setdefault((int(problem.cluster.device_kinds[d]), device.memory_bytes), d)
  candidates = [
      candidates_lib.allowed_or_nearest(problem, np.full(problem.graph.num_ops, d))
      for d in tried.values()]
  return candidates_lib.best_of(problem, np.stack(candidates), budget)


def random(
    problem: PlacementProblem, budget: Optional[Budget] = None, seed: int = 0) -> np.ndarray:
  """Evaluates uniformly random placements of the groups.

  Evaluates as many as the budget allows, or `RANDOM_PLACEMENTS` if evaluations are not limited.

  Args:
    problem: evaluates.
    budget: of the evaluations.
    seed: of the placements.

  Returns:
    [N] int32, the best placement.
  """
  rng, log = np.random.default_rng(seed), problem.search_log
  if budget is None or (budget.max_evaluations, budget.max_seconds) == (None, None):
    budget = Budget(max_evaluations=log.evaluations + RANDOM_PLACEMENTS)
  best, least = None, (True, np.inf)
  while best is None or not log.exhausted(budget):
    # [batch, G, D] The largest of independent uniform scores is a uniform choice among the allowed
    # devices of each group.
    scores = rng.random((_BATCH, problem.num_groups, problem.num_devices))
    groups = np.where(problem.allowed, scores, -1.0).argmax(axis=2).astype(np.int32)
    # [batch, G] to [batch, N]: placements side by side are simulated on all cores.
    batch = problem.grouping.expand(groups)
    # A used-up budget still gives a placement, without an evaluation.
    if log.exhausted(budget):
      return batch[0].copy()
    evaluation = problem.evaluate_ops(batch[:log.remaining_evaluations(budget)])
    b = evaluation.best()
    # Placements that fit come before those that do not.
    score = (not evaluation.fits[b], float(evaluation.objective_us[b]))
    if best is None or score < least:
      best, least = batch[b].copy(), score
  return best


METHODS = (
    Method("current", Kind.CURRENT, unseeded(current)),
    Method("single", Kind.BASELINE, unseeded(single), title="single device", rank=1),
    Method("random", Kind.STANDALONE, plain(random), rank=1),
)
