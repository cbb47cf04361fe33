import numpy as np

from placeto_tf.costs.op_costs import OpCosts
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.policies.baselines import op_features

# a -> b -> c, a -> c; d stands alone. Groups: {a, d}, {b}, {c}.
GRAPH = ComputationGraph.from_edges(
    ["a", "b", "c", "d"], ["Conv", "Add", "Conv", "Conv"], [2, 1, 0, 1],
    [(0, 0, 1), (0, 1, 2), (1, 0, 2)])
COSTS = OpCosts(np.ones((4, 1)), np.array([10.0, 1000.0, 50.0, 100.0]), np.zeros(4), np.zeros(4))
GROUPS = np.array([0, 1, 2, 0], dtype=np.int32)
EDGES = np.array([[0, 0, 1], [1, 2, 2]])  # of groups: sources, targets


def test_types_are_counted_in_alphabetical_order():
  assert op_features.type_counts(GRAPH, GROUPS, 3).tolist() == [[0, 2], [1, 0], [0, 1]]


def test_the_largest_outputs_come_first_and_the_rest_is_padding():
  sizes = op_features.output_sizes(GRAPH, COSTS, GROUPS, 3, 2)
  np.testing.assert_allclose(sizes, np.log1p([[1000, 100], [50, 0], [0, 0]]) / 20, rtol=1e-6)
  np.testing.assert_allclose(
      op_features.output_sizes(GRAPH, COSTS, GROUPS, 3, 4)[0], np.log1p([1000, 100, 10, 0]) / 20,
      rtol=1e-6)


def test_edges_stand_in_the_adjacency_both_ways():
  assert op_features.adjacency(*EDGES, 3).tolist() == [
      [0, 0, 0, 0, 1, 1], [1, 0, 0, 0, 0, 1], [1, 1, 0, 0, 0, 0]]


def test_neighbours_are_numbers_over_all_and_minus_one_is_none():
  np.testing.assert_allclose(
      op_features.neighbours(*EDGES, 3, 2),
      [[-1, -1, 1 / 3, 2 / 3], [0, -1, 2 / 3, -1], [0, 1 / 3, -1, -1]], rtol=1e-6)
  np.testing.assert_allclose(  # the first ones, where there are more
      op_features.neighbours(*EDGES, 3, 1)[2], [0, -1])


def test_standardized_features_have_mean_0_and_deviation_1_and_constants_say_nothing():
  found = op_features.standardized(np.array([[1.0, 5.0], [3.0, 5.0]]))
  np.testing.assert_allclose(found, [[-1, 0], [1, 0]])


def test_the_walk_goes_down_one_branch_after_the_other():
  # 0 -> 1 -> 2 -> 6, 0 -> 3 -> 4 -> 6, and 5, which nothing reads.
  edges = np.array([(0, 1), (1, 2), (2, 6), (0, 3), (3, 4), (4, 6)])
  number = op_features.walk_numbers(edges[:, 0], edges[:, 1], 7)
  assert sorted(number) == list(range(7))
  for branch in ([1, 2], [3, 4]):
    assert abs(number[branch[0]] - number[branch[1]]) == 1
  assert sorted(op_features.walk_numbers(np.array([0, 1]), np.array([1, 0]), 3)) == [0, 1, 2]


def test_waves_tell_near_numbers_apart_and_close_the_circle():
  found = op_features.waves(np.array([0.0, 0.25, 1.0]))
  np.testing.assert_allclose(found[0], found[2], atol=1e-5)
  np.testing.assert_allclose(found[1, [0, 6]], [1.0, 0.0], atol=1e-6)


def test_shares_before_count_half_of_a_groups_own_weight():
  # In the order of their numbers the weights are 2, 4, 2 of 8.
  found = op_features.shares_before(np.array([2, 0, 1]), np.array([2.0, 2.0, 4.0]))
  np.testing.assert_allclose(found, [7 / 8, 1 / 8, 4 / 8])
