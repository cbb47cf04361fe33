"""The search over replication strategies: starts all candidates, and continues with the best.

A candidate is a number of replicas, with shared or with mirrored variables.

1. Every candidate evaluates placements that need no search. A candidate is dropped if its lower
   bound is above the step time of another candidate.
2. The remaining candidates share two fifths of the budget. Replicas are moved together
   (`symmetric`); a graph without replicas runs `auto`. A candidate goes on if another gain like its
   last one would make it the best, with an equal share of a quarter of the rest.
3. The rest of the budget goes to the best candidate, and to the second if its step time is at most
   3 % longer. They run the policy of `auto` from the best placement so far. If no placement fits in
   memory yet, only the candidate that lacks the least memory continues.

Candidates are compared by their step time per example, because batches can differ. A pipeline is
tried if its estimated step time is below the best step time so far, and if its number of
micro-batches divides the batch; see `placeto_tf.search.pipelines`.

Dimensions: N ops, R replicas; M micro-batches of each of G groups.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from typing import Callable, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.errors import GraphError, counted
from placeto_tf.placing import registry, running
from placeto_tf.placing.auto import time_for_a_search
from placeto_tf.placing.result import BUDGET_USED, INTERRUPTED
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.problem.search_log import SearchLog
from placeto_tf.replication import ReplicaSource
from placeto_tf.replication.replicated_graph import SHARED, ReplicatedGraph, strategy_name
from placeto_tf.search.independent_runs import ONE_RUN, Runs
from placeto_tf.search.lower_bounds import lower_bound_us
from placeto_tf.search.pipelines import promising
from placeto_tf.search.table_wise import METHODS, is_mostly_tables

SHARES = (0.4, 0.25)  # of the rest of the budget, in the rounds of equal shares
CLOSE = 1.03
# Most replicas of a pipeline in all. Kernels of smaller micro-batches would not fill a GPU, which
# the cost models do not know.
_REPLICAS = (8, 4)


@dataclasses.dataclass(eq=False)
class Candidate:
  """A replication strategy, and the state of its search.

  Attributes:
    replicas: R.
    global_batch: examples of a step; None if the graph has no batch.
    problem: the problem of the replicated graph.
    mirrored: whether each replica has variables of its own.
    micro_batches: M of a pipeline, whose first placement is by its stages; else 1.
    reference: whether the candidate only serves for comparison.
    dropped: the reason why its search was ended, or "".
    replicated: the replicas; None for the graph without replicas.
    gain_us: the fall of the step time per example in the last share of the search.
  """

  replicas: int
  global_batch: Optional[int]
  problem: PlacementProblem
  mirrored: bool = False
  micro_batches: int = 1
  reference: bool = False
  dropped: str = ""
  replicated: Optional[ReplicatedGraph] = None
  gain_us: float = 0.0

  @property
  def sliced(self) -> bool:
    """Returns whether tables are in slices."""
    return self.replicated is not None and bool(self.replicated.slices)

  @functools.cached_property
  def bound_us(self) -> float:
    """Returns the lower bound on the step time per example, in us."""
    return lower_bound_us(self.problem) / (self.global_batch or 1)

  @property
  def strategy(self) -> str:
    """Returns the name of the replication strategy, see `strategy_name`."""
    return strategy_name(self.replicas, self.mirrored, self.micro_batches, self.sliced)

  @property
  def example_us(self) -> float:
    """Returns the step time per example of the best placement, in us; infinite if none fits."""
    excess_bytes, objective_us = self.rank
    return float("inf") if excess_bytes > 0 else objective_us

  @property
  def rank(self) -> Tuple[float, float]:
    """Returns (lacking memory in bytes, objective per example in us); lower is better."""
    log = self.problem.search_log
    return log.best_excess_bytes, log.best_objective_us / (self.global_batch or 1)


def search_replicas(
    candidates: Sequence[Candidate], budget: Budget, seed: int = 0, runs: Runs = ONE_RUN,
    announce: Callable[[PlacementProblem, str], None] = lambda problem, name: None,
    more: Callable[[float], List[Candidate]] = lambda example_us: [],
) -> Tuple[Candidate, str]:
  """Searches all candidates within one budget.

  Args:
    candidates: fewest replicas first.
    budget: the budget of all candidates together, counted from now.
    seed: seed of all random choices.
    runs: the number of independent runs of each search, and their executor.
    announce: called with a problem and the name of each placer before the placer runs.
    more: function from the best step time per example after stage 1 to further candidates; the time
      to make them does not count.

  Returns:
    The best candidate (among equal ones, the one with fewest replicas, then with shared variables),
    and the reason why the search ended.
  """
  tried, ended = list(candidates), BUDGET_USED
  run = functools.partial(running.run, seed=seed, runs=runs)
  used = SearchLog()  # of all candidates together; their logs have its clock

  def part(candidate: Candidate, share: float) -> Budget:
    """Returns a share of the rest of the budget, at least one evaluation, by a candidate's log."""
    used.evaluations = sum(each.problem.search_log.evaluations for each in tried)
    found = budget.share(used, share)
    # All candidates' evaluations -> those of this candidate.
    return found if found.max_evaluations is None else dataclasses.replace(
        found, max_evaluations=candidate.problem.search_log.evaluations + max(
            1, found.max_evaluations - used.evaluations))

  def start(candidate: Candidate) -> None:
    """Evaluates the placements of a candidate that need no search (stage 1)."""
    problem = candidate.problem
    problem.search_log.started = used.started
    problem.search_log.observer = functools.partial(announce, problem)
    # A pipeline begins with the placement of its stages.
    if candidate.micro_batches == 1 and candidate.replicas > 1:
      run(problem, registry.find("replica_shares"), part(candidate, 1.0))
    elif candidate.micro_batches == 1:
      running.run_references(problem, part(candidate, 1.0), seed)
    # Shared tables of a recommender, dealt out to the devices.
    if candidate.micro_batches == 1 and not candidate.mirrored and (
        candidate.replicas > 1 or candidate.sliced) and is_mostly_tables(problem):
      for method in METHODS:
        run(problem, method, part(candidate, 1.0))

  def finish(problem: PlacementProblem, rest: Budget) -> None:
    """Runs the policy on one of the best candidates (stage 3)."""
    if not problem.search_log.exhausted(rest) and time_for_a_search(problem, rest):
      run(problem, registry.search_of_auto(), rest)

  try:
    # 1. Starts; then pipelines, lower bounds, and shared against mirrored variables.
    for candidate in tried:
      start(candidate)
    before = time.monotonic()
    pipelines = more(min(each.example_us for each in tried))
    used.started += time.monotonic() - before
    tried += pipelines
    for candidate in tried:
      candidate.problem.search_log.started = used.started
    for candidate in pipelines:
      start(candidate)
    # Candidates that can still win.
    alive = _possible([each for each in tried if not each.reference])
    # 2. Rounds of equal shares.
    for turn, total in enumerate(SHARES):
      for i, candidate in enumerate(alive if len(alive) > 1 or not turn else []):
        before_us = candidate.example_us
        own = part(candidate, total / len(alive) / (1 - total * i / len(alive)))
        if not used.exhausted(budget) and turn:
          finish(candidate.problem, own)
        elif not used.exhausted(budget):
          run(candidate.problem, registry.find(
              "symmetric" if candidate.replicas > 1 else "auto"), own)
        if np.isfinite(candidate.example_us):
          candidate.gain_us = before_us - candidate.example_us
      alive = _possible(_gaining(alive))
    # 3. The best, and a second that is close.
    alive = _ahead(alive, CLOSE)
    alive = alive[:2 if alive[0].problem.search_log.best_fits else 1]
    for i, candidate in enumerate(alive):
      finish(candidate.problem, part(candidate, 1 if i == len(alive) - 1 else 0.6))
  except KeyboardInterrupt:
    if any(each.problem.search_log.best_placement is None for each in tried):
      raise
    ended = INTERRUPTED
  return min((each for each in tried if not each.reference),
             key=lambda each: (each.rank, each.replicas, each.mirrored, each.sliced)), ended


def _possible(candidates: List[Candidate]) -> List[Candidate]:
  """Returns the candidates whose lower bound is not above another's step time; drops the others."""
  best = min(candidates, key=lambda each: each.example_us)
  for each in candidates:
    # The bound is computed only where it could decide.
    if each.example_us > best.example_us and each.problem.search_log.best_fits and (
        each.bound_us >= best.example_us):
      each.dropped = f"its lower bound is above the step time of {best.strategy!r}"
  return [each for each in candidates if not each.dropped]


def _gaining(candidates: List[Candidate]) -> List[Candidate]:
  """Returns the candidates that another gain like the last would make the best; drops others."""
  best = min(each.example_us for each in candidates)
  # A first placement that fits is an infinite gain.
  return _ahead(candidates, CLOSE, [
      each for each in candidates if not each.example_us - each.gain_us > best])


def _ahead(
    candidates: List[Candidate], factor: float, also: Sequence[Candidate] = ()) -> List[Candidate]:
  """Returns the candidates within a factor of the best, best first; drops all others."""
  # Sort by lacking memory, then by time per example.
  candidates = sorted(candidates, key=lambda each: each.rank)
  best = candidates[0]
  for each in candidates:
    if each.example_us > factor * best.example_us and each not in also:
      log = each.problem.search_log
      each.dropped = (
          f"{100 * (each.example_us / best.example_us - 1):.0f} % behind {best.strategy!r} after "
          f"{counted(log.evaluations, 'evaluation')}"
          if log.best_fits else "nothing was found that fits")
  return [each for each in candidates if not each.dropped]


def is_live(source: ReplicaSource) -> bool:
  """Returns whether the graph is a live function; its plans store replicas but no order of ops."""
  return source.graph.origin.format == "concrete_function"


def worth_trying(
    source: ReplicaSource, replicated: Optional[ReplicatedGraph], cluster: Cluster,
    best_example_us: float) -> Iterator[Tuple[int, int]]:
  """Yields the pipelines whose estimated step time is below the best step time so far.

  Args:
    source: source of the graph's replicas.
    replicated: any replicas of the graph, which show the ops that are copied; None if there are
      none.
    cluster: devices and links.
    best_example_us: the best step time per example; infinite if nothing fits in memory.
  """
  if replicated is None or is_live(source) or not source.free_batch:
    return
  original = replicated.original
  # Ops that each replica copies; the others are shared.
  own = {original.op_names[op] for op in replicated.original_of_op[
      (replicated.replica_of_op != SHARED) & (replicated.original_of_op >= 0)].tolist()}
  for count in _REPLICAS:
    try:
      part = source.part(count)
    except GraphError:
      continue  # these replicas do not divide the batch
    repeated = np.array([name in own for name in part.op_names])
    # The largest number of replicas that divides the batch, as one or two groups.
    for groups in (1, 2):
      if promising(part, repeated, cluster, groups, count // groups,
                   best_example_us * replicated.global_batch):
        yield groups, count // groups
    return
