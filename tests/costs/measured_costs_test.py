"""Tests for placeto_tf.costs.measured_costs."""

import numpy as np
import pytest
from google.protobuf import text_format
from tensorflow.core.grappler.costs import op_performance_data_pb2

from cost_protos import to_op_performances
from placeto_tf.clusters.cluster import Cluster
from placeto_tf.costs import estimate_costs
from placeto_tf.errors import CostError


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


@pytest.mark.parametrize("form", [
    lambda proto: proto, lambda proto: text_format.MessageToString(proto).encode()])
def test_time_holds_for_devices_of_its_type_alone(measured, form):
  graph, costs = measured(form(_performances([("GPU", "", "MatMul", 123)])), cluster="k80:2")
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
    (b"\xff\xff\xff\xff", "is no OpPerformanceList, binary or text"),
    (_performances([("CPU", "", "other", 1)]), "names no op of the graph"),
    (_performances([("CPU", "", "MatMul", -1)]), "op 'MatMul' has a negative cost"),
])
def test_file_that_is_wrong_is_named(measured, content, message):
  with pytest.raises(CostError, match=message) as caught:
    measured(content)
  assert "costs.pb" in str(caught.value)
