"""Tests for placeto_tf.clusters.presets."""

import dataclasses
import re

import numpy as np
import pytest

from placeto_tf.clusters import Cluster, Device, local, presets
from placeto_tf.clusters.presets import PRESETS
from placeto_tf.errors import ClusterError


def test_explicit_cpus_are_ordinary_devices():
  cluster = Cluster.parse("a100:2+cpu:1")
  assert cluster.device_names == ("/GPU:0", "/GPU:1", "/CPU:0")
  assert not any(device.host for device in cluster.devices)
  assert Cluster.parse("cpu:2").device_names == ("/CPU:0", "/CPU:1")


def test_k80_placeto_is_the_machine_of_the_reference():
  cluster = Cluster.parse(" k80_placeto:2 ")
  assert not cluster.overlapped_launches and Cluster.parse("k80:2").overlapped_launches
  assert cluster.bandwidth_bytes_per_us[0, 1] == 7600
  assert cluster.latency_us[0, 1] == 0 and cluster.bus_gap_us == 25
  assert cluster.op_overhead_us == 5.7
  assert cluster.devices[0].efficiency == 0.3
  assert cluster.devices[0].memory_bytes == 12 * 2**30


def test_devices_of_one_type_are_numbered_through_and_meet_on_the_slower_bus():
  cluster = Cluster.parse("k80:1+p100:2")
  assert cluster.device_names == ("/GPU:0", "/GPU:1", "/GPU:2", "/CPU:0")
  assert cluster.device_kinds.tolist() == [0, 1, 1, 2]
  bandwidth = cluster.bandwidth_bytes_per_us
  assert bandwidth[0, 1] == bandwidth[1, 0] == 7600
  assert bandwidth[1, 2] == 5900


# TFLOPS of float32 matrix products (TF32 from Ampere on), GB and 10^9 bytes/s of the data sheets.
SHEETS = {
    "p100": (10.6, 16, 732), "p100_pcie": (9.3, 16, 732), "v100": (15.7, 16, 900),
    **dict.fromkeys(("a100", "a100_pcie"), (156, 40, 1555)),
    "a100_80gb": (156, 80, 2039), "h100": (494.5, 80, 3350),
    "h100_pcie": (378, 80, 2000), "h200": (494.5, 141, 4800), "b200": (1100, 180, 7700),
    "t4": (8.1, 16, 320), "l4": (60, 24, 300), "a10": (62.5, 24, 600), "rtx3090": (35.6, 24, 936),
    "rtx4090": (82.6, 24, 1008), "rtxa6000": (77.4, 48, 768), "l40s": (183, 48, 864)}


@pytest.mark.parametrize("name", sorted(set(PRESETS) - {"cpu", "k80", "k80_placeto"}))
def test_presets_have_the_peak_and_the_memory_of_the_data_sheets(name):
  tflops, memory_gb, bandwidth_gb = SHEETS[name]
  device = Cluster.parse(f"{name}:1").devices[0]
  properties = device.properties
  # Text comparison, as grappler does it.
  assert "6" <= properties["environment"]["architecture"] < "9.1"
  peak = properties["numCores"] * properties["frequency"] * 1e6 * 2 * 64 / 1e12
  assert peak == pytest.approx(tflops, rel=0.02)
  assert device.memory_bytes == memory_gb * 2**30
  assert properties["bandwidth"] == bandwidth_gb * 10**6


# TFLOPS of half precision with sums in float32, without sparsity.
HALF = {"v100": 125, "a100": 312, "a100_pcie": 312, "a100_80gb": 312, "h100": 989, "h100_pcie": 756,
        "h200": 989, "b200": 2250, "t4": 65, "l4": 121, "a10": 125, "rtx3090": 71, "rtx4090": 165,
        "rtxa6000": 155, "l40s": 362}


@pytest.mark.parametrize("name", PRESETS)
def test_presets_have_the_peaks_of_half_precision_of_the_data_sheets(name):
  kinds = ("float16",) if name in ("v100", "t4") else ("float16", "bfloat16")
  found = Cluster.parse(f"{name}:1").devices[0].product_peaks
  assert {kind: peak["flops_per_us"] / 1e6 for kind, peak in found.items()} == (
      dict.fromkeys(kinds, HALF[name]) if name in HALF else {})


@pytest.mark.parametrize("cluster, words", [
    ("k80:2+v100:1", "k80 was .* in 1 of 3 .*; v100 was within 25 % in 9 of 9"),
    ("rtx3090:2", "rtx3090 and five other cards were .* 20 of 23"), ("a100_pcie:1", "a100_pcie w"),
    ("l4:1", "l4 has no published step"),
    ("k80_placeto:2", "a simulator's"), ("cpu:2", "estimates: CPU workers were")])
def test_the_errors_of_estimates_are_said(cluster, words):
  assert re.search(words, presets.accuracy(Cluster.parse(cluster).devices))
  own = dataclasses.replace(Cluster.parse("h100:1").devices[0], efficiency=0.5)
  assert "no preset" in presets.accuracy([own])


def test_a_ring_of_nccl_uses_all_links_of_a_card_on_one_host():
  cluster = Cluster.parse("v100:2x2+t4:1x2")
  own = cluster.bandwidth_bytes_per_us
  found = presets.all_reduce_bandwidth(cluster.devices, own)
  assert own[0, 1] == 19_000 and found[0, 1] == found[1, 0] == 114_000
  # Other presets, the host and the network between hosts keep their links.
  v100 = np.array(["V100" in device.properties["model"] for device in cluster.devices])
  assert np.array_equal(found != own, np.outer(v100, v100) & (own != 2_200))
  calibrated = np.where(own == 19_000, 40_000.0, own)
  assert (presets.all_reduce_bandwidth(cluster.devices, calibrated) == calibrated).all()


def test_every_host_has_its_devices_and_a_cpu_of_its_own():
  cluster = Cluster.parse("V100:2x2")
  assert cluster.device_names == tuple(
      f"/job:worker/task:{task}/device:{device}"
      for task in (0, 1) for device in ("GPU:0", "GPU:1", "CPU:0"))
  assert [device.host for device in cluster.devices] == [False, False, True] * 2
  alone = Cluster.parse("v100:2")
  for field in ("bandwidth_bytes_per_us", "latency_us"):
    links, inside = getattr(cluster, field).copy(), getattr(alone, field)
    assert np.array_equal(links[:3, :3], links[3:, 3:])
    assert links[0, 1] == inside[0, 1] and links[0, 2] == inside[0, 2]
    assert len(np.unique(links[:3, 3:])) == 1
  assert cluster.bandwidth_bytes_per_us[0, 3] == 2200 and cluster.latency_us[0, 3] == 90
  assert Cluster.from_json(cluster.to_json()).device_names == cluster.device_names


def test_a_faster_network_between_hosts_can_be_stated():
  cluster = Cluster.parse("k80:1x3+v100:1x3@100gbit")
  assert cluster.num_devices == 9 and cluster.bandwidth_bytes_per_us[0, 4] == 9375
  assert cluster.bandwidth_bytes_per_us[0, 1] == 7600


@pytest.mark.parametrize("text, message", [
    ("k80:2x2+v100:1", "different numbers of hosts"),
    ("k80:2x0", "asks for '0' devices.*k80:4x2 for 4 on each of 2 hosts"),
    ("k80:2x2@fast", "network of 'fast'; expected a rate such as k80:2x2@100gbit"),
    ("k80:2@100gbit", "has one host, which needs no network"),
    ("k81:4", "unknown preset 'k81'; expected .*k80, p100, .*v100, a100, .*b200, t4, .*cpu"),
    ("k80", "gives no count for k80; write k80:1"),
    ("k80:0", "asks for '0' devices of k80"),
    ("k80:99999999999999", "expected a number from 1 to 4096"),
    ("", "the cluster is ''"),
    ("missing.json", "cannot read the cluster file 'missing.json'"),
])
def test_wrong_text_is_named_with_what_was_expected(text, message):
  with pytest.raises(ClusterError, match=message):
    Cluster.parse(text)


DEVICES = (Device("/GPU:0", "GPU", 2**30), Device("/GPU:1", "GPU", 2**30))


@pytest.mark.parametrize("call, words", [
    (lambda: Cluster((), np.zeros((0, 0)), np.zeros((0, 0))), "zero devices"),
    (lambda: Cluster(DEVICES, np.ones((2, 2)), np.ones((3, 3))),
     r"latency_us has shape \[3, 3\], expected \[2, 2\]"),
    (lambda: Cluster(**local.from_properties([])), "finds no CPU or GPU"),
    (lambda: Cluster.load("missing.json"), "No such file"),
    (lambda: Cluster.parse("cpu:1").save("missing/cluster.json"), "cannot write"),
])
def test_what_is_no_cluster_is_named(call, words):
  with pytest.raises(ClusterError, match=words):
    call()
