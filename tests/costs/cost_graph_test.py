"""Costs in a CostGraphDef, and in an OpPerformanceList made of them."""

import numpy as np
import pytest
from tensorflow.core.framework import cost_graph_pb2

from cost_protos import to_cost_graph, to_op_performances
from placeto_tf import graphs
from placeto_tf.clusters.cluster import Cluster
from placeto_tf.costs import estimate_costs
from placeto_tf.costs.measured_costs import of_op_performances
from placeto_tf.costs.op_costs import OpCosts
from placeto_tf.graphs.computation_graph import CONTROL, ComputationGraph

# a has two outputs: b reads both, c the second; c also waits for b.
_GRAPH = ComputationGraph.from_edges(
    ["a", "b", "c"], ["Op"] * 3, [2, 1, 1], [(0, 0, 1), (0, 1, 1), (0, 1, 2), (1, CONTROL, 2)],
    fetched_outputs=np.array([False, False, False, True]))
_COSTS = OpCosts(
    np.array([[3.0, 30.0], [0.0, 0.0], [7.0, 70.0]]), np.array([10, 20, 0, 40]),
    np.array([0, 500, 0]), np.array([1, 2, 3]))
_CLUSTER = Cluster.parse("k80:2")


def test_graph_and_costs_survive_the_round_trip():
  proto = to_cost_graph(_GRAPH, _COSTS, kind=1)
  read = cost_graph_pb2.CostGraphDef.FromString(proto.SerializeToString())
  graph = graphs.load_graph(read)
  costs = estimate_costs(graph, _CLUSTER)
  assert graph.op_names == _GRAPH.op_names
  for field in ("edge_producers", "edge_ports", "edge_consumers", "output_offsets",
                "fetched_outputs"):
    np.testing.assert_array_equal(getattr(graph, field), getattr(_GRAPH, field))
  # The same on every kind of device, and no efficiency.
  np.testing.assert_array_equal(costs.compute_us, [[30, 30], [0, 0], [70, 70]])
  for field in ("output_bytes", "persistent_bytes", "temporary_bytes"):
    np.testing.assert_array_equal(getattr(costs, field), getattr(_COSTS, field))


def test_size_unknown_to_tensorflow_counts_nothing_and_is_noted():
  proto = to_cost_graph(_GRAPH, _COSTS)
  proto.node[0].output_info[1].size = -1
  costs = estimate_costs(graphs.load_graph(proto), _CLUSTER)
  assert costs.output_bytes.tolist() == [10, 0, 0, 40]
  assert "outputs of 1 op (a) have sizes" in costs.notes[0]


def test_performances_survive_the_round_trip_to_the_nanosecond():
  costs = OpCosts(np.array([[0.0015, 1.5], [0.0, 0.0], [7.123456, 70.0]]), _COSTS.output_bytes,
                  _COSTS.persistent_bytes, _COSTS.temporary_bytes)
  found = of_op_performances(to_op_performances(_GRAPH, costs, _CLUSTER))
  assert [measured.device_type for measured in found["a"]] == ["GPU", "CPU"]
  assert [measured.compute_us for measured in found["c"]] == pytest.approx([7.123, 70.0])
  assert found["a"][0].compute_us > 0 and found["b"][0].compute_us == 0
  assert list(found["a"][0].memory.output_memory) == [10, 20]
  assert found["b"][0].memory.persistent_memory == 500
  assert found["c"][0].memory.temp_memory == 3
