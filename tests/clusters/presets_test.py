"""Tests for placeto_tf.clusters.presets."""

import pytest

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.clusters.presets import PRESETS
from placeto_tf.errors import ClusterError


def test_gpu_preset_brings_a_host_cpu():
  cluster = Cluster.parse("k80:4")
  assert cluster.device_names == ("/GPU:0", "/GPU:1", "/GPU:2", "/GPU:3", "/CPU:0")
  assert [device.host for device in cluster.devices] == [False] * 4 + [True]


def test_explicit_cpus_are_ordinary_devices():
  cluster = Cluster.parse("a100:2+cpu:1")
  assert cluster.device_names == ("/GPU:0", "/GPU:1", "/CPU:0")
  assert not any(device.host for device in cluster.devices)
  assert Cluster.parse("cpu:2").device_names == ("/CPU:0", "/CPU:1")


def test_k80_is_the_machine_of_the_reference():
  cluster = Cluster.parse(" k80:2 ")
  assert cluster.bandwidth_bytes_per_us[0, 1] == 7600 and cluster.latency_us[0, 1] == 25
  assert cluster.op_overhead_us == 5.7
  assert cluster.devices[0].efficiency == 0.3
  assert cluster.devices[0].memory_bytes == 12 * 2**30


def test_devices_of_one_type_are_numbered_through_and_meet_on_the_slower_bus():
  cluster = Cluster.parse("k80:1+p100:2")
  assert cluster.device_names == ("/GPU:0", "/GPU:1", "/GPU:2", "/CPU:0")
  assert cluster.device_kinds.tolist() == [0, 1, 1, 2]
  bandwidth = cluster.bandwidth_bytes_per_us
  assert bandwidth[0, 1] == bandwidth[1, 0] == 7600
  assert bandwidth[1, 2] == 12000


def test_nvlink_joins_gpus_but_not_the_host():
  bandwidth = Cluster.parse("a100:2").bandwidth_bytes_per_us
  assert bandwidth[0, 1] > 5 * bandwidth[0, 2]


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_makes_a_cluster_of_one_kind_and_its_host(name):
  cluster = Cluster.parse(f"{name}:3")
  assert cluster.device_kinds[:3].tolist() == [0, 0, 0]
  assert cluster.devices[0].properties["memorySize"] == cluster.devices[0].memory_bytes


@pytest.mark.parametrize("text, message", [
    ("k81:4", "unknown preset 'k81'; expected .*k80, p100, v100, a100, h100, cpu"),
    ("k80", "gives no count for k80; write k80:1"),
    ("k80:0", "asks for '0' devices of k80"),
    ("k80:-1", "asks for '-1' devices"),
    ("k80:two", "asks for 'two' devices"),
    ("k80:", "asks for '' devices"),
    ("k80:99999999999999", "expected a number from 1 to 4096"),
    ("k80:2+", "unknown preset ''"),
    ("", "the cluster is ''"),
    ("missing.json", "cannot read the cluster file 'missing.json'"),
])
def test_wrong_text_is_named_with_what_was_expected(text, message):
  with pytest.raises(ClusterError, match=message):
    Cluster.parse(text)
