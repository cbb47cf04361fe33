"""Small training graphs, by `build(batch, dtype)`, batches for them, and replicas' variables."""

import functools

import numpy as np
import tensorflow as tf


def optimizer(name):
  train = tf.compat.v1.train
  return {"momentum": lambda: train.MomentumOptimizer(0.1, 0.9),
          "adam": lambda: train.AdamOptimizer(0.01),
          "sgd": lambda: train.GradientDescentOptimizer(0.1),
          "rmsprop": lambda: train.RMSPropOptimizer(0.01, momentum=0.9),
          "adagrad": lambda: train.AdagradOptimizer(0.1)}[name]()


def variable(name, shape, dtype):
  """A variable of resource kind with values that follow from its name."""
  import zlib

  values = np.random.default_rng(zlib.crc32(name.encode())).normal(size=shape, scale=0.4)
  return tf.compat.v1.get_variable(
      name, initializer=tf.constant(values, dtype), use_resource=True)


def placeholder(dtype, shape, name):
  return tf.compat.v1.placeholder(dtype, shape, name=name)


@functools.cache  # equal calls give the same function, by which graphs are kept
def perceptron(trainer):
  def build(batch, dtype):
    x, y = placeholder(dtype, [batch, 5], "x"), placeholder(dtype, [batch, 3], "y")
    hidden = tf.nn.relu(x @ variable("w", [5, 7], dtype) + variable("b", [7], dtype))
    output = hidden @ variable("v", [7, 3], dtype)
    loss = tf.reduce_mean(tf.square(output - y), name="loss")
    return optimizer(trainer).minimize(loss, name="train"), loss

  return build


def dense_inputs(batch, generator, dtype):
  return {"x:0": generator.normal(size=[batch, 5]).astype(dtype),
          "y:0": generator.normal(size=[batch, 3]).astype(dtype)}


@functools.cache
def embedding(trainer, clip=None):
  def build(batch, dtype):
    ids = placeholder("int32", [batch, 6], "ids")
    labels = placeholder("int32", [batch], "labels")
    table = variable("table", [11, 4], dtype)
    used = tf.reshape(tf.nn.embedding_lookup(table, ids), [batch, 24])
    logits = used @ variable("w", [24, 3], dtype) + variable("b", [3], dtype)
    loss = tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits), name="loss")
    return minimize(loss, trainer, clip), loss

  return build


def minimize(loss, trainer, clip):
  chosen = optimizer(trainer)
  pairs = chosen.compute_gradients(loss)
  if clip is not None:
    clipped, _ = tf.clip_by_global_norm([gradient for gradient, _ in pairs], clip)
    pairs = list(zip(clipped, (variable for _, variable in pairs)))
  return chosen.apply_gradients(pairs, name="train")


def word_inputs(batch, generator, dtype):
  return {"ids:0": generator.integers(0, 11, size=[batch, 6]),
          "labels:0": generator.integers(0, 3, size=[batch])}


@functools.cache
def lstm(trainer, clip, unrolled):
  """An LSTM over 6 words, in a loop or unrolled; gradients clipped far below their norm."""

  def build(batch, dtype):
    ids = placeholder("int32", [batch, 6], "ids")
    labels = placeholder("int32", [batch], "labels")
    rows = tf.nn.embedding_lookup(variable("table", [11, 4], dtype), ids)
    steps = tf.transpose(rows, [1, 0, 2])
    kernel, bias = variable("kernel", [9, 20], dtype), variable("bias", [20], dtype)

    def cell(x, state, output):
      gates = tf.concat([x, output], 1) @ kernel + bias
      i, j, f, o = tf.split(gates, 4, axis=1)
      state = state * tf.sigmoid(f) + tf.sigmoid(i) * tf.tanh(j)
      return state, tf.tanh(state) * tf.sigmoid(o)

    state = output = tf.zeros([batch, 5], dtype)
    if unrolled:
      for x in tf.unstack(steps):
        state, output = cell(x, state, output)
    else:
      read = tf.TensorArray(dtype, size=6).unstack(steps)
      _, state, output = tf.while_loop(
          lambda i, state, output: i < 6,
          lambda i, state, output: (i + 1, *cell(read.read(i), state, output)),
          (0, state, output))
    logits = output @ variable("w", [5, 3], dtype)
    loss = tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits), name="loss")
    return minimize(loss, trainer, clip), loss

  return build


def function(weights, examples):
  """A ConcreteFunction of so many examples, or None, that trains weights, which must outlive it."""
  @tf.function
  def step(x):
    with tf.GradientTape() as tape:
      loss = tf.reduce_mean(x @ weights)
    weights.assign_sub(0.1 * tape.gradient(loss, weights))
    return loss

  return step.get_concrete_function(tf.TensorSpec([examples, weights.shape[0]]))


def mirrored_variables(graph):
  """Name of a variable -> tensors of its value in each replica, the first one first.

  Variables that replicas share are left out. Ops that read variables are added to the graph.
  """
  found = {}
  for op in graph.get_operations():
    prefix, _, name = op.name.partition("/")
    if op.type in ("VarHandleOp", "VariableV2") and prefix.startswith("replica_"):
      found.setdefault(f"{name}:0", [graph.get_operation_by_name(name)]).append(op)

  def value(op):
    return op.outputs[0] if op.type == "VariableV2" else tf.raw_ops.ReadVariableOp(
        resource=op.outputs[0], dtype=op.get_attr("dtype"))

  with graph.as_default():
    return {name: [value(op) for op in ops] for name, ops in found.items()}
