"""Returns and baselines of episodes that take their steps side by side.

Legend: T steps, B episodes side by side.
"""

from __future__ import annotations

import collections
from typing import Deque, List, Sequence

import numpy as np


def discounted_returns(rewards: np.ndarray, discount: float) -> np.ndarray:
  """[T, B] return from each step on: rewards[t] + discount * rewards[t + 1] + ..."""
  returns = np.zeros_like(rewards)
  following = np.zeros(rewards.shape[1:], dtype=rewards.dtype)
  for t in reversed(range(len(rewards))):
    following = rewards[t] + discount * following
    returns[t] = following
  return returns


class StepBaseline:
  """The mean return at each step over the last updates from a graph (Placeto, appendix A.2).

  An update counts once, by the mean over its episodes, as in the authors' code.
  """

  def __init__(self, num_steps: int, updates: int):
    """Args: updates: how many of the last count; 10 in the paper."""
    self._returns: List[Deque[float]] = [
        collections.deque(maxlen=updates) for _ in range(num_steps)]

  def update(self, step: int, returns: np.ndarray) -> None:
    """Adds returns [T, B] of episodes at the T steps that begin with `step`."""
    for t, of_step in enumerate(returns, start=step):
      self._returns[t].append(float(np.mean(of_step)))

  def state(self) -> List[List[float]]:
    """The state, for `load_state`."""
    return [list(values) for values in self._returns]

  def load_state(self, state: Sequence[Sequence[float]]) -> None:
    """Restores a `state`."""
    for values, stored in zip(self._returns, state):
      values.clear()
      values.extend(stored)

  def __call__(self, step: int, num_steps: int) -> np.ndarray:
    """[T, 1] the baselines of the T = `num_steps` steps that begin with `step`."""
    window = self._returns[step:step + num_steps]
    return np.array([[np.mean(values) if values else 0.0] for values in window])
