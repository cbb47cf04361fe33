import numpy as np
import pytest

from placeto_tf.graphs import traversal


def random_edges(num_ops, num_edges, seed):
  """Edges from lower to higher numbers, so that there is no cycle."""
  ends = np.sort(np.random.default_rng(seed).integers(0, num_ops, (num_edges, 2)), axis=1)
  ends = ends[ends[:, 0] < ends[:, 1]]
  return ends[:, 0], ends[:, 1]


@pytest.mark.parametrize("seed", range(5))
def test_an_order_has_producers_first_and_depths_are_longest_paths(seed):
  producers, consumers = random_edges(40, 120, seed)
  order, depths = traversal.topological_order(40, producers, consumers)
  place = np.argsort(order)
  assert sorted(order.tolist()) == list(range(40))
  assert (place[producers] < place[consumers]).all()
  expected = [0] * 40
  for consumer in range(40):
    for producer in producers[consumers == consumer].tolist():
      expected[consumer] = max(expected[consumer], expected[producer] + 1)
  assert depths.tolist() == expected


def test_an_order_stops_at_a_cycle():
  order, depths = traversal.topological_order(4, np.array([0, 1, 2, 2]), np.array([1, 2, 1, 3]))
  assert order.tolist() == [0]
  assert depths.tolist() == [0, -1, -1, -1]


@pytest.mark.parametrize("seed", range(5))
def test_ancestors_are_what_is_reached_backwards(seed):
  producers, consumers = random_edges(30, 40, seed)
  reach = np.eye(30, dtype=bool)
  for producer, consumer in sorted(zip(producers.tolist(), consumers.tolist()), reverse=True):
    reach[producer] |= reach[consumer]
  found = traversal.ancestors(30, producers, consumers, [29, 12])
  assert found.tolist() == (reach[:, 29] | reach[:, 12]).tolist()


def test_sets_are_known_by_their_smallest_member():
  for pairs, expected in (((), [0, 1, 2, 3, 4, 5]), ([(5, 3), (3, 4), (1, 2)], [0, 1, 1, 3, 3, 3]),
                          ([(5, 3), (3, 4), (1, 2), (2, 5)], [0, 1, 1, 1, 1, 1])):
    assert traversal.components(6, pairs).tolist() == expected
