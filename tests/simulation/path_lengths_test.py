import numpy as np

from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.simulation.path_lengths import longest_path_us, remaining_path_us

# a -> b -> d, a -> c -> d.
GRAPH = ComputationGraph.from_edges(
    list("abcd"), ["X"] * 4, [1] * 4, [(0, 0, 1), (0, 0, 2), (1, 0, 3), (2, -1, 3)])


def test_paths_end_and_start_with_each_op():
  op_us = np.array([1.0, 2.0, 5.0, 1.0])
  assert longest_path_us(GRAPH, op_us).tolist() == [1, 3, 6, 7]
  assert remaining_path_us(GRAPH, op_us).tolist() == [7, 3, 6, 1]
