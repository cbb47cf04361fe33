"""Batch normalization on replicas against MirroredStrategy: `mirrored_step.py R ...`, one process.

Prints as JSON, by R, the largest relative difference of all variables after five steps from the
same weights.
"""

import json
import sys

from subprograms import the_keras


def difference(replicas):
  import numpy as np
  import tensorflow as tf

  from placeto_tf.graphs import load_graph, training_function
  from placeto_tf.replication import replicate

  keras = the_keras("2")
  layers = keras.layers

  def model():
    # Without biases that normalization takes out again: their gradients are rounding errors.
    keras.utils.set_random_seed(1)
    return keras.Sequential([
        keras.Input([8, 8, 2]), layers.Conv2D(4, 3, use_bias=False),
        layers.BatchNormalization(momentum=0.7),
        layers.ReLU(), layers.Flatten(), layers.Dense(6, use_bias=False),
        layers.BatchNormalization(momentum=0.7), layers.Dense(3)])

  batch = 4
  found = model()
  optimizer = keras.optimizers.legacy.SGD(0.1, momentum=0.9)
  found.compile(optimizer, "mse")
  function = training_function(found, batch_size=batch)
  function = replicate(load_graph(function), replicas).graph.source.tf_graph

  strategy = tf.distribute.MirroredStrategy([f"/CPU:{i}" for i in range(replicas)])
  with strategy.scope():
    expected = model()
    expected.set_weights(found.get_weights())
    mirrored = keras.optimizers.legacy.SGD(0.1, momentum=0.9)

  def step(x, y):
    with tf.GradientTape() as tape:
      loss = tf.reduce_mean(keras.losses.mse(y, expected(x, training=True))) / replicas
    variables = expected.trainable_variables
    mirrored.apply_gradients(zip(tape.gradient(loss, variables), variables))

  run = tf.function(lambda xs, ys: strategy.run(step, (xs, ys)))
  for seed in range(5):
    generator = np.random.default_rng(seed)
    x = generator.normal(size=[batch * replicas, 8, 8, 2]).astype("float32")
    y = generator.normal(size=[batch * replicas, 3]).astype("float32")

    def parts(array):
      cut = np.split(array, replicas)
      return strategy.experimental_distribute_values_from_function(
          lambda context: tf.constant(cut[context.replica_id_in_sync_group]))

    run(parts(x), parts(y))
    function(tf.constant(x), tf.constant(y))
  worst = 0.0
  pairs = list(zip(expected.variables, found.variables))
  for one, other in pairs:
    one, other = one.numpy(), other.numpy()
    worst = max(worst, np.abs(one - other).max() / (np.abs(one).max() or 1))
  moving = [v for v in found.variables if "moving_mean" in v.name]
  assert all(np.abs(v.numpy()).max() > 0 for v in moving), "a moving average has not moved"
  return float(worst)


def main(*counts):
  the_keras("2")
  import tensorflow as tf

  cpu = tf.config.list_physical_devices("CPU")[0]
  tf.config.set_logical_device_configuration(
      cpu, [tf.config.LogicalDeviceConfiguration()] * max(map(int, counts)))
  print(json.dumps({count: difference(int(count)) for count in counts}))


if __name__ == "__main__":
  main(*sys.argv[1:])
