import os
import re

import numpy as np
import pytest
import tensorflow as tf

import graph_files
import placeto_tf as placeto
from placeto_tf.clusters.cluster import Cluster
from placeto_tf.graphs import load_graph
from placeto_tf.placements import Placement, write_placed
from placeto_tf.runtime import session as session_lib

v1 = tf.compat.v1


def _tf_graph():
  with tf.Graph().as_default() as tf_graph:
    v1.add_to_collection("train_op", tf.add(tf.constant(1.0), tf.constant(2.0), name="train").op)
  return tf_graph


def _protos():
  tf_graph = _tf_graph()
  with tf_graph.as_default():
    meta_graph = v1.train.export_meta_graph()
  from tensorflow.core.framework import cost_graph_pb2

  cost_graph = cost_graph_pb2.CostGraphDef()
  cost_graph.node.add(name="train", id=0, is_final=True, compute_cost=3).output_info.add(size=4)
  return {
      ".pb": tf_graph.as_graph_def(), ".meta": meta_graph, ".cost_graph.pb": cost_graph,
      ".pbtxt": tf_graph.as_graph_def(), ".meta.pbtxt": meta_graph, ".cost_graph.pbtxt": cost_graph}


def _place(graph):
  return Placement.from_indices(
      graph, Cluster.parse("cpu:2"), np.ones(graph.num_ops, dtype=np.int32))


@pytest.mark.parametrize("suffix", sorted(_protos()))
def test_a_file_goes_out_in_the_format_it_came_in(suffix, tmp_path):
  proto = _protos()[suffix]
  source = graph_files.write(proto, tmp_path / f"model{suffix}")
  graph = load_graph(source)
  assert graph.fingerprint == load_graph(proto).fingerprint
  assert (graph.source.path, graph.source.text) == (source, suffix.endswith("txt"))
  kind = [each for each in ("meta", "cost") if each in suffix]
  assert graph.source.format == "_".join([*kind, "graph_def"])
  path = write_placed(graph, _place(graph), str(tmp_path))
  assert os.path.basename(path) == "graph" + suffix
  placed = load_graph(path)
  assert placed.fingerprint == graph.fingerprint
  assert set(placed.assigned_devices) == {"/device:CPU:1"}
  nodes = getattr(placed.source.proto, "graph_def", placed.source.proto).node
  for node in nodes:
    node.device = ""
  assert placed.source.proto == proto  # nothing else has changed


def test_a_live_graph_goes_out_as_a_graph_def(tmp_path):
  graph = load_graph(_tf_graph())
  path = write_placed(graph, _place(graph), str(tmp_path))
  assert os.path.basename(path) == "graph.pb"
  assert set(load_graph(path).assigned_devices) == {"/device:CPU:1"}


def _program_with_calls():
  """A v1 graph that calls a function with a loop in it."""
  looped = tf.function(lambda x: tf.while_loop(
      lambda i, y: i < 3, lambda i, y: (i + 1, tf.tanh(y) * 1.5), (0, x))[1])
  with tf.Graph().as_default():
    x = v1.placeholder(tf.float32, [4], name="x")
    tf.identity(looped(x) + looped(x * 2.0), name="y")
    return v1.train.export_meta_graph()


def _run(graph_def):
  """The result, and op -> devices it ran on."""
  metadata = v1.RunMetadata()
  with v1.Session(graph=graph_files.imported(graph_def),
                  config=session_lib.session_config(num_cpus=2)) as session:
    result = session.run("y:0", {"x:0": np.linspace(-1, 1, 4)}, run_metadata=metadata,
                         options=session_lib.trace_options())
  return result, session_lib.executed_devices(metadata)


@pytest.mark.parametrize("suffix", [".meta", ".pb"])
def test_function_calls_come_out_inlined_and_placed(suffix, tmp_path):
  meta_graph = _program_with_calls()
  proto = meta_graph if suffix == ".meta" else meta_graph.graph_def
  graph = load_graph(graph_files.write(proto, tmp_path / f"model{suffix}"), fetches=["y"])
  indices = np.random.default_rng(0).integers(0, 2, graph.num_ops, np.int32)
  placement = Placement.from_indices(graph, Cluster.parse("cpu:2"), indices[graph.colocation])
  written = load_graph(write_placed(graph, placement, str(tmp_path))).source.proto
  assert placement.apply(proto) == written
  found, devices = _run(written.graph_def if suffix == ".meta" else written)
  np.testing.assert_array_equal(found, _run(meta_graph.graph_def)[0])
  ran = [op for op in graph.op_names if op in devices]
  assert sum("/while/" in op for op in ran) > 20
  for op in ran:
    assert devices[op] == {placement[op].replace("/CPU", "/device:CPU")}


def test_calls_of_a_live_graph_stay_calls_and_run_where_they_are_placed():
  tf_graph = graph_files.imported(_program_with_calls().graph_def)
  graph = load_graph(tf_graph, fetches=["y"])
  calls = [op.name for op in tf_graph.get_operations() if "Call" in op.type]
  indices = np.zeros(graph.num_ops, dtype=np.int32)
  first = next(i for i, name in enumerate(graph.op_names) if name.startswith(f"{calls[0]}/"))
  indices[graph.colocation == graph.colocation[first]] = 1
  assert Placement.from_indices(graph, Cluster.parse("cpu:2"), indices).apply(tf_graph) is tf_graph
  assert [tf_graph.get_operation_by_name(name).device for name in calls] == [
      "/device:CPU:1", "/device:CPU:0"]
  _, devices = _run(tf_graph.as_graph_def())
  assert [devices[name] for name in calls] == [{"/device:CPU:1"}, {"/device:CPU:0"}]


def _live_graph_with_devices(looped):
  """A live graph with a function that states two devices, in the branches or in the body of a loop.

  Args:
    looped: whether the function is a loop's body instead of branches.
  """
  def on(device, name, x):
    with tf.device(device):
      return tf.multiply(x, 2.0, name=name)

  with tf.Graph().as_default() as tf_graph:
    x = v1.placeholder(tf.float32, [4], name="x")
    if looped:
      y = tf.while_loop(lambda i, y: i < 3, lambda i, y: (
          i + 1, on("/CPU:1", "second", on("/CPU:0", "first", y))), (0, x))[1]
    else:
      y = tf.cond(x[0] > 0.0, lambda: on("/CPU:0", "first", x), lambda: on("/CPU:1", "second", x))
    tf.identity(y, name="y")
  return tf_graph


@pytest.mark.parametrize("how", ("keep", "ignore"))
@pytest.mark.parametrize("looped", (False, True), ids=("branches", "loop"))
def test_a_function_of_a_live_graph_runs_on_the_devices_that_it_states(looped, how):
  tf_graph = _live_graph_with_devices(looped)
  expected, _ = _run(tf_graph.as_graph_def())
  found = placeto.place(
      tf_graph, "cpu:2", fetches=["y"], split_loops=looped, existing_devices=how,
      max_evaluations=10).placement
  assert found.apply(tf_graph) is tf_graph
  result, devices = _run(tf_graph.as_graph_def())
  np.testing.assert_array_equal(result, expected)
  # The first element that is fed is negative.
  for name, device in (("first", "/CPU:0"), ("second", "/CPU:1"))[not looped:]:
    # A result of a function may have a number behind its name.
    is_named = re.compile(rf".*/{name}(_0)?").fullmatch
    assert {found[op] for op in found if is_named(op)} == {device}
    ran = [on for op, on in devices.items() if is_named(op)]
    assert ran and set().union(*ran) == {device.replace("/CPU", "/device:CPU")}
