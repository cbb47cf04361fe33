"""What every placer promises."""

import numpy as np
import pytest

from placeto_tf.problem.budget import Budget
from placeto_tf.search import PLACERS


def _check_placement(problem, placement):
  assert placement.shape == (problem.graph.num_ops,) and placement.dtype == np.int32
  assert problem.allowed_ops[np.arange(problem.graph.num_ops), placement].all()
  assert (placement == placement[problem.graph.colocation]).all()


@pytest.mark.parametrize("method", sorted(PLACERS))
@pytest.mark.parametrize("seed", range(5))
def test_placements_keep_colocation_and_allowed_devices(method, seed, random_problem):
  problem = random_problem(seed)
  _check_placement(problem, PLACERS[method](problem, Budget(max_evaluations=60), seed))
  assert 1 <= problem.search_log.evaluations <= 60


@pytest.mark.parametrize("method", sorted(PLACERS))
def test_a_seed_gives_the_same_placement_again(method, random_problem):
  found = [PLACERS[method](random_problem(3), Budget(max_evaluations=50), 7) for _ in range(2)]
  assert (found[0] == found[1]).all()


@pytest.mark.parametrize("method", sorted(PLACERS))
def test_the_returned_placement_is_the_best_that_was_evaluated(method, random_problem):
  problem = random_problem(5)
  placement = PLACERS[method](problem, Budget(max_evaluations=50), 0)
  best = problem.search_log.best_objective_us
  assert problem.evaluate_ops(placement).objective_us[0] == best


# One op on one device; more devices than ops; ops without edges.
@pytest.mark.parametrize("method", sorted(PLACERS))
@pytest.mark.parametrize("compute_us, edges, devices", [
    ([5.0], [], 1), ([5.0, 4.0], [(0, 1)], 5), ([5.0] * 6, [], 2)])
def test_the_smallest_graphs_are_placed(
    compute_us, edges, devices, method, make_problem, make_cluster):
  problem = make_problem(compute_us, edges, [10] * len(compute_us), cluster=make_cluster(devices))
  _check_placement(problem, PLACERS[method](problem, Budget(max_evaluations=20), 0))


@pytest.mark.parametrize("method", sorted(PLACERS))
def test_a_graph_that_fits_nowhere_still_gets_a_placement(method, make_problem, make_cluster):
  problem = make_problem(
      [5.0] * 4, [(0, 1)], persistent_bytes=[100] * 4, cluster=make_cluster(2, memory=10))
  _check_placement(problem, PLACERS[method](problem, Budget(max_evaluations=20), 0))
  assert not problem.search_log.best_fits


@pytest.mark.parametrize("method", sorted(PLACERS))
def test_a_budget_that_is_used_up_evaluates_nothing_more(method, random_problem):
  problem = random_problem(1)
  PLACERS["single"](problem, Budget(max_evaluations=1))
  _check_placement(problem, PLACERS[method](problem, Budget(max_evaluations=1), 0))
  assert problem.search_log.evaluations == 1


@pytest.mark.usefixtures("clock_of_looks")
@pytest.mark.parametrize("method", sorted(PLACERS))
def test_seconds_end_a_search(method, random_problem):
  problem = random_problem(2)
  PLACERS[method](problem, Budget(max_seconds=0.3), 0)
  assert problem.search_log.seconds < 3
