"""Replicas of a training graph do the step that the graph does with the whole batch."""

import pytest
import tensorflow as tf
from unhurried import compare_training

from placeto_tf.clusters import Cluster
from placeto_tf.clusters.constraints import allowed_devices
from placeto_tf.replication import ReplicaSource
from training_models import (
  dense_inputs,
  embedding,
  lstm,
  minimize,
  perceptron,
  variable,
  word_inputs,
)

REPLICAS = (2, 3, 4)
each_strategy = pytest.mark.parametrize("replicas, dtype, mirrored", [
    (2, "float32", False), (3, "float64", False), (4, "float64", False),
    (2, "float32", True), (3, "float64", True)])


@each_strategy
def test_a_perceptron(proof, replicas, dtype, mirrored):
  proof(perceptron("momentum"), dense_inputs, replicas, dtype, mirrored=mirrored)


@pytest.mark.parametrize("trainer", ("adam", "rmsprop", "sgd", "adagrad"))
def test_every_optimizer_of_tensorflow_1(proof, trainer):
  replicated = proof(perceptron(trainer), dense_inputs, 2)
  updates = [name for name, kind in zip(replicated.graph.op_names, replicated.graph.op_types)
             if kind.startswith("ResourceApply")]
  assert len(updates) == 3  # one for each variable, not one for each replica


@each_strategy
def test_an_embedding_with_sparse_gradients(proof, replicas, dtype, mirrored):
  proof(embedding("adam" if mirrored else "momentum"), word_inputs, replicas, dtype,
        mirrored=mirrored)


@pytest.mark.parametrize("trainer", ("adam", "sgd", "adagrad", "rmsprop"))
def test_sparse_gradients_in_every_optimizer_of_tensorflow_1(proof, trainer):
  proof(embedding(trainer), word_inputs, 3)


@pytest.mark.parametrize("trainer", ("momentum", "adam"))
def test_sparse_gradients_are_clipped_by_the_norm_of_all_replicas(proof, trainer):
  proof(embedding(trainer, clip=0.01), word_inputs, 2)


@each_strategy
@pytest.mark.parametrize("unrolled", (True, False))
def test_an_lstm_with_clipping_by_the_global_norm(proof, replicas, dtype, mirrored, unrolled):
  proof(lstm("momentum", 0.01, unrolled), word_inputs, replicas, dtype, mirrored=mirrored)


def masked(batch, dtype):
  """Some positions of each example are picked, as for the masked words of BERT."""
  v1 = tf.compat.v1
  words = v1.placeholder(tf.int32, [batch, 6], name="ids")
  positions = v1.placeholder(tf.int32, [batch, 2], name="positions")
  rows = tf.nn.embedding_lookup(variable("table", [11, 4], dtype), words)
  hidden = tf.tanh(tf.reshape(
      tf.reshape(rows, [-1, 4]) @ variable("mixing", [4, 5], dtype), [batch, 6, 5]))
  picked = tf.reshape(tf.gather(hidden, positions, batch_dims=1), [-1, 5])
  loss = tf.reduce_mean(tf.square(picked @ variable("w", [5, 1], dtype)), name="loss")
  return minimize(loss, "adam", None), loss


def masked_inputs(batch, generator, dtype):
  del dtype
  return {"ids:0": generator.integers(0, 11, [batch, 6]),
          "positions:0": generator.integers(0, 6, [batch, 2])}


@pytest.mark.parametrize("replicas", REPLICAS)
def test_a_gather_of_each_example(proof, replicas):
  proof(masked, masked_inputs, replicas, "float64")


@pytest.mark.parametrize("mirrored", (False, True))
def test_each_replica_has_the_memory_of_its_examples(mirrored):
  """Transformer-XL's memory is a variable with a row for each example."""
  source = ReplicaSource(
      "zoo:transformer_xl:layers=1:batch=4:segment=6:memory=4:heads=2:width=4:inner=8:vocab=20")
  replicated = source.replicas(2, mirrored)
  found = compare_training(source.graph, replicated, steps=3)
  assert found.checked and found.largest_difference < 1e-5
  assert {"layer_0/memory", "replica_1/layer_0/memory"} <= {
      name.replace("replica_0/", "") for name in replicated.graph.op_names}
  # A join of the handles would have a kernel nowhere.
  assert allowed_devices(replicated.graph, Cluster.parse("v100:2")).any(axis=1).all()
