"""Keras layers whose initial weights depend on a given seed alone, not on code that ran before."""

from __future__ import annotations

from typing import Optional

import numpy as np

import placeto_tf.training  # noqa: F401  its check comes before TensorFlow

import tensorflow as tf  # isort: skip


class Seeds:
  """Gives a new seed at each call, because two layers with the same seed would start equal."""

  def __init__(self, seed: int):
    self._rng = np.random.default_rng(seed)

  def __call__(self) -> int:
    """Returns the next seed."""
    return int(self._rng.integers(2**31 - 1))


def dense(width: int, seeds: Seeds, activation: Optional[str] = None, *, scale: float = 1.0):
  """Makes a dense layer with Glorot's weights.

  Args:
    width: outputs.
    seeds: of the weights; one is used.
    activation: a Keras activation; None is linear.
    scale: the weights' initial variance as a multiple of Glorot's.

  Returns:
    The layer, [..., any] -> [..., width].
  """
  # Uniform in +-sqrt(3 scale / mean of inputs and outputs), Glorot's at scale 1.
  return tf.keras.layers.Dense(
      width, activation=activation,
      kernel_initializer=tf.keras.initializers.VarianceScaling(
          scale, mode="fan_avg", distribution="uniform", seed=seeds()))


def perceptron(
    width: int, seeds: Seeds, *, layers: int = 2, last: Optional[str] = "relu"
) -> tf.keras.Sequential:
  """Makes the small network that the paper uses for each function f and g.

  Args:
    width: of all layers.
    seeds: of the weights; one is used for each layer.
    layers: number of layers.
    last: activation of the last layer; None is linear.

  Returns:
    The network, [..., any] -> [..., width].
  """
  # All layers but the last are ReLU.
  return tf.keras.Sequential(
      [dense(width, seeds, "relu") for _ in range(layers - 1)] + [dense(width, seeds, last)])
