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
