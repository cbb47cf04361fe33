import hypothesis
import hypothesis.strategies as st
import numpy as np
from properties import examples

import plain_grouping
from placeto_tf.costs.op_costs import OpCosts
from placeto_tf.graphs.computation_graph import CONTROL, ComputationGraph
from placeto_tf.grouping.contraction import TRANSFER_BYTES, contract, number_groups


def _graph(edges, outputs, **fields):
  names = [f"op{i}" for i in range(len(outputs))]
  return ComputationGraph.from_edges(names, ["Op"] * len(outputs), outputs, edges, **fields)


def _costs(compute_us, output_bytes):
  n = len(compute_us)
  return OpCosts(
      np.reshape(compute_us, (n, -1)), np.array(output_bytes), np.zeros(n), np.zeros(n))


def test_a_tensor_counts_once_for_each_node_that_consumes_it():
  # a's only output goes to b, c and d; c and d are one node.
  graph = _graph([(0, 0, 1), (0, 0, 2), (0, 0, 3)], [1, 0, 0, 0])
  costs = _costs([1, 2, 3, 4], [1000])
  found = contract(graph, costs, np.ones((4, 2), bool), np.array([0, 1, 2, 2]))
  assert found.node_of_op.tolist() == [0, 1, 2, 2]
  assert found.weight_us.tolist() == [1, 2, 7]
  assert list(zip(found.producers, found.consumers)) == [(0, 1), (0, 2)]
  assert found.traffic_bytes.tolist() == [1000 + TRANSFER_BYTES] * 2


def test_groups_are_numbered_by_their_first_op_in_topological_order():
  labels = np.array([9, 4, 4, 7])
  assert number_groups(labels, np.array([3, 2, 0, 1])).group_of_op.tolist() == [2, 0, 0, 1]


@hypothesis.given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.integers(1, 60))
@examples(150)
def test_nodes_and_traffic_are_those_of_sorted_arrays(seed, n, nodes):
  rng = np.random.default_rng(seed)
  outputs = rng.integers(0, 3, n)
  edges = {(int(u), int(rng.integers(0, outputs[u])) if outputs[u] and rng.random() < 0.7
            else CONTROL, v) for v in range(1, n) for u in rng.integers(0, v, 3)}
  graph = _graph(sorted(edges), outputs.tolist())
  costs = OpCosts(
      rng.exponential(10, (n, 2)), rng.exponential(1e6, int(outputs.sum())), np.zeros(n),
      np.zeros(n))
  allowed = rng.random((n, 3)) < 0.7
  allowed[:, 2] = True
  labels = 7 * rng.integers(0, nodes, n)
  found = contract(graph, costs, allowed, labels)
  _, node_of_op = np.unique(labels, return_inverse=True)
  assert found.node_of_op.tolist() == node_of_op.tolist()
  expected = plain_grouping.traffic_between(graph, costs, node_of_op, found.num_nodes)
  assert found.producers.tolist() == expected[0].tolist()
  assert found.consumers.tolist() == expected[1].tolist()
  assert found.traffic_bytes.tolist() == expected[2].tolist()
  rank = graph.topological_rank
  for node in range(found.num_nodes):
    ops = np.flatnonzero(node_of_op == node)
    assert found.rank[node] == rank[ops].min()
    assert plain_grouping.node_masks(found)[node] == sum(
        1 << d for d in np.flatnonzero(allowed[ops].all(axis=0)).tolist())
