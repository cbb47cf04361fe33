"""Which ops share a device, and which devices have kernels of them."""

import pytest
import tensorflow as tf

from placeto_tf.graphs import kernels, load_graph
from placeto_tf.graphs.computation_graph import KERNEL_TYPES


def mates(graph, name):
  label = graph.colocation[graph.op_index[name]]
  return {other for other, found in zip(graph.op_names, graph.colocation) if found == label}


def test_a_resource_variable_is_with_its_readers_and_writers_but_not_with_its_values(
    training_graph):
  together = mates(load_graph(training_graph.meta_graph, batch_size=32), "w")
  assert {"MatMul/ReadVariableOp", "train/update_w/ResourceApplyMomentum", "w/Momentum"} <= together
  assert "MatMul" not in together and "b" not in together


def test_a_reference_variable_is_with_what_assigns_it(training_graph):
  together = mates(load_graph(training_graph.meta_graph, batch_size=32), "b")
  assert {"b/read", "b/Momentum", "train/update_b/ApplyMomentum"} <= together
  assert "y" not in together


def test_class_attributes_bind_also_to_an_op_that_is_pruned(training_graph):
  for name in ("y", "MatMul"):
    training_graph.node(name).attr["_class"].list.s.append(b"loc:@init")
  graph = load_graph(training_graph.meta_graph, batch_size=32)
  assert "init" not in graph.op_names
  assert mates(graph, "y") == {"y", "MatMul"}


def test_handles_are_followed_through_ops_that_pass_them_on():
  with tf.Graph().as_default() as tf_graph:
    variable = tf.compat.v1.get_variable("v", [2], use_resource=True)
    handle = tf.identity(variable.handle, name="passed")
    tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32, name="read")
  assert mates(load_graph(tf_graph, fetches=["read:0"]), "read") == {"v", "passed", "read"}


def test_handles_of_one_resource_by_name_are_together_and_anonymous_ones_are_not():
  with tf.Graph().as_default() as tf_graph:
    reads = []
    for i, shared in enumerate(
        ["one", "one", "two"] + ["cd2c89b7-88b7-44c8-ad83-06c2a9158347"] * 2):
      handle = tf.raw_ops.VarHandleOp(
          dtype=tf.float32, shape=[2], shared_name=shared, name=f"handle{i}")
      reads.append(tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32))
    tf.add_n(reads, name="out")
  graph = load_graph(tf_graph, fetches=["out:0"])
  assert "handle1" in mates(graph, "handle0")
  assert not {"handle0", "handle3", "handle4"} & mates(graph, "handle2")
  assert "handle4" not in mates(graph, "handle3")


def test_an_op_that_is_not_needed_can_tie_needed_ones_together():
  with tf.Graph().as_default() as graph:
    one = tf.compat.v1.get_variable("one", [2], use_resource=True)
    other = tf.compat.v1.get_variable("other", [2], use_resource=True)
    tf.reduce_sum(one * other, name="loss")
    tf.constant(1.0, name="tie")  # not needed, but TensorFlow places it all the same
  graph_def = graph.as_graph_def()
  apart = load_graph(graph_def, fetches=["loss"])
  index = apart.op_index
  assert apart.colocation[index["one"]] != apart.colocation[index["other"]]
  tie = next(node for node in graph_def.node if node.name == "tie")
  tie.attr["_class"].list.s.extend([b"loc:@one", b"loc:@other"])
  tied = load_graph(graph_def, fetches=["loss"])
  assert "tie" not in tied.op_index
  assert tied.colocation[index["one"]] == tied.colocation[index["other"]]


def test_an_op_that_is_not_needed_keeps_its_mates_from_where_it_has_no_kernel():
  with tf.Graph().as_default() as graph:
    one = tf.compat.v1.get_variable("one", [2], use_resource=True)
    tf.reduce_sum(one, name="loss")
    tf.as_string(3.0, name="tie")
  graph_def = graph.as_graph_def()
  on_gpu = KERNEL_TYPES.index("GPU")
  free = load_graph(graph_def, fetches=["loss"])
  assert free.has_kernel[free.op_index["one"], on_gpu]
  tie = next(node for node in graph_def.node if node.name == "tie")
  tie.attr["_class"].list.s.append(b"loc:@one")
  tied = load_graph(graph_def, fetches=["loss"])
  assert not tied.has_kernel[tied.op_index["one"], on_gpu]


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


def test_kernels_that_a_library_brings_later_are_found(monkeypatch):
  from tensorflow.python.framework import kernels as registry

  node = tf.compat.v1.NodeDef(name="op", op="BroughtLater")
  assert kernels._kernels("BroughtLater") == () and kernels._selecting(node) == {}
  brought = registry.get_registered_kernels_for_op("Shape")
  monkeypatch.setattr(registry, "get_registered_kernels_for_op", lambda op_type: brought)
  node.attr["T"].type = tf.float32.as_datatype_enum
  assert kernels._kernels("BroughtLater") and "T" in kernels._selecting(node)


def test_without_any_gpu_kernels_gpus_are_assumed_to_have_them(mixed_graph, monkeypatch):
  registered = kernels._kernels
  monkeypatch.setattr(kernels, "_kernels", lambda op_type: [
      kernel for kernel in registered(op_type) if kernel.device_type == "CPU"])
  graph = load_graph(mixed_graph)
  assert support(graph, "product") == (True, True)
  assert support(graph, "write") == (True, False)
  assert kernels.NO_GPU_NOTE in graph.notes


@pytest.mark.parametrize("op", [
    "AddV2", "Mul", "FloorMod", "Pack", "ConcatV2", "MatMul", "ResourceApplyMomentum", "MadeUpOp"])
def test_results_of_whole_numbers_are_on_the_host_and_no_others(op):
  node = tf.compat.v1.NodeDef(name="op", op=op)
  node.attr["Tidx"].type = tf.int32.as_datatype_enum
  for dtype in (tf.float32, tf.int32):
    node.attr["T"].type = dtype.as_datatype_enum
    assert kernels.outputs_in_host_memory(node) == (
        dtype is tf.int32 and op not in ("MatMul", "ResourceApplyMomentum", "MadeUpOp"))


def _optional(x):
  text = tf.raw_ops.OptionalFromValue(components=[tf.strings.as_string(x)])
  return tf.raw_ops.OptionalGetValue(
      optional=tf.identity(text, name="passed"), output_types=[tf.string], output_shapes=[[]])[0]


def _list(x):
  words = tf.raw_ops.TensorListReserve(
      element_shape=tf.zeros([0], tf.int32), num_elements=1, element_dtype=tf.string, name="made")
  words = tf.raw_ops.TensorListSetItem(
      input_handle=words, index=0, item=tf.strings.as_string(x))
  words = tf.cond(x > 0, lambda: tf.identity(words, name="passed"), lambda: words)
  return tf.raw_ops.TensorListGetItem(
      input_handle=words, index=0, element_shape=tf.zeros([0], tf.int32),
      element_dtype=tf.string)


def _dataset(x):
  data = tf.raw_ops.TensorDataset(components=[x], output_shapes=[[]], name="data")
  return tf.raw_ops.DatasetCardinality(input_dataset=tf.identity(data, name="passed"))


@pytest.mark.parametrize("build", [_optional, _list, _dataset])
def test_variants_that_tensorflow_does_not_copy_to_gpus_stay_with_all_ops_that_pass_them(build):
  with tf.Graph().as_default() as tf_graph:
    tf.identity(build(tf.compat.v1.placeholder(tf.float32, [], "x")), "out")
  graph = load_graph(tf_graph.as_graph_def(), fetches=["out:0"])
  made, read = next(op for op in graph.op_names if op in ("made", "OptionalFromValue", "data")), (
      graph.op_names[graph.op_index["out"] - 1])
  assert {made, read} < mates(graph, made) and any(
      graph.op_types[graph.op_index[op]] in ("Identity", "Merge") for op in mates(graph, made))
