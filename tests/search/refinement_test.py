import pytest

from placeto_tf.problem.budget import Budget
from placeto_tf.problem.units import Units
from placeto_tf.search.refinement import boundary_moves, refine


def _sets(problem):
  return Units(problem, problem.graph.colocation)


def test_only_what_exchanges_data_with_another_device_moves(make_problem):
  problem = make_problem([1.0] * 4, [(0, 1), (1, 2), (2, 3)], [10] * 4)
  moves = boundary_moves(_sets(problem), [0, 0, 1, 1])
  # Both ends of the cut edge, by themselves and with what hangs on them.
  assert moves == [((0, 1), 1), ((1,), 1), ((2,), 0), ((2, 3), 0)]


def test_nothing_moves_where_nothing_is_cut(make_problem):
  problem = make_problem([1.0] * 3, [(0, 1), (1, 2)], [10] * 3)
  assert boundary_moves(_sets(problem), [1, 1, 1]) == []


def test_no_move_leaves_the_allowed_devices(make_problem, make_cluster):
  problem = make_problem(
      [1.0] * 3, [(0, 1), (1, 2)], [10] * 3, cluster=make_cluster(1, host=True), host_ops=[1])
  assert all(1 not in members for members, _ in boundary_moves(_sets(problem), [0, 1, 0]))


def test_a_chain_follows_its_tensor_where_no_single_op_would(make_problem, make_cluster):
  # Op 1 alone on the other side would only shift the cut; ops 1 and 2 together remove it.
  problem = make_problem(
      [10.0, 10.0, 10.0], [(0, 1), (1, 2)], [1000, 1000, 0],
      cluster=make_cluster(2, bandwidth=10.0), max_groups=3)
  problem.evaluate_ops([0, 1, 1])
  assert problem.account.best_objective_us == 130  # 10, 100 for the transfer, 20
  refine(problem, Budget(max_evaluations=20), 0)
  assert problem.account.best_objective_us == 30


@pytest.mark.parametrize("seed", range(8))
def test_it_ends_where_no_boundary_move_improves(seed, random_problem):
  problem = random_problem(seed)
  problem.evaluate_ops(problem.grouping.expand(problem.allowed.argmax(axis=1)))
  found = refine(problem, Budget(max_evaluations=20_000), seed)
  best = problem.evaluate_ops(found)
  sets = _sets(problem)
  for members, device in boundary_moves(sets, sets.devices(found)):
    moved = found.copy()
    for s in members:
      moved[sets.ops[s]] = device
    result = problem.evaluate_ops(moved)
    assert result.objective_us[0] >= best.objective_us[0] or not result.fits[0]
