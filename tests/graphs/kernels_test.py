import pytest
import tensorflow as tf

from placeto_tf.graphs import kernels, load_graph


@pytest.fixture
def mixed_graph():
  """Ops with a kernel on both device types, on the CPU alone, and on the GPU alone."""
  with tf.Graph().as_default() as tf_graph:
    x = tf.compat.v1.placeholder(tf.float32, [2, 2], name="x")
    product = tf.matmul(x, x, name="product")
    whole = tf.matmul(tf.cast(x, tf.int32), tf.cast(x, tf.int32), name="whole")
    text = tf.strings.as_string(product, name="text")
    tf.io.write_file("nowhere", tf.strings.reduce_join(text), name="write")
    tf.identity(whole, name="kept")
  return tf_graph


def support(graph, name):
  return tuple(graph.has_kernel[graph.op_index[name]].tolist())


def test_kernels_are_looked_up_with_the_types_of_the_node(mixed_graph):
  graph = load_graph(mixed_graph)
  assert graph.kernel_types == ("CPU", "GPU")
  assert support(graph, "product") == (True, True)
  assert support(graph, "whole") == (True, False)
  assert support(graph, "text") == (True, False)
  assert support(graph, "write") == (True, False)
  assert support(graph, "x") == (True, True)


def test_kernels_are_looked_up_with_texts_and_numbers_of_the_node():
  with tf.Graph().as_default() as tf_graph:
    x = tf.compat.v1.placeholder(tf.float32, [4, 8], name="x")
    tf.gather_nd(x, [[0], [2]], name="gathered")
    tf.nn.space_to_depth(tf.reshape(x, [1, 4, 8, 1]), 2, name="deep")
    tf.math.approx_max_k(x, 2, name="most")
  graph = load_graph(tf_graph)
  assert support(graph, "gathered") == support(graph, "deep") == (True, True)
  found = [i for i, kind in enumerate(graph.op_types) if kind == "ApproxTopK"]
  assert graph.has_kernel[found].tolist() == [[True, True]]


def test_without_any_gpu_kernels_gpus_are_assumed_to_have_them(mixed_graph, monkeypatch):
  registered = kernels._registered_kernels
  monkeypatch.setattr(kernels, "_registered_kernels", lambda op_type: [
      kernel for kernel in registered(op_type) if kernel.device_type == "CPU"])
  graph = load_graph(mixed_graph)
  assert support(graph, "product") == (True, True)
  assert support(graph, "write") == (True, False)
  assert kernels.NO_GPU_NOTE in graph.notes
