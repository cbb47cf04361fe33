import numpy as np
import tensorflow as tf

from placeto_tf.zoo import convolutional as layers

v1 = tf.compat.v1


def test_halving_sees_all_four_corners_of_a_square_in_two():
  """One half of the channels comes from even pixels, the other from odd ones."""
  with tf.Graph().as_default(), v1.Session() as session:
    image = tf.reshape(tf.range(1.0, 17.0), [1, 4, 4, 1])
    norms = layers.BatchNorms()
    layers.halve(norms, "halve", image, 2)
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
