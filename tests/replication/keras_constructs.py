"""Constructs that Keras adds to a graph, trained beside their replicas.

  python keras_constructs.py 2|3 NAME/R ...

Prints as JSON, case by case, what `compare_training` says, and how far losses and variables are
apart after five steps of the model and of its replicas, or the error. The case `MIRRORED` of Keras
2 is batch normalization on replicas beside that of MirroredStrategy.
"""

import json
import sys

from subprograms import the_keras

MIRRORED = "mirrored_strategy"
CASES = {}


def case(function):
  CASES[function.__name__] = function
  return function


def dense(keras, *more, loss="mse", metrics=(), optimizer="adam"):
  layers = keras.layers
  model = keras.Sequential([keras.Input([6]), layers.Dense(8, activation="relu"), *more,
                            layers.Dense(3)])
  model.compile(optimizer, loss, metrics=list(metrics))
  return model, ([6], "float32"), ([3], "float32")


@case
def dropout_without_a_seed(keras):
  return dense(keras, keras.layers.Dropout(0.3))


@case
def batch_normalization(keras):
  return dense(keras, keras.layers.BatchNormalization())


@case
def masked_loss(keras):
  def loss(y, predicted):
    import tensorflow as tf

    mask = tf.cast(y[:, 0] > 0, predicted.dtype)
    errors = tf.reduce_mean(tf.square(y - predicted), axis=-1)
    return tf.reduce_sum(errors * mask) / tf.reduce_sum(mask)

  return dense(keras, keras.layers.BatchNormalization(), loss=loss)


@case
def metrics(keras):
  found = keras.metrics
  return dense(keras, metrics=[found.MeanAbsoluteError(), found.RootMeanSquaredError()],
               optimizer="rmsprop")


def embedding(keras, optimizer):
  model = keras.Sequential([
      keras.Input([6], dtype="int32"), keras.layers.Embedding(11, 4), keras.layers.Flatten(),
      keras.layers.Dense(3)])
  model.compile(optimizer, "mse")
  return model, ([6], "int32"), ([3], "float32")


@case
def embedding_with_adam(keras):
  return embedding(keras, "adam")


@case
def embedding_with_adagrad(keras):
  return embedding(keras, keras.optimizers.Adagrad(0.05))


@case
def added_loss(keras):
  class Added(keras.layers.Layer):
    def call(self, x):
      import tensorflow as tf

      self.add_loss(0.01 * tf.reduce_sum(tf.square(x)))
      return x

  return dense(keras, Added())


@case
def regularizer_and_clipping(keras):
  model, x, y = dense(keras, keras.layers.Dense(4, kernel_regularizer="l2"))
  model.compile(keras.optimizers.SGD(0.1, global_clipnorm=0.1), "mse")
  return model, x, y


@case
def masked_sequences(keras):
  layers = keras.layers
  model = keras.Sequential([
      keras.Input([5], dtype="int32"), layers.Embedding(11, 4, mask_zero=True),
      layers.LSTM(6, return_sequences=True), layers.Dense(2)])
  model.compile(keras.optimizers.SGD(0.05, momentum=0.9, global_clipnorm=0.01), "mse")
  return model, ([5], "int32"), ([5, 2], "float32")


@case
def convolutions(keras):
  layers = keras.layers
  image = keras.Input([8, 8, 2])
  down = layers.Conv2D(4, 3, padding="same", activation="relu")(image)
  inner = layers.MaxPooling2D()(down)
  inner = layers.SeparableConv2D(4, 3, padding="same", activation="relu")(inner)
  inner = layers.BatchNormalization()(inner)
  up = layers.UpSampling2D()(inner)
  up = layers.Concatenate()([down, up])
  model = keras.Model(image, layers.Conv2D(1, 1)(layers.SpatialDropout2D(0.2)(up)))
  model.compile("adam", "mse")
  return model, ([8, 8, 2], "float32"), ([8, 8, 1], "float32")


def compared(keras, name, replicas):
  import numpy as np
  import tensorflow as tf
  from unhurried import compare_training

  from placeto_tf.graphs import load_graph
  from placeto_tf.placements.keras_batches import KerasStep
  from placeto_tf.replication import replicate

  keras.utils.set_random_seed(1)
  model, inputs, targets = CASES[name](keras)

  step = KerasStep(model)

  def function(batch):
    return load_graph(step.trace(tuple(
        tf.TensorSpec([batch, *shape], dtype) for shape, dtype in (inputs, targets))))

  batch = 4 * replicas
  whole, part = function(batch), function(4)
  replicated = replicate(part, replicas, whole=whole)
  found = compare_training(whole, replicated)
  variables = model.optimizer.variables
  variables = [*model.variables, *(variables() if callable(variables) else variables)]
  first = [np.array(each) for each in variables]

  def trained(graph):
    """Losses and float variables after five steps from the first values."""
    model.reset_metrics()  # of which "loss" is one
    for variable, value in zip(variables, first):
      variable.assign(value)
    losses = []
    for seed in range(5):
      generator = np.random.default_rng(seed)
      examples = (
          generator.integers(0, 11, [batch, *shape]) if dtype == "int32" else
          generator.normal(size=[batch, *shape]) for shape, dtype in (inputs, targets))
      x, y = (tf.constant(each, dtype) for each, (_, dtype) in zip(examples, (inputs, targets)))
      losses.append(graph.source.tf_graph((x, y))["loss"].numpy())
    return [np.array(losses), *(
        each for each in map(np.array, variables) if each.dtype.kind == "f")]

  apart = max(np.abs(one - other).max() / (np.abs(one).max() or 1)
              for one, other in zip(trained(whole), trained(replicated.graph)))
  return {"text": str(found), "checked": found.checked, "variables": found.variables,
          "difference": found.largest_difference, "own": len(replicated.own_statistics),
          "apart": float(apart)}


def beside_mirrored_strategy(keras, replicas):
  """How far variables are apart after five steps from the same weights."""
  import numpy as np
  import tensorflow as tf

  from placeto_tf.graphs import load_graph
  from placeto_tf.placements.keras_batches import KerasStep
  from placeto_tf.replication import replicate

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
  found.compile(keras.optimizers.legacy.SGD(0.1, momentum=0.9), "mse")
  function = KerasStep(found).trace((tf.TensorSpec([batch, 8, 8, 2]), tf.TensorSpec([batch, 3])))
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
    function((tf.constant(x), tf.constant(y)))
  worst = 0.0
  pairs = list(zip(expected.variables, found.variables))
  for one, other in pairs:
    one, other = one.numpy(), other.numpy()
    worst = max(worst, np.abs(one - other).max() / (np.abs(one).max() or 1))
  moving = [v for v in found.variables if "moving_mean" in v.name]
  assert all(np.abs(v.numpy()).max() > 0 for v in moving), "a moving average has not moved"
  return {"apart": float(worst)}


def main(version, *cases):
  keras = the_keras(version)
  import tensorflow as tf

  cpu = tf.config.list_physical_devices("CPU")[0]
  tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 3)
  # Optimizing a graph takes longer than running it a few times.
  tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
  keras.backend.set_floatx("float32")
  found = {}
  for each in cases or [f"{name}/2" for name in CASES]:
    name, _, replicas = each.partition("/")
    try:
      found[each] = beside_mirrored_strategy(keras, int(replicas)) if name == MIRRORED else (
          compared(keras, name, int(replicas)))
    except Exception as error:  # pylint: disable=broad-except  told to the test
      found[each] = {"error": f"{type(error).__name__}: {error}"}
  print(json.dumps(found))


if __name__ == "__main__":
  main(*sys.argv[1:])
