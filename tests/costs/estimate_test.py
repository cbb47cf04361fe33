"""Tests for placeto_tf.costs.estimate."""

import dataclasses

import numpy as np
import pytest

from placeto_tf.clusters import presets
from placeto_tf.clusters.cluster import Cluster
from placeto_tf.costs import estimate, estimate_costs
from placeto_tf.costs.op_costs import OpCosts
from placeto_tf.errors import CostError


def _with_devices(cluster, **fields):
  devices = tuple(dataclasses.replace(device, **fields) for device in cluster.devices)
  return dataclasses.replace(cluster, devices=devices)


def test_cost_is_flops_over_peak_plus_bytes_over_bandwidth_over_efficiency(training_graph):
  graph, cluster = training_graph(batch=16), Cluster.parse("k80_placeto:1")
  found = estimate_costs(graph, cluster).compute_us[graph.op_index["MatMul"], 0]
  flops, moved = 2 * 16 * 8 * 4, 4 * (16 * 8 + 8 * 4 + 16 * 4)
  flops_per_us, bytes_per_us = 13 * 192 * 2 * 823, 240e3
  assert found == pytest.approx((flops / flops_per_us + moved / bytes_per_us) / 0.3, rel=1e-9)


def test_efficiency_of_an_op_type_goes_before_the_devices(training_graph):
  graph, cluster = training_graph(), Cluster.parse("k80_placeto:1")
  assert estimate.kernel_names("Conv2D", 3, 19) == (
      "Conv2D 3x3 float16", "Conv2D float16", "Conv2D 3x3", "Conv2D", "convolution 3x3 float16",
      "convolution float16", "convolution 3x3", "convolution")
  assert estimate.kernel_names("NoOp", 0, 0) == ("NoOp",)
  plain = estimate_costs(graph, _with_devices(cluster, efficiency=0.5))
  special = estimate_costs(
      graph, _with_devices(cluster, efficiency=0.5, op_efficiency={"MatMul": 0.25}))
  ratio = special.compute_us[:, 0] / np.where(plain.compute_us[:, 0] > 0, plain.compute_us[:, 0], 1)
  is_product = np.array(graph.op_types) == "MatMul"
  assert is_product.any()
  np.testing.assert_allclose(ratio[is_product], 2.0)
  assert set(ratio[~is_product].tolist()) <= {0.0, 1.0}


def test_the_start_of_an_op_type_is_added_to_every_run(training_graph):
  graph, cluster = training_graph(), Cluster.parse("k80_placeto:1")
  graph = dataclasses.replace(graph, executions=np.full(graph.num_ops, 3.0))
  added = (estimate_costs(graph, _with_devices(cluster, op_start_us={"MatMul": 2.5})).compute_us
           - estimate_costs(graph, cluster).compute_us)[:, 0]
  np.testing.assert_allclose(added, np.where(np.array(graph.op_types) == "MatMul", 7.5, 0.0))


def _product(load, dtype):
  """A product of two [512, 512] matrices of a type, and an elementwise op."""
  def build(v1, tf):
    a = v1.placeholder(dtype, [512, 512], name="a")
    tf.nn.relu(tf.matmul(a, a, name="product"), name="fetch")

  return load(build)


@pytest.mark.parametrize("dtype, preset, flops_per_us, figures", [
    ("float16", "v100", 125e6, "half"), ("bfloat16", "a100", 312e6, "half"),
    ("bfloat16", "v100", 80 * 128 * 1530, "float32"),
    ("float16", "p100", 56 * 128 * 1480, "float32")])
def test_products_have_the_peak_of_their_type_where_the_device_has_one(
    load, dtype, preset, flops_per_us, figures):
  graph, cluster = _product(load, dtype), Cluster.parse(f"{preset}:1")
  costs = estimate_costs(graph, cluster).compute_us[:, 0]
  bytes_per_us = cluster.devices[0].properties["bandwidth"] / 1e3
  efficiency, start_us = presets.KERNELS[preset][figures]["product"]
  expected = (
      2 * 512**3 / flops_per_us + 2 * 3 * 512**2 / bytes_per_us) / efficiency + start_us
  assert costs[graph.op_index["product"]] == pytest.approx(expected, rel=1e-9)
  # An elementwise op gains half the bytes, and no tensor core.
  plain = estimate_costs(_product(load, "float32"), cluster).compute_us[graph.op_index["fetch"], 0]
  start_us = presets.KERNELS[preset]["float32"]["element-wise"][1]
  assert costs[graph.op_index["fetch"]] - start_us == pytest.approx(
      0.5 * (plain - start_us), rel=0.1)


def test_convolutions_and_their_gradients_have_the_peak_of_their_type(load):
  def build(v1, tf):
    image = v1.placeholder(tf.float16, [8, 32, 32, 16])
    kernel = v1.placeholder(tf.float16, [3, 3, 16, 16])
    loss = tf.reduce_sum(tf.nn.conv2d(image, kernel, 1, "SAME"))
    tf.group(*tf.gradients(loss, [image, kernel]), name="fetch")

  graph, cluster = load(build), Cluster.parse("v100:1")
  is_convolution = np.array([op.startswith("Conv2D") for op in graph.op_types])
  # The value of the loss is not needed.
  assert estimate.work_of(graph).windows[is_convolution].tolist() == [3, 3]
  fast = estimate_costs(graph, cluster).compute_us[:, 0]
  slow = estimate_costs(graph, _with_devices(cluster, product_peaks={})).compute_us[:, 0]
  assert (fast[is_convolution] < slow[is_convolution]).all()
  np.testing.assert_array_equal(fast[~is_convolution], slow[~is_convolution])


def test_integer_shape_arithmetic_costs_nothing_on_a_gpu_alone(load):
  def build(v1, tf):
    a = v1.placeholder(tf.int32, [2])
    b = v1.placeholder(tf.float32, [2])
    tf.group(tf.math.floormod(a, a, name="int"), tf.math.floormod(b, b, name="float"), name="fetch")

  graph = load(build)
  costs = estimate_costs(graph, Cluster.parse("k80:1"))
  gpu, cpu = costs.compute_us[graph.op_index["int"]]
  assert gpu == 0 and cpu > 0
  assert costs.compute_us[graph.op_index["float"], 0] > 0


def test_second_estimate_asks_grappler_nothing(training_graph, monkeypatch):
  graph = training_graph()
  first = estimate_costs(graph, Cluster.parse("k80:1"))
  monkeypatch.setattr(estimate, "count_work", None)
  again = estimate_costs(training_graph(), Cluster.parse("k80:1"))
  np.testing.assert_array_equal(again.compute_us, first.compute_us)
  assert again.notes == first.notes
  # What an op does is the same on any device, so another cluster is served as well.
  estimate_costs(graph, Cluster.parse("a100:2+cpu:1"))


def test_cache_can_be_switched_off_or_put_elsewhere(training_graph, tmp_path):
  graph, cluster = training_graph(), Cluster.parse("k80:1")
  plain = estimate_costs(graph, cluster, cache=False)
  assert not (tmp_path / "cache").exists()
  elsewhere = estimate_costs(graph, cluster, cache=str(tmp_path / "elsewhere"))
  assert len(list((tmp_path / "elsewhere").iterdir())) == 1
  np.testing.assert_array_equal(plain.compute_us, elsewhere.compute_us)


def test_callable_gives_the_costs(training_graph):
  graph, cluster = training_graph(), Cluster.parse("cpu:1")
  given = OpCosts(np.ones((graph.num_ops, 1)), np.ones(graph.num_outputs), np.zeros(graph.num_ops),
                  np.zeros(graph.num_ops))
  assert estimate_costs(graph, cluster, source=lambda *_: given) is given
  with pytest.raises(CostError, match="returned NoneType"):
    estimate_costs(graph, cluster, source=lambda *_: None)
