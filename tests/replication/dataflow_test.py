"""Shapes that TensorFlow's inference leaves open are worked out."""

import numpy as np
import pytest
import tensorflow as tf

from placeto_tf.costs import guarded
from placeto_tf.graphs import analysis_graph_def, load_graph
from placeto_tf.replication.dataflow import Dataflow

BATCH = 3


def of_open_shape(x):
  """[batch, 4, 5], as a program computes it."""
  return tf.fill(tf.stack([tf.shape(x)[0], 4, 5]), 1.0)


CASES = {
    "new axes": lambda value: value[:, None, 1, ..., None],
    "a step back": lambda value: value[::-1, 3:0:-2],
    "einsum": lambda value: tf.einsum("bij,bkj->kbi", value, value),
    "batched product": lambda value: tf.raw_ops.BatchMatMulV2(
        x=value, y=value[:, 1:], adj_y=True),
    "broadcast product": lambda value: tf.raw_ops.BatchMatMulV2(
        x=value[None], y=value[:, None], adj_x=True),
}


@pytest.mark.parametrize("case", CASES)
def test_where_inference_knows_nothing_a_shape_is_that_of_a_session(case):
  v1 = tf.compat.v1
  with tf.Graph().as_default() as graph:
    x = v1.placeholder(tf.float32, [None, 1], name="x")
    result = tf.identity(CASES[case](of_open_shape(x)), name="result")
    with v1.Session() as session:
      found = session.run(result, {x: np.zeros([BATCH, 1])}).shape
  read = load_graph(graph.as_graph_def(), fetches=["result:0"], batch_size=BATCH)
  outputs = guarded.analyse(analysis_graph_def(read), counts=False).outputs
  for name, kind in zip(read.op_names, read.op_types):
    if kind not in ("Placeholder", "Const"):
      for each in outputs[name]:
        each.shape.unknown_rank = True
  assert Dataflow(read, outputs).shape((read.op_index["result"], 0)) == found
