"""WaveNet: dilated causal convolutions over raw audio.

Dimensions: B batch, T samples, C channels.
"""

from __future__ import annotations

import tensorflow as tf

from placeto_tf.zoo import recurrent, transformer
from placeto_tf.zoo.registry import Model, integer, model


@model(
    "wavenet", batch=integer(4), stacks=integer(2), layers=integer(18), samples=integer(7680),
    channels=integer(256), levels=integer(256))
def wavenet(
    batch: int, stacks: int, layers: int, samples: int, channels: int, levels: int) -> Model:
  """Builds WaveNet (van den Oord et al. 2016, arXiv:1609.03499).

  Args:
    batch: clips of a step.
    stacks: along a stack the dilation doubles from 1.
    layers: number of all layers; if it is no multiple of `stacks`, the last stack is shorter.
    samples: of a clip; 7,680 as in arXiv:1711.10433.
    channels: of residual and skip paths.
    levels: quantised levels of the audio.

  Returns:
    The forward pass and its loss, in the default graph.
  """
  audio = recurrent.tokens("audio", batch, samples)
  labels = recurrent.tokens("labels", batch, samples)
  per_stack = -(-layers // stacks)
  with tf.compat.v1.variable_scope("input"):
    value = transformer.dense("project", tf.one_hot(audio, levels), channels)
  skips = []
  for layer in range(layers):
    stack, place = divmod(layer, per_stack)
    with tf.compat.v1.variable_scope(f"stack_{stack}/layer_{place}"):
      gated = _gated(value, 2**place)
      skips.append(transformer.dense("skip", gated, channels))
      if layer < layers - 1:
        value += transformer.dense("residual", gated, channels)
  with tf.compat.v1.variable_scope("output"):
    value = tf.nn.relu(tf.add_n(skips))
    value = transformer.dense("hidden", value, channels, tf.nn.relu)
    losses = transformer.mean_cross_entropy(transformer.dense("logits", value, levels), labels)
  return Model(loss=tf.identity(losses, name="loss"), feeds=(audio, labels))


def _gated(value: tf.Tensor, dilation: int) -> tf.Tensor:
  """Applies the gated convolution of a layer, [B, T, C] -> [B, T, C]."""
  channels = value.shape.as_list()[-1]
  both = tf.concat([delay(value, dilation), value], axis=2)
  content, gate = tf.split(transformer.dense("gates", both, 2 * channels), 2, axis=2)
  return tf.tanh(content) * tf.sigmoid(gate)


def delay(value: tf.Tensor, steps: int) -> tf.Tensor:
  """Shifts samples to the future, zeros first: the second tap of a causal filter.

  Args:
    value: [B, T, C].
    steps: samples to shift by.

  Returns:
    [B, T, C].
  """
  batch, samples, channels = value.shape.as_list()
  steps = min(steps, samples)
  kept = tf.slice(value, [0, 0, 0], [batch, samples - steps, channels])
  return tf.pad(kept, [[0, 0], [steps, 0], [0, 0]])
