"""Layers of plain TensorFlow ops for the sequence models: LSTM stacks, unrolled, and attention.

Dimensions: B batch, T steps, S source steps, H hidden size, V vocabulary.
"""

from __future__ import annotations

from typing import List, Sequence, Tuple

import tensorflow as tf

v1 = tf.compat.v1

_SCALE = 0.08  # initial weights are uniform in [-_SCALE, _SCALE] (Sutskever et al. 2014)


def weight(name: str, shape: Sequence[int]) -> tf.Variable:
  """Makes a trainable resource variable in the current variable scope, uniformly distributed.

  Returns:
    The float32 variable.
  """
  return v1.get_variable(
      name, shape, tf.float32, v1.random_uniform_initializer(-_SCALE, _SCALE), use_resource=True)


def tokens(name: str, batch: int, steps: int) -> tf.Tensor:
  """Makes a placeholder of token ids.

  Returns:
    [B, T] int32.
  """
  return v1.placeholder(tf.int32, [batch, steps], name=name)


def embed(ids: tf.Tensor, vocab: int, hidden: int) -> List[tf.Tensor]:
  """Looks token ids up in a table of their own.

  Args:
    ids: [B, T] int32.
    vocab, hidden: V and H, the size of the table.

  Returns:
    T tensors [B, H].
  """
  with v1.variable_scope("embedding"):
    return tf.unstack(tf.nn.embedding_lookup(weight("table", [vocab, hidden]), ids), axis=1)


def cross_entropy(outputs: Sequence[tf.Tensor], labels: tf.Tensor, vocab: int) -> tf.Tensor:
  """Projects the outputs of all steps to the vocabulary in one product; returns the mean loss.

  Args:
    outputs: T tensors [B, H].
    labels: [B, T] int32.
    vocab: V, the size of the vocabulary.
  """
  with v1.variable_scope("softmax"):
    flat = tf.concat(outputs, axis=0)  # [T*B, H]
    logits = tf.nn.bias_add(
        tf.matmul(flat, weight("kernel", [flat.shape[1], vocab])), weight("bias", [vocab]))
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=tf.reshape(tf.transpose(labels), [-1]), logits=logits)
  return tf.reduce_mean(losses, name="loss")


class LstmStack:
  """Layers of LSTM cells that are run step by step.

  The cell is that of Zaremba et al. 2014 (arXiv:1409.2329): one matrix for all four gates, dropout
  between layers and never between steps.
  """

  def __init__(self, layers: int, batch: int, inputs: int, hidden: int, dropout: float = 0.0):
    """Makes the variables; every variable is read once, whatever the number of steps."""
    self._dropout = dropout
    self._steps = 0
    self._weights = []
    self.state: List[Tuple[tf.Tensor, tf.Tensor]] = []  # (cell, output) of each layer, [B, H] each
    for layer in range(layers):
      with v1.variable_scope(f"layer_{layer}"):
        width = (inputs if layer == 0 else hidden) + hidden
        self._weights.append((
            tf.convert_to_tensor(weight("kernel", [width, 4 * hidden])),
            tf.convert_to_tensor(weight("bias", [4 * hidden])),
        ))
        self.state.append((tf.zeros([batch, hidden], name="cell"),
                           tf.zeros([batch, hidden], name="output")))

  def step(self, inputs: tf.Tensor) -> tf.Tensor:
    """Runs all layers one step: inputs [B, inputs] -> the top layer's output [B, H]."""
    for layer, (kernel, bias) in enumerate(self._weights):
      with v1.name_scope(f"layer_{layer}/step_{self._steps}"):
        if self._dropout:
          inputs = tf.nn.dropout(inputs, rate=self._dropout)
        cell, output = self.state[layer]
        gates = tf.nn.bias_add(tf.matmul(tf.concat([inputs, output], axis=1), kernel), bias)
        write, candidate, forget, read = tf.split(gates, 4, axis=1)
        # The forget gate starts open, so that gradients flow back over many steps.
        cell = cell * tf.sigmoid(forget + 1.0) + tf.sigmoid(write) * tf.tanh(candidate)
        inputs = tf.tanh(cell) * tf.sigmoid(read)
        self.state[layer] = (cell, inputs)
    self._steps += 1
    return inputs

  def run(self, inputs: Sequence[tf.Tensor]) -> List[tf.Tensor]:
    """Runs a step for each of the inputs [B, inputs]; returns the outputs [B, H]."""
    return [self.step(step_inputs) for step_inputs in inputs]


class AdditiveAttention:
  """Attention over the S outputs of an encoder (Bahdanau et al. 2014, arXiv:1409.0473)."""

  def __init__(self, encoded: Sequence[tf.Tensor], hidden: int):
    """Makes the variables and the keys; `encoded` are S tensors [B, H]."""
    self._steps = 0
    with v1.variable_scope("attention"):
      self._memory = tf.stack(encoded, axis=1)  # [B, S, H]
      keys = tf.matmul(
          tf.reshape(self._memory, [-1, hidden]), weight("keys", [hidden, hidden]))
      self._keys = tf.reshape(keys, self._memory.shape)
      self._query = tf.convert_to_tensor(weight("query", [hidden, hidden]))
      self._score = tf.convert_to_tensor(weight("score", [hidden]))

  def context(self, query: tf.Tensor) -> tf.Tensor:
    """Returns the mean [B, H] of the memory, weighted by its match with the query [B, H]."""
    with v1.name_scope(f"attention/step_{self._steps}"):
      projected = tf.expand_dims(tf.matmul(query, self._query), axis=1)  # [B, 1, H]
      scores = tf.reduce_sum(self._score * tf.tanh(self._keys + projected), axis=2)  # [B, S]
      weights = tf.expand_dims(tf.nn.softmax(scores), axis=2)  # [B, S, 1]
      self._steps += 1
      return tf.reduce_sum(weights * self._memory, axis=1)
