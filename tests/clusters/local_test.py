"""Tests for placeto_tf.clusters.local."""


import pytest
from tensorflow.core.protobuf import device_properties_pb2

from placeto_tf.clusters import local
from placeto_tf.clusters.cluster import Cluster
from placeto_tf.costs.roofline import peak


def _gpu(architecture, **fields):
  fields = dict(dict(num_cores=80, frequency=1500, bandwidth=900_000_000, memory_size=2**34,
                     model="GPU 5000"), **fields)
  return device_properties_pb2.DeviceProperties(
      type="GPU", environment={"architecture": architecture}, **fields)


def _cpu(**fields):
  return device_properties_pb2.DeviceProperties(type="CPU", num_cores=8, frequency=2000, **fields)


def described(named):
  return Cluster(**local.from_properties(named))


def test_this_machine_has_a_cpu_from_which_costs_can_be_estimated():
  cluster = Cluster.parse("local")
  cpu = cluster.devices[cluster.device_names.index("/CPU:0")]
  assert cpu.memory_bytes > 2**28
  assert peak(cpu).flops_per_us > 1000
  assert Cluster.from_json(cluster.to_json()).devices == cluster.devices


def test_gpus_keep_their_properties_and_make_the_cpu_their_host():
  cluster = described(
      [("/GPU:0", _gpu("7.0")), ("/GPU:1", _gpu("7.0")), ("/CPU:0", _cpu())])
  assert [device.host for device in cluster.devices] == [False, False, True]
  assert cluster.device_kinds.tolist() == [0, 0, 1]
  assert cluster.devices[0].memory_bytes == 2**34
  # 80 multiprocessors of 64 cores, a fused multiply-add each
  assert peak(cluster.devices[0]).flops_per_us == 80 * 64 * 2 * 1500
  assert cluster.op_overhead_us == Cluster.parse("v100:1").op_overhead_us
  assert cluster.devices[0].efficiency == Cluster.parse("v100:1").devices[0].efficiency


@pytest.mark.parametrize("architecture, cores", [
    ("3.7", 192), ("5.2", 128), ("6.0", 64), ("6.1", 128), ("7.5", 64), ("8.0", 8 * 64),
    ("8.6", 128), ("8.9", 128), ("9.0", 8 * 128), ("12.0", 128)])
def test_cores_of_a_multiprocessor_follow_the_compute_capability(architecture, cores):
  cluster = described([("/GPU:0", _gpu(architecture))])
  assert peak(cluster.devices[0]).flops_per_us == 80 * cores * 2 * 1500


@pytest.mark.parametrize("name", ["k80", "rtxa6000", "t4"])
def test_a_model_that_is_a_preset_has_the_speed_of_its_preset(name):
  known = Cluster.parse(f"{name}:1").devices[0]
  properties = known.properties
  device = described([("/GPU:0", _gpu(
      properties["environment"]["architecture"], model=properties["model"],
      frequency=properties["frequency"]))]).devices[0]
  assert (device.op_efficiency, device.op_start_us) == (known.op_efficiency, known.op_start_us)
  assert peak(device).flops_per_us == peak(known).flops_per_us
  assert device.product_peaks == known.product_peaks


@pytest.mark.parametrize("architecture, times, kinds", [
    ("6.0", 0, []), ("7.0", 8, ["float16"]), ("8.0", 2, ["float16", "bfloat16"])])
def test_products_of_half_precision_are_as_much_faster_as_the_presets(architecture, times, kinds):
  device = described([("/GPU:0", _gpu(architecture))]).devices[0]
  float32 = device.properties["numCores"] * device.properties["frequency"] * 128
  assert list(device.product_peaks) == kinds
  for fields in device.product_peaks.values():
    assert fields["flops_per_us"] == pytest.approx(times * float32, rel=0.01)


def test_cpus_that_share_a_machine_slow_each_other_down_and_share_its_memory():
  alone = described([("/CPU:0", _cpu())])
  both = described([("/CPU:0", _cpu()), ("/CPU:1", _cpu())])
  assert both.device_kinds.tolist() == [0, 0]
  assert not any(device.host for device in both.devices)
  assert both.devices[0].memory_bytes == alone.devices[0].memory_bytes // 2
  assert peak(both.devices[0]) == peak(alone.devices[0])
  assert alone.busy_slowdown == 0 and alone.ready_order == "arrival"
  assert both.busy_slowdown == 1 and both.ready_order == "executor"
  three = described([(f"/CPU:{i}", _cpu()) for i in range(3)])
  assert three.busy_slowdown == 2  # an op beside others has a third of the cores
