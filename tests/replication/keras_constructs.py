"""Constructs that Keras adds to a graph, trained beside their replicas.

  python keras_constructs.py 2|3 NAME/R ...

Prints as JSON, case by case, what `compare_training` says, or the error.
"""

import json
import sys

import keras_step

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
  return dense(keras, metrics=[found.MeanAbsoluteError(), found.RootMeanSquaredError()])


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
  model.compile("sgd", "mse")
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
  import tensorflow as tf
  from unhurried import compare_training

  from placeto_tf.graphs import load_graph, training_function
  from placeto_tf.replication import replicate

  keras.utils.set_random_seed(1)
  model, _, (shape, dtype) = CASES[name](keras)

  def function(batch):
    return load_graph(training_function(
        model, batch_size=batch, targets=tf.TensorSpec([batch, *shape], dtype)))

  whole, part = function(4 * replicas), function(4)
  replicated = replicate(part, replicas, whole=whole)
  found = compare_training(whole, replicated)
  return {"text": str(found), "checked": found.checked, "variables": found.variables,
          "difference": found.largest_difference, "own": len(replicated.own_statistics)}


def main(version, *cases):
  keras = keras_step.the_keras(version)
  keras.backend.set_floatx("float32")
  found = {}
  for each in cases or [f"{name}/2" for name in CASES]:
    name, _, replicas = each.partition("/")
    try:
      found[each] = compared(keras, name, int(replicas))
    except Exception as error:  # pylint: disable=broad-except  told to the test
      found[each] = {"error": f"{type(error).__name__}: {error}"}
  print(json.dumps(found))


if __name__ == "__main__":
  main(*sys.argv[1:])
