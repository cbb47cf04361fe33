"""Transformer-XL: a language model that remembers the previous segment.

Dimensions: B batch, T positions of a segment, M remembered positions, H hidden size.
"""

from __future__ import annotations

from typing import Tuple

import tensorflow as tf

from placeto_tf.zoo import recurrent, transformer
from placeto_tf.zoo.registry import Model, integer, model

v1 = tf.compat.v1


@model(
    "transformer_xl", batch=integer(16), layers=integer(2), segment=integer(384),
    memory=integer(384), heads=integer(16), width=integer(64), inner=integer(4096),
    vocab=integer(32000), dropout=integer(0, minimum=0, maximum=99))
def transformer_xl(
    batch: int, layers: int, segment: int, memory: int, heads: int, width: int, inner: int,
    vocab: int, dropout: int) -> Model:
  """Builds Transformer-XL (Dai et al. 2019, arXiv:1901.02860), with the widths of its large model.

  A layer's memory is a variable that holds the layer's inputs of the last `memory` positions; a
  training step reads it and then replaces it, and no gradient flows into it. Words share one table
  with the softmax.

  Returns:
    The forward pass and its loss, in the default graph.
  """
  hidden, drop = heads * width, dropout / 100
  words = recurrent.tokens("tokens", batch, segment)
  labels = recurrent.tokens("labels", batch, segment)
  with v1.variable_scope("embedding"):
    table = tf.convert_to_tensor(transformer.weight("table", [vocab, hidden]))
    value = transformer.dropout(tf.gather(table, words) * hidden**0.5, drop)
  with v1.variable_scope("positions"):
    positions = transformer.dropout(_positions(memory + segment, hidden), drop)
    biases = tuple(
        tf.convert_to_tensor(transformer.weight(name, [1, heads, 1, width]))
        for name in ("content_bias", "position_bias"))
    # 1 for later positions, to which a position must not attend.
    later = 1.0 - tf.linalg.band_part(tf.ones([segment, memory + segment]), -1, memory)
  updates = []
  for layer in range(layers):
    with v1.variable_scope(f"layer_{layer}"):
      past = v1.get_variable(
          "memory", [batch, memory, hidden], tf.float32, v1.zeros_initializer(), trainable=False,
          use_resource=True)
      context = tf.concat([past, value], axis=1)  # [B, M+T, H]
      kept = tf.slice(context, [0, segment, 0], [batch, memory, hidden])
      updates.append(past.assign(kept, read_value=False))
      value = _layer(value, context, positions, biases, later, inner, drop)
  with v1.variable_scope("softmax"):
    logits = tf.nn.bias_add(
        tf.matmul(tf.reshape(value, [-1, hidden]), table, transpose_b=True),
        transformer.constant_weight("bias", [vocab], 0.0))
    losses = transformer.mean_cross_entropy(logits, labels)
  loss = tf.identity(losses, name="loss")
  return Model(loss=loss, feeds=(words, labels), updates=updates, clip_norm=0.25)


def _positions(count: int, hidden: int) -> tf.Tensor:
  """Returns sinusoids of the distances count-1, ..., 0: [1, M+T, H]."""
  distances = tf.range(count - 1, -1, -1.0)
  rates = 10000.0 ** (-tf.range(0.0, hidden, 2.0) / hidden)
  angles = tf.expand_dims(distances, 1) * rates
  return tf.expand_dims(tf.concat([tf.sin(angles), tf.cos(angles)], axis=1), 0)


def _layer(
    value: tf.Tensor, context: tf.Tensor, positions: tf.Tensor, biases: Tuple[tf.Tensor, tf.Tensor],
    later: tf.Tensor, inner: int, drop: float) -> tf.Tensor:
  """Applies a decoder layer: value [B, T, H] looks at context [B, M+T, H] -> [B, T, H]."""
  heads, width = biases[0].shape.as_list()[1::2]
  hidden = heads * width
  with v1.variable_scope("attention"):
    query = transformer.split_heads(transformer.dense("query", value, hidden, bias=False), heads)
    key, content = (
        transformer.split_heads(transformer.dense(name, context, hidden, bias=False), heads)
        for name in ("key", "value"))
    place = transformer.split_heads(
        transformer.dense("place", positions, hidden, bias=False), heads)  # [1, heads, M+T, width]
    by_content = tf.matmul(query + biases[0], key, transpose_b=True)
    by_position = relative_shift(tf.matmul(
        query + biases[1], tf.tile(place, [value.shape[0], 1, 1, 1]), transpose_b=True))
    scores = (by_content + by_position) * width**-0.5 - 1e30 * later
    weights = transformer.dropout(tf.nn.softmax(scores), drop)  # [B, heads, T, M+T]
    attended = transformer.merge_heads(tf.matmul(weights, content))
    attended = transformer.dropout(
        transformer.dense("output", attended, hidden, bias=False), drop)
    value = transformer.layer_norm("norm", value + attended)
  inner_value = transformer.dropout(transformer.dense("inner", value, inner, tf.nn.relu), drop)
  outer = transformer.dropout(transformer.dense("outer", inner_value, hidden), drop)
  return transformer.layer_norm("norm", value + outer)


def relative_shift(scores: tf.Tensor) -> tf.Tensor:
  """Moves scores by distance to the columns of their positions (appendix B of the paper).

  Args:
    scores: [B, heads, T, M+T]; the last dimension runs over the distances M+T-1, ..., 0.

  Returns:
    [B, heads, T, M+T]: row i, column j is the score of distance M+i-j where that is not negative.
  """
  batch, heads, steps, length = scores.shape.as_list()
  padded = tf.pad(scores, [[0, 0], [0, 0], [0, 0], [1, 0]])
  rows = tf.reshape(padded, [batch, heads, length + 1, steps])
  rows = tf.slice(rows, [0, 0, 1, 0], [batch, heads, length, steps])
  return tf.reshape(rows, [batch, heads, steps, length])
