"""Where ops go that the fetches do not need, and what `check` says of a placement."""

import numpy as np
import pytest
import tensorflow as tf

from placeto_tf.clusters import Cluster
from placeto_tf.graphs import load_graph
from placeto_tf.placements import Placement, check

v1 = tf.compat.v1


@pytest.fixture(scope="module")
def graph():
  with tf.Graph().as_default() as tf_graph:
    left, right = (v1.get_variable(name, [2], use_resource=True) for name in ("left", "right"))
    loss = tf.reduce_sum(left * right, name="loss")
    v1.global_variables_initializer()
    v1.train.Saver()
    tf.square(loss, name="unused")
    tf.strings.as_string(loss, name="text")
    tf.while_loop(lambda i: i < 3, lambda i: i + tf.cast(left[0], tf.int32), [0], name="loop")
  return load_graph(tf_graph, fetches=["loss"])


def _place(graph, cluster):
  """`left` and its reads on device 0, `right` and the rest on device 1."""
  indices = (graph.colocation != graph.colocation[graph.op_index["left"]]).astype(np.int32)
  return Placement.from_indices(graph, cluster, indices)


def test_every_op_of_the_file_has_a_device(graph):
  placement = _place(graph, Cluster.parse("k80:2"))
  assert list(placement) == [node.name for node in graph.source.graph_def.node]
  assert {node.name for node in graph.source.proto.node} <= set(placement)  # the loop's own op, too
  assert len(placement) > graph.num_ops
  assert check(graph, placement, Cluster.parse("k80:2")) == []


def test_initialisers_and_restores_follow_their_variable(graph):
  placement = _place(graph, Cluster.parse("k80:2"))
  for variable, device in (("left", "/GPU:0"), ("right", "/GPU:1")):
    followers = [
        name for name in placement
        if name.startswith(f"{variable}/") and name not in graph.op_names]
    assert f"{variable}/Assign" in followers and len(followers) > 5
    assert {placement[name] for name in followers} == {device}
  assigned = [name for name in placement if name.startswith("save/AssignVariableOp")]
  assert sorted(placement[name] for name in assigned) == ["/GPU:0", "/GPU:1"]


def test_all_others_go_to_the_host(graph):
  placement = _place(graph, Cluster.parse("k80:2"))
  assert {placement[name] for name in ("unused", "text", "init", "save/SaveV2")} == {"/CPU:0"}


def test_a_cost_graph_is_covered_too():
  from tensorflow.core.framework import cost_graph_pb2

  proto = cost_graph_pb2.CostGraphDef()
  for i, name in enumerate(("a", "b", "c")):
    node = proto.node.add(name=name, id=i)
    node.output_info.add(size=4)
    if i == 1:
      node.input_info.add(preceding_node=0)
  graph = load_graph(proto, fetches=["b"])
  assert graph.num_ops == 2
  placement = Placement.from_indices(graph, Cluster.parse("k80:2"), [1, 0])
  assert dict(placement) == {"a": "/GPU:1", "b": "/GPU:0", "c": "/CPU:0"}


def _graph():
  with tf.Graph().as_default() as tf_graph:
    weights = v1.get_variable("weights", [2], use_resource=True)
    tf.strings.as_string(tf.reduce_sum(weights), name="text")
  return load_graph(tf_graph, fetches=["text"])


def _placement(graph, changes, devices=("/GPU:0", "/GPU:1", "/CPU:0")):
  host = {node.name: "/CPU:0" for node in graph.source.proto.node}
  return Placement({**host, **changes}, devices)


def test_each_kind_of_problem_is_said_once():
  graph = _graph()
  text = next(iter(name for name in graph.op_names if name == "text"))
  changes = {text: "/GPU:1", "weights/Assign": "/GPU:0", "stranger": "/CPU:0", "Sum": "/GPU:9"}
  wrong = _placement(graph, changes, ("/GPU:0", "/GPU:1", "/CPU:0", "/GPU:9"))
  missing = {op: device for op, device in wrong.items() if op != "Const"}
  problems = check(graph, Placement(missing, wrong.devices), Cluster.parse("k80:2"))
  for found, words in zip(problems, (
      "op 'stranger' is not in the graph", "op 'Const' has no device", "op 'Sum' is on '/GPU:9'",
      "op 'text' (AsString) is on /GPU:1, but TensorFlow has no GPU kernel",
      "must share a device")):
    assert words in found
  assert len(problems) == 5
  assert "'weights/Assign'" in problems[4] and "/CPU:0 and /GPU:0" in problems[4]
