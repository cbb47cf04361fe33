"""Replicas with variables of their own do the step of the global batch, and stay equal."""

import numpy as np
import pytest

import training_models as models
from placeto_tf.clusters import Cluster
from placeto_tf.errors import GraphError
from placeto_tf.graphs import load_graph
from placeto_tf.replication import replicate

REPLICAS = (2, 3, 4)


def session_of(graph, **options):
  import tensorflow as tf

  config = tf.compat.v1.ConfigProto(**options)
  config.graph_options.rewrite_options.disable_meta_optimizer = True
  return tf.compat.v1.Session(graph=graph, config=config)


@pytest.mark.parametrize("replicas", REPLICAS)
@pytest.mark.parametrize("dtype", ("float32", "float64"))
@pytest.mark.parametrize("trainer", ("momentum", "adam"))
def test_a_perceptron(proof, replicas, dtype, trainer):
  proof(models.perceptron(trainer), models.dense_inputs, replicas, dtype, mirrored=True)


@pytest.mark.parametrize("replicas", REPLICAS)
@pytest.mark.parametrize("dtype", ("float32", "float64"))
@pytest.mark.parametrize("trainer", ("momentum", "adam"))
def test_an_embedding_with_sparse_gradients(proof, replicas, dtype, trainer):
  proof(models.embedding(trainer), models.word_inputs, replicas, dtype, mirrored=True)


@pytest.mark.parametrize("replicas", REPLICAS)
@pytest.mark.parametrize("dtype", ("float32", "float64"))
@pytest.mark.parametrize("unrolled", (True, False), ids=("unrolled", "loop"))
def test_an_lstm_with_clipping_by_the_global_norm(proof, replicas, dtype, unrolled):
  proof(models.lstm("adam", 0.01, unrolled), models.word_inputs, replicas, dtype, mirrored=True)
