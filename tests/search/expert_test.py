import numpy as np
import pytest

from placeto_tf.problem.budget import Budget
from placeto_tf.search.expert import balanced_cuts, split_by_depth, split_fewer


@pytest.mark.parametrize("weight, shares, cuts", [
    ([1, 1, 1, 1], [0.5, 0.5], [2]),
    ([3, 1, 1, 1], [0.5, 0.5], [1]),
    ([1, 1, 1, 3], [0.5, 0.5], [3]),
    ([1, 1, 1, 1], [0.75, 0.25], [3]),
    ([2, 2, 2], [0.25] * 4, [1, 2, 3]),
    ([5], [0.5, 0.5], [1]),
    ([0, 0], [0.5, 0.5], [2]),
])
def test_cuts_balance_the_pieces(weight, shares, cuts):
  assert balanced_cuts(np.array(weight, float), np.array(shares)).tolist() == cuts


def test_the_heaviest_piece_is_as_light_as_any_cuts_make_it():
  rng = np.random.default_rng(0)
  for _ in range(50):
    weight = rng.integers(0, 9, rng.integers(2, 9)).astype(float)
    first, second = balanced_cuts(weight, np.full(3, 1 / 3))
    found = max(weight[:first].sum(), weight[first:second].sum(), weight[second:].sum())
    best = min(
        max(weight[:a].sum(), weight[a:b].sum(), weight[b:].sum())
        for a in range(len(weight) + 1) for b in range(a, len(weight) + 1))
    assert found == pytest.approx(best)


def test_a_chain_is_cut_once(make_problem):
  problem = make_problem([1.0] * 6, [(i, i + 1) for i in range(5)])
  assert split_by_depth(problem).tolist() == [0, 0, 0, 1, 1, 1]


def test_forward_and_backward_of_a_layer_stay_together(make_problem):
  names = ["a", "b", "gradients/b_grad/B", "gradients/a_grad/A"]
  problem = make_problem([1.0] * 4, [(0, 1), (1, 2), (2, 3)], op_names=names)
  assert split_by_depth(problem).tolist() == [0, 1, 1, 0]


def test_the_host_gets_no_layers(make_problem, make_cluster):
  problem = make_problem(
      [1.0] * 5, [(i, i + 1) for i in range(4)], cluster=make_cluster(2, host=True), host_ops=[0])
  assert split_by_depth(problem).tolist() == [2, 0, 0, 1, 1]


def test_a_faster_device_gets_more_layers(make_problem, make_cluster):
  problem = make_problem(
      [[1.0, 3.0]] * 8, [(i, i + 1) for i in range(7)], cluster=make_cluster(2, speeds=[0, 1]))
  assert np.bincount(split_by_depth(problem)).tolist() == [6, 2]


def test_fewer_devices_are_better_where_links_are_slow(make_problem, make_cluster):
  # A chain: every cut only adds a transfer.
  problem = make_problem(
      [1.0] * 6, [(i, i + 1) for i in range(5)], cluster=make_cluster(4))
  evaluated = []
  problem.simulator.simulate_many, simulate = (
      lambda placements, **options: evaluated.append(placements) or simulate(placements, **options),
      problem.simulator.simulate_many)
  placement = split_fewer(problem)
  assert [len(set(each.tolist())) for each in np.concatenate(evaluated)] == [2, 3]
  assert placement.tolist() == [0, 0, 0, 1, 1, 1]


def test_the_fastest_devices_are_those_that_stay(make_problem, make_cluster):
  cluster = make_cluster(3, speeds=[0, 1, 1])
  problem = make_problem(
      np.array([[8.0, 4.0]] * 4), [(0, 1), (1, 2), (2, 3)], cluster=cluster)
  assert split_fewer(problem).tolist() == [1, 1, 2, 2]


def test_of_two_devices_none_is_left_out(make_problem):
  problem = make_problem([1.0] * 4, [(0, 1), (2, 3)])
  assert split_fewer(problem).tolist() == split_by_depth(problem).tolist()
  assert split_fewer(problem, Budget(max_evaluations=3)).shape == (4,)
