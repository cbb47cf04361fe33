"""The list of kernels, and the page of a made-up measurement."""


import pytest
import tensorflow as tf

import graph_files


@pytest.fixture(name="gpu_kernels")
def gpu_kernels_fixture(load_program):
  return load_program("gpu_kernels")


def _graph(tmp_path):
  with tf.Graph().as_default() as graph:
    images = tf.zeros([4, 16, 16, 8]) + tf.random.uniform([4, 16, 16, 8])
    kernel = tf.compat.v1.get_variable("kernel", [3, 3, 8, 32])
    found = tf.nn.relu(tf.nn.conv2d(images, kernel, strides=2, padding="SAME"))
    logits = tf.matmul(tf.reshape(found, [4, -1]), tf.compat.v1.get_variable(
        "weights", [10, 8 * 8 * 32]), transpose_b=True)
    loss = tf.reduce_mean(logits)
    tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(loss, name="train")
  return graph_files.write(graph.as_graph_def(), tmp_path / "graph.pb")


def test_kernels_have_the_shapes_of_their_ops(gpu_kernels, tmp_path):
  rows = gpu_kernels.kernels_of(_graph(tmp_path))
  by_op = {row["op"]: row for row in rows}
  conv = by_op["Conv2D"]
  assert conv["shapes"] == [[4, 16, 16, 8], [3, 3, 8, 32]]
  assert (conv["strides"], conv["padding"], conv["product"]) == ([2, 2], "SAME", True)
  assert conv["flops"] == 2 * 4 * 8 * 8 * 32 * 3 * 3 * 8
  assert by_op["Conv2DBackpropFilter"]["shapes"] == conv["shapes"]
  # The gradients of the product, in the order and with the transpositions that TensorFlow has.
  products = [row["shapes"] for row in rows if row["op"] == "MatMul"]
  assert [[4, 10], [10, 2048]] in products and [[10, 4], [4, 2048]] in products
  # Of two products and two convolutions with one window each, one of a type is the dearest.
  dearest = gpu_kernels.chosen(rows, 1)
  assert len({row["op"] for row in dearest}) == len(dearest) < len(rows)


def _measured():
  """A product at half of an H100's peak in TF32, and a sum that takes twice the preset's time."""
  product = {"op": "MatMul", "graph": "zoo:a", "flops": 4.946e8 * 100, "moved_bytes": 0.0,
             "product": True, "tf32_us": 200.0, "bfloat16_us": None}
  total = {"op": "AddV2", "graph": "zoo:b", "flops": 0.0, "moved_bytes": 3.35e6,
           "product": False, "tf32_us": 4.0, "bfloat16_us": 2.0}
  return {"machine": {"name": "a card", "torch": "2", "launch_us": 3.0, "host_to_device": 5e4,
                      "device_to_host": 5e4, "on_device": 3e6}, "kernels": [product, total]}


def test_a_preset_is_compared_by_kernel_and_type(gpu_kernels):
  rows = gpu_kernels.compare(_measured(), "h100").set_index(["op", "type"])
  # 64 cores a multiprocessor as grappler counts, 16 * 132 of them, 1,830 MHz, two flops each.
  peak_us = 4.946e8 * 100 / (2 * 64 * 16 * 132 * 1830)
  assert rows.loc[("MatMul", "float32"), "peak_us"] == pytest.approx(peak_us)
  assert rows.loc[("MatMul", "float32"), "efficiency"] == pytest.approx(peak_us / 200)
  assert rows.loc[("AddV2", "float32"), "peak_us"] == pytest.approx(1.0)
  assert rows.loc[("AddV2", "bfloat16"), "peak_us"] == pytest.approx(0.5)
  assert ("MatMul", "bfloat16") not in rows.index
