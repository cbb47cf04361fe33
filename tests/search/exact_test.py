import itertools

import numpy as np
import pytest
from exact import prove
from partial_bounds import PartialBounds

from placeto_tf.problem.budget import Budget


def _all_objectives(problem):
  """(bytes over memory, objective) of every placement of the groups."""
  choices = [np.flatnonzero(row) for row in problem.allowed]
  every = np.array(list(itertools.product(*choices)), dtype=np.int32)
  found = problem.evaluate(every)
  return every, np.stack([found.excess_bytes, found.objective_us], axis=1)


@pytest.mark.parametrize("seed", range(16))
def test_the_optimum_is_what_trying_everything_finds(seed, random_problem):
  problem = random_problem(seed)
  if problem.num_devices ** problem.num_groups > 70_000:
    pytest.skip("too many placements to try")
  result = prove(problem, Budget(max_evaluations=100_000))
  _, objectives = _all_objectives(problem)
  assert result.proven
  excess_bytes = problem.evaluate_ops(result.placement).excess_bytes[0]
  assert [excess_bytes, result.objective_us] == min(objectives.tolist())
  assert result.lower_bound_us == result.objective_us
  assert problem.evaluate_ops(result.placement).objective_us[0] == result.objective_us


def test_a_placement_that_fits_is_better_than_a_faster_one_that_does_not(
    make_problem, make_cluster):
  # Together the two take 2 us, but one device holds only one of them; the transfer takes 50 us.
  problem = make_problem(
      [1.0, 1.0], [(0, 1)], [5000, 0], persistent_bytes=[60000, 60000],
      cluster=make_cluster(2, memory=70000))
  result = prove(problem, Budget(max_evaluations=1000))
  assert result.proven and result.objective_us == 52
  assert result.placement[0] != result.placement[1]


def test_without_the_budget_to_prove_it_gives_a_bound_and_says_so(make_problem, make_cluster):
  rng = np.random.default_rng(0)
  edges = [(u, v) for v in range(1, 30) for u in range(v) if rng.random() < 0.1]
  problem = make_problem(
      rng.integers(1, 50, 30), edges, rng.integers(0, 3000, 30), cluster=make_cluster(3))
  result = prove(problem, Budget(max_evaluations=500))
  assert not result.proven
  assert result.lower_bound_us < result.objective_us
  assert problem.search_log.evaluations <= 500


@pytest.mark.parametrize("seed", range(12))
def test_no_completion_is_below_the_bound_of_a_partial_placement(seed, random_problem):
  problem = random_problem(seed)
  rng = np.random.default_rng(seed)
  bounds = PartialBounds(problem)
  scores = rng.random((50, problem.num_groups, problem.num_devices))
  complete = np.where(problem.allowed, scores, -1).argmax(axis=2).astype(np.int32)
  step_us = problem.evaluate(complete).step_time_us
  for hidden in (0.0, 0.5, 1.0):
    partial = np.where(rng.random(complete.shape) < hidden, -1, complete)
    assert (bounds.lower_us(partial) <= step_us).all()
