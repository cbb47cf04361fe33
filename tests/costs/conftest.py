"""Small graphs to estimate, and a cache folder of their own for every test."""

import pytest
import tensorflow as tf


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
  """No test reads what another run counted, or leaves something in the user's cache."""
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def training_graph(batch=16):
  """x [batch, 8] times w [8, 4], squared and averaged, with its momentum update.

  The op names are those that tests look for: "MatMul" (forward), "w", "w/Momentum".
  """
  from placeto_tf import graphs

  v1 = tf.compat.v1
  with tf.Graph().as_default() as graph:
    x = v1.placeholder(tf.float32, [batch, 8], name="x")
    w = v1.get_variable("w", [8, 4], use_resource=True)
    y = tf.matmul(x, w, name="MatMul")
    loss = tf.reduce_mean(tf.square(y, name="Square"), name="loss")
    v1.train.MomentumOptimizer(0.1, 0.9).minimize(loss, name="train")
  return graphs.load_graph(graph, fetches=["train", "loss"])


@pytest.fixture(name="training_graph")
def training_graph_fixture():
  return training_graph


def load(build, fetches=("fetch",), **options):
  """The graph that `build(tf.compat.v1, tf)` makes under a new tf.Graph."""
  from placeto_tf import graphs

  with tf.Graph().as_default() as graph:
    build(tf.compat.v1, tf)
  return graphs.load_graph(graph, fetches=list(fetches), **options)


@pytest.fixture(name="load")
def load_fixture():
  return load
