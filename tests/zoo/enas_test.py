import random

import numpy as np
import tensorflow as tf

from placeto_tf.zoo import enas

v1 = tf.compat.v1


def test_sampled_cells_read_earlier_states_only_and_use_every_operation():
  rng = random.Random(0)
  operations, activations = set(), set()
  for _ in range(50):
    for node, halves in enumerate(enas._sample_conv_cell(rng, 5)):
      for state, operation in halves:
        assert 0 <= state < 2 + node
        operations.add(operation)
    for node, (source, activation) in enumerate(enas._sample_recurrent_cell(rng, 8)):
      assert source == -1 if node == 0 else 0 <= source < node
      activations.add(activation)
  assert operations == set(enas._OPERATIONS) and activations == set(enas._ACTIVATIONS)


def test_the_recurrent_cell_computes_highways_and_averages_loose_ends():
  batch, hidden = 2, 3
  # Node 0 feeds nodes 1 and 2, which nobody reads.
  shape = [(-1, "tanh"), (0, "relu"), (0, "identity")]
  inputs = np.random.default_rng(0).normal(size=(2, batch, hidden)).astype(np.float32)
  with tf.Graph().as_default():
    outputs = enas._recurrent_layer(shape, [tf.constant(step) for step in inputs], hidden)
    weights = {variable.op.name: variable for variable in v1.trainable_variables()}
    with v1.Session() as session:
      session.run(v1.global_variables_initializer())
      session.run([weight.assign(5.0 * weight) for weight in weights.values()])
      found, values = session.run([outputs, weights])
  output = np.zeros((batch, hidden))

  def node(value, carried, weight, activate):
    gate, content = np.split(value @ weight, 2, axis=1)
    gate = 1 / (1 + np.exp(-gate))
    return gate * activate(content) + (1 - gate) * carried

  for step in range(2):
    joined = np.concatenate([inputs[step], output], axis=1)
    first = node(joined, output, values["node_0"], np.tanh)
    second = node(first, first, values["node_1"], lambda x: np.maximum(x, 0))
    third = node(first, first, values["node_2"], lambda x: x)
    output = (second + third) / 2
    np.testing.assert_allclose(found[step], output, rtol=1e-4, atol=1e-5)
