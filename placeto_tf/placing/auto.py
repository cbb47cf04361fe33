"""`auto`: other methods in turn, each going on from the best placement so far.

Each method's record states its part in `auto` (`AutoPart`). The parts run in this order until the
budget is used up or the best placement meets the lower bound:

1. The references: the graph's own devices, one device, the expert split, METIS. Other
   constructions follow if they are sure to leave most of the time to the rest.
2. `exact`, where there are few groups. If it proves that no placement of the groups is better and
   the groups cannot be split, the search is over.
3. The policies, from the best of these, or from the best reference if a policy's trial gets further
   from there: what list schedulers make may be the shorter step and the worse start.
   `auto_unlearned` skips them.
4. The searches. Annealing gains most and gets most of the budget; with much of it left it begins
   where the policies began, from where it ends lower. The rest goes, slice by slice, to the search
   that gained most per slice the last time it ran.

With `Budget.stop_within`, policies and searches get an eighth of the budget, then searches as much
again as all before, and the run ends when twice as much gained less than that share of the step.

With a limit on evaluations alone, shares are shares of evaluations, nothing depends on the clock,
and a seed gives the same placement again.

Legend: N ops, G groups.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Dict, Optional, Sequence

import numpy as np

from placeto_tf.errors import SetupError
from placeto_tf.grouping.contraction import number_groups, topological_rank
from placeto_tf.placing import registry, running
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.candidates import best_so_far
from placeto_tf.problem.ledger import NO_BUDGET, NOTHING_LEFT, TOO_LITTLE_TIME, Called, Ledger
from placeto_tf.problem.method import AutoPart, Method, Stage
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.problem.units import placed_units
from placeto_tf.search.exact import prove
from placeto_tf.search.islands import ONE_ISLAND, Islands
from placeto_tf.search.lower_bounds import lower_bound_us
from placeto_tf.search.starts import in_time

DEFAULT_BUDGET = Budget(max_seconds=60.0)
EXACT_GROUPS = 20  # more are rarely proven
EXACT_SHARE, EXACT_NODES = 0.4, 200_000
TRIAL_SHARE = 0.1  # of what is left of the budget, at most, for each start
# With `stop_within`, how long the policies and searches run at least before they are judged.
FIRST_SECONDS, FIRST_EVALUATIONS, MOST_DOUBLINGS = 5.0, 2000, 3
SLICES = 4  # of what is left after all searches have run
# A generous estimate of the time to make units for a search; with less, none begins.
SETUP_SECONDS_AN_OP = 1e-4


class Auto:
  """One run of `auto`; see the module.

  Attributes:
    ledger: what each placer did.
  """

  def __init__(
      self,
      problem: PlacementProblem,
      budget: Budget,
      seed: int = 0,
      *,
      policies: Optional[Sequence[Method]] = None,
      ledger: Optional[Ledger] = None,
      root_dir: Optional[str] = None,
      islands: Islands = ONE_ISLAND,
  ):
    """Prepares a run.

    Args:
      problem: counts and remembers.
      budget: of all methods together, counted from when the problem was made.
      seed: of all methods.
      policies: in the order in which they run; by default all that take part.
      ledger: receives an entry per placer; by default a new one.
      root_dir: where policies write TensorBoard summaries; None writes none.
      islands: how many runs of each search go on side by side, and where.
    """
    self.ledger = ledger or Ledger(problem)
    self._problem, self._seed = problem, seed
    self._options: Dict[str, Any] = dict(root_dir=root_dir, islands=islands)
    self._policies = registry.parts_of_auto(Stage.POLICY) if policies is None else policies
    bound_us = self.ledger.bound_us
    # Bounds are rounded down by a billionth, so that rounding errors cannot put them too high.
    self._optimum_us = (lower_bound_us(problem) if bound_us is None else bound_us) * (1 + 2e-9)
    self._budget = dataclasses.replace(
        budget, target_us=max(budget.target_us or 0.0, self._optimum_us))

  @property
  def proven(self) -> bool:
    """Whether the best placement is known to be optimal, by its bound or by `exact`."""
    return self.ledger.proven

  def run(self) -> np.ndarray:
    """[N] the best placement found."""
    problem, budget, ledger = self._problem, self._budget, self.ledger
    account = problem.account
    for method in registry.parts_of_auto(Stage.REFERENCE):
      # Readers of the table want to see these, whatever the bound says.
      self._construct(method, dataclasses.replace(budget, target_us=None))
    reference = problem.account.best_known.copy()
    # Where no op has a choice there is only one placement.
    ledger.proven = problem.account.best_fits and not (problem.allowed_ops.sum(axis=1) > 1).any()
    for method in registry.parts_of_auto(Stage.CONSTRUCTION):
      if self._over() or not in_time(problem, budget):
        break
      self._construct(method, budget)
    if problem.num_groups <= EXACT_GROUPS and not self._over():
      self._run("exact", self._exact, budget.share(problem.account, EXACT_SHARE))
    begin = self._begin(reference)
    evaluations, seconds = account.evaluations, account.seconds
    whole, doublings = self._budget, self._doublings()
    for k in range(doublings, -1, -1):
      before_us = account.best_objective_us
      # Each takes as long as all before it; the last one ends with the budget.
      self._budget = whole.share(account, 1 / (2**k if k == doublings else 2 ** (k + 1) - 1))
      if k == doublings:
        for method in self._policies:
          self._improve(method)
      # Without policies there is nothing to begin before.
      left = (account.expected_evaluations(self._budget, evaluations, seconds)
              if self._policies else 0)
      self._search(begin, left)
      gain_us = before_us - account.best_objective_us
      if 0 < k < doublings and not ledger.proven and not account.exhausted(whole) and (
          account.best_fits and gain_us < (whole.stop_within or 0.0) * before_us):
        ledger.no_more = True
        break
    ledger.proven |= account.best_fits and account.best_objective_us <= self._optimum_us
    return account.best_known.copy()

  def _doublings(self) -> int:
    """How often the policies and searches run, each time as long as all before; 0: once.

    The more often, the sooner it can be seen that there is no more to gain, and the less time the
    last ones have, which plan for their time.
    """
    problem, budget = self._problem, self._budget
    if not budget.stop_within:
      return 0
    left = math.inf
    if budget.max_seconds is not None:
      left = (budget.max_seconds - problem.account.seconds) / FIRST_SECONDS
    if budget.max_evaluations is not None:
      left = min(left, (budget.max_evaluations - problem.account.evaluations) / FIRST_EVALUATIONS)
    return min(MOST_DOUBLINGS, int(math.log2(max(1.0, left))))

  def _construct(self, method: Method, budget: Budget) -> None:
    share = _part(method).share
    self._run(method.name, self._placer(method),
              budget if share is None else budget.share(self._problem.account, share))

  def _placer(self, method: Method, **own: Any) -> Called:
    """The method as it runs here, with arguments of its own; loaded when it is run."""
    method = dataclasses.replace(method, load=_part(method).load or method.load)
    return lambda problem, budget, seed: running.run(
        problem, method, budget, seed, **self._options, **own)

  def _over(self) -> bool:
    return self.ledger.proven or self._problem.account.exhausted(self._budget)

  def _exact(self, problem: PlacementProblem, budget: Budget, seed: int) -> np.ndarray:
    result = prove(problem, budget, seed, max_nodes=EXACT_NODES if budget.max_seconds is None
                   else None)
    finest = problem.num_groups == len(np.unique(problem.graph.colocation))
    self.ledger.proven = result.proven and finest and problem.account.best_fits
    return best_so_far(problem, result.placement)

  def _begin(self, reference: np.ndarray) -> np.ndarray:
    """[N] where to begin: the best so far, or the best reference [N], by the trial of a policy."""
    account = self._problem.account
    begin = account.best_known.copy()
    method = next((method for method in self._policies if _part(method).trial), None)
    if method is None or np.array_equal(reference, begin):
      return begin
    evaluations = _part(method).trial * self._options["islands"].count
    for start in (reference, begin):
      if not self._over() and self._run(
          method.name, self._placer(method, start=start),
          self._budget.share(account, TRIAL_SHARE).at_most(account, evaluations)) > 0:
        begin = start  # from there it got further than anything before
    return begin

  def _improve(self, method: Method) -> None:
    """Runs a policy, if the budget leaves it enough to get something done."""
    problem, budget, part = self._problem, self._budget, _part(method)
    share = budget if part.share is None else budget.share(problem.account, part.share)
    if self._over():
      used_up = problem.account.exhausted(dataclasses.replace(budget, target_us=None))
      self.ledger.skip(
          method.name, NO_BUDGET if used_up and not self.ledger.proven
          else NOTHING_LEFT)
      return
    setup_seconds = part.setup_seconds + part.setup_seconds_an_op * problem.graph.num_ops
    if share.max_seconds is not None and (
        share.max_seconds - problem.account.seconds < setup_seconds):
      self.ledger.skip(method.name, TOO_LITTLE_TIME)
      return
    units = placed_units(problem, problem.account.best_known, problem.num_groups)
    grouping = number_groups(units.unit_of_op, topological_rank(problem.graph))
    try:
      self._run(method.name, self._placer(method), share, problem.regrouped(grouping))
    except SetupError as error:  # the libraries of the policies are not installed; all else works
      self.ledger.skip(method.name, str(error))

  def _search(self, begin: np.ndarray, left: float) -> None:
    """Runs every search once, then gives slices to the one that does best.

    Args:
      begin: [N] where the policies began.
      left: about how many more placements there is budget for.
    """
    problem, budget = self._problem, self._budget
    searches = {method.name: method for method in registry.parts_of_auto(Stage.SEARCH)}
    gains: Dict[str, float] = {}
    for name, method in searches.items():
      if not self._over() and self._time_for_a_search():
        part = _part(method)
        own = {"start": begin} if part.anew is not None and left >= part.anew else {}
        gains[name] = self._run(
            name, self._placer(method, **own),
            budget if part.share is None else budget.share(problem.account, part.share))
    repeating = [name for name in gains if _part(searches[name]).repeats]
    for i in range(SLICES):
      if self._over() or not repeating or not self._time_for_a_search():
        break
      name = max(repeating, key=gains.__getitem__)
      before = problem.account.evaluations
      gains[name] = self._run(
          name, self._placer(searches[name]), budget.share(problem.account, 1 / (SLICES - i)),
          seed=self._seed + i + 1)
      if problem.account.evaluations == before:
        break  # no op can be moved

  def _time_for_a_search(self) -> bool:
    problem, limit = self._problem, self._budget.max_seconds
    return limit is None or (
        limit - problem.account.seconds > SETUP_SECONDS_AN_OP * problem.graph.num_ops)

  def _run(
      self, name: str, placer: Called, budget: Budget,
      problem: Optional[PlacementProblem] = None, seed: Optional[int] = None,
  ) -> float:
    return self.ledger.run(
        name, placer, budget, self._seed if seed is None else seed, problem)


def _part(method: Method) -> AutoPart:
  """The method's part; a method handed in without one gets all that is left."""
  return method.auto or AutoPart(Stage.POLICY)


def run_auto(
    problem: PlacementProblem, budget: Optional[Budget] = None, seed: int = 0, **options: Any
) -> np.ndarray:
  """[N] the best placement that all methods with a part in `auto` find together.

  Without a budget it ends after 60 s. `options` are those of `Auto`.
  """
  return Auto(problem, budget or DEFAULT_BUDGET, seed, **options).run()
