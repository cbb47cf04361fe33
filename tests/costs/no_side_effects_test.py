"""Looking at a graph reads and writes no file that the graph names."""

import numpy as np
import pytest
import tensorflow as tf

from placeto_tf.clusters import Cluster
from placeto_tf.costs import estimate_costs
from placeto_tf.costs.shape_analysis import analyse
from placeto_tf.graphs import load_graph


@pytest.fixture(params=[False, True], ids=["op", "function"], name="graph_def")
def graph_def_fixture(request, tmp_path):
  """A GraphDef of a shape [3, 5] that the content of a file decides."""
  path = tmp_path / "secret"
  path.write_bytes(np.array([3, 5], "<i4").tobytes())

  def filled():
    return tf.fill(tf.io.decode_raw(tf.io.read_file(str(path)), tf.int32), 1.0)

  with tf.Graph().as_default() as graph:
    tf.identity((tf.function(filled) if request.param else filled)(), name="fetch")
  return graph.as_graph_def()


def test_no_file_is_read_for_a_shape(graph_def):
  found = analyse(graph_def).outputs["fetch"][0]
  assert not found.shape.dim or all(dim.size < 0 for dim in found.shape.dim)
  costs = estimate_costs(
      load_graph(graph_def, fetches=["fetch"]), Cluster.parse("k80:1"), cache=False)
  assert np.isfinite(costs.compute_us).all()


def test_the_debuggers_ops_write_nothing(tmp_path):
  with tf.Graph().as_default() as graph:
    tf.fill(tf.identity([3, 3], name="dims"), 1.0, name="fetch")
  graph_def = graph.as_graph_def()
  # Only in the GraphDef: TensorFlow would run the op for a shape while the graph is built.
  node = next(node for node in graph_def.node if node.name == "dims")
  node.op, node.attr["tensor_name"].s = "DebugIdentity", b"dims:0"
  node.attr["debug_urls"].list.s.append(f"file://{tmp_path / 'dumped'}".encode())
  found = analyse(graph_def).outputs["fetch"][0]
  assert not (tmp_path / "dumped").exists() and len(found.shape.dim) in (0, 2)
