"""Costs that are given: files of OpPerformanceList and CostGraphDef, and arrays of wrong values."""

import numpy as np
import pytest
from tensorflow.core.framework import cost_graph_pb2
from tensorflow.core.grappler.costs import op_performance_data_pb2

from cost_protos import to_cost_graph, to_op_performances
from placeto_tf import graphs
from placeto_tf.clusters.cluster import Cluster
from placeto_tf.costs import estimate_costs
from placeto_tf.costs.measured_costs import of_op_performances
from placeto_tf.costs.op_costs import OpCosts
from placeto_tf.errors import CostError
from placeto_tf.graphs.computation_graph import CONTROL, ComputationGraph


def _performances(rows):
  """OpPerformanceList of (device type, device or "", op, us)."""
  performances = op_performance_data_pb2.OpPerformanceList()
  for kind, device, name, us in rows:
    entry = performances.op_performance.add(node=name, compute_cost=us * 1000)
    entry.op.device.type, entry.op.device.model = kind, device
  return performances


@pytest.fixture(name="measured")
def measured_fixture(training_graph, tmp_path):
  """Writes a proto (or bytes) and returns (graph, costs) of a cluster with it as their source."""
  graph = training_graph()

  def measured(proto, cluster="cpu:1"):
    path = tmp_path / "costs.pb"
    path.write_bytes(proto if isinstance(proto, bytes) else proto.SerializeToString())
    cluster = Cluster.parse(cluster) if isinstance(cluster, str) else cluster
    return graph, estimate_costs(graph, cluster, source=str(path))

  return measured


def test_what_was_not_measured_is_estimated_and_noted(measured):
  graph, costs = measured(_performances([("CPU", "", "MatMul", 1)]))
  estimated = estimate_costs(graph, Cluster.parse("cpu:1"))
  others = np.arange(graph.num_ops) != graph.op_index["MatMul"]
  np.testing.assert_array_equal(costs.compute_us[others], estimated.compute_us[others])
  assert any("were not measured on a CPU such as /CPU:0" in note for note in costs.notes)


def test_time_holds_for_devices_of_its_type_alone(measured):
  graph, costs = measured(_performances([("GPU", "", "MatMul", 123)]), cluster="k80:2")
  i = graph.op_index["MatMul"]
  estimated = estimate_costs(graph, Cluster.parse("k80:2"))
  assert costs.compute_us[i].tolist() == pytest.approx([123.0, estimated.compute_us[i, 1]])


def test_performances_that_were_written_are_read_back(measured, training_graph):
  cluster = Cluster.parse("k80:2")
  graph = training_graph()
  written = estimate_costs(graph, cluster)
  graph, costs = measured(to_op_performances(graph, written, cluster), cluster="k80:2")
  np.testing.assert_allclose(costs.compute_us, written.compute_us, atol=1e-3)
  np.testing.assert_array_equal(costs.output_bytes, written.output_bytes)
  np.testing.assert_array_equal(costs.persistent_bytes, written.persistent_bytes)
  assert costs.notes == ()


def test_a_time_may_hold_for_one_device_that_has_costs_of_its_own(measured):
  cluster = Cluster.parse("k80:2").to_json()
  cluster["devices"][1]["own_costs"] = True
  graph, costs = measured(
      _performances([("GPU", "", "MatMul", 9), ("GPU", "/GPU:1", "MatMul", 4)]),
      cluster=Cluster.from_json(cluster))
  assert costs.compute_us[graph.op_index["MatMul"], :2].tolist() == [9.0, 4.0]


@pytest.mark.parametrize("content, message", [
    (b"", "names no op of the graph"),
    (b"\xff\xff\xff\xff", "is no OpPerformanceList; give"),
    (_performances([("CPU", "", "other", 1)]), "names no op of the graph"),
    (_performances([("CPU", "", "MatMul", -1)]), "op 'MatMul' has a negative cost"),
])
def test_file_that_is_wrong_is_named(measured, content, message):
  with pytest.raises(CostError, match=message) as caught:
    measured(content)
  assert "costs.pb" in str(caught.value)


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
  graph = graphs.load_graph(cost_graph_pb2.CostGraphDef.FromString(proto.SerializeToString()))
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


def _costs(**changes):
  fields = dict(compute_us=np.ones((2, 1)), output_bytes=np.ones(3), persistent_bytes=np.zeros(2),
                temporary_bytes=np.zeros(2))
  fields.update(changes)
  return OpCosts(**fields)


@pytest.mark.parametrize("changes, message", [
    (dict(compute_us=np.array([[1.0], [-2.0]])), r"compute_us\[1, 0\] is -2.0"),
    (dict(compute_us=np.array([[np.nan], [1.0]])), r"compute_us\[0, 0\] is nan"),
    (dict(output_bytes=np.array([1, np.inf, 3])), r"output_bytes\[1\] is inf"),
    (dict(temporary_bytes=np.zeros(3)), "temporary_bytes has shape"),
    (dict(compute_us=np.ones(2)), "compute_us has shape"),
])
def test_wrong_value_is_named_with_its_place(changes, message):
  with pytest.raises(CostError, match=message):
    _costs(**changes)
