"""`ScorerWeights`: Placeto's network for option edges as arrays, and its compiled inference.

`network.py` trains the same network in TensorFlow. A perceptron (features -> width -> width -> 1,
ReLU, capped) scores every option edge by its own features; the score predicts the reward of moving
the group to the device (`move_environment.reward_of`). `MoveProcess.run` uses the scores.

Dimensions: E option edges, F features, H width, M offered groups, D devices.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any, Sequence, Tuple

import numpy as np

from placeto_tf.encoding.pair_features import NAMES
from placeto_tf.environments.move_process import MoveProcess
from placeto_tf.errors import PlacementError
from placeto_tf.policies import weight_files
from placeto_tf.simulation.compiling import compiled, copy_into

WIDTH = 32  # H by default
# x / (1 + |x| / 10) keeps scores between -10 and 10, in training as well; their order is kept.
CAP = 10.0
SHIPPED = os.path.join(os.path.dirname(__file__), "weights")
_FIELDS = ("hidden_1", "bias_1", "hidden_2", "bias_2", "output")


@dataclasses.dataclass(frozen=True, eq=False)
class ScorerWeights:
  """The weights of the scorer, all float32.

  Attributes:
    hidden_1: [F, H], bias_1 [H]: of the first layer.
    hidden_2: [H, H / K], bias_2 [H]: of the second layer. K > 1 for a mean of K networks: a row
      then has the weights to the outputs of the row's own network.
    output: [H] of the last layer.
  """

  hidden_1: np.ndarray  # [F, H]
  bias_1: np.ndarray  # [H]
  hidden_2: np.ndarray  # [H, H / K]
  bias_2: np.ndarray  # [H]
  output: np.ndarray  # [H]

  def __post_init__(self) -> None:
    # Writable and contiguous, because numba would compile again for other kinds of arrays.
    for name in _FIELDS:
      object.__setattr__(
          self, name, np.array(getattr(self, name), dtype=np.float32, order="C"))
    h = self.bias_1.size
    own = max(self.hidden_2.size // max(h, 1), 1)  # H / K
    wanted = (len(NAMES), h), (h,), (h, h if h % own else own), (h,), (h,)
    for name, array, expected in zip(_FIELDS, self.arrays, wanted):
      if array.shape != expected:
        raise PlacementError(
            f"{name} of the scorer has shape {array.shape}, expected {expected}; train it again "
            "with the features of this version")

  @property
  def arrays(self) -> Tuple[np.ndarray, ...]:
    """Returns the weights in the order in which compiled loops take them."""
    return tuple(getattr(self, name) for name in _FIELDS)

  def scores(self, pairs: np.ndarray) -> np.ndarray:
    """Returns [...] float32 scores, between -10 and 10, of option edges with features [..., F]."""
    found = np.empty(pairs.shape[:-1], np.float32)
    score(pairs.reshape(-1, pairs.shape[-1]), self.arrays, found.reshape(-1))
    return found

  def of_process(self, process: MoveProcess) -> np.ndarray:
    """Returns [M, D] float32 scores of the moves that a process offers, for `MoveProcess.run`."""
    return self.scores(process.pairs)

  @classmethod
  def untrained(cls, seed: int = 0, width: int = WIDTH) -> ScorerWeights:
    """Makes initial weights: Glorot's uniform samples, and biases of 0."""
    rng = np.random.default_rng(seed)

    def sample(rows, columns):
      """Samples the weights of a layer.

      Returns:
        [rows, columns] float64.
      """
      limit = np.sqrt(6 / (rows + columns))  # Glorot's
      return rng.uniform(-limit, limit, (rows, columns))

    return cls(sample(len(NAMES), width), np.zeros(width), sample(width, width), np.zeros(width),
               sample(width, 1)[:, 0])

  @classmethod
  def mean(cls, members: Sequence[ScorerWeights]) -> ScorerWeights:
    """Makes one network whose scores, before the cap, are the mean of several networks' scores.

    Args:
      members: networks of one width, or means of such networks.

    Returns:
      The network, as wide as all members together.

    Raises:
      PlacementError: widths differ.
    """
    if len({each.hidden_2.shape[1] for each in members}) > 1:
      raise PlacementError("a mean needs networks of one width; train them so")
    hidden_1, bias_1, hidden_2, bias_2, output = zip(*(each.arrays for each in members))
    return cls(np.concatenate(hidden_1, axis=1), np.concatenate(bias_1), np.concatenate(hidden_2),
               np.concatenate(bias_2), np.concatenate(output) / len(members))

  @property
  def dense(self) -> ScorerWeights:
    """Returns the same network with all weights [H, H] of the second layer, most of them 0."""
    h, own = self.hidden_2.shape
    hidden_2 = np.zeros((h, h), np.float32)
    for first in range(0, h, own):  # the square of each network
      hidden_2[first:first + own, first:first + own] = self.hidden_2[first:first + own]
    return dataclasses.replace(self, hidden_2=hidden_2)

  def save(self, directory: str, **notes: Any) -> None:
    """Writes weights and a JSON sidecar with the features.

    Args:
      directory: made where it does not exist.
      **notes: further content of the sidecar.
    """
    weight_files.write(
        directory, {name: getattr(self, name) for name in _FIELDS},
        {"version": 1, "features": list(NAMES), **notes})

  @classmethod
  def load(cls, directory: str) -> ScorerWeights:
    """Reads weights from a directory, or from `weights` in a training run's root directory.

    Args:
      directory: of the weights, or of the run.

    Raises:
      PlacementError: the weights are missing, or have other features.
    """
    remedy = "give a directory of scorer weights, or train them again"
    sidecar, arrays = weight_files.read(directory, remedy=remedy, error_type=PlacementError)
    # Weights of other features would score without an error, but wrongly.
    if sidecar.get("features") != list(NAMES):
      raise PlacementError(
          f"the weights in {directory} are of another list of features than this version's; train "
          "them again (those of the preset paper are for the method placeto_paper)")
    if set(arrays) != set(_FIELDS):  # such as those of a network with further layers
      raise PlacementError(
          f"the weights in {directory} have the arrays {', '.join(sorted(arrays))}, expected "
          f"{', '.join(_FIELDS)}; {remedy}")
    return cls(**arrays)


def pretrained() -> ScorerWeights:
  """Returns the weights that are shipped with the package."""
  return ScorerWeights.load(SHIPPED)


@compiled(nogil=True)
def score(pairs, weights, scores):
  """Scores option edges.

  Args:
    pairs: [E, F] float32.
    weights: `ScorerWeights.arrays`.
    scores: [E] float32, filled.
  """
  hidden_1, bias_1, hidden_2, bias_2, output = weights
  h, own = hidden_2.shape
  first = np.empty(h, np.float32)  # [H] of one option edge
  second = np.empty(h, np.float32)
  # One option edge at a time, so that its vectors are in the cache.
  for d in range(scores.shape[0]):
    # First layer; features that are 0 are skipped, and many are.
    copy_into(first, bias_1)
    for f in range(pairs.shape[1]):
      x = pairs[d, f]
      if x != 0:
        for j in range(h):
          first[j] += x * hidden_1[f, j]
    # Second layer; the first one's ReLU skips its negative outputs. Without a mean, own = h.
    copy_into(second, bias_2)
    for i in range(h):
      x, begin = first[i], i // own * own  # the first output of the row's network
      if x > 0:
        for j in range(own):
          second[begin + j] += x * hidden_2[i, j]
    # Last layer, over the ReLU of the second, then the cap.
    total = np.float32(0)
    for j in range(h):
      total += max(second[j], np.float32(0)) * output[j]
    scores[d] = total / (np.float32(1) + abs(total) / np.float32(CAP))
