"""What a scorer of gains learns: from many searches in training, and from the search it is used in.

`target` is what it learns of a move. `OwnGains` corrects trained weights by the moves that a search
has simulated so far: its last layer is linear in the features that the layers before it make, so
the best correction is found by recursive least squares (Haykin, Adaptive Filter Theory, 4th ed.,
chapter 9), move by move, starting from the trained weights.

Legend: F features, H width.
"""

from __future__ import annotations

from typing import Tuple

import numpy as np

from placeto_tf.policies.device_pointer.scorer import ScorerWeights
from placeto_tf.simulation.compiling import compiled

# A gain of 4 % of the step time counts as 2, and what is more as no more; its root is learned,
# or the few large gains of coarse groups would hide the many small ones.
GAIN_SCALE, GAIN_CLIP = 50.0, 2.0


def target(fall: np.ndarray) -> np.ndarray:
  """What the scorer learns of moves that let the log of the objective fall by so much."""
  return np.sqrt(np.clip(GAIN_SCALE * fall, 0.0, GAIN_CLIP)).astype(np.float32)


class OwnGains:
  """Weights of a scorer that one search corrects.

  Attributes:
    arrays: what the compiled loops take; the last one changes as moves are learned from.
  """

  def __init__(self, weights: ScorerWeights, prior: float):
    """Args: prior: moves that the trained weights count as; 0 leaves them as they are."""
    *hidden, output = weights.arrays
    self.arrays: Tuple[np.ndarray, ...] = (*hidden, output.copy())
    self._prior = prior
    self._output = output.astype(np.float64)
    self._covariance = np.eye(len(output)) / prior if prior else np.zeros((0, 0))

  def learn(self, features: np.ndarray, fall: float) -> None:
    """Learns from a move with these features [F], which let the log of the objective fall."""
    if self._prior:
      (wanted,) = target(np.array([fall]))
      _learn(features, float(wanted), self.arrays, self._output, self._covariance)
      self.arrays[-1][:] = self._output


@compiled(nogil=True)
def _learn(features, wanted, arrays, output, covariance):
  hidden_1, bias_1, hidden_2, bias_2, _ = arrays
  width = len(output)
  first, last = np.empty(width), np.empty(width)
  for h in range(width):
    total = float(bias_1[h])
    for f in range(len(features)):
      total += features[f] * hidden_1[f, h]
    first[h] = max(0.0, total)
  missing = wanted
  for h in range(width):
    total = float(bias_2[h])
    for k in range(width):
      total += first[k] * hidden_2[k, h]
    last[h] = max(0.0, total)
    missing -= last[h] * output[h]
  spread = np.zeros(width)
  scale = 1.0
  for h in range(width):
    for k in range(width):
      spread[h] += covariance[h, k] * last[k]
    scale += last[h] * spread[h]
  for h in range(width):
    output[h] += spread[h] * missing / scale
    for k in range(width):
      covariance[h, k] -= spread[h] * spread[k] / scale
