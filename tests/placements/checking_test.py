import tensorflow as tf

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.graphs import load_graph
from placeto_tf.placements import Placement, check

v1 = tf.compat.v1


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
