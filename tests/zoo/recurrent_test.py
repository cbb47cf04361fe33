import numpy as np
import pytest
import tensorflow as tf

from placeto_tf import zoo
from placeto_tf.zoo import recurrent
from placeto_tf.zoo.zoo_graph import ZooGraph
from sessions import unoptimized

v1 = tf.compat.v1

_SPECS = (
    "rnnlm:batch=3:layers=2:steps=3:hidden=5:vocab=11:dropout=30",
    "nmt:batch=3:layers=2:steps=3:hidden=5:vocab=11:dropout=30",
)


def _losses(built: ZooGraph, steps: int):
  rng = np.random.default_rng(0)
  with v1.Session(graph=built.graph, config=unoptimized()) as session:
    session.run(built.init_op)
    feeds = {
        name: rng.integers(0, 11, built.graph.get_tensor_by_name(name).shape.as_list())
        for name in built.feeds}
    return [session.run([built.train_op, built.loss], feeds)[1] for _ in range(steps)]


@pytest.mark.parametrize("spec", _SPECS)
def test_two_sessions_on_one_graph_give_equal_losses(spec):
  built = zoo.build(spec)
  first = _losses(built, 3)
  assert first == _losses(built, 3)
  np.testing.assert_allclose(first[0], np.log(11), rtol=0.05)  # small weights know nothing yet


@pytest.mark.parametrize("spec", _SPECS)
def test_training_learns_a_batch_by_heart(spec):
  losses = _losses(zoo.build(spec.replace(":dropout=30", ":optimizer=adam:hidden=32").replace(
      ":hidden=5", "")), 150)
  assert losses[-1] < 0.8 * losses[0]


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


def test_ops_grow_with_layers_and_steps():
  def count(spec):
    return len(zoo.build(spec).graph.get_operations())

  base = "rnnlm:batch=2:hidden=4:vocab=11"
  small = count(f"{base}:layers=1:steps=4")
  assert count(f"{base}:layers=2:steps=4") > 1.6 * small
  assert count(f"{base}:layers=1:steps=8") > 1.6 * small
