"""Clusters and their JSON."""

import copy
import dataclasses
import json
import os
import pathlib

import numpy as np
import pytest

from placeto_tf.clusters import Cluster, Device
from placeto_tf.clusters.presets import PRESETS
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
    (dict(product_peaks={"float16": {"flops_per_us": 1, "efficiency": 20}}), "is 20; expected"),
    (dict(memory_bytes=-5), "memory_bytes of /GPU:0 is -5"),
    (dict(name=""), "name is ''"),
    (dict(properties={"type": "gpu"}), r"properties\['type'\] of /GPU:0 is 'gpu'; expec"),
    (dict(name="GPU:0"), "is called 'GPU:0'; expected a name"),
])
def test_wrong_device_field_is_named(fields, message):
  with pytest.raises(ClusterError, match=message):
    dataclasses.replace(_device(), **fields)


_DEVICES = [
    {"name": "/GPU:0", "type": "GPU", "memory_bytes": 100},
    {"name": "/GPU:1", "type": "GPU", "memory_bytes": 200, "efficiency": 0.5,
     "properties": {"type": "GPU", "frequency": "823", "environment": {"architecture": "3.7"}}},
    {"name": "/CPU:0", "type": "CPU", "memory_bytes": 300, "host": True},
]
_JSON = {
    "devices": _DEVICES,
    "links": {
        "default": {"bandwidth_bytes_per_us": 10, "latency_us": 1},
        "pairs": [{"from": "/GPU:0", "to": "/GPU:1", "bandwidth_bytes_per_us": 40}],
    },
    "op_overhead_us": 5.7,
}


def _changed(path, value):
  """`_JSON` with the value at a path of keys replaced, or removed where it is None."""
  changed = copy.deepcopy(_JSON)
  inner = changed
  for key in path[:-1]:
    inner = inner[key]
  if value is None:
    del inner[path[-1]]
  else:
    inner[path[-1]] = value
  return changed


def test_pairs_are_directed_and_take_the_rest_from_the_default():
  cluster = Cluster.from_json(_JSON)
  assert cluster.bandwidth_bytes_per_us[0, 1] == 40.0
  assert cluster.bandwidth_bytes_per_us[1, 0] == 10.0
  assert cluster.latency_us[0, 1] == 1.0
  assert cluster.op_overhead_us == 5.7
  assert cluster.devices[1].efficiency == 0.5 and cluster.devices[0].efficiency == 1.0
  assert [device.host for device in cluster.devices] == [False, False, True]


@pytest.mark.parametrize("text", [
    "k80:4", "a100:2+cpu:1", "k80:2+p100:1", "cpu:1", "v100:20x3@100gbit"])
def test_presets_survive_the_round_trip(text):
  cluster = Cluster.parse(text)
  again = Cluster.from_json(json.dumps(cluster.to_json()))
  assert again.devices == cluster.devices
  np.testing.assert_array_equal(again.bandwidth_bytes_per_us, cluster.bandwidth_bytes_per_us)
  np.testing.assert_array_equal(again.latency_us, cluster.latency_us)
  assert again.to_json() == cluster.to_json()


def test_every_extension_survives_the_round_trip_and_is_left_out_where_it_is_off():
  plain = Cluster.from_json(_JSON)
  changes = {}
  for field in dataclasses.fields(Cluster):
    if field.default is not dataclasses.MISSING and field.name != "op_overhead_us":
      assert field.name not in plain.to_json()
      changes[field.name] = {"transfers": "pair"}.get(field.name, {
          bool: True, int: 3, float: 0.25, str: "executor", tuple: ("Const", "NoOp")}[
          type(field.default)])
  again = Cluster.from_json(json.dumps(dataclasses.replace(plain, **changes).to_json()))
  for name, value in changes.items():
    assert getattr(again, name) == value
    assert type(getattr(again, name)) is type(value)


def test_file_is_read_back_by_parse_and_nothing_else_is_left(tmp_path):
  path = str(tmp_path / "cluster.json")
  Cluster.from_json(_JSON).save(path)
  assert Cluster.parse(path).to_json() == Cluster.from_json(_JSON).to_json()
  assert os.listdir(tmp_path) == ["cluster.json"]


@pytest.mark.parametrize("path, value, message", [
    (["devices"], [], '"devices" of the cluster is empty'),
    (["devices"], None, "no field 'devices'"),
    (["devicez"], 1, "unknown field 'devicez'"),
    (["devices", 0, "memory_bytes"], None, "device '/GPU:0' has no field 'memory_bytes'"),
    (["devices", 0, "name"], 7, "name is 7"),
    (["devices", 0], "/GPU:0", "device 0 is '/GPU:0'; expected an object"),
    (["devices", 2, "host"], "yes", "\"host\" of device '/CPU:0' is 'yes'"),
    (["links", "default"], None, "the link from /GPU:0 to /CPU:0 has no bandwidth_bytes_per_us"),
    (["links", "pairs", 0, "to"], "/GPU:7", "goes to '/GPU:7', which is no device"),
    (["links", "pairs", 0, "to"], "/GPU:0", "joins a device to itself"),
    (["links", "pairs"], [_JSON["links"]["pairs"][0]] * 2, "is listed twice"),
])
def test_wrong_json_is_named_in_one_sentence(path, value, message):
  with pytest.raises(ClusterError) as caught:
    Cluster.from_json(_changed(path, value))
  assert message in str(caught.value)
  assert "\n" not in str(caught.value)


_DOCUMENT = pathlib.Path(__file__).resolve().parents[2] / "docs" / "cluster_json.md"


def test_the_document_has_every_field_and_preset_and_its_example_is_read():
  text = _DOCUMENT.read_text()
  cluster = Cluster.from_json(text.partition("```json\n")[2].partition("```")[0])
  assert cluster.num_devices == 3 and cluster.bandwidth_bytes_per_us[0, 2] == 2200
  links = {"bandwidth_bytes_per_us", "latency_us"}
  names = {field.name for kind in (Cluster, Device) for field in dataclasses.fields(kind)}
  for name in names | links | set(PRESETS):
    assert f"`{name}`" in text, name
