"""Tests for placeto_tf.costs.traces."""

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format
from tensorflow.core.framework import step_stats_pb2
from tensorflow.core.grappler.costs import op_performance_data_pb2
from tensorflow.core.protobuf import config_pb2

import graph_files
from cost_protos import to_op_performances
from placeto_tf.clusters.cluster import Cluster
from placeto_tf.costs import estimate_costs
from placeto_tf.errors import CostError
from placeto_tf.graphs import load_graph

_CPU = "/job:localhost/replica:0/task:0/device:CPU:0"
_GPU = "/job:localhost/replica:0/task:0/device:GPU:0"


def _step_stats(rows):
  """StepStats of (device, op, start ns, end ns)."""
  stats = step_stats_pb2.StepStats()
  devices = {}
  for device, name, start, end in rows:
    if device not in devices:
      devices[device] = stats.dev_stats.add(device=device)
    devices[device].node_stats.add(
        node_name=name, op_start_rel_nanos=start, op_end_rel_nanos=end)
  return stats


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


@pytest.mark.parametrize("wrap", [
    lambda stats: stats,
    lambda stats: config_pb2.RunMetadata(step_stats=stats),
    lambda stats: text_format.MessageToString(stats).encode(),
])
def test_times_of_a_trace_are_taken_as_they_are_and_summed_over_executions(measured, wrap):
  stats = _step_stats([
      (_CPU, "MatMul", 1000, 51000), (_CPU, "MatMul", 0, 25000), (_CPU, "_SOURCE", 0, 7)])
  graph, costs = measured(wrap(stats))
  # Two runs, and the launch between them.
  assert costs.compute_us[graph.op_index["MatMul"], 0] == pytest.approx(75.0 + 4.0)


def test_what_was_not_measured_is_estimated_and_noted(measured):
  graph, costs = measured(_step_stats([(_CPU, "MatMul", 0, 1000)]))
  estimated = estimate_costs(graph, Cluster.parse("cpu:1"))
  others = np.arange(graph.num_ops) != graph.op_index["MatMul"]
  np.testing.assert_array_equal(costs.compute_us[others], estimated.compute_us[others])
  assert any("were not measured on a CPU such as /CPU:0" in note for note in costs.notes)


def test_time_holds_for_devices_of_its_type_alone(measured):
  graph, costs = measured(_step_stats([(_GPU, "MatMul", 0, 123000)]), cluster="k80:2")
  i = graph.op_index["MatMul"]
  estimated = estimate_costs(graph, Cluster.parse("k80:2"))
  assert costs.compute_us[i].tolist() == pytest.approx([123.0, estimated.compute_us[i, 1]])


def test_kernel_time_on_the_streams_goes_before_the_launch_time(measured):
  graph, costs = measured(_step_stats([
      (_GPU, "MatMul", 0, 9000),
      (_GPU + "/stream:all", "MatMul:MatMul", 0, 40000),
      (_GPU + "/stream:12", "MatMul:MatMul", 0, 40000)]), cluster="k80:1")
  assert costs.compute_us[graph.op_index["MatMul"], 0] == pytest.approx(40.0)


def test_real_trace_covers_what_ran(tmp_path):
  v1 = tf.compat.v1
  with tf.Graph().as_default() as tf_graph:
    product = tf.matmul(v1.ones([64, 64], name="a"), v1.placeholder(tf.float32, [64, 64], name="b"))
    tf.square(product, name="fetch")
    metadata = config_pb2.RunMetadata()
    options = config_pb2.RunOptions(trace_level=config_pb2.RunOptions.FULL_TRACE)
    with v1.Session(graph=tf_graph) as session:
      session.run("fetch:0", {"b:0": np.ones((64, 64))}, options=options, run_metadata=metadata)
  path = graph_files.write(metadata, tmp_path / "run_metadata.pb")
  graph = load_graph(tf_graph, fetches=["fetch"])
  costs = estimate_costs(graph, Cluster.parse("cpu:1"), source=path)
  assert costs.compute_us[graph.op_index["fetch"], 0] > 0
  assert not any("fetch" in note for note in costs.notes)


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
  performances = op_performance_data_pb2.OpPerformanceList()
  for model, us in (("", 9), ("/GPU:1", 4)):
    entry = performances.op_performance.add(node="MatMul", compute_cost=us * 1000)
    entry.op.device.type, entry.op.device.model = "GPU", model
  graph, costs = measured(performances, cluster=Cluster.from_json(cluster))
  assert costs.compute_us[graph.op_index["MatMul"], :2].tolist() == [9.0, 4.0]


@pytest.mark.parametrize("content, message", [
    (b"", "names no op of the graph"),
    (b"\xff\xff\xff\xff", "is none of the protos that hold costs"),
    (_step_stats([(_CPU, "other", 0, 1)]), "names no op of the graph"),
    (_step_stats([(_CPU, "MatMul", 5000, 1000)]), "op 'MatMul' ends before it starts"),
])
def test_file_that_is_wrong_is_named(measured, content, message):
  with pytest.raises(CostError, match=message) as caught:
    measured(content)
  assert "costs.pb" in str(caught.value)


def test_measured_op_with_other_outputs_is_refused(measured):
  performances = op_performance_data_pb2.OpPerformanceList()
  entry = performances.op_performance.add(node="MatMul", compute_cost=1)
  entry.op_memory.output_memory.extend([1, 2, 3])
  with pytest.raises(CostError, match="op 'MatMul' has 1 outputs, but its measured costs have 3"):
    measured(performances)
