"""Layers of the zoo compute what their papers say."""

import numpy as np
import tensorflow as tf

from placeto_tf.zoo import convolutional as layers
from placeto_tf.zoo import recurrent

v1 = tf.compat.v1


def _sigmoid(x):
  return 1 / (1 + np.exp(-x))


def test_the_stack_computes_lstm_cells():
  batch, width, hidden, steps = 2, 3, 4, 3
  inputs = np.random.default_rng(0).normal(size=(steps, batch, width)).astype(np.float32)
  with tf.Graph().as_default():
    stack = recurrent.LstmStack(2, batch, width, hidden)
    outputs = [stack.step(tf.constant(step)) for step in inputs]
    weights = {variable.op.name: variable for variable in v1.trainable_variables()}
    with v1.Session() as session:
      session.run(v1.global_variables_initializer())
      found, values = session.run([outputs, weights])
  cells, states = np.zeros((2, batch, hidden)), np.zeros((2, batch, hidden))
  for step in range(steps):
    x = inputs[step]
    for layer in range(2):
      gates = np.concatenate([x, states[layer]], axis=1) @ values[f"layer_{layer}/kernel"]
      gates = np.split(gates + values[f"layer_{layer}/bias"], 4, axis=1)
      cells[layer] = cells[layer] * _sigmoid(gates[2] + 1) + _sigmoid(gates[0]) * np.tanh(gates[1])
      states[layer] = x = np.tanh(cells[layer]) * _sigmoid(gates[3])
    np.testing.assert_allclose(found[step], x, rtol=1e-5, atol=1e-6)


def test_cross_entropy_pairs_outputs_with_the_labels_of_their_step():
  # Outputs of step t point at word t, so labels that say so cost least.
  outputs = [10 * np.eye(3, dtype=np.float32)[[step, step]] for step in range(3)]
  losses = []
  for labels in ([[0, 1, 2], [0, 1, 2]], [[0, 0, 2], [0, 1, 2]]):
    with tf.Graph().as_default():
      loss = recurrent.cross_entropy(
          [tf.constant(output) for output in outputs], tf.constant(labels), 3)
      kernel, bias = v1.trainable_variables()
      with v1.Session() as session:
        session.run([kernel.assign(np.eye(3)), bias.assign(np.zeros(3))])
        losses.append(session.run(loss))
  assert losses[0] < 0.01
  np.testing.assert_allclose(losses[1], 10 / 6, rtol=0.01)


def test_attention_weighs_the_memory_by_a_softmax_of_scores():
  batch, source, hidden = 2, 3, 4
  rng = np.random.default_rng(1)
  encoded = rng.normal(size=(source, batch, hidden)).astype(np.float32)
  query = rng.normal(size=(batch, hidden)).astype(np.float32)
  with tf.Graph().as_default():
    attending = recurrent.AdditiveAttention([tf.constant(step) for step in encoded], hidden)
    context = attending.context(tf.constant(query))
    weights = {variable.op.name: variable for variable in v1.trainable_variables()}
    with v1.Session() as session:
      session.run(v1.global_variables_initializer())
      found, values = session.run([context, weights])
  memory = encoded.transpose(1, 0, 2)
  summed = memory @ values["attention/keys"] + (query @ values["attention/query"])[:, None]
  scores = np.exp(np.tanh(summed) @ values["attention/score"])
  shares = scores / scores.sum(axis=1, keepdims=True)
  np.testing.assert_allclose(found, np.einsum("bs,bsh->bh", shares, memory), rtol=1e-4, atol=1e-5)


def test_halving_sees_all_four_corners_of_a_square_in_two():
  """One half of the channels comes from even pixels, the other from odd ones."""
  with tf.Graph().as_default(), v1.Session() as session:
    image = tf.reshape(tf.range(1.0, 17.0), [1, 4, 4, 1])
    layers.halve(layers.BatchNorms(), "halve", image, 2)
    session.run(v1.global_variables_initializer())
    graph = v1.get_default_graph()
    views = [op.outputs[0] for op in graph.get_operations() if op.type == "AvgPool"]
    even, odd = session.run(views)
  assert even[0, :, :, 0].tolist() == [[1, 3], [9, 11]]
  assert odd[0, :, :, 0].tolist() == [[6, 8], [14, 16]]


def test_moving_statistics_go_a_tenth_of_the_way_to_those_of_the_batch():
  images = np.random.default_rng(0).normal(3, 2, size=(4, 5, 5, 2)).astype(np.float32)
  with tf.Graph().as_default(), v1.Session() as session:
    norms = layers.BatchNorms()
    normed = norms(tf.constant(images))
    session.run(v1.global_variables_initializer())
    session.run(norms.updates)
    normed, values = session.run([normed, {v.op.name: v for v in v1.global_variables()}])
  np.testing.assert_allclose(normed.mean(axis=(0, 1, 2)), 0, atol=1e-5)
  np.testing.assert_allclose(
      values["norm/moving_mean"], 0.1 * images.mean(axis=(0, 1, 2)), rtol=1e-4)
  assert len(norms.updates) == 2
