import subprocess
import sys

import pytest

from placeto_tf.errors import GraphError
from placeto_tf.graphs import CONTROL, cost_nodes, load_graph


def test_ops_stand_by_position_and_inputs_are_found_by_id(cost_graph):
  graph = load_graph(cost_graph)
  assert graph.op_names == ("c", "a", "b")
  assert list(graph.edges) == [(1, 1, 2), (2, CONTROL, 0)]
  assert graph.output_offsets.tolist() == [0, 1, 3, 4]
  assert graph.fetched_outputs.tolist() == [True, False, False, False]
  assert graph.has_kernel.all()
  assert graph.assigned_devices == ("/device:CPU:0",) * 3
  assert [node.name for node in cost_nodes(graph)] == ["c", "a", "b"]


def test_fetches_prune_and_replace_what_is_final(cost_graph):
  graph = load_graph(cost_graph, fetches=["b:0"])
  assert graph.op_names == ("a", "b")
  assert graph.fetched_outputs.tolist() == [False, False, True]
  assert [node.id for node in cost_nodes(graph)] == [3, 5]


@pytest.mark.parametrize("fault, culprit", [
    (lambda proto: setattr(proto.node[2], "name", "a"), "'a' appears twice"),
    (lambda proto: setattr(proto.node[2].input_info[0], "preceding_node", 99), "id 99"),
    (lambda proto: setattr(proto.node[2].input_info[0], "preceding_port", 2), "output 2"),
    (lambda proto: setattr(proto.node[1], "compute_cost", -5), "compute_cost -5")])
def test_a_fault_is_named(cost_graph, fault, culprit):
  fault(cost_graph)
  with pytest.raises(GraphError) as raised:
    load_graph(cost_graph)
  assert culprit in str(raised.value)


RECORD_COSTS = """
import sys

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
with tf.Graph().as_default():
  with tf.device("/cpu:0"):
    a = v1.placeholder(tf.float32, [4, 8], name="a")
    b = tf.matmul(a, tf.ones([8, 8]), name="b")
  with tf.device("/cpu:1"):
    c = tf.reduce_sum(b, name="c")
  config = v1.ConfigProto(device_count={"CPU": 2})
  config.graph_options.build_cost_model = 1
  with v1.Session(config=config) as session:
    metadata = v1.RunMetadata()
    session.run(
        c, {a: np.ones([4, 8])}, options=v1.RunOptions(trace_level=3), run_metadata=metadata)
sys.stdout.buffer.write(metadata.cost_graph.SerializeToString())
"""


def test_what_a_session_on_two_devices_writes_is_one_connected_graph():
  from tensorflow.core.framework import cost_graph_pb2

  # In a process of its own: from the first cost model on, TensorFlow's CPU allocator counts
  # references, which tensors from before never took, and is deleted with the last it counted.
  done = subprocess.run([sys.executable, "-c", RECORD_COSTS], stdout=subprocess.PIPE, check=True)
  graph = load_graph(cost_graph_pb2.CostGraphDef.FromString(done.stdout))
  assert not {"_SOURCE", "_SINK"} & set(graph.op_names)
  reached = {graph.op_index["b"]}
  for op in graph.topological_order.tolist():
    if op in reached:
      reached.update(graph.edge_consumers[graph.edge_producers == op].tolist())
  assert graph.op_index["c"] in reached
