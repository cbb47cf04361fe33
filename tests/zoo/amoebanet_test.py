import tensorflow as tf

from placeto_tf.zoo import amoebanet

v1 = tf.compat.v1


def test_it_has_as_many_parameters_as_published():
  # 82 M for 18 cells and 208 filters (Huang et al. 2018); the image's size does not matter.
  with tf.Graph().as_default():
    amoebanet.amoebanet(batch=1, image=32, cells=18, filters=208)
    count = sum(variable.shape.num_elements() for variable in v1.trainable_variables())
  assert round(count / 1e6) == 82
