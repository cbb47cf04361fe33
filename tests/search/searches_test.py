"""Annealing and local search."""

import numba
import numpy as np
import pytest
from exact import prove

from placeto_tf.problem.budget import Budget
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.problem.supernodes import Supernodes, level_counts, placed_supernodes
from placeto_tf.search.annealing import anneal
from placeto_tf.search.local_search import descend, search_locally
from placeto_tf.search.moves import Moves, propose
from placeto_tf.search.simple import single

SEARCHES = [anneal, search_locally]


def _layered(make_problem, make_cluster, **fields):
  """Four columns of six ops; heavy within a column, light between them."""
  edges = [(op, op + 4) for op in range(20)]
  return make_problem([20.0] * 24, edges, [3000] * 24, cluster=make_cluster(4), **fields)


@pytest.mark.parametrize("search", SEARCHES)
def test_searches_find_the_optimum_of_parallel_chains(search, make_problem, make_cluster):
  problem = _layered(make_problem, make_cluster)
  search(problem, Budget(max_evaluations=3000), 0)
  assert problem.search_log.best_objective_us == 120  # each chain on its own device


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("seed", range(4))
def test_searches_are_never_worse_than_their_start(search, seed, random_problem):
  problem = random_problem(seed)
  single(problem)
  before = (not problem.search_log.best_fits, problem.search_log.best_objective_us)
  found = problem.evaluate_ops(search(problem, Budget(max_evaluations=60), seed))
  assert (not found.fits[0], found.objective_us[0]) <= before


@pytest.mark.parametrize("seed", range(6))
def test_annealing_ends_near_the_optimum_of_small_graphs(seed, random_problem):
  problem = random_problem(seed)
  ops = PlacementProblem(problem.graph, problem.costs, problem.cluster, problem.grouping)
  anneal(ops, Budget(max_evaluations=2000), seed)
  result = prove(problem, Budget(max_evaluations=200_000))
  assert result.proven
  # Ops can fit where no placement of whole groups does.
  assert (not ops.search_log.best_fits, ops.search_log.best_objective_us) <= (
      not problem.search_log.best_fits, result.objective_us * 1.1)


def test_annealing_begins_from_a_given_start(make_problem, make_cluster):
  problem, start = _layered(make_problem, make_cluster), np.arange(24, dtype=np.int32) // 3 % 4
  anneal(problem, Budget(max_evaluations=1), 0, start)
  assert problem.search_log.best_known.tolist() == start.tolist()


def test_descent_ends_where_no_single_move_improves(random_problem):
  problem = random_problem(8)
  placement, supernodes = single(problem), Supernodes(problem)
  found, objective_us = descend(
      problem, supernodes, placement, problem.search_log.best_objective_us,
      Budget(max_evaluations=10_000), np.random.default_rng(0))
  for supernode in supernodes.movable:
    for device in np.flatnonzero(supernodes.allowed[supernode]):
      moved = np.where(supernodes.supernode_of_op == supernode, device, found)
      assert problem.evaluate_ops(moved).objective_us[0] >= objective_us


@pytest.mark.parametrize("seed", range(6))
def test_supernodes_follow_a_placement_of_any_ops(seed, random_problem):
  problem = random_problem(seed)
  scores = np.random.default_rng(seed).random(problem.allowed_ops.shape)
  placement = np.where(problem.allowed_ops, scores, -1).argmax(axis=1)
  placement = placement[problem.graph.colocation].astype(np.int32)
  for count in level_counts(problem):
    supernodes = placed_supernodes(problem, placement, count)
    assert (np.array(supernodes.devices(placement))[supernodes.supernode_of_op] == placement).all()
    assert supernodes.allowed[np.arange(len(supernodes)), supernodes.devices(placement)].all()


@numba.njit
def _proposed(moves, rng, devices):
  """Only compiled code may call `propose`."""
  return propose(moves, rng, devices)


def test_moves_change_something_and_stay_allowed(random_problem):
  problem = random_problem(9)
  supernodes, rng = Supernodes(problem), np.random.default_rng(0)
  moves, devices = Moves.of(supernodes), problem.allowed.argmax(axis=1).astype(np.int32)
  sampled = []
  for _ in range(500):
    count = _proposed(moves, rng, devices)
    sampled.append(list(zip(moves.supernodes[:count].tolist(), moves.devices[:count].tolist())))
  assert sum(bool(move) for move in sampled) > 100
  for move in sampled:
    assert len(dict(move)) == len(move)
    for supernode, device in move:
      assert supernodes.allowed[supernode, device] and device != devices[supernode]
