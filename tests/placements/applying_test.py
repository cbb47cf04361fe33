import pathlib

import pytest
import tensorflow as tf

import graph_files
import placeto_tf as placeto
from placeto_tf.clusters.cluster import Cluster
from placeto_tf.errors import PlacementError
from placeto_tf.graphs import load_graph
from placeto_tf.placements import Placement, write_placed

v1 = tf.compat.v1


def _build():
  """A small training graph; the caller chooses graph and scope."""
  weights = v1.get_variable("weights", [3, 3], use_resource=True)
  inputs = v1.placeholder(tf.float32, [2, 3], name="inputs")
  loss = tf.reduce_sum(tf.tanh(tf.matmul(inputs, weights)), name="loss")
  v1.train.GradientDescentOptimizer(0.1).minimize(loss, name="train")
  v1.global_variables_initializer()


def _graph():
  with tf.Graph().as_default() as tf_graph:
    _build()
  return tf_graph


def _placement(tf_graph, cluster="cpu:2"):
  graph = load_graph(tf_graph, fetches=["train"])
  return Placement.from_indices(graph, Cluster.parse(cluster), graph.colocation % 2)


def _canonical(placement):
  return {op: device.replace("/CPU", "/device:CPU") for op, device in placement.items()}


def test_a_graph_def_comes_back_as_a_placed_copy():
  graph_def = _graph().as_graph_def()
  before = graph_def.SerializeToString(deterministic=True)
  placement = _placement(_graph())
  assert set(placement.values()) == {"/CPU:0", "/CPU:1"}
  placed = placement.apply(graph_def)
  assert graph_def.SerializeToString(deterministic=True) == before
  assert {node.name: node.device for node in placed.node} == _canonical(placement)
  for node in placed.node:
    node.device = ""
  assert placed == graph_def


def test_an_op_without_a_device_is_named_and_nothing_is_changed():
  tf_graph = _graph()
  placement = _placement(tf_graph)
  with tf_graph.as_default():
    tf.constant(1.0, name="later")
  for target in (tf_graph, tf_graph.as_graph_def()):
    with pytest.raises(PlacementError, match="no device for op 'later'"):
      placement.apply(target)
  assert not any(op.device for op in tf_graph.get_operations())


def test_a_scope_places_what_it_reaches_and_reports_the_rest():
  placement = _placement(_graph())
  function = placement.device_function()
  with tf.Graph().as_default() as tf_graph, v1.device(function):
    _build()
  report = function.report(tf_graph)
  devices = {op.name: op.device for op in tf_graph.get_operations()}
  wanted = _canonical(placement)
  # tf.group makes one op a device of what it groups.
  assert report.unknown and all("/NoOp" in name for name in report.unknown)
  assert set(report.missed) == {op for op in wanted if devices[op] != wanted[op]}
  assert len(report.missed) > 5 and report.placed > 5
  assert report.placed + len(report.missed) + len(report.unknown) == len(devices)
  finished = function.place_missed(tf_graph)
  assert finished.missed == () and finished.placed == len(wanted)
  devices = {op.name: op.device for op in tf_graph.get_operations()}
  assert {op: devices[op] for op in wanted} == wanted
  assert all(devices[op] in ("/device:CPU:0", "/device:CPU:1") for op in report.unknown)


def test_the_report_names_ops_that_the_placement_lacks():
  function = Placement(
      {"both": "/CPU:1"}, ("/CPU:0", "/CPU:1")).device_function()
  with tf.Graph().as_default() as tf_graph, v1.device(function):
    tf.constant(1, name="both")
    with v1.device("/CPU:0"):
      tf.constant(1, name="new")
  report = function.report(tf_graph)
  assert (report.placed, report.missed) == (1, ())
  assert report.unknown == ("new",)
  assert tf_graph.get_operation_by_name("new").device == "/device:CPU:0"
  assert "no device for 1 op (new)" in str(report)


def test_a_colocation_with_an_op_that_is_gone_is_not_written_back(tmp_path):
  with tf.Graph().as_default() as graph:
    tf.square(tf.constant([1.0, 2.0], name="a"), name="b")
  graph_def = graph.as_graph_def()
  for node in graph_def.node:
    node.attr["_class"].list.s.extend([b"loc:@folded_away", b"loc:@a"])
  placement = placeto.place(graph_def, "cpu:1", "single", fetches=["b"]).placement
  path = write_placed(placeto.load_graph(graph_def, fetches=["b"]), placement, str(tmp_path))
  written = tf.compat.v1.GraphDef.FromString(pathlib.Path(path).read_bytes())
  for placed in (placement.apply(graph_def), written):
    again = graph_files.imported(placed)
    with tf.compat.v1.Session(graph=again) as session:
      assert session.run("b:0").tolist() == [1.0, 4.0]
    assert again.get_operation_by_name("b").get_attr("_class") == [b"loc:@a"]


def test_functions_of_a_live_graph_lose_devices_that_the_placement_lacks():
  with tf.Graph().as_default() as graph, tf.device("/gpu:3"):
    x = v1.placeholder(tf.float32, [2], name="x")

    @tf.function
    def inner(y):
      with tf.device("/cpu:0"):
        return tf.tanh(y)

    found = tf.cond(x[0] > 0, lambda: tf.while_loop(lambda y: y[0] < 2.0, lambda y: [
        inner(y) + 2.0], [x])[0], lambda: tf.sin(x), name="found")
    tf.identity(found, name="out")
  graph_def = graph.as_graph_def()
  assert any("GPU" in node.device for each in graph_def.library.function for node in each.node_def)
  placeto.place(load_graph(graph, fetches=["out:0"]), "cpu:2", method="single").apply(graph)
  config = v1.ConfigProto(allow_soft_placement=False, device_count={"CPU": 2})
  for given in ([1.0, 2.0], [-1.0, 2.0]):
    with tf.Graph().as_default(), v1.Session(
        config=v1.ConfigProto(allow_soft_placement=True)) as plain:
      tf.graph_util.import_graph_def(graph_def, name="")
      expected = plain.run("out:0", {"x:0": given})
    with v1.Session(graph=graph, config=config) as session:
      assert session.run("out:0", {"x:0": given}).tolist() == expected.tolist()
