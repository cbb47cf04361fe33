"""A small training graph as files, for the programs to read: fixtures that conftests import."""

import functools
import pathlib

import pytest
import tensorflow as tf

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.graphs import load_graph


@functools.cache
def training_graph(batch=8, width=64, branches=4):
  """Two towers' worth of dense branches, a loss and momentum updates: worth spreading out."""
  with tf.Graph().as_default() as graph:
    features = tf.compat.v1.placeholder(tf.float32, [batch, width], name="features")
    labels = tf.compat.v1.placeholder(tf.float32, [batch, width], name="labels")
    outputs = []
    for b in range(branches):
      x = features
      for layer in range(2):
        kernel = tf.compat.v1.get_variable(
            f"branch{b}/layer{layer}/kernel", [width, width], use_resource=True,
            initializer=tf.compat.v1.glorot_uniform_initializer(seed=7))
        x = tf.nn.relu(tf.matmul(x, kernel, name=f"branch{b}/layer{layer}/matmul"))
      outputs.append(x)
    loss = tf.reduce_mean(tf.square(tf.add_n(outputs) - labels), name="loss")
    tf.compat.v1.train.MomentumOptimizer(0.1, 0.9).minimize(loss, name="train")
    tf.compat.v1.add_to_collection("train_op", graph.get_operation_by_name("train"))
  return graph


def graph_def():
  """A fresh copy of the training graph's GraphDef."""
  return training_graph().as_graph_def()


def meta_graph_def():
  """The training graph as a MetaGraphDef that knows its train op."""
  graph = training_graph()
  with graph.as_default():
    return tf.compat.v1.train.export_meta_graph(graph=graph)


def write(proto, path):
  """Writes a proto, as text if the path ends in "txt"; returns the path as a string."""
  data = str(proto).encode() if str(path).endswith("txt") else proto.SerializeToString()
  pathlib.Path(path).write_bytes(data)
  return str(path)


def imported(graph_def):
  """A `tf.Graph` of a GraphDef."""
  with tf.Graph().as_default() as graph:
    tf.import_graph_def(graph_def, name="")
  return graph


@pytest.fixture(scope="session")
def cluster():
  return Cluster.parse("cpu:2")


@pytest.fixture(scope="session")
def graph():
  return load_graph(meta_graph_def())
