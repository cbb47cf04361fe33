"""Several runs of one search side by side, an island each, that exchange their best placements.

Every island is a thread, or a task on Ray, with a view of the problem: its own count of
evaluations, its own best, its own simulator's buffers, its own seed; searches vary temperatures and
numbers of units by `island.number`. What takes time is compiled and runs without the interpreter's
lock, so islands run on as many cores as there are.

A search calls `island.exchange` at points of its own, such as between two levels. There the worse
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

import contextlib
import dataclasses
import itertools
import threading
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np

from placeto_tf.errors import PlacementError
from placeto_tf.problem.account import Account
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.candidates import best_so_far
from placeto_tf.problem.executor import Executor, Lost, Shared
from placeto_tf.problem.placement_problem import PlacementProblem


def check_islands(islands: Optional[int]) -> None:
  """Raises PlacementError where a number of islands is given and below 1."""
  if islands is not None and islands < 1:
    raise PlacementError(f"islands is {islands}; expected at least 1, or none for the default")


def island_seed(seed: int, island: int) -> int:
  """The seed of an island; the first one's is the search's own."""
  if island == 0:
    return seed
  return int(np.random.SeedSequence([seed, island]).generate_state(1)[0])


@dataclasses.dataclass(frozen=True)
class Island:
  """Where a search runs that may be one of several.

  Attributes:
    number: which; 0 where there is one.
    exchange: called by a search at its own pace with its placement [N] and objective_us, it
      returns those to go on with: another island's where that is far better, else the same.
  """

  number: int = 0
  exchange: Callable[[np.ndarray, float], Tuple[np.ndarray, float]] = lambda *own: own


ALONE = Island()


@dataclasses.dataclass(frozen=True)
class Islands:
  """How searches run.

  Attributes:
    count: the most that run side by side.
    executor: where.
  """

  count: int = 1
  executor: Executor = dataclasses.field(default_factory=Executor)

  def __post_init__(self) -> None:
    check_islands(self.count)


ONE_ISLAND = Islands()

class Rules(NamedTuple):
  """How islands exchange: whether they wait for one another, and when they are all done."""

  islands: int
  waits: bool
  target_us: Optional[float]


def search_on_islands(
    problem: PlacementProblem, placer: Callable[..., np.ndarray], budget: Budget, seed: int = 0,
    islands: Islands = ONE_ISLAND) -> np.ndarray:
  """[N] the best placement of several runs of a search within one budget.

  Ctrl-C ends all of them; what they found is the problem's then too.

  Args:
    problem: counts what all of them evaluate, and remembers the best.
    placer: the search, called with a problem, budget, seed and `island`.
    budget: of all together.
    seed: of the first; the others' follow from it.
    islands: how many runs, and where.
  """
  account, executor = problem.account, islands.executor
  before, left = account.copy(), account.remaining_evaluations(budget)
  waits = budget.max_evaluations is not None and budget.max_seconds is None
  count = islands.count if left is None else min(islands.count, left)
  if not waits and not executor.beside:
    count = min(count, executor.cores)
  if count <= 1:
    return placer(problem, budget, seed)
  # A view, for who observes the problem cannot travel; its count goes on from here by itself.
  view = dataclasses.replace(problem, account=before)
  shared = executor.share(view.portable(with_shapes=False) if executor.beside else view)
  known: Dict[int, Account] = {}

  def watch(exchange: Exchange) -> bool:
    """Books what islands did; says whether their searches are over."""
    with contextlib.suppress(Lost):  # what was known before is kept
      known.update(exchange.accounts())
    _take_in(account, before, [known.get(i, before) for i in range(count)])
    return account.exhausted(dataclasses.replace(budget, max_evaluations=None))

  with executor.meeting(count, Exchange, Rules(count, waits, budget.target_us)) as exchange:
    try:
      with executor.together(run_island, count) as running:
        try:
          for i in range(count):
            part = budget if left is None else dataclasses.replace(
                budget, max_evaluations=before.evaluations + left // count + (i < left % count))
            running.submit(
                i, f"island {i}", shared, placer, i, part, island_seed(seed, i), exchange, waits)
          while running.pending:
            known.update(running.done(executor.watch_seconds))
            if watch(exchange) and not waits:
              break
        finally:
          with contextlib.suppress(Lost):
            exchange.stop()
    finally:
      watch(exchange)
  return best_so_far(problem, account.best_known)


def run_island(
    shared: Shared, placer: Callable[..., np.ndarray], number: int, budget: Budget, seed: int,
    exchange: Exchange, waits: bool) -> Account:
  """Runs a search on an island; what it did is its account."""
  problem = shared.get()
  account = dataclasses.replace(problem.account.copy(), improvements=[])
  try:
    account = exchange.join(number, account) or account
  except Lost:
    pass
  view = dataclasses.replace(
      problem, account=account, simulator=problem.simulator.on_one_thread())
  turn = itertools.count()

  def meet(placement: np.ndarray, objective_us: float) -> Tuple[np.ndarray, float]:
    try:
      answer = exchange.meet(number, next(turn), placement.copy(), objective_us, account)
    except Lost:
      if waits:
        raise
      return placement, objective_us  # it goes on alone, for nobody waits for it
    if answer.stopped:
      account.stopped = True
    if answer.placement is None or answer.objective_us >= objective_us:
      return placement, objective_us
    return answer.placement.copy(), answer.objective_us

  try:
    placer(view, budget, seed, island=Island(number, meet))
  finally:
    with contextlib.suppress(Lost):
      exchange.leave(number, account)
  return account.copy()


def _take_in(account: Account, before: Account, islands: Sequence[Account]) -> None:
  """Has an account be what it was before, and what islands did since.

  An island's n-th evaluation counts as the last one of every island's first n, so that threads
  cannot change the order.
  """
  each_used = [island.evaluations - before.evaluations for island in islands]
  used = sum(each_used)
  found = sorted(
      (min(used, len(islands) * (each.evaluations - before.evaluations)), number, each)
      for number, island in enumerate(islands) if island is not before
      for each in island.improvements)
  merged = before.copy()
  for turn, _, each in found:
    if merged.is_better(each.fits, each.objective_us):
      merged.best_fits, merged.best_objective_us = each.fits, each.objective_us
      merged.improvements.append(each._replace(evaluations=before.evaluations + turn))
  best = min((before, *islands), key=lambda each: (not each.best_fits, each.best_objective_us))
  account.improvements, account.evaluations = merged.improvements, before.evaluations + used
  account.of_islands = tuple(
      map(sum, itertools.zip_longest(before.of_islands, each_used, fillvalue=0)))
  account.best_placement, account.best_fits = best.best_placement, best.best_fits
  account.best_objective_us = best.best_objective_us
  if account.observer is not None:
    account.observer()


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

  def join(self, island: int, account: Account) -> Optional[Account]:
    """What an island goes on from that is run once more; None where it begins with its account.

    Where islands wait for one another it begins again: it gets the answers that it got.
    """
    with self._condition:
      known = None if self._rules.waits else self._accounts.get(island)
      self._accounts[island] = known or account
      account.stopped |= self._stopped
      return known and known.copy()

  def meet(
      self, island: int, number: int, placement: np.ndarray, objective_us: float,
      account: Account) -> Answer:
    """An island's exchange.

    Args:
      island: which.
      number: how many times it has met before.
      placement: [N] what it has, not changed afterwards; objective_us: its objective.
      account: of the island, as it is now; the island's own where that is in this process.
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
      for account in self._accounts.values():  # those in this process
        account.stopped = True
      self._condition.notify_all()

  def accounts(self) -> Dict[int, Account]:
    """What is known of each island."""
    with self._condition:
      return {island: account.copy() for island, account in self._accounts.items()}

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
