"""`auto`: every placer in turn, each going on from the best placement so far.

What runs, in this order, until the budget is used up or the bound is met:

1. Placements that need no search: the graph's own devices, one device, the expert split, METIS,
   and, as far as they are sure to leave most of the time to the rest, the expert split on fewer
   devices and list schedules.
2. `exact`, where there are few groups. If it proves that no placement of the groups is better and
   the groups cannot be split, the search is over.
3. The learned policies, which are handed in, from the best of these.
4. `annealing`, which gains most and gets most of the budget.
5. `refine`, op by op at the boundaries between devices, and `local_search`; what is left goes,
   slice by slice, to whichever of the searches gained most a slice the last time it ran.

With a limit on evaluations alone the shares are shares of evaluations, nothing depends on the
clock, and a seed gives the same placement again.

Legend: N ops, G groups.
"""

from __future__ import annotations

import dataclasses
from typing import Callable, Dict, Mapping, NamedTuple, Optional, Tuple

import numpy as np

from placeto_tf.errors import SetupError
from placeto_tf.grouping.contraction import number_groups, topological_rank
from placeto_tf.problem.candidates import best_so_far, compute_devices
from placeto_tf.problem.ledger import NO_BUDGET, Ledger, Placer
from placeto_tf.problem.placement_problem import Budget, PlacementProblem
from placeto_tf.problem.units import placed_units
from placeto_tf.search.annealing import annealing, share_of
from placeto_tf.search.baechi import m_etf, m_etf_links
from placeto_tf.search.exact import prove
from placeto_tf.search.expert import expert, expert_fewer
from placeto_tf.search.heft import heft, heft_links
from placeto_tf.search.local_search import local_search
from placeto_tf.search.lower_bounds import lower_bound_us
from placeto_tf.search.metis import metis, metis_groups
from placeto_tf.search.refinement import refine
from placeto_tf.search.simple import current, single
from placeto_tf.search.starts import in_time

BASELINES: Tuple[Tuple[str, Placer], ...] = (
    ("current", current), ("single", single), ("expert", expert), ("metis", metis))
SCHEDULES: Tuple[Tuple[str, Placer], ...] = (
    ("expert_fewer", expert_fewer), ("m_etf", m_etf), ("heft", heft),
    ("metis_groups", metis_groups),
    ("heft_links", heft_links), ("m_etf_links", m_etf_links))

# METIS makes many partitions; in small budgets it must not use up everything.
METIS_SHARES = {"metis": 0.3, "metis_groups": 0.15}
EXACT_GROUPS = 20  # more are rarely proven
EXACT_SHARE, EXACT_NODES = 0.4, 200_000
# In this order, each of what is left then.
SEARCH_SHARES = (("annealing", 0.9), ("refine", 0.5), ("local_search", 0.4))
SLICES = 4  # of what is left after that
# What it takes to make units to search with, generously; it makes no sense to begin in less.
SETUP_SECONDS_AN_OP = 1e-4


class Learned(NamedTuple):
  """A policy as a placer.

  Attributes:
    placer: is handed the problem in groups that its best placement so far keeps to.
    share: of what is left of the budget when its turn comes.
    setup_seconds: it gets nothing done in less, as it is imported and traced first.
    setup_seconds_an_op: the same, for each op of the graph.
  """

  placer: Placer
  share: float
  setup_seconds: float = 0.0
  setup_seconds_an_op: float = 0.0


class Auto:
  """One run of `auto`; see the module.

  Attributes:
    ledger: what each placer did.
    proven: whether the best placement is known to be optimal, by its bound or by `exact`.
  """

  def __init__(
      self,
      problem: PlacementProblem,
      budget: Budget,
      seed: int = 0,
      *,
      learned: Optional[Mapping[str, Learned]] = None,
      announce: Optional[Callable[[str], None]] = None,
  ):
    """Prepares a run.

    Args:
      problem: counts and remembers.
      budget: of all together, counted from the making of the problem.
      seed: of all.
      learned: policies by name, in the order in which they run.
      announce: called with the name of each placer before it runs.
    """
    self.proven = False
    self._problem, self._seed = problem, seed
    self._learned = dict(learned or {})
    self.ledger = Ledger(problem, announce)
    # Bounds are rounded down by a billionth, lest they exceed what they bound.
    self._optimum_us = lower_bound_us(problem) * (1 + 2e-9)
    self._budget = dataclasses.replace(
        budget, target_us=max(budget.target_us or 0.0, self._optimum_us))

  def run(self) -> np.ndarray:
    """[N] the best placement found."""
    problem, budget = self._problem, self._budget
    for name, placer in BASELINES:
      # Whoever reads the table wants to see these, whatever the bound says.
      part = dataclasses.replace(budget, target_us=None)
      self._run(name, placer, self._part(name, part))
    # Where no op has a choice there is one placement, and it is the best.
    self.proven = problem.best_fits and not (problem.allowed_ops.sum(axis=1) > 1).any()
    for name, placer in SCHEDULES:
      if self._over() or not in_time(problem, budget):
        break
      if placer is expert_fewer and len(compute_devices(problem)) < 3:
        continue  # there are no fewer to cut for
      self._run(name, placer, self._part(name, budget))
    if problem.num_groups <= EXACT_GROUPS and not self._over():
      self._run("exact", self._exact, share_of(problem, budget, EXACT_SHARE))
    for name, learned in self._learned.items():
      self._learn(name, learned)
    self._search()
    self.proven |= problem.best_fits and problem.best_objective_us <= self._optimum_us
    return best_so_far(problem, problem.best_placement)

  def _part(self, name: str, budget: Budget) -> Budget:
    share = METIS_SHARES.get(name)
    return budget if share is None else share_of(self._problem, budget, share)

  def _over(self) -> bool:
    return self.proven or self._problem.exhausted(self._budget)

  def _exact(self, problem: PlacementProblem, budget: Budget, seed: int) -> np.ndarray:
    result = prove(problem, budget, seed, max_nodes=EXACT_NODES if budget.max_seconds is None
                   else None)
    finest = problem.num_groups == len(np.unique(problem.graph.colocation))
    self.proven = result.proven and finest and problem.best_fits
    return best_so_far(problem, result.placement)

  def _learn(self, name: str, learned: Learned) -> None:
    """Runs a policy, unless it would not get anything done."""
    problem, budget = self._problem, self._budget
    part = share_of(problem, budget, learned.share)
    if self._over():
      used_up = problem.exhausted(dataclasses.replace(budget, target_us=None))
      self.ledger.skip(
          name, NO_BUDGET if used_up and not self.proven else "the optimum was found before")
      return
    setup_seconds = learned.setup_seconds + learned.setup_seconds_an_op * problem.graph.num_ops
    if part.max_seconds is not None and part.max_seconds - problem.seconds < setup_seconds:
      self.ledger.skip(name, "there was too little time")
      return
    units = placed_units(problem, problem.best_placement, problem.num_groups)
    grouping = number_groups(units.unit_of_op, topological_rank(problem.graph))
    try:
      self._run(name, learned.placer, part, problem.regrouped(grouping))
    except SetupError as error:  # what policies stand on is not installed: all else works
      self.ledger.skip(name, str(error))

  def _search(self) -> None:
    """Annealing, refinement, and slices for whoever does best."""
    problem, budget = self._problem, self._budget
    searches = {"annealing": annealing, "refine": refine, "local_search": local_search}
    gains: Dict[str, float] = {}
    for name, share in SEARCH_SHARES:
      if not self._over() and self._time_for_a_search():
        gains[name] = self._run(name, searches[name], share_of(problem, budget, share))
    for i in range(SLICES):
      if self._over() or not gains or not self._time_for_a_search():
        break
      # A descent that ended in a local optimum has nothing to do there again.
      name = max((name for name in gains if name != "refine"), key=gains.get)
      before = problem.evaluations
      part = share_of(problem, budget, 1 / (SLICES - i))
      gains[name] = self._run(name, searches[name], part, seed=self._seed + i + 1)
      if problem.evaluations == before:
        break  # nothing can be moved

  def _time_for_a_search(self) -> bool:
    problem, limit = self._problem, self._budget.max_seconds
    return limit is None or (
        limit - problem.seconds > SETUP_SECONDS_AN_OP * problem.graph.num_ops)

  def _run(
      self, name: str, placer: Placer, budget: Budget,
      problem: Optional[PlacementProblem] = None, seed: Optional[int] = None,
  ) -> float:
    return self.ledger.run(
        name, placer, budget, self._seed if seed is None else seed, problem)


def auto(
    problem: PlacementProblem, budget: Optional[Budget] = None, seed: int = 0) -> np.ndarray:
  """[N] the best placement that all placers that do not learn find together.

  Without a budget it ends after 60 s.
  """
  return Auto(problem, budget or Budget(max_seconds=60.0), seed).run()
