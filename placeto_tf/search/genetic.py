"""A genetic algorithm on groups.

The biased random-key genetic algorithm (Gonçalves and Resende 2011), with devices as genes in
place of keys: each generation keeps an elite, adds a few newcomers, and fills up with children of
an elite parent and another one that inherit each gene from the elite parent with a probability
above one half. Three changes for placements: children inherit neighbouring groups together, because
it matters which groups share a device; every child makes some of the moves that annealing
makes; and evolution may begin with a few large units and go on with smaller ones, each level from a
population around the best placement so far.

Legend: U units, P population, D devices.
"""

from __future__ import annotations

import dataclasses
from typing import Optional, Tuple

import numpy as np

from placeto_tf.errors import PlacementError
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.candidates import best_so_far
from placeto_tf.problem.method import Kind, Method, plain
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.problem.units import COARSE_TO_FINE, Units, placed_units
from placeto_tf.search.islands import ALONE, Island
from placeto_tf.search.moves import MoveConfig, Moves, propose
from placeto_tf.search.random_streams import between, pick, stream
from placeto_tf.search.starts import best_start
from placeto_tf.simulation.compiling import compiled

DEFAULT_BUDGET = Budget(max_evaluations=10_000)
EXCHANGE = 8  # generations between two exchanges of islands


@dataclasses.dataclass(frozen=True)
class GeneticConfig:
  """How the population evolves; docs/results/rivals_tuned.md lists what was tried.

  Attributes:
    levels: (units over the number of groups, share of the budget), coarse to fine; a factor of 1
      means the problem's groups if the start gives each group one device.
    population: P.
    elite, newcomers: shares of the population that a generation keeps, and that it draws new.
    inherit: probability of the elite parent's gene.
    linked: probability that a unit inherits from the same parent as one of its neighbours.
    first_moves: the most moves from the start to a member of the first population; newcomers are at
      most twice as far away.
    mutations: moves of a child.
    moves: the kinds of move in all of these.
  """

  levels: Tuple[Tuple[float, float], ...] = COARSE_TO_FINE
  population: int = 24
  elite: float = 0.1
  newcomers: float = 0.1
  inherit: float = 0.8
  linked: float = 0.7
  first_moves: int = 12
  mutations: int = 1
  moves: MoveConfig = MoveConfig()

  def __post_init__(self) -> None:
    if int(self.population * self.elite) < 1 or self.elite + self.newcomers >= 1:
      raise PlacementError(
          f"population is {self.population}, elite {self.elite}, newcomers {self.newcomers}; "
          "expected an elite of one at least, and room for children")
    if not self.levels or self.first_moves < 1:
      raise PlacementError(
          f"levels is {self.levels}, first_moves {self.first_moves}; expected one of each at least")


def evolve(
    problem: PlacementProblem, budget: Optional[Budget] = None, seed: int = 0, *,
    config: GeneticConfig = GeneticConfig(), island: Island = ALONE) -> np.ndarray:
  """[N] the best placement that evolves from the best simple one within the budget."""
  budget = budget or DEFAULT_BUDGET
  rng = stream(seed)
  best, best_us = best_start(problem, budget, seed)
  finest = max(problem.num_groups, len(np.unique(problem.graph.colocation)))
  for i, (factor, share) in enumerate(config.levels):
    if problem.account.exhausted(budget):
      break
    count = min(max(int(problem.num_groups * factor), problem.num_devices), finest)
    units = placed_units(problem, best, count)
    if units.movable:
      part = budget.share(problem.account, share / sum(later for _, later in config.levels[i:]))
      best, best_us = _generations(problem, units, best, best_us, part, rng, config, island)
  return best_so_far(problem, best)


def _generations(
    problem: PlacementProblem, units: Units, best: np.ndarray, best_us: float, budget: Budget,
    rng: np.random.Generator, config: GeneticConfig, island: Island) -> Tuple[np.ndarray, float]:
  """The best placement [N], and its objective, of generations around a placement [N] of units."""
  moves = Moves.of(units, config.moves)
  origin = np.array(units.devices(best), dtype=np.int32)
  size = config.population
  elite, newcomers = int(size * config.elite), int(size * config.newcomers)
  population = np.repeat(origin[None], size, axis=0)
  _scatter(moves, rng, population[1:], config.first_moves)
  scores, generation = np.zeros(0), 0
  while not problem.account.exhausted(budget):
    left = problem.account.remaining_evaluations(budget)
    fresh = population[len(scores):][:left]
    placements = units.expand(fresh)
    found_us = problem.evaluate_ops(placements).objective_us
    if found_us.min() < best_us:
      best, best_us = placements[int(found_us.argmin())], float(found_us.min())
    scores = np.concatenate([scores, found_us])
    order = np.argsort(scores, kind="stable")
    parents, scores = population[:len(scores)][order], scores[order[:elite]]
    population = np.repeat(origin[None], size, axis=0)
    population[:len(scores)] = parents[:elite]
    first_child = len(scores) + newcomers
    _scatter(moves, rng, population[len(scores):first_child], 2 * config.first_moves)
    generation += 1
    if generation % EXCHANGE == 0:
      immigrant, _ = island.exchange(best, best_us)
      if immigrant is not best:
        population[len(scores)] = units.project(problem, immigrant)
    _breed(moves, rng, parents, population[first_child:], min(elite, len(parents)),
           config.inherit, config.linked, config.mutations)
  return best, best_us


@compiled(nogil=True)
def _scatter(moves, rng, rows, most):
  """Makes 1 to `most` moves in each row, [P, U] int32."""
  for i in range(rows.shape[0]):
    _mutate(moves, rng, rows[i], between(rng, 1, most))


@compiled(nogil=True)
def _mutate(moves, rng, devices, count):
  """Makes some moves in units' devices [U]."""
  for _ in range(count):
    for k in range(propose(moves, rng, devices)):
      devices[moves.units[k]] = moves.devices[k]


@compiled(nogil=True)
def _breed(moves, rng, parents, children, elite, inherit, linked, mutations):
  """Fills children [P, U] from parents [Q, U], of which the first are the elite.

  A child gets most groups from the same parent as a neighbour does.
  """
  t = moves.tables
  units = parents.shape[1]
  source = np.empty(units, np.int8)  # -1 not known, 1 the elite parent, 0 the other
  for i in range(children.shape[0]):
    first, second = pick(rng, elite), pick(rng, parents.shape[0])
    source[:] = -1
    for unit in range(units):
      begin, end = t.neighbour_offsets[unit], t.neighbour_offsets[unit + 1]
      near = t.neighbours[begin + pick(rng, end - begin)] if end > begin else unit
      known = source[near]
      if known < 0 or rng.random() >= linked:
        known = 1 if rng.random() < inherit else 0
      source[unit] = known
      children[i, unit] = parents[first if known else second, unit]
    _mutate(moves, rng, children[i], mutations)


METHODS = (Method("genetic", Kind.SEARCH, plain(evolve), rank=4, islands=True),)
