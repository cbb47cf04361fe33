"""Fed values that wait on their devices."""

import numpy as np
import tensorflow as tf

import graph_files
from placeto_tf.graphs import load_graph
from placeto_tf.runtime import placed_runs

_CPU = "/job:localhost/replica:0/task:0/device:CPU:"


def _graph(build):
  with tf.Graph().as_default() as graph:
    build()
  return graph.as_graph_def()


def test_values_are_held_where_the_placeholder_was():
  values = {"x:0": np.arange(6, dtype=np.float32).reshape(2, 3),
            "ids:0": np.array([3, 1], np.int32), "words:0": np.array([b"a", b"bc"], object),
            "rate:0": np.float32(0.5)}

  def build():
    with tf.device(_CPU + "1"):
      x = tf.compat.v1.placeholder(tf.float32, [None, 3], name="x")
      ids = tf.compat.v1.placeholder(tf.int32, name="ids")  # of unknown rank
      words = tf.compat.v1.placeholder(tf.string, [2], name="words")
      rate = tf.compat.v1.placeholder_with_default(np.float32(2.0), [], name="rate")
      _ = x * rate, ids + 1, tf.strings.length(words)

  placed = _graph(build)
  assert placed_runs.hold(placed, values) == {}
  nodes = {node.name: node for node in placed.node}
  assert all(nodes[name[:-2]].device == nodes[f"{name[:-2]}/held_0"].device == _CPU + "1"
             for name in values)
  config = tf.compat.v1.ConfigProto(device_count={"CPU": 2}, allow_soft_placement=False)
  with tf.compat.v1.Session(graph=graph_files.imported(placed), config=config) as session:
    # Nothing is fed.
    scaled, more, lengths = session.run(["mul:0", "add:0", "StringLength:0"])
  np.testing.assert_array_equal(scaled, values["x:0"] * 0.5)
  assert more.tolist() == [4, 2] and lengths.tolist() == [1, 2]


def test_what_is_no_placeholder_on_a_cpu_is_still_fed():
  def build():
    with tf.device("/job:worker/replica:0/task:0/device:GPU:0"):
      tf.compat.v1.placeholder(tf.float32, [2], name="on_gpu")
    with tf.device(_CPU + "0"):
      tf.compat.v1.placeholder(tf.resource, [], name="handle")
      tf.constant(1.0, name="constant")
      tf.compat.v1.placeholder(tf.float32, [2], name="not_fed")

  placed = _graph(build)
  before = placed.SerializeToString(deterministic=True)
  values = dict.fromkeys(("on_gpu:0", "handle:0", "constant:0", "elsewhere:0"), np.ones(2))
  assert placed_runs.hold(placed, values) == values
  assert placed.SerializeToString(deterministic=True) == before


def test_ids_that_a_function_looks_up_are_rows_of_its_table():
  with tf.Graph().as_default() as graph:
    ids = tf.compat.v1.placeholder(tf.int32, [1000], name="ids")
    table = tf.compat.v1.get_variable("table", [50, 2])
    rows = tf.function(lambda ids: tf.gather(table, ids))(ids)
    tf.identity(rows, name="rows")
  assert placed_runs.feed_values(load_graph(graph, fetches=["rows"]))["ids:0"].max() == 49
