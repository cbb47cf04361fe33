"""Neural machine translation, unrolled: LSTM encoder and decoder with attention, and Google's.

Dimensions: B batch, H hidden size.
"""

from __future__ import annotations

from typing import List, Sequence

import tensorflow as tf

from placeto_tf.zoo import recurrent
from placeto_tf.zoo.registry import Model, integer, model

v1 = tf.compat.v1


_SETTINGS = dict(
    batch=integer(64), layers=integer(2), steps=integer(40), hidden=integer(1024),
    vocab=integer(32000), dropout=integer(0, minimum=0, maximum=99))


@model("nmt", **_SETTINGS)
def nmt(batch: int, layers: int, steps: int, hidden: int, vocab: int, dropout: int) -> Model:
  """Builds an encoder-decoder with additive attention (Bahdanau et al. 2014, arXiv:1409.0473).

  The decoder starts from the encoder's last state and takes the last context in with each word.

  Args:
    batch: sentences of a step.
    layers: in the encoder, and as many in the decoder.
    steps: words of a source sentence, and of a target sentence.
    hidden: H.
    vocab: number of words.
    dropout: in per cent.

  Returns:
    The forward pass and its loss, in the default graph.
  """
  source, target, labels = (
      recurrent.tokens(name, batch, steps) for name in ("source", "target", "labels"))
  with v1.variable_scope("encoder"):
    encoder = recurrent.LstmStack(layers, batch, hidden, hidden, dropout / 100)
    encoded = encoder.run(recurrent.embed(source, vocab, hidden))
  with v1.variable_scope("decoder"):
    decoder = recurrent.LstmStack(layers, batch, 2 * hidden, hidden, dropout / 100)
    decoder.state = list(encoder.state)
    attention = recurrent.AdditiveAttention(encoded, hidden)
    context = tf.zeros([batch, hidden], name="context")
    outputs = []
    for word in recurrent.embed(target, vocab, hidden):
      output = decoder.step(tf.concat([word, context], axis=1))
      context = attention.context(output)
      outputs.append(tf.concat([output, context], axis=1))
  loss = recurrent.cross_entropy(outputs, labels, vocab)
  return Model(loss=loss, feeds=(source, target, labels), clip_norm=5.0)


@model("gnmt", **_SETTINGS)
def gnmt(batch: int, layers: int, steps: int, hidden: int, vocab: int, dropout: int) -> Model:
  """Builds GNMT (Wu et al. 2016, arXiv:1609.08144).

  The first layer of the encoder runs in both directions, layers from the third on are residual,
  and attention queries with the bottom layer's output of the step before, so that the layers of
  the decoder can overlap; its context goes to all of them.

  Args:
    batch: sentences of a step.
    layers: in the encoder, and as many in the decoder.
    steps: words of a source sentence, and of a target sentence.
    hidden: H.
    vocab: number of words.
    dropout: in per cent.

  Returns:
    The forward pass and its loss, in the default graph.
  """
  source, target, labels = (
      recurrent.tokens(name, batch, steps) for name in ("source", "target", "labels"))
  drop = dropout / 100
  with v1.variable_scope("encoder"):
    words = recurrent.embed(source, vocab, hidden)
    with v1.variable_scope("forward"):
      ahead = recurrent.LstmStack(1, batch, hidden, hidden, drop).run(words)
    with v1.variable_scope("backward"):
      back = recurrent.LstmStack(1, batch, hidden, hidden, drop).run(words[::-1])[::-1]
    encoded = [tf.concat(both, axis=1) for both in zip(ahead, back)]
    for layer in range(1, layers):
      with v1.variable_scope(f"level_{layer}"):
        width = 2 * hidden if layer == 1 else hidden
        outputs = recurrent.LstmStack(1, batch, width, hidden, drop).run(encoded)
        # The first two layers have no residuals, because their widths differ.
        encoded = outputs if layer < 2 else [a + b for a, b in zip(outputs, encoded)]
    if layers == 1:
      with v1.variable_scope("join"):
        kernel = tf.convert_to_tensor(recurrent.weight("kernel", [2 * hidden, hidden]))
        encoded = [tf.matmul(step, kernel) for step in encoded]
  with v1.variable_scope("decoder"):
    outputs = _decode(
        recurrent.embed(target, vocab, hidden), recurrent.AdditiveAttention(encoded, hidden),
        layers, batch, hidden, drop)
  loss = recurrent.cross_entropy(outputs, labels, vocab)
  return Model(loss=loss, feeds=(source, target, labels), clip_norm=5.0)


def _decode(
    words: Sequence[tf.Tensor], attention: recurrent.AdditiveAttention, layers: int, batch: int,
    hidden: int, drop: float) -> List[tf.Tensor]:
  """Returns the output of the top layer in every step: one tensor [B, H] per step."""
  stacks = []
  for layer in range(layers):
    with v1.variable_scope(f"level_{layer}"):
      stacks.append(recurrent.LstmStack(1, batch, 2 * hidden, hidden, drop))
  outputs = []
  bottom = tf.zeros([batch, hidden], name="bottom")
  for word in words:
    context = attention.context(bottom)
    value = word
    for layer, stack in enumerate(stacks):
      with v1.name_scope(f"decoder/level_{layer}/"):
        output = stack.step(tf.concat([value, context], axis=1))
        value = output if layer < 2 else output + value
      if layer == 0:
        bottom = output
    outputs.append(value)
  return outputs
