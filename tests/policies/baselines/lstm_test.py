import numpy as np
import tensorflow as tf

from placeto_tf.policies.baselines.sequence_placer import Lstm


def sigmoid(x):
  return 1 / (1 + np.exp(-x))


def by_hand(lstm, inputs):
  """Hidden states [T, B, H] after Hochreiter and Schmidhuber, forget gates with a bias of 1."""
  cell = hidden = np.zeros((inputs.shape[1], lstm.num_hidden))
  states = []
  for x in inputs:
    gates = np.concatenate([x, hidden], axis=1) @ lstm.kernel.numpy() + lstm.bias.numpy()
    i, c, f, o = np.split(gates, 4, axis=1)
    cell = sigmoid(f + 1) * cell + sigmoid(i) * np.tanh(c)
    hidden = sigmoid(o) * np.tanh(cell)
    states.append(hidden)
  return np.stack(states)


def small():
  rng = np.random.default_rng(0)
  lstm = Lstm(3, 4, rng, "small")
  lstm.bias.assign(rng.normal(size=16))
  return lstm, rng.normal(size=(5, 2, 3)).astype(np.float32)


def test_the_fused_kernel_computes_an_lstm():
  lstm, inputs = small()
  hidden, _ = lstm.sequence(tf.constant(inputs), lstm.zero_state(2))
  np.testing.assert_allclose(hidden, by_hand(lstm, inputs), atol=1e-6)


def test_step_by_step_is_the_same_and_a_sequence_can_be_gone_on_with():
  lstm, inputs = small()
  whole, _ = lstm.sequence(tf.constant(inputs), lstm.zero_state(2))
  state = lstm.zero_state(2)
  for x, expected in zip(inputs, whole.numpy()):
    state = lstm.step(tf.constant(x), state)
    np.testing.assert_allclose(state[1], expected, atol=1e-6)
  _, middle = lstm.sequence(tf.constant(inputs[:2]), lstm.zero_state(2))
  rest, _ = lstm.sequence(tf.constant(inputs[2:]), middle)
  np.testing.assert_allclose(rest, whole[2:], atol=1e-6)
