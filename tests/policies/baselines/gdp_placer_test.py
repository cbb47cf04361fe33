import numpy as np
import tensorflow as tf

from placeto_tf.policies.baselines.gdp_network import Gate, Placer, with_memory
from placeto_tf.policies.layers import Seeds

WIDTH, SEGMENT = 8, 4


def make_placer(layers=2):
  placer = Placer(WIDTH, layers, 2, SEGMENT, Seeds(0))
  placer(tf.zeros((1, WIDTH)), tf.zeros((1, 3)), tf.constant([1]))
  for variable in placer.trainable_variables:  # layers start quiet; loud ones show what they do
    variable.assign(variable + tf.constant(
        np.random.default_rng(1).normal(size=variable.shape) * 0.3, tf.float32))
  return placer


def placed(placer, x, condition=None):
  """Of the nodes of one graph."""
  condition = CONDITION if condition is None else condition
  return placer(tf.convert_to_tensor(x), condition[None], tf.constant([len(x)]))


def nodes(count, seed=0):
  return np.random.default_rng(seed).normal(size=(count, WIDTH)).astype(np.float32)


CONDITION = tf.constant([0.3, -0.2, 0.9])


def changed_by(placer, x, node):
  """[M] bool: whose output another input of one node changes."""
  other = x.copy()
  other[node, 0] += 3  # not all features alike, which normalization would undo
  return np.abs((placed(placer, x) - placed(placer, other)).numpy()).max(axis=1) > 1e-6


def test_a_layer_sees_its_segment_and_the_one_before():
  x = nodes(12)
  np.testing.assert_array_equal(
      changed_by(make_placer(layers=1), x, 1), [True] * 8 + [False] * 4)
  np.testing.assert_array_equal(
      changed_by(make_placer(layers=1), x, 5), [False] * 4 + [True] * 8)


def test_memory_is_not_differentiated_through():
  placer, x = make_placer(), tf.constant(nodes(12))
  with tf.GradientTape() as tape:
    tape.watch(x)
    total = tf.reduce_sum(placed(placer, x)[4:8] ** 3)  # of the second segment
  gradient = np.abs(tape.gradient(total, x).numpy()).max(axis=1)
  assert (gradient[4:8] > 1e-4).all()
  np.testing.assert_array_equal(gradient[:4], 0)
  np.testing.assert_array_equal(gradient[8:], 0)


def test_segments_side_by_side_equal_segments_one_after_the_other():
  placer, x = make_placer(layers=3), nodes(14)
  together = placed(placer, x).numpy()
  memories = [None] * 3
  for first in range(0, 14, SEGMENT):
    hidden = tf.constant(x[first:first + SEGMENT])[None]
    for i, layer in enumerate(placer._layers):
      memory, memories[i] = memories[i], hidden
      around = hidden if memory is None else tf.concat([memory, hidden], axis=1)
      around = layer._gates[0](layer._norms[0](around), CONDITION[None])
      seen = tf.ones(around.shape[:2], tf.bool)
      hidden += layer._attention(around[:, -hidden.shape[1]:], around, seen)
      y = layer._gates[1](layer._norms[1](hidden), CONDITION[None])
      for dense in layer._dense:
        y = dense(y)
      hidden += y
    np.testing.assert_allclose(
        placer._norm(hidden[0]), together[first:first + SEGMENT], atol=1e-4)


def test_graphs_side_by_side_equal_each_alone():
  placer, sizes = make_placer(), [5, 9, 4]
  conditions = tf.constant(np.random.default_rng(2).normal(size=(3, 3)), tf.float32)
  parts = [nodes(size, seed=size) for size in sizes]
  together = placer(tf.constant(np.concatenate(parts)), conditions, tf.constant(sizes)).numpy()
  alone = [placed(placer, part, condition) for part, condition in zip(parts, conditions)]
  np.testing.assert_allclose(together, np.concatenate(alone), atol=1e-5)


def test_padding_is_not_seen():
  placer = make_placer()
  whole, part = nodes(8), nodes(8)[:6]  # two of the second segment are padding
  out = placed(placer, part).numpy()
  assert out.shape == (6, WIDTH)
  valid = tf.constant([[True] * 4, [True, True, False, False]])
  _, visible = with_memory(tf.zeros((2, 4, 1)), valid, tf.constant([True, False]))
  np.testing.assert_array_equal(visible, [[0] * 4 + [1] * 4, [1] * 4 + [1, 1, 0, 0]])
  assert np.abs(out[4:] - placed(placer, whole).numpy()[4:6]).max() > 1e-4


def test_a_gate_by_hand():
  gate = Gate(2, Seeds(0))
  gate(tf.zeros((1, 1, 2)), tf.zeros((1, 3)))
  gate._gate.kernel.assign([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]])
  gate._gate.bias.assign([0.0, 1.0])
  # 1 + (0.5, 2 * 0.25 + 1) = (1.5, 2.5)
  found = gate(tf.constant([[[2.0, 4.0]]]), tf.constant([[0.5, 0.25, 9.0]]))
  assert found.numpy().tolist() == [[[3.0, 10.0]]]
