"""What all learners share: the optimizer, and updates that are undone where they give NaN."""

from __future__ import annotations

from typing import Callable, Dict, List, Sequence

import numpy as np
import tensorflow as tf


def adam(
    learning_rate: float, clip: float, variables: Sequence[tf.Variable]
) -> tf.keras.optimizers.Optimizer:
  """Returns Keras' Adam, with its slots; `clip` is the largest norm of all gradients together.

  Without slots the first update would be traced twice, with and without making them.
  """
  optimizer = tf.keras.optimizers.Adam(learning_rate, epsilon=1e-8, global_clipnorm=clip)
  optimizer.build(variables)
  return optimizer


def optimizer_variables(optimizer: tf.keras.optimizers.Optimizer) -> List[tf.Variable]:
  """Slots and step of an optimizer of either Keras."""
  variables = optimizer.variables
  return list(variables() if callable(variables) else variables)


def attempt(
    learn: Callable[[], Dict[str, float]], variables: Sequence[tf.Variable]) -> Dict[str, float]:
  """The figures of an update; if they or variables are not finite, restores these and gives none.
  """
  before = [variable.numpy() for variable in variables]
  try:
    figures = learn()
  except tf.errors.InvalidArgumentError:  # tf-agents found the loss infinite or not a number
    figures = {}
  if figures and np.isfinite(list(figures.values())).all() and all(
      np.isfinite(variable.numpy()).all() for variable in variables):
    return figures
  for variable, value in zip(variables, before):
    variable.assign(value)
  return {}
