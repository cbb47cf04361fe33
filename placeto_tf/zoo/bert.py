"""BERT, pre-trained: masked words and next sentence.

Dimensions: B batch, T positions, P masked positions, H hidden size, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from placeto_tf.zoo import recurrent, transformer
from placeto_tf.zoo.registry import Model, integer, model, word

v1 = tf.compat.v1

_POSITIONS = 512  # the table of position embeddings has as many rows
# size: layers, hidden, heads. "tiny" is of Turc et al. 2019 (arXiv:1908.08962).
_SIZES = {"base": (12, 768, 12), "large": (24, 1024, 16), "tiny": (2, 128, 2)}


@model(
    "bert", batch=integer(32), size=word(*_SIZES), steps=integer(128, maximum=_POSITIONS),
    vocab=integer(30522), dropout=integer(0, minimum=0, maximum=99))
def bert(batch: int, size: str, steps: int, vocab: int, dropout: int) -> Model:
  """Builds BERT (Devlin et al. 2018, arXiv:1810.04805) on sequences of word pieces.

  Most of its pre-training ran on 128 word pieces, with 20 masked.

  Returns:
    The forward pass and its loss, in the default graph.
  """
  layers, hidden, heads = _SIZES[size]
  masked = max(1, 20 * steps // 128)
  drop = dropout / 100
  words = recurrent.tokens("words", batch, steps)
  segments = recurrent.tokens("segments", batch, steps)
  positions = recurrent.tokens("masked_positions", batch, masked)
  labels = recurrent.tokens("masked_words", batch, masked)
  follows = v1.placeholder(tf.int32, [batch], name="follows")
  with v1.variable_scope("embeddings"):
    table = tf.convert_to_tensor(transformer.weight("words", [vocab, hidden]))
    rows = tf.convert_to_tensor(transformer.weight("positions", [_POSITIONS, hidden]))
    # Two kinds of segments: a product with their one-hot vectors is cheaper than a lookup.
    kinds = tf.reshape(tf.one_hot(segments, 2), [-1, 2])
    kinds = tf.matmul(kinds, transformer.weight("segments", [2, hidden]))
    value = tf.gather(table, words) + tf.reshape(kinds, [batch, steps, hidden])
    value = transformer.layer_norm("norm", value + tf.slice(rows, [0, 0], [steps, hidden]))
    value = transformer.dropout(value, drop)
  for layer in range(layers):
    with v1.variable_scope(f"layer_{layer}"):
      value = _layer(value, heads, drop)
  with v1.variable_scope("masked"):
    found = tf.gather(value, positions, batch_dims=1)  # [B, P, H]
    found = transformer.dense("transform", found, hidden, transformer.gelu)
    found = tf.reshape(transformer.layer_norm("norm", found), [-1, hidden])
    logits = tf.nn.bias_add(
        tf.matmul(found, table, transpose_b=True),
        transformer.constant_weight("bias", [vocab], 0.0))
    masked_loss = transformer.mean_cross_entropy(logits, labels)
  with v1.variable_scope("next_sentence"):
    first = tf.squeeze(tf.slice(value, [0, 0, 0], [batch, 1, hidden]), axis=1)
    pooled = transformer.dense("pool", first, hidden, tf.tanh)
    chances = tf.nn.log_softmax(transformer.dense("logits", pooled, 2))
    next_loss = -tf.reduce_mean(tf.reduce_sum(chances * tf.one_hot(follows, 2), axis=1))
  loss = tf.add(masked_loss, next_loss, name="loss")
  return Model(loss=loss, feeds=(words, segments, positions, labels, follows), clip_norm=1.0)


def _layer(value: Any, heads: int, drop: float) -> Any:
  """Applies an encoder layer, [B, T, H] -> [B, T, H]."""
  hidden = value.shape.as_list()[-1]
  with v1.variable_scope("attention"):
    query, key, content = (
        transformer.split_heads(transformer.dense(name, value, hidden), heads)
        for name in ("query", "key", "value"))
    scores = tf.matmul(query, key, transpose_b=True) * (hidden // heads) ** -0.5
    weights = transformer.dropout(tf.nn.softmax(scores), drop)  # [B, heads, T, T]
    attended = transformer.merge_heads(tf.matmul(weights, content))
    attended = transformer.dropout(transformer.dense("output", attended, hidden), drop)
    value = transformer.layer_norm("norm", value + attended)
  inner = transformer.dense("inner", value, 4 * hidden, transformer.gelu)
  outer = transformer.dropout(transformer.dense("outer", inner, hidden), drop)
  return transformer.layer_norm("norm", value + outer)
