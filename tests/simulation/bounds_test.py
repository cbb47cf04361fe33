import numpy as np
import pytest
from random_cases import make_cluster, make_costs

from placeto_tf.errors import PlacementError
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.simulation.bounds import (
    critical_path_us,
    fastest_us,
    longest_path_us,
    remaining_path_us,
    total_work_us,
)

# a -> b -> d, a -> c -> d; two kinds of devices.
GRAPH = ComputationGraph.from_edges(
    list("abcd"), ["X"] * 4, [1] * 4, [(0, 0, 1), (0, 0, 2), (1, 0, 3), (2, -1, 3)])
COSTS = make_costs([[1, 9], [2, 1], [5, 8], [1, 9]], [1] * 4)
CLUSTER = make_cluster(2, kinds=2, overhead=1.0)
ALLOWED = np.array([[1, 1], [1, 1], [0, 1], [1, 1]], dtype=bool)


def test_paths_end_and_start_with_each_op():
  op_us = np.array([1.0, 2.0, 5.0, 1.0])
  assert longest_path_us(GRAPH, op_us).tolist() == [1, 3, 6, 7]
  assert remaining_path_us(GRAPH, op_us).tolist() == [7, 3, 6, 1]


def test_paths_of_a_graph_without_edges_are_its_ops():
  graph = ComputationGraph.from_edges(["a", "b"], ["X"] * 2, [0, 0], [])
  assert longest_path_us(graph, np.array([3.0, 4.0])).tolist() == [3, 4]
  assert remaining_path_us(graph, np.array([3.0, 4.0])).tolist() == [3, 4]


def test_critical_path_takes_the_fastest_allowed_device():
  assert fastest_us(COSTS, CLUSTER).tolist() == [1, 1, 5, 1]
  assert critical_path_us(GRAPH, COSTS, CLUSTER) == 7  # a, c, d
  assert critical_path_us(GRAPH, COSTS, CLUSTER, ALLOWED) == 10  # c now takes 8


def test_total_work_spreads_ops_and_overheads_but_not_the_last_one():
  # 1 + 1 + 5 + 1 and four overheads make 12 over 2 devices; one overhead is not waited for.
  assert total_work_us(GRAPH, COSTS, CLUSTER) == 5


def test_ops_confined_to_one_device_share_it():
  allowed = np.array([[1, 0]] * 3 + [[1, 1]], dtype=bool)
  # a, b, c on device 0: 1 + 2 + 5 and three overheads, less the last.
  assert total_work_us(GRAPH, COSTS, CLUSTER, allowed) == 10


def test_op_without_a_device_is_refused():
  with pytest.raises(PlacementError, match="'b' is allowed on none of the 2 devices"):
    total_work_us(GRAPH, COSTS, CLUSTER, np.array([[1, 1], [0, 0], [1, 1], [1, 1]], dtype=bool))
