"""Shapes that TensorFlow's inference leaves open are worked out."""

import numpy as np
import pytest

from placeto_tf.costs import guarded
from placeto_tf.graphs import analysis_graph_def, load_graph
from placeto_tf.replication.dataflow import Dataflow

BATCH = 3


def of_open_shape(x):
  """[batch, 4, 5], as a program computes it."""
  import tensorflow as tf

  return tf.fill(tf.stack([tf.shape(x)[0], 4, 5]), 1.0)


CASES = {
    "new axes": lambda value: value[:, None, 1, ..., None],
    "a step back": lambda value: value[::-1, 3:0:-2],
    "einsum": lambda value: _einsum("bij,bkj->kbi", value, value),
    "batched product": lambda value: _matmul(value, value[:, 1:], transpose_b=True),
    "broadcast product": lambda value: _matmul(value[None], value[:, None], transpose_a=True),
}


def _einsum(*arguments):
  import tensorflow as tf

  return tf.einsum(*arguments)


def _matmul(*arguments, **options):
  import tensorflow as tf

  return tf.raw_ops.BatchMatMulV2(
      x=arguments[0], y=arguments[1], adj_x=options.get("transpose_a", False),
      adj_y=options.get("transpose_b", False))


@pytest.mark.parametrize("case", CASES)
def test_where_inference_knows_nothing_a_shape_is_that_of_a_session(case):
  import tensorflow as tf

  v1 = tf.compat.v1
  graph = tf.Graph()
  with graph.as_default():
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
