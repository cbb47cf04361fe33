import numpy as np

from placeto_tf.encoding.pair_tables import PairTables
from random_problem import grouped_graph, random_problem


def test_edges_are_those_of_the_grouped_graph_both_ways():
  problem = random_problem()
  tables, grouped = PairTables.build(problem), grouped_graph(problem)
  expected = set(zip(grouped.sources.tolist(), grouped.targets.tolist(), grouped.edge_bytes))
  into, out = set(), set()
  for g in range(tables.num_groups):
    for e in range(tables.in_offsets[g], tables.in_offsets[g + 1]):
      into.add((int(tables.in_groups[e]), g, tables.in_bytes[e]))
    for e in range(tables.out_offsets[g], tables.out_offsets[g + 1]):
      out.add((g, int(tables.out_groups[e]), tables.out_bytes[e]))
  assert into == expected and out == expected


def test_groups_with_one_allowed_device_are_not_movable():
  problem = random_problem()
  assert not problem.allowed[:, -1].any()  # the host takes nothing here
  tables = PairTables.build(problem)
  np.testing.assert_array_equal(tables.movable, np.arange(tables.num_groups))
  one = random_problem(devices="k80:1")
  assert not len(PairTables.build(one).movable)


def test_every_op_edge_keeps_its_producer_and_bytes():
  problem = random_problem()
  tables, graph = PairTables.build(problem).ops, problem.graph
  found = sorted(
      (int(tables.edge_producers[e]), i, float(tables.edge_bytes[e]))
      for i in range(graph.num_ops)
      for e in range(tables.edge_offsets[i], tables.edge_offsets[i + 1]))
  sizes = problem.costs.output_bytes[graph.edge_outputs]
  assert found == sorted(zip(
      graph.edge_producers.tolist(), graph.edge_consumers.tolist(), sizes.tolist()))
