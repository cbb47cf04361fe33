"""Tests for placeto_tf.clusters.cluster."""

import dataclasses

import numpy as np
import pytest

from placeto_tf.clusters import Cluster, Device
from placeto_tf.errors import ClusterError


def _device(name="/GPU:0", **fields):
  return Device(name, "GPU", 2**30, **fields)


def _cluster(devices=None, bandwidth=10.0, latency=1.0, **fields):
  devices = devices or (_device("/GPU:0"), _device("/GPU:1"))
  d = len(devices)
  return Cluster(devices, np.full((d, d), bandwidth), np.full((d, d), latency), **fields)


def test_devices_that_cost_the_same_share_a_kind():
  slow = dict(efficiency=0.5, properties={"frequency": 1})
  cluster = _cluster((
      _device("/GPU:0"), _device("/GPU:1", **slow), _device("/GPU:2"), _device("/GPU:3", **slow),
      _device("/GPU:4", **slow, op_efficiency={"MatMul": 0.9}),
      _device("/GPU:5", **slow, product_peaks={"float16": {"flops_per_us": 1e6}}),
      _device("/GPU:6", **slow, op_start_us={"MatMul": 2.0})))
  assert cluster.device_kinds.tolist() == [0, 1, 0, 1, 2, 3, 4]
  assert [device.name for device in cluster.kind_devices] == [
      "/GPU:0", "/GPU:1", "/GPU:4", "/GPU:5", "/GPU:6"]


def test_unused_diagonal_is_free_and_finite_whatever_was_given():
  cluster = Cluster(
      (_device("/GPU:0"), _device("/GPU:1")), [[np.inf, 10.0], [20.0, 0.0]],
      [[np.nan, 1.0], [2.0, 7.0]])
  np.testing.assert_array_equal(cluster.bandwidth_bytes_per_us, [[20.0, 10.0], [20.0, 20.0]])
  np.testing.assert_array_equal(cluster.latency_us, [[0.0, 1.0], [2.0, 0.0]])


@pytest.mark.parametrize("fields, message", [
    (dict(devices=(_device("/GPU:0"), _device("/GPU:0"))), "'/GPU:0' appears twice"),
    (dict(bandwidth=0.0), "bandwidth_bytes_per_us from /GPU:0 to /GPU:1 is 0.0"),
    (dict(latency=-1.0), "latency_us from /GPU:0 to /GPU:1 is -1.0"),
    (dict(op_overhead_us=-1.0), "op_overhead_us is -1.0"),
    (dict(transfer_per_destination=1), "transfer_per_destination is 1; expected true or false"),
    (dict(transfers="bus"), "transfers is 'bus'; expected one of device, pair, unlimited"),
])
def test_wrong_field_is_named(fields, message):
  with pytest.raises(ClusterError, match=message):
    _cluster(**fields)


@pytest.mark.parametrize("fields, message", [
    (dict(efficiency=0.0), "efficiency of /GPU:0 is 0.0"),
    (dict(efficiency="fast"), "efficiency of /GPU:0 is 'fast'"),
    (dict(op_efficiency={"MatMul": -1}), r"op_efficiency\['MatMul'\] of /GPU:0 is -1"),
    (dict(product_peaks={"half": {"flops_per_us": 1}}), "has a type 'half'; expected one"),
    (dict(product_peaks={"float16": {"efficiency": 1}}), "expected flops_per_us and, perhaps"),
    (dict(product_peaks={"float16": {"flops_per_us": 1, "efficiency": 2}}), "is 2; expected achie"),
    (dict(memory_bytes=-5), "memory_bytes of /GPU:0 is -5"),
    (dict(name=""), "name is ''"),
    (dict(properties={"type": "gpu"}), r"properties\['type'\] of /GPU:0 is 'gpu'; expec"),
    (dict(name="GPU:0"), "is called 'GPU:0'; expected a name"),
])
def test_wrong_device_field_is_named(fields, message):
  with pytest.raises(ClusterError, match=message):
    dataclasses.replace(_device(), **fields)
