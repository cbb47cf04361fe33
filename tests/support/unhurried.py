"""`compare_training` with as much time as it takes, for its limit would leave out steps of a busy
machine."""

import placeto_tf


def compare_training(graph, replicated, steps=5, **options):
  return placeto_tf.compare_training(graph, replicated, steps, **{"time_limit_s": 1e5, **options})
