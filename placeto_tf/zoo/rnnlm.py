"""A word-level language model: a stack of LSTM layers, unrolled."""

from __future__ import annotations

from placeto_tf.zoo import recurrent
from placeto_tf.zoo.registry import Model, integer, model


@model(
    "rnnlm", batch=integer(64), layers=integer(2), steps=integer(40), hidden=integer(1024),
    vocab=integer(10000), dropout=integer(0, minimum=0, maximum=99))
def rnnlm(
    batch: int, layers: int, steps: int, hidden: int, vocab: int, dropout: int) -> Model:
  """Builds RNNLM (Zaremba et al. 2014; Jozefowicz et al. 2016), as in Mirhoseini et al. 2017.

  Layers and steps form a grid, along whose diagonals work can overlap.

  Returns:
    The forward pass and its loss, in the default graph.
  """
  words = recurrent.tokens("tokens", batch, steps)
  labels = recurrent.tokens("labels", batch, steps)
  inputs = recurrent.embed(words, vocab, hidden)
  outputs = recurrent.LstmStack(layers, batch, hidden, hidden, dropout / 100).run(inputs)
  loss = recurrent.cross_entropy(outputs, labels, vocab)
  return Model(loss=loss, feeds=(words, labels), clip_norm=5.0)
