"""Neural machine translation: LSTM encoder and decoder with attention, unrolled."""

from __future__ import annotations

import tensorflow as tf

from placeto_tf.zoo import recurrent
from placeto_tf.zoo.registry import Model, integer, model

v1 = tf.compat.v1


@model(
    "nmt", batch=integer(64), layers=integer(2), steps=integer(40), hidden=integer(1024),
    vocab=integer(32000), dropout=integer(0, minimum=0, maximum=99))
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
  source = recurrent.tokens("source", batch, steps)
  target = recurrent.tokens("target", batch, steps)
  labels = recurrent.tokens("labels", batch, steps)
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
