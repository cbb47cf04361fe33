"""Groups of a graph, and their relatives."""

import dataclasses

import numpy as np
import pytest
from scipy import sparse
from scipy.sparse import csgraph

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.costs.op_costs import OpCosts
from placeto_tf.encoding import derived
from placeto_tf.encoding.graph_tensor import encode
from placeto_tf.encoding.grouped_graph import GroupedGraph
from placeto_tf.graphs.computation_graph import CONTROL, ComputationGraph
from placeto_tf.grouping.grouping import Grouping
from placeto_tf.problem.placement_problem import PlacementProblem
from random_problem import grouped_graph, random_problem


@pytest.fixture
def grouped():
  # a -> b, c, d along one tensor of 100 bytes; b -> e along 10; c -> e by control alone.
  # Groups: {a} 0, {b, d} 1, {c} 2, {e} 3.
  graph = ComputationGraph.from_edges(
      "abcde", ["Op"] * 5, [1] * 5,
      [(0, 0, 1), (0, 0, 2), (0, 0, 3), (1, 0, 4), (2, CONTROL, 4)])
  cluster = Cluster.parse("k80:2")
  kinds = len(cluster.kind_devices)
  costs = OpCosts(
      np.outer([1.0, 2.0, 3.0, 4.0, 5.0], np.ones(kinds)), [100.0, 10.0, 7.0, 5.0, 3.0],
      [1.0, 2.0, 0.0, 3.0, 0.0], [0.0, 9.0, 0.0, 4.0, 0.0])
  grouping = Grouping([0, 1, 2, 1, 3])
  allowed = np.ones((5, cluster.num_devices), dtype=bool)
  return GroupedGraph.of(PlacementProblem(graph, costs, cluster, grouping, allowed))


def test_a_tensor_counts_once_for_each_group_that_reads_it(grouped):
  edges = list(zip(
      grouped.sources.tolist(), grouped.targets.tolist(), grouped.edge_bytes.tolist()))
  assert edges == [(0, 1, 100.0), (0, 2, 100.0), (1, 3, 10.0), (2, 3, 0.0)]


def test_output_bytes_count_a_tensor_once_and_only_if_it_leaves_the_group(grouped):
  assert grouped.output_bytes.tolist() == [100.0, 10.0, 0.0, 0.0]


def test_compute_and_memory_add_up_over_the_ops_of_a_group(grouped):
  assert grouped.compute_us[:, 0].tolist() == [1.0, 6.0, 3.0, 5.0]
  assert grouped.persistent_bytes.tolist() == [1.0, 5.0, 0.0, 0.0]
  assert grouped.working_bytes.tolist() == [100.0, 10.0 + 5.0 + 9.0, 7.0, 3.0]
  assert grouped.num_ops.tolist() == [1, 2, 1, 1]


def test_the_op_that_computes_longest_stands_for_a_group_and_puts_the_groups_in_order(grouped):
  assert grouped.main_op.tolist() == [0, 3, 2, 4]
  assert grouped.order.tolist() == [0, 2, 1, 3]  # a, c, d, e


@pytest.mark.parametrize("compute_us,flow", [((3.0, 1.0, 1.0), [(0, 1)]),
                                             ((1.0, 1.0, 3.0), [(1, 0)])])
def test_of_two_groups_that_feed_each_other_the_one_whose_main_op_is_first_is_the_ancestor(
    compute_us, flow):
  # a -> b -> c with a and c in one group: a variable, what reads it, and its update.
  graph = ComputationGraph.from_edges("abc", ["Op"] * 3, [1] * 3, [(0, 0, 1), (1, 0, 2)])
  cluster = Cluster.parse("k80:2")
  costs = OpCosts(
      np.outer(compute_us, np.ones(len(cluster.kind_devices))), np.full(3, 8.0), np.zeros(3),
      np.zeros(3))
  grouped = GroupedGraph.of(PlacementProblem(
      graph, costs, cluster, Grouping([0, 1, 0]), np.ones((3, cluster.num_devices), dtype=bool)))
  assert list(zip(grouped.sources[grouped.flow], grouped.targets[grouped.flow])) == flow
  # Costs keep both edges.
  assert list(zip(grouped.sources.tolist(), grouped.targets.tolist())) == [(0, 1), (1, 0)]
  assert grouped.edge_bytes.tolist() == [8.0, 8.0]
  assert sorted(grouped.flow.tolist()) == [False, True]


def relatives(grouped):
  graph = encode(grouped, np.zeros(grouped.num_groups, np.int32))
  return derived.derive(graph)[derived.RELATIVES].numpy()


@pytest.mark.parametrize("num_groups", [1, 12, 60])
def test_a_path_of_any_length_makes_ancestors_and_descendants(num_groups):
  grouped = grouped_graph(random_problem(num_groups=num_groups))
  edges = sparse.csr_matrix(
      (np.ones(grouped.flow.sum()), (grouped.sources[grouped.flow], grouped.targets[grouped.flow])),
      shape=(num_groups, num_groups))
  lengths = csgraph.shortest_path(edges, unweighted=True)
  ancestors, descendants, _ = relatives(grouped)
  np.testing.assert_array_equal(descendants, np.isfinite(lengths) & (lengths > 0))
  np.testing.assert_array_equal(ancestors, descendants.T)


def test_every_two_groups_are_ancestor_descendant_or_parallel():
  grouped = grouped_graph(random_problem())
  assert (relatives(grouped).sum(axis=0) == 1 - np.eye(grouped.num_groups)).all()
  alone = dataclasses.replace(
      grouped, sources=grouped.sources[:0], targets=grouped.targets[:0],
      edge_bytes=grouped.edge_bytes[:0])
  assert (relatives(alone)[2] == 1 - np.eye(grouped.num_groups)).all()
