"""Models for the proof that live models train alike placed: three small ones, and any of
`ordinary_models`.

A case is made by `build(keras, name)` twice with equal seeds. It is a step to place, the batch it
takes, and the variables whose values are compared.
"""

import dataclasses
from typing import Any, Callable, List

import numpy as np
import tensorflow as tf

import ordinary_models
from placeto_tf.placements.keras_batches import KerasStep

SMALL = ("functional", "subclassed", "gradient_tape")


@dataclasses.dataclass
class Case:
  """A training step to place.

  Attributes:
    function: the ConcreteFunction.
    batch: its arguments.
    variables: () -> all variables it trains and keeps, in a fixed order.
  """

  function: Any
  batch: tuple
  variables: Callable[[], List[Any]]


def build(keras, name):
  """The case of that name; equal calls give equal cases."""
  keras.backend.clear_session()
  keras.utils.set_random_seed(7)
  if name in ordinary_models.MODELS:
    model, (x, x_type), (y, y_type), loss = ordinary_models.MODELS[name](keras)
    return _compiled(keras, model, loss, tuple(
        _rows([2, *shape], 5 if dtype == "int32" else None) for shape, dtype in (
            (x, x_type), (y, y_type))), keras.optimizers.SGD(0.001, momentum=0.9))
  return {"functional": _functional, "subclassed": _subclassed, "gradient_tape": _gradient_tape}[
      name](keras)


def _compiled(keras, model, loss, batch, optimizer=None, metrics=None):
  model.compile(
      optimizer or keras.optimizers.Adam(0.01), loss, metrics=metrics, jit_compile=False)
  function = KerasStep(model).trace(tf.nest.map_structure(
      lambda value: tf.TensorSpec(value.shape, value.dtype), batch))
  optimizer = model.optimizer

  def variables():
    own = optimizer.variables
    return [*model.variables, *(own() if callable(own) else own)]

  return Case(function, (tuple(tf.nest.flatten(batch)),), variables)


def _rows(shape, high=None, seed=0):
  rng = np.random.default_rng(seed)
  if high is None:
    return tf.constant(rng.random(shape, np.float32))
  return tf.constant(rng.integers(0, high, shape).astype(np.int32))


def _functional(keras):
  """Embeddings, an LSTM, attention, batch normalisation, two losses and metrics."""
  layers = keras.layers
  words = keras.Input([6], dtype="int32")
  x = layers.Embedding(30, 8)(words)
  recurrent = layers.LSTM(8, return_sequences=True)(x)
  attended = layers.MultiHeadAttention(2, 4)(x, x)
  x = layers.BatchNormalization()(layers.Concatenate()([recurrent, attended]))
  kind = layers.Dense(3, name="kind")(layers.Flatten()(x))
  score = layers.Dense(1, name="score")(layers.GlobalAveragePooling1D()(x))
  return _compiled(
      keras, keras.Model(words, [kind, score]),
      [keras.losses.SparseCategoricalCrossentropy(from_logits=True), "mse"],
      (_rows([4, 6], 30), [_rows([4], 3), _rows([4, 1])]), metrics=[["accuracy"], ["mae"]])


def _subclassed(keras):
  """A model of its own call and its own train_step."""

  class Model(keras.Model):

    def __init__(self):
      super().__init__()
      self.left, self.right = keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(8)
      self.head = keras.layers.Dense(2)
      self.scale = tf.Variable(1.0, trainable=False, name="scale")

    def call(self, x, training=False):
      return self.head(self.left(x) * self.scale + self.right(x))

    def train_step(self, data):
      x, y = data
      with tf.GradientTape() as tape:
        loss = tf.reduce_mean((self(x, training=True) - y)**2)
      weights = self.trainable_variables
      values = [weight if callable(weight.value) else weight.value for weight in weights]
      self.optimizer.apply_gradients(zip(tape.gradient(loss, values), weights))
      self.scale.assign_add(0.01)
      return {"loss": loss}

  model = Model()
  batch = (_rows([4, 5]), _rows([4, 2]))
  model(batch[0])
  model.compile(keras.optimizers.RMSprop(0.01), "mse", jit_compile=False)
  function = tf.function(model.train_step).get_concrete_function(
      tuple(tf.TensorSpec(value.shape, value.dtype) for value in batch))
  function._keeps = model

  def variables():
    own = model.optimizer.variables
    return [*model.variables, model.scale, *(own() if callable(own) else own)]

  return Case(function, (batch,), variables)


def _gradient_tape(keras):
  """A training loop of plain TensorFlow with a lookup table, an embedding and a generator."""
  del keras
  table = tf.lookup.StaticHashTable(
      tf.lookup.KeyValueTensorInitializer(["a", "b", "c"], tf.constant([0, 1, 2])), 3)
  shapes = {"embedding": [4, 8], "left": [8, 8], "right": [8, 8], "head": [8, 1]}
  weights = [
      tf.Variable(tf.random.stateless_normal(shape, [1, i]) / 3, name=name)
      for i, (name, shape) in enumerate(shapes.items())]
  slots = [tf.Variable(tf.zeros_like(weight), name="slot") for weight in weights]
  steps = tf.Variable(0, dtype=tf.int64, name="steps")
  generator = tf.random.Generator.from_seed(3)

  @tf.function
  def step(words, y):
    with tf.GradientTape() as tape:
      x = tf.nn.embedding_lookup(weights[0], table.lookup(words))
      for _ in tf.range(2):
        x = tf.tanh(x @ weights[1]) + tf.nn.relu(x @ weights[2])
      x += 0.01 * generator.normal([3, 8])
      loss = tf.reduce_mean((x @ weights[3] - y)**2)
    for weight, slot, gradient in zip(weights, slots, tape.gradient(loss, weights)):
      slot.assign(0.9 * slot + gradient)
      weight.assign_sub(0.1 * slot)
    steps.assign_add(1)
    return loss, steps.read_value()

  function = step.get_concrete_function(tf.TensorSpec([3], tf.string), tf.TensorSpec([3, 1]))
  function._keeps = (table, weights, slots, steps, generator)
  return Case(
      function, (tf.constant(["a", "c", "x"]), _rows([3, 1])),
      lambda: [*weights, *slots, steps, generator.state])
