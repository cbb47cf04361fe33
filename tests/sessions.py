"""How tests run sessions on graphs that they run only a few times."""

import tensorflow as tf

v1 = tf.compat.v1


def unoptimized():
  """A ConfigProto without grappler: optimizing a graph takes longer than running it a few times."""
  config = v1.ConfigProto()
  config.graph_options.rewrite_options.disable_meta_optimizer = True
  return config
