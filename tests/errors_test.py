"""Sentences made of errors."""

import tensorflow as tf

from placeto_tf.errors import one_line


def test_an_error_of_tensorflow_is_told_by_its_cause():
  v1 = tf.compat.v1
  with tf.Graph().as_default(), v1.Session() as session:
    ids = v1.placeholder(tf.int32, [1], name="ids")
    rows = tf.gather(tf.ones([3, 2]), ids, name="rows")
    try:
      session.run(rows, {ids: [7]})
    except tf.errors.OpError as error:
      said = one_line(error)
  assert said.startswith("indices[0] = 7 is not in [0, 3)"), said
