"""Placements by hand, on one device, as they are, and at random."""

import dataclasses

import numpy as np
import pytest

from placeto_tf.problem.budget import Budget
from placeto_tf.search.expert import balanced_pieces, place_by_hand
from placeto_tf.search.simple import current, random, single


@pytest.mark.parametrize("weight, shares, pieces", [
    ([3, 1, 1, 1], [0.5, 0.5], [0, 1, 1, 1]), ([1, 1, 1, 1], [0.75, 0.25], [0, 0, 0, 1]),
    ([2, 2, 2], [0.25] * 4, [0, 1, 2]), ([0, 0], [0.5, 0.5], [0, 0]),
])
def test_boundaries_balance_the_pieces(weight, shares, pieces):
  assert balanced_pieces(np.array(weight, float), np.array(shares)).tolist() == pieces


def test_the_heaviest_piece_is_as_light_as_any_cuts_make_it():
  rng = np.random.default_rng(0)
  for _ in range(50):
    weight = rng.integers(0, 9, rng.integers(2, 9)).astype(float)
    found = np.bincount(balanced_pieces(weight, np.full(3, 1 / 3)), weight).max()
    best = min(
        max(weight[:a].sum(), weight[a:b].sum(), weight[b:].sum())
        for a in range(len(weight) + 1) for b in range(a, len(weight) + 1))
    assert found == pytest.approx(best)


def test_with_little_memory_a_split_that_fits_is_tried_first(make_problem, make_cluster):
  # A chain of ten ops, of which the first five hold 50 bytes each and the last five 10 each: by
  # work the pieces would be equally long, by memory three ops are on the first device.
  problem = make_problem(
      [1.0] * 10, [(i, i + 1) for i in range(9)], [0] * 10,
      persistent_bytes=[50] * 5 + [10] * 5, cluster=make_cluster(2, memory=160))
  found = place_by_hand(problem, Budget(max_evaluations=1))
  assert found.tolist() == [0] * 3 + [1] * 7 and problem.search_log.best_fits


def _tried(problem):
  """The placements that were evaluated, as sets of texts, and the best."""
  tried = []
  problem.simulator.simulate_many, simulate = (
      lambda placements, **options: tried.append(placements) or simulate(placements, **options),
      problem.simulator.simulate_many)
  best = place_by_hand(problem)
  return {"".join(map(str, row)) for row in np.concatenate(tried).tolist()}, "".join(map(str, best))


def test_a_chain_is_cut_for_every_number_of_devices_and_best_left_whole(make_problem, make_cluster):
  problem = make_problem(
      [1.0] * 6, [(i, i + 1) for i in range(5)], [100] * 6, cluster=make_cluster(3))
  assert _tried(problem) == ({"000000", "000111", "001122"}, "000000")


def test_forward_and_backward_of_a_layer_stay_together(make_problem):
  names = ["a", "b", "gradients/b_grad/B", "gradients/a_grad/A"]
  problem = make_problem([1.0] * 4, [(0, 1), (1, 2), (2, 3)], op_names=names)
  assert _tried(problem)[0] == {"0000", "0110"}


def test_a_faster_device_gets_more_layers(make_problem, make_cluster):
  problem = make_problem(
      [[1.0, 3.0]] * 8, [(i, i + 1) for i in range(7)], cluster=make_cluster(2, speeds=[0, 1]))
  assert _tried(problem)[0] == {"00000000", "00000011"}


def test_branches_lie_side_by_side_and_the_stem_on_one_device(make_problem):
  # stem 0, branches 1-2, 3 and 4, stem 5, branches 6 and 7, stem 8.
  edges = [(0, 1), (1, 2), (0, 3), (0, 4), (2, 5), (3, 5), (4, 5), (5, 6), (5, 7), (6, 8), (7, 8)]
  tried, best = _tried(make_problem([1.0, 30.0, 30.0, 50.0, 20.0, 1.0, 40.0, 40.0, 1.0], edges))
  assert best == "000110010"
  assert best in tried


def test_recurrent_layers_are_shared_out_whatever_else_weighs(make_problem, make_cluster):
  # Two layers of four steps, step after step, and a softmax that takes as long as both.
  types = ["MatMul"] * 8 + ["Softmax"]
  names = [f"layer_{i % 2}/step_{i // 2}" for i in range(8)] + ["softmax"]
  edges = [(i, i + 1) for i in range(0, 8, 2)] + [(i, i + 2) for i in range(6)] + [(7, 8)]
  colocation = np.array([i % 2 for i in range(8)] + [2])
  problem = make_problem(
      [1.0] * 8 + [8.0], edges, op_types=types, op_names=names, colocation=colocation)
  assert "010101011" in _tried(problem)[0]


def test_current_takes_the_first_device_for_one_the_cluster_lacks(make_problem):
  assert current(make_problem([1.0] * 2, assigned_devices=("/GPU:7", "/GPU:1"))).tolist() == [0, 1]


def test_current_is_on_the_host_where_the_graph_is_and_counts_no_pins(make_problem, make_cluster):
  problem = make_problem(
      [[1.0, 50.0]] * 3, [(0, 1), (1, 2)], cluster=make_cluster(2, host=True),
      assigned_devices=("/CPU:0", "", "/GPU:1"))
  pinned = problem.allowed_ops.copy()
  pinned[2] = [True, False, False]
  problem = dataclasses.replace(problem, allowed_ops=pinned)
  assert current(problem).tolist() == [2, 0, 1]
  assert problem.search_log.best_known.tolist() == [2, 0, 0]


def test_colocated_ops_follow_the_one_that_has_a_device(make_problem):
  problem = make_problem(
      [1.0] * 2, assigned_devices=("", "/GPU:1"), colocation=np.array([0, 0], np.int32))
  assert current(problem).tolist() == [1, 1]


def test_single_takes_the_faster_kind(make_problem, make_cluster):
  problem = make_problem([[30.0, 10.0]] * 2, [(0, 1)], cluster=make_cluster(2, speeds=[0, 1]))
  assert single(problem).tolist() == [1, 1]
  assert problem.search_log.evaluations == 2


def test_random_uses_its_evaluations_and_every_device(make_problem):
  problem = make_problem([1.0] * 12)
  placement = random(problem, Budget(max_evaluations=100), 0)
  assert problem.search_log.evaluations == 100
  assert sorted(np.bincount(placement).tolist()) == [6, 6]  # the best of 100 is balanced
