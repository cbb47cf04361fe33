"""A genetic algorithm on groups.

The biased random-key genetic algorithm (Gonçalves and Resende 2011), with devices as genes in
place of keys: each generation keeps an elite, adds a few newcomers, and fills up with children of
an elite parent and another one that inherit each gene from the elite parent with probability 0.7.
Two changes for placements: children inherit neighbouring groups together, because what counts is
which groups share a device, and every child makes one of the moves that annealing makes.

Legend: G groups, P population, D devices.
"""

from __future__ import annotations

import random
from typing import List, Optional

import numpy as np

from placeto_tf.problem.budget import Budget
from placeto_tf.problem.candidates import best_so_far
from placeto_tf.problem.method import Kind, Method, plain
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.problem.units import Units, placed_units
from placeto_tf.search.moves import Moves
from placeto_tf.search.starts import best_start

DEFAULT_BUDGET = Budget(max_evaluations=10_000)
POPULATION = 48
ELITE, NEWCOMERS = 0.2, 0.1  # shares of the population
INHERIT = 0.7  # probability of the elite parent's gene
_FIRST_MOVES = 12  # at most so many moves lie between the start and the first population


def evolve(
    problem: PlacementProblem, budget: Optional[Budget] = None, seed: int = 0) -> np.ndarray:
  """[N] the best placement that evolves from the best simple one within the budget.

  The groups are the problem's if the start keeps to them, else as many made from it.
  """
  budget = budget or DEFAULT_BUDGET
  rng = random.Random(seed)
  best, _ = best_start(problem, budget, seed)
  units = placed_units(problem, best, problem.num_groups)
  if not units.movable:
    return best
  moves = Moves(units, rng)
  origin = units.devices(best)
  population = [list(origin)] + [
      _moved(origin, moves, rng.randint(1, _FIRST_MOVES)) for _ in range(POPULATION - 1)]
  scores: List[float] = []
  elite, newcomers = int(POPULATION * ELITE), int(POPULATION * NEWCOMERS)
  while not problem.exhausted(budget):
    fresh = population[len(scores):]
    left = problem.remaining_evaluations(budget)
    fresh = fresh if left is None else fresh[:left]
    placements = units.expand(np.array(fresh, dtype=np.int32))
    found_us = problem.evaluate_ops(placements).objective_us
    population = population[:len(scores)] + fresh
    scores = scores + found_us.tolist()
    order = sorted(range(len(scores)), key=scores.__getitem__)
    parents = [population[i] for i in order]
    scores = [scores[i] for i in order[:elite]]
    population = parents[:elite]
    population += [
        _moved(origin, moves, rng.randint(1, 2 * _FIRST_MOVES)) for _ in range(newcomers)]
    while len(population) < POPULATION:
      first = parents[int(rng.random() * min(elite, len(parents)))]
      second = parents[int(rng.random() * len(parents))]
      population.append(_moved(_cross(first, second, units, rng), moves, 1))
  return best_so_far(problem, best)


def _moved(devices: List[int], moves: Moves, count: int) -> List[int]:
  """A copy after some random moves."""
  devices = list(devices)
  for _ in range(count):
    for unit, device in moves.propose(devices):
      devices[unit] = device
  return devices


def _cross(first: List[int], second: List[int], units: Units, rng: random.Random) -> List[int]:
  """A child of two placements that gets most groups from the same parent as a neighbour does."""
  child: List[int] = [-1] * len(first)
  source: List[Optional[bool]] = [None] * len(first)
  for unit in range(len(first)):
    neighbours = units.neighbours[unit]
    near = neighbours[int(rng.random() * len(neighbours))] if neighbours else unit
    known = source[near]
    if known is None or rng.random() < 0.3:
      known = rng.random() < INHERIT
    source[unit] = known
    child[unit] = first[unit] if known else second[unit]
  return child


METHODS = (Method("genetic", Kind.SEARCH, plain(evolve), rank=4),)
