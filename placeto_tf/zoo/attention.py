"""Additive attention for the translation models.

Dimensions: B batch, S source steps, H hidden size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Sequence

from placeto_tf.zoo import recurrent

if TYPE_CHECKING:
  import tensorflow as tf


class AdditiveAttention:
  """Attention over the S outputs of an encoder (Bahdanau et al. 2014, arXiv:1409.0473)."""

  def __init__(self, encoded: Sequence[tf.Tensor], hidden: int):
    """Makes the variables and the keys; `encoded` are S tensors [B, H]."""
    import tensorflow as tf

    self._steps = 0
    with tf.compat.v1.variable_scope("attention"):
      self._memory = tf.stack(encoded, axis=1)  # [B, S, H]
      keys = tf.matmul(
          tf.reshape(self._memory, [-1, hidden]), recurrent.weight("keys", [hidden, hidden]))
      self._keys = tf.reshape(keys, self._memory.shape)
      self._query = tf.convert_to_tensor(recurrent.weight("query", [hidden, hidden]))
      self._score = tf.convert_to_tensor(recurrent.weight("score", [hidden]))

  def context(self, query: tf.Tensor) -> tf.Tensor:
    """Returns the mean [B, H] of the memory, weighted by its match with the query [B, H]."""
    import tensorflow as tf

    with tf.compat.v1.name_scope(f"attention/step_{self._steps}"):
      projected = tf.expand_dims(tf.matmul(query, self._query), axis=1)  # [B, 1, H]
      scores = tf.reduce_sum(self._score * tf.tanh(self._keys + projected), axis=2)  # [B, S]
      weights = tf.expand_dims(tf.nn.softmax(scores), axis=2)  # [B, S, 1]
      self._steps += 1
      return tf.reduce_sum(weights * self._memory, axis=1)
