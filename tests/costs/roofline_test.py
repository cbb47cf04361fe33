"""Peaks of devices, the counts of grappler, and what launches a kernel."""

import pytest
from google.protobuf import json_format
from tensorflow.core.protobuf import device_properties_pb2

from placeto_tf import graphs
from placeto_tf.clusters import Cluster, Device
from placeto_tf.clusters.presets import PRESETS
from placeto_tf.costs.grappler import Question
from placeto_tf.costs.roofline import peak
from placeto_tf.errors import ClusterError, CostError
from placeto_tf.ops import rule_of


@pytest.mark.parametrize("preset", PRESETS)
def test_counted_work_over_the_peak_is_what_grappler_says_of_the_device(load, preset):
  from tensorflow.core.protobuf import meta_graph_pb2
  from tensorflow.python.grappler import cluster as grappler_cluster
  from tensorflow.python.grappler import item as grappler_item

  def build(v1, tf):
    y = tf.nn.relu(tf.nn.conv2d(v1.ones([256, 64, 64, 32]), v1.ones([3, 3, 32, 64]), 1, "SAME"))
    tf.matmul(tf.reshape(y, [256, -1]), v1.ones([64 * 64 * 64, 16]), name="fetch")

  graph_def = graphs.analysis_graph_def(load(build))
  device = Cluster.parse(f"{preset}:1").devices[0]
  estimates = Question(graph_def, ["fetch"]).estimates()
  meta_graph = meta_graph_pb2.MetaGraphDef(graph_def=graph_def)
  meta_graph.collection_def["train_op"].node_list.value.append("fetch")
  named = device_properties_pb2.NamedDevice(
      name=f"/job:localhost/replica:0/task:0/device:{device.type}:0",
      properties=json_format.ParseDict(
          dict(device.properties), device_properties_pb2.DeviceProperties()))
  measured, _, _ = grappler_cluster.Cluster(devices=[named]).MeasureCosts(
      grappler_item.Item(meta_graph))
  best = peak(device)
  compared = 0
  for performance in measured:
    counted = estimates[performance.node]
    expected_us = performance.compute_cost * 1e-3  # cut down to whole microseconds, twice
    found_us = counted.flops / best.flops_per_us + counted.moved_bytes / best.bytes_per_us
    assert expected_us - 1e-3 <= found_us <= expected_us + 2
    compared += expected_us > 10
  assert compared >= 2


@pytest.mark.parametrize("properties, message", [
    ({"frequency": 1, "bandwidth": 1}, "property numCores of /GPU:0 is None"),
    ({"numCores": 8, "frequency": 1, "environment": {"architecture": "7.0"}},
     "property bandwidth of /GPU:0 is None"),
    ({"numCores": 8, "frequency": 1, "bandwidth": 1}, "environment.architecture of /GPU:0 is None"),
])
def test_missing_property_is_named(properties, message):
  with pytest.raises(ClusterError, match=message):
    peak(Device("/GPU:0", "GPU", 1, properties=properties))


def test_integers_may_be_strings_as_proto_json_writes_them():
  properties = {"numCores": "8", "frequency": "1000", "bandwidth": "32000000"}
  found = peak(Device("/CPU:0", "CPU", 1, properties=properties))
  assert found.flops_per_us == 8000 and found.bytes_per_us == 32000


def _product(load, size):
  def build(v1, tf):
    a = tf.raw_ops.FakeParam(dtype=tf.float32, shape=[size, size])
    tf.matmul(a, a, name="fetch")

  return graphs.analysis_graph_def(load(build))


def test_counts_are_exact_to_the_flop_and_the_byte(load):
  found = Question(_product(load, 3), ["fetch"]).estimates()["fetch"]
  assert (found.flops, found.moved_bytes) == (2 * 27, 4 * 3 * 9)


def test_counts_that_would_overflow_are_taken_at_a_coarser_scale(load):
  # 1.6e16 flops; one is 1,000 ns at the finest scale, and int64 ends at 9.2e18 ns.
  found = Question(_product(load, 200_000), ["fetch"]).estimates()["fetch"]
  assert found.flops == pytest.approx(2.0 * 200_000**3, rel=1e-6)


def test_counts_that_overflow_at_every_scale_are_an_error(load):
  with pytest.raises(CostError, match="overflow"):
    Question(_product(load, 2_000_000), ["fetch"]).estimates()


@pytest.mark.parametrize("op", [
    "Const", "Identity", "Reshape", "NoOp", "VarHandleOp", "ReadVariableOp", "Shape", "Squeeze",
    "Switch", "Merge", "Enter", "NextIteration", "Placeholder", "TensorListPushBack"])
def test_what_passes_a_tensor_on_launches_nothing(op):
  assert not rule_of(op).kernels


@pytest.mark.parametrize("op", [
    "MatMul", "Conv2D", "ResourceApplyMomentum", "AssignAddVariableOp", "ZerosLike", "ConcatV2",
    "Transpose", "MadeUpOp"])
def test_what_computes_or_copies_launches_a_kernel(op):
  assert rule_of(op).kernels
