"""Replicas of Keras steps in a process of one Keras: `keras_step.py 2|3 OPTIMIZER/MODEL/R ...`.

Prints as JSON, case by case, the largest relative difference between five steps of the model at the
global batch and of its replicas, over losses and all variables.
"""

import json
import os
import sys


def the_keras(version):
  if version == "2":
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
  import tensorflow as tf

  if version == "2":
    try:
      import tf_keras as keras
    except ImportError:
      keras = tf.keras
  else:
    import keras
  keras.backend.set_floatx("float64")
  return keras


def difference(keras, optimizer, kind, replicas):
  import numpy as np
  import tensorflow as tf

  from placeto_tf.graphs import load_graph, training_function
  from placeto_tf.replication import replicate

  def model():
    keras.utils.set_random_seed(1)
    layers = keras.layers
    if kind == "dense":
      return keras.Sequential([
          keras.Input([6]), layers.Dense(8, activation="relu"), layers.Dense(3)])
    if kind == "embedding":
      return keras.Sequential([
          keras.Input([6], dtype="int32"), layers.Embedding(11, 4), layers.Flatten(),
          layers.Dense(3)])
    return keras.Sequential([
        keras.Input([6], dtype="int32"), layers.Embedding(11, 4), layers.LSTM(5),
        layers.Dense(3)])

  def step(batch):
    built = model()
    name, _, clip = optimizer.partition("+")
    options = {"global_clipnorm": 0.01} if clip else {}
    chosen = {"adam": keras.optimizers.Adam, "sgd": keras.optimizers.SGD,
              "rmsprop": keras.optimizers.RMSprop, "adagrad": keras.optimizers.Adagrad}[name]
    # One name: ops of the two graphs are compared by theirs.
    chosen = chosen(
        0.05, name="updates", **({"momentum": 0.9} if name == "sgd" else {}), **options)
    built.compile(chosen, "mse", **({"jit_compile": False} if keras.__version__ > "3" else {}))
    function = training_function(built, batch_size=batch)
    variables = chosen.variables() if callable(chosen.variables) else chosen.variables
    return function, list(built.variables) + list(variables)

  batch = 4
  whole, expected = step(batch * replicas)
  part, found = step(batch)
  replicated = replicate(load_graph(part), replicas, whole=load_graph(whole))
  function = replicated.graph.source.tf_graph
  assert replicated.global_batch == batch * replicas
  worst = 0.0
  for seed in range(5):
    generator = np.random.default_rng(seed)
    x = (generator.normal(size=[batch * replicas, 6]) if kind == "dense" else
         generator.integers(0, 11, size=[batch * replicas, 6]).astype("int32"))
    y = generator.normal(size=[batch * replicas, 3])
    one, other = (run(tf.constant(x), tf.constant(y))["loss"].numpy() for run in (whole, function))
    worst = max(worst, abs(one - other) / abs(one))
  for one, other in zip(expected, found):
    one, other = np.asarray(one), np.asarray(other)
    if one.dtype.kind == "f":
      worst = max(worst, np.abs(one - other).max() / (np.abs(one).max() or 1))
  return float(worst)


def main(version, *cases):
  keras, found = the_keras(version), {}
  for case in cases:
    optimizer, kind, replicas = case.split("/")
    keras.backend.clear_session()
    found[case] = difference(keras, optimizer, kind, int(replicas))
  print(json.dumps(found))


if __name__ == "__main__":
  main(*sys.argv[1:])
