"""The search over numbers of replicas: tries each, drops those behind, goes on with the best.

1. Every number of replicas, with shared and with mirrored variables, is started from placements
   that need no search. One whose lower bound is above what another has reached is dropped, and of
   both forms of a number the one that is 15 % behind.
2. The others share two fifths of the budget. Replicas are moved together (`symmetric`); a graph
   without replicas runs `auto`.
3. The rest of the budget goes to the best, and to the second if it is within 3 %: the policy of
   `auto` and annealing, each from the best so far. Where nothing fits in memory yet, it
   all goes to the one that comes closest.

Candidates are compared by their step time per example, because batches can differ.

Dimensions: N ops, R replicas.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from typing import Callable, List, Optional, Sequence, Tuple

from placeto_tf.placing import registry, running
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.method import Kind, Method
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.replication.replicated_graph import form_name
from placeto_tf.search.independent_runs import ONE_RUN, Runs
from placeto_tf.search.lower_bounds import lower_bound_us
from placeto_tf.search.starts import of_a_start

FIRST_SHARE = 0.4
BEHIND, CLOSE = 1.15, 1.03
POLICY_SHARE = 0.4  # of what is left of a candidate's time, before annealing
_SECONDS_AN_OP = 1e-4  # time to make supernodes for a search


@dataclasses.dataclass(eq=False)
class Candidate:
  """One number of replicas, in one form.

  Attributes:
    replicas: R.
    global_batch: examples of a step; None where the graph has no batch.
    problem: of the replicated graph.
    mirrored: whether each replica has variables of its own.
    micro_batches: M of a pipeline, which begins with its stages; else 1.
    reference: whether it is only there to compare with.
    dropped: why its search was ended, or "".
  """

  replicas: int
  global_batch: Optional[int]
  problem: PlacementProblem
  mirrored: bool = False
  micro_batches: int = 1
  reference: bool = False
  dropped: str = ""

  @property
  def form(self) -> str:
    """Returns the name of the replication strategy, see `form_name`."""
    return form_name(self.replicas, self.mirrored, self.micro_batches)

  @property
  def example_us(self) -> float:
    """Returns the step time per example of the best placement, in us; infinite if none fits."""
    excess_bytes, objective_us = self.rank
    return float("inf") if excess_bytes > 0 else objective_us

  @property
  def rank(self) -> Tuple[float, float]:
    """Returns (lacking memory in bytes, objective per example in us), lowest for the best."""
    log = self.problem.search_log
    return log.best_excess_bytes, log.best_objective_us / (self.global_batch or 1)


def search_replicas(
    candidates: Sequence[Candidate], budget: Budget, seed: int = 0, runs: Runs = ONE_RUN,
    announce: Callable[[PlacementProblem, str], None] = lambda problem, name: None,
    more: Callable[[float], List[Candidate]] = lambda example_us: [],
) -> Candidate:
  """Searches all candidates within one budget.

  Args:
    candidates: fewest replicas first.
    budget: of all candidates together, counted from now.
    seed: of everything random.
    runs: how many of each search go on side by side, and where.
    announce: called with a problem and the name of each placer before it runs.
    more: other candidates that are worth trying, given the step time per example that the starts
      of these reach; the time to make them does not count.

  Returns:
    The best candidate; of equal ones that with the fewest replicas and shared variables.
  """
  search = _Search(candidates, budget, seed, runs, announce, more)
  candidates = search.run()
  return min((each for each in candidates if not each.reference or len(candidates) == 1),
             key=lambda each: (each.rank, each.replicas, each.mirrored))


class _Search:

  """Runs the stages of the search and keeps the budget that the candidates share."""
  def __init__(
      self, candidates: Sequence[Candidate], budget: Budget, seed: int, runs: Runs,
      announce: Callable[[PlacementProblem, str], None],
      more: Callable[[float], List[Candidate]]):
    self._more = more
    self._candidates: List[Candidate] = list(candidates)
    self._budget, self._seed, self._announce = budget, seed, announce
    self._runs = runs
    self._started = time.monotonic()

  def run(self) -> List[Candidate]:
    """Runs all three stages, which Ctrl-C ends; returns all candidates."""
    try:
      # 1. Starts, then pipelines whose making does not count, bounds, and forms of one number.
      for candidate in self._candidates:
        self._start(candidate)
      before = time.monotonic()
      self._candidates += self._more(min(each.example_us for each in self._candidates))
      self._started += time.monotonic() - before
      # Candidates that can still win.
      alive = self._possible([each for each in self._candidates if not each.reference])
      numbers = sorted({(each.replicas, each.micro_batches) for each in alive})
      alive = [each for number in numbers for each in self._ahead(
          [each for each in alive if (each.replicas, each.micro_batches) == number], BEHIND)]
      for i, candidate in enumerate(alive):
        # 2. Shares of the rest of the budget that are equal in time, FIRST_SHARE in all.
        self._first(candidate, FIRST_SHARE / len(alive) / (1 - FIRST_SHARE * i / len(alive)))
      # 3. The best, and a second that is close.
      alive = self._ahead(alive, BEHIND)
      alive = self._ahead(alive, CLOSE)
      alive = alive[:2 if alive[0].problem.search_log.best_fits else 1]
      for i, candidate in enumerate(alive):
        self._last(candidate, 1 if i == len(alive) - 1 else 0.6)
    except KeyboardInterrupt:
      if not all(each.problem.search_log.best_placement is not None for each in self._candidates):
        raise
    return self._candidates

  def _slice(self, problem: PlacementProblem, share: float) -> Budget:
    """Returns a share of the rest of the whole budget, for one problem, counted from now."""
    evaluations = seconds = None
    if self._budget.max_evaluations is not None:
      used = sum(each.problem.search_log.evaluations for each in self._candidates)
      left = max(1, int(share * (self._budget.max_evaluations - used)))
      evaluations = problem.search_log.evaluations + left
    if self._budget.max_seconds is not None:
      left_seconds = self._budget.max_seconds - (time.monotonic() - self._started)
      # A problem's budget counts from its own making, not from now.
      seconds = problem.search_log.seconds + max(1e-9, share * left_seconds)
    return Budget(evaluations, seconds)

  def _over(self) -> bool:
    """Returns whether the whole budget is used."""
    used = sum(each.problem.search_log.evaluations for each in self._candidates)
    return (self._budget.max_evaluations is not None and used >= self._budget.max_evaluations) or (
        self._budget.max_seconds is not None
        and time.monotonic() - self._started >= self._budget.max_seconds)

  def _run(self, candidate: Candidate, method: Method, budget: Budget) -> None:
    """Runs a method on a candidate and records it in the candidate's search log."""
    problem = candidate.problem
    self._announce(problem, method.name)
    run = functools.partial(running.run, problem, method, budget, self._seed, runs=self._runs)
    if method.kind is Kind.AUTO:  # records its parts itself
      run()
    else:
      problem.search_log.run(method.name, run)

  def _start(self, candidate: Candidate) -> None:
    """Evaluates the placements of a candidate that need no search."""
    # A pipeline begins with the placement of its stages.
    if candidate.micro_batches > 1:
      return
    budget = self._slice(candidate.problem, 1.0)
    if candidate.replicas > 1:
      self._run(candidate, registry.find("replica_shares"), budget)
      return
    for method in registry.references():
      self._run(candidate, method, of_a_start(candidate.problem.search_log, budget))

  def _possible(self, candidates: List[Candidate]) -> List[Candidate]:
    """Returns the candidates whose lower bound is not above another's step time."""
    best = min(each.example_us for each in candidates)
    alive = []
    for each in candidates:
      # The bound is computed only where it could decide.
      if each.example_us > best and each.problem.search_log.best_fits:
        bound = lower_bound_us(each.problem) / (each.global_batch or 1)
        if bound >= best:
          each.dropped = "its lower bound is above what another row takes"
          continue
      alive.append(each)
    return alive

  def _ahead(self, candidates: List[Candidate], factor: float) -> List[Candidate]:
    """Returns the candidates within a factor of the best, best first; drops the others."""
    # By lacking memory, then by time per example.
    candidates = sorted(candidates, key=lambda each: each.rank)
    best = candidates[0].example_us
    for each in candidates:
      if each.example_us > factor * best:
        each.dropped = (
            f"it was {100 * (each.example_us / best - 1):.0f} % behind"
            if each.problem.search_log.best_fits else "nothing was found that fits")
    return [each for each in candidates if not each.dropped]

  def _first(self, candidate: Candidate, share: float) -> None:
    """Searches a candidate with a share of the rest of the budget: stage 2."""
    if self._over():
      return
    budget = self._slice(candidate.problem, min(1.0, share))
    method = registry.find("symmetric" if candidate.replicas > 1 else "auto")
    self._run(candidate, method, budget)

  def _last(self, candidate: Candidate, share: float) -> None:
    """Searches one of the best with a share of the rest of the budget: stage 3."""
    problem, log = candidate.problem, candidate.problem.search_log
    budget = self._slice(problem, share)
    needed_seconds = _SECONDS_AN_OP * problem.graph.num_ops
    policy = registry.policy_of_auto()
    parts = [(registry.find("annealing"), 1.0)]
    # The policy runs only if annealing has time to begin after it.
    if budget.max_seconds is None or (
        (1 - POLICY_SHARE) * (budget.max_seconds - log.seconds) > needed_seconds):
      parts = [*([(policy, POLICY_SHARE)] if policy else []), *parts]
    for method, part in parts:
      if not log.exhausted(budget) and (
          budget.max_seconds is None or budget.max_seconds - log.seconds > needed_seconds):
        self._run(candidate, method, budget.share(log, part))
