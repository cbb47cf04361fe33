import dataclasses

import numpy as np
import pytest

from placeto_tf.errors import GraphError
from placeto_tf.graphs import CONTROL, ComputationGraph


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
  found = list(zip(
      graph.edge_producers.tolist(), graph.edge_ports.tolist(), graph.edge_consumers.tolist()))
  assert found == sorted({tuple(row) for row in rows.tolist()})


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
