"""Common parts of all learners: schedules, the optimizer, undoing of updates."""

from __future__ import annotations

from typing import Any, Callable, Dict, Sequence, Tuple

import numpy as np
import tensorflow as tf

from placeto_tf.problem.budget import Budget
from placeto_tf.problem.placement_problem import PlacementProblem


def spent_share(
    problem: PlacementProblem, budget: Budget, began: Tuple[int, float]) -> float:
  """Returns the share of the budget that is used up.

  Args:
    problem: its search log counts evaluations and seconds.
    budget: of the problem.
    began: evaluations and seconds of the problem when the search began.

  Returns:
    The larger of the shares of evaluations and seconds, in [0, 1]; 0 without limits.
  """
  # Work before the search began counts neither as spent nor as available.
  share, used, limit = problem.search_log.progress(budget, *began)
  return min(1.0, max(share, used / limit))


def between(first: float, last: float, share: float) -> float:
  """Interpolates linearly between two values.

  Args:
    first, last: values at shares 0 and 1.
    share: in [0, 1].

  Returns:
    The value at this share.
  """
  return first + (last - first) * share


def adam(
    learning_rate: float, clip: float, variables: Sequence[tf.Variable]
) -> tf.keras.optimizers.Optimizer:
  """Makes Keras' Adam with its slots.

  Without slots the first update would be traced twice, with and without making them.

  Args:
    learning_rate: of the first update.
    clip: largest norm of all gradients together.
    variables: to be trained.
  """
  optimizer = tf.keras.optimizers.Adam(learning_rate, epsilon=1e-8, global_clipnorm=clip)
  optimizer.build(variables)
  return optimizer


def attempt(
    learn: Callable[[], Dict[str, float]], variables: Sequence[tf.Variable]) -> Dict[str, float]:
  """Makes an update, and undoes it if a figure or variable is not finite.

  Args:
    learn: makes the update and returns its figures.
    variables: all variables that the update changes.

  Returns:
    The figures of the update; empty if it was undone.
  """
  # A copy of all variables, for undoing.
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


class WithEntropyCoefficient:
  """Mixin for tf-agents' policy gradient agents, with a variable coefficient of the entropy bonus.

  Attributes:
    entropy_coefficient: variable; 0 at first.
  """

  def __init__(self, *specs: Any, **options: Any):
    """Makes the agent."""
    # Agents take a constant; with the constant 1, their loss times this variable can be changed.
    self.entropy_coefficient = tf.Variable(0.0, trainable=False, name="entropy_coefficient")
    super().__init__(*specs, entropy_regularization=1.0, **options)  # type: ignore[call-arg]

  def entropy_regularization_loss(self, *arguments: Any, **options: Any) -> tf.Tensor:
    """Returns the loss of the agent times the coefficient.

    Args:
      *arguments: of the agent's method.
      **options: of the agent's method.
    """
    return self.entropy_coefficient * super().entropy_regularization_loss(  # type: ignore[misc]
        *arguments, **options)
