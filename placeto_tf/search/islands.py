"""Several runs of one search side by side, an island each, that exchange their best placements.

Every island is a thread with a view of the problem: its own count of evaluations, its own best, its
own simulator's buffers, its own seed; searches vary temperatures and numbers of units by
`problem.island`. What takes time is compiled and runs without the interpreter's lock, so islands
run on as many cores as there are.

A search calls `problem.exchange` at points of its own, such as between two levels. There the worse
half of the islands goes on from the best one's placement (Whitley, Rana and Heckendorn 1999, with
a restart in place of migrants).

- Limited by evaluations alone, each island gets an equal part of them, and at an exchange waits for
  all others that still search. So the result depends on the seed and the number of islands, neither
  on the number of cores nor on who is faster.
- Limited by time, nobody waits: an island is compared with what the others had last. One that is
  run once more, because its machine went away, goes on from what it had when it met last. On
  threads there are no more islands than cores: each prepares its levels for itself, so more of
  them evaluate less in the same time (docs/many_cores_and_machines.md).

Legend: N ops.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import threading
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np

from placeto_tf.errors import PlacementError
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.candidates import best_so_far
from placeto_tf.problem.ledger import Called
from placeto_tf.problem.placement_problem import Account, PlacementProblem
from placeto_tf.simulation.simulator import num_cores

WATCH_SECONDS = 0.1  # how often progress is shown


def check_islands(islands: Optional[int]) -> None:
  """Raises PlacementError where a number of islands is given and below 1."""
  if islands is not None and islands < 1:
    raise PlacementError(f"islands is {islands}; expected at least 1, or none for the default")


def island_seed(seed: int, island: int) -> int:
  """The seed of an island; the first one's is the search's own."""
  if island == 0:
    return seed
  return int(np.random.SeedSequence([seed, island]).generate_state(1)[0])


class Job(NamedTuple):
  """What one island does."""

  island: int
  budget: Budget
  seed: int


class Rules(NamedTuple):
  """How islands exchange: whether they wait for one another, and when they are all done."""

  islands: int
  waits: bool
  target_us: Optional[float]


# Shows accounts of all islands; says whether their searches are over.
Watch = Callable[[Sequence[Account]], bool]


def search_on_islands(
    problem: PlacementProblem, placer: Called, budget: Budget, seed: int = 0) -> np.ndarray:
  """[N] the best placement of `problem.islands` runs of a search within one budget.

  Ctrl-C ends all of them; what they found is the problem's then too.

  Args:
    problem: counts what all of them evaluate, and remembers the best.
    placer: the search.
    budget: of all together.
    seed: of the first; the others' follow from it.
  """
  before, left = problem.snapshot(), problem.remaining_evaluations(budget)
  waits = budget.max_evaluations is not None and budget.max_seconds is None
  islands = problem.islands if left is None else min(problem.islands, left)
  if not waits and problem.run_islands is None:
    islands = min(islands, num_cores())
  if islands <= 1:
    return placer(problem, budget, seed)
  jobs = [
      Job(i, budget if left is None else dataclasses.replace(
          budget, max_evaluations=before.evaluations + left // islands + (i < left % islands)),
          island_seed(seed, i)) for i in range(islands)]

  def watch(accounts: Sequence[Account]) -> bool:
    problem.take_in(before, accounts)
    return problem.exhausted(dataclasses.replace(budget, max_evaluations=None))

  (problem.run_islands or run_on_threads)(
      problem, placer, jobs, Rules(islands, waits, budget.target_us), watch)
  return best_so_far(problem, problem.best_known)


def run_on_threads(
    problem: PlacementProblem, placer: Called, jobs: Sequence[Job], rules: Rules, watch: Watch
) -> None:
  """Runs each job on a thread; `watch` sees them now and then, and once more at the end."""
  exchange = Exchange(rules)
  views = [problem.island_view(job.island) for job in jobs]
  with concurrent.futures.ThreadPoolExecutor(len(jobs), thread_name_prefix="island") as threads:
    running = {threads.submit(run_island, view, placer, job, exchange)
               for view, job in zip(views, jobs)}
    try:
      while running:
        ended, running = concurrent.futures.wait(
            running, WATCH_SECONDS, concurrent.futures.FIRST_COMPLETED)
        for future in ended:
          future.result()
        if watch([view.snapshot() for view in views]) and not rules.waits:
          break
    finally:
      exchange.stop()
      for view in views:
        view.stop()
      concurrent.futures.wait(running)
      watch([view.snapshot() for view in views])


def run_island(view: PlacementProblem, placer: Called, job: Job, exchange: Exchange) -> Account:
  """Runs one job on its view of the problem; what it did is its account."""
  number = itertools.count()
  known = exchange.join(job.island)
  if known is not None:
    view.resume(known)

  def meet(placement: np.ndarray, objective_us: float) -> Tuple[np.ndarray, float]:
    answer = exchange.meet(
        job.island, next(number), placement.copy(), objective_us, view.snapshot())
    if answer.stopped:
      view.stop()
    if answer.placement is None or answer.objective_us >= objective_us:
      return placement, objective_us
    return answer.placement.copy(), answer.objective_us

  view.exchange = meet
  try:
    placer(view, job.budget, job.seed)
  finally:
    exchange.leave(job.island, view.snapshot())
  return view.snapshot()


class Answer(NamedTuple):
  """What an island goes on with: another's placement, if any, and whether it goes on at all."""

  placement: Optional[np.ndarray]
  objective_us: float
  stopped: bool


# Of a round: who goes on from the best island's placement, its objective, and the placement.
_Chosen = Tuple[Set[int], float, np.ndarray]


class Exchange:
  """Where islands meet; safe to use from several threads."""

  def __init__(self, rules: Rules):
    self._rules = rules
    self._condition = threading.Condition()
    self._searching = set(range(rules.islands))
    self._arrived: Set[int] = set()
    self._last: Dict[int, Tuple[float, np.ndarray]] = {}  # what each island came with
    self._accounts: Dict[int, Account] = {}
    # All of them, for an island that is run once more because its machine went away.
    self._rounds: List[_Chosen] = []
    self._stopped = False

  def join(self, island: int) -> Optional[Account]:
    """What an island goes on from that is run once more; None where it begins.

    Where islands wait for one another it begins again: it gets the answers that it got.
    """
    with self._condition:
      return None if self._rules.waits else self._accounts.get(island)

  def meet(
      self, island: int, number: int, placement: np.ndarray, objective_us: float,
      account: Account) -> Answer:
    """An island's exchange.

    Args:
      island: which.
      number: how many times it has met before.
      placement: [N] what it has, not changed afterwards; objective_us: its objective.
      account: of the island.
    """
    with self._condition:
      if not self._rules.waits:
        self._last[island], self._accounts[island] = (objective_us, placement), account
        return self._answer(island, self._choose())
      if number >= len(self._rounds):
        self._last[island], self._accounts[island] = (objective_us, placement), account
        self._arrived.add(island)
        self._close_round()
        self._condition.wait_for(lambda: len(self._rounds) > number or self._stopped)
      if number >= len(self._rounds):
        return Answer(None, objective_us, True)
      return self._answer(island, self._rounds[number])

  def leave(self, island: int, account: Account) -> None:
    """Nobody waits for this island any more."""
    with self._condition:
      self._accounts[island] = account
      self._searching.discard(island)
      self._close_round()

  def stop(self) -> None:
    """Ends all islands, at the latest when they come here next."""
    with self._condition:
      self._stopped = True
      self._condition.notify_all()

  def accounts(self) -> Dict[int, Account]:
    """What is known of each island."""
    with self._condition:
      return dict(self._accounts)

  def _answer(self, island: int, chosen: _Chosen) -> Answer:
    losers, objective_us, placement = chosen
    return Answer(placement if island in losers else None, objective_us, self._stopped)

  def _choose(self) -> _Chosen:
    """The worse half of the islands, and what the best one has."""
    order = sorted(self._last, key=lambda island: (self._last[island][0], island))
    objective_us, placement = self._last[order[0]]
    return set(order[(len(order) + 1) // 2:]), objective_us, placement

  def _close_round(self) -> None:
    """Lets those who wait go on, once all who search have arrived."""
    if self._arrived and self._arrived >= self._searching:
      self._rounds.append(self._choose())
      self._arrived.clear()
      target_us = self._rules.target_us
      self._stopped = self._stopped or target_us is not None and any(
          each.best_fits and each.best_objective_us <= target_us
          for each in self._accounts.values())
      self._condition.notify_all()
