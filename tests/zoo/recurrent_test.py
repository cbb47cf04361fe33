import numpy as np
import tensorflow as tf

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
