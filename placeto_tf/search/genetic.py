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
import random
from typing import List, Optional, Tuple

import numpy as np

from placeto_tf.errors import PlacementError
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.candidates import best_so_far
from placeto_tf.problem.method import Kind, Method, plain
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.problem.units import Units, placed_units
from placeto_tf.search.moves import MoveConfig, Moves
from placeto_tf.search.starts import best_start

DEFAULT_BUDGET = Budget(max_evaluations=10_000)


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

  levels: Tuple[Tuple[float, float], ...] = ((1.0, 1.0),)
  population: int = 48
  elite: float = 0.2
  newcomers: float = 0.1
  inherit: float = 0.7
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
    config: GeneticConfig = GeneticConfig()) -> np.ndarray:
  """[N] the best placement that evolves from the best simple one within the budget."""
  budget = budget or DEFAULT_BUDGET
  rng = random.Random(seed)
  best, best_us = best_start(problem, budget, seed)
  finest = max(problem.num_groups, len(np.unique(problem.graph.colocation)))
  for i, (factor, share) in enumerate(config.levels):
    if problem.exhausted(budget):
      break
    count = min(max(int(problem.num_groups * factor), problem.num_devices), finest)
    units = placed_units(problem, best, count)
    if units.movable:
      part = budget.share(problem, share / sum(later for _, later in config.levels[i:]))
      best, best_us = _generations(problem, units, best, best_us, part, rng, config)
  return best_so_far(problem, best)


def _generations(
    problem: PlacementProblem, units: Units, best: np.ndarray, best_us: float, budget: Budget,
    rng: random.Random, config: GeneticConfig) -> Tuple[np.ndarray, float]:
  """The best placement [N], and its objective, of generations around a placement [N] of units."""
  moves = Moves(units, rng, config.moves)
  origin = units.devices(best)
  size = config.population
  population = [list(origin)] + [
      _moved(origin, moves, rng.randint(1, config.first_moves)) for _ in range(size - 1)]
  scores: List[float] = []
  elite, newcomers = int(size * config.elite), int(size * config.newcomers)
  while not problem.exhausted(budget):
    fresh = population[len(scores):]
    left = problem.remaining_evaluations(budget)
    fresh = fresh if left is None else fresh[:left]
    placements = units.expand(np.array(fresh, dtype=np.int32))
    found_us = problem.evaluate_ops(placements).objective_us
    if found_us.min() < best_us:
      best, best_us = placements[int(found_us.argmin())], float(found_us.min())
    population = population[:len(scores)] + fresh
    scores = scores + found_us.tolist()
    order = sorted(range(len(scores)), key=scores.__getitem__)
    parents = [population[i] for i in order]
    scores = [scores[i] for i in order[:elite]]
    population = parents[:elite]
    population += [
        _moved(origin, moves, rng.randint(1, 2 * config.first_moves)) for _ in range(newcomers)]
    while len(population) < size:
      first = parents[int(rng.random() * min(elite, len(parents)))]
      second = parents[int(rng.random() * len(parents))]
      child = _cross(first, second, units, rng, config)
      population.append(_moved(child, moves, config.mutations))
  return best, best_us


def _moved(devices: List[int], moves: Moves, count: int) -> List[int]:
  """A copy after some random moves."""
  devices = list(devices)
  for _ in range(count):
    for unit, device in moves.propose(devices):
      devices[unit] = device
  return devices


def _cross(
    first: List[int], second: List[int], units: Units, rng: random.Random, config: GeneticConfig
) -> List[int]:
  """A child of two placements that gets most groups from the same parent as a neighbour does."""
  child: List[int] = [-1] * len(first)
  source: List[Optional[bool]] = [None] * len(first)
  for unit in range(len(first)):
    neighbours = units.neighbours[unit]
    near = neighbours[int(rng.random() * len(neighbours))] if neighbours else unit
    known = source[near]
    if known is None or rng.random() >= config.linked:
      known = rng.random() < config.inherit
    source[unit] = known
    child[unit] = first[unit] if known else second[unit]
  return child


METHODS = (Method("genetic", Kind.SEARCH, plain(evolve), rank=4),)
