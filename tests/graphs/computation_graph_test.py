import dataclasses

import numpy as np
import pytest

from placeto_tf.errors import GraphError
from placeto_tf.graphs import CONTROL, ComputationGraph, traversal


def example(**fields):
  """The worked example of the class."""
  return ComputationGraph.from_edges(
      ("a", "b", "c", "print"), ("Const", "Const", "Add", "Print"), (1, 1, 1, 0),
      [(2, 0, 3), (1, CONTROL, 3), (1, 0, 2), (0, 0, 2), (0, 0, 2)], **fields)


def test_the_worked_example_holds():
  graph = example()
  assert graph.output_offsets.tolist() == [0, 1, 2, 3, 3]
  assert graph.edge_producers.tolist() == [0, 1, 1, 2]
  assert graph.edge_ports.tolist() == [0, CONTROL, 0, 0]
  assert graph.edge_consumers.tolist() == [2, 3, 2, 3]
  assert graph.edge_outputs.tolist() == [0, -1, 1, 2]
  assert graph.depths.tolist() == [0, 0, 1, 2]
  assert graph.topological_order.tolist() == [0, 1, 2, 3]
  assert (graph.num_ops, graph.num_edges, graph.num_outputs) == (4, 4, 3)
  assert graph.op_index["print"] == 3


def test_edges_are_unique_and_sorted_whatever_order_they_come_in():
  generator = np.random.default_rng(0)
  rows = generator.integers(0, 20, (300, 3))
  rows[:, 1] = generator.integers(-1, 3, 300)
  rows = rows[rows[:, 0] < rows[:, 2]]
  graph = ComputationGraph.from_edges([str(i) for i in range(20)], ["Op"] * 20, [3] * 20, rows)
  assert list(graph.edges) == sorted({tuple(row) for row in rows.tolist()})


def test_the_fingerprint_is_of_structure_and_names():
  assert example().fingerprint == example(executions=np.full(4, 2.0)).fingerprint
  assert example().fingerprint != dataclasses.replace(
      example(), op_names=("a", "b", "d", "print")).fingerprint


@pytest.mark.parametrize("names, edges, culprit", [
    ([], [], "no ops"), (["a", "a"], [], "'a' appears twice"),
    (["a", "b"], [(0, 1, 1)], "reads output 1"), (["a", "b"], [(0, 0, 2)], "op 2"),
    (["a", "b"], [(0, -2, 1)], "reads output -2"),
    (["a", "b"], [(0, 0, 1), (1, 0, 0)], "cycle"), (["a"], [(0, CONTROL, 0)], "cycle"),
])
def test_what_is_no_graph_is_refused(names, edges, culprit):
  with pytest.raises(GraphError, match=culprit):
    ComputationGraph.from_edges(names, ["Op"] * len(names), [1] * len(names), edges)


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
