"""`ScorerWeights`: the two-layer perceptron that scores pairs, and its compiled inference.

The same perceptron (features -> width -> width -> 1, ReLU, capped) scores every device a group may
use, by what moving the group to it is expected to gain: see `episodes.target`. `best_first`
is what uses the scores.

Legend: D devices, F features, H width.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any, Optional, Tuple

import numpy as np

from placeto_tf.encoding.pair_features import NAMES
from placeto_tf.errors import PlacementError
from placeto_tf.graphs import user_files
from placeto_tf.policies import weight_files
from placeto_tf.simulation.compiling import compiled

WIDTH = 32
# Scores stay between -10 and 10 by x / (1 + |x| / 10), in training as well; it keeps their order.
CAP = 10.0
_PREDICTS = "gain"  # what scores are of, as the sidecar says
_DIRECTORY = "weights"  # of what ships
_FIELDS = ("hidden_1", "bias_1", "hidden_2", "bias_2", "output")


@dataclasses.dataclass(frozen=True, eq=False)
class ScorerWeights:
  """Attributes: hidden_1 [F, H], bias_1 [H], hidden_2 [H, H], bias_2 [H], output [H]; float32."""

  hidden_1: np.ndarray
  bias_1: np.ndarray
  hidden_2: np.ndarray
  bias_2: np.ndarray
  output: np.ndarray

  def __post_init__(self) -> None:
    for name in _FIELDS:
      # Writable and contiguous: numba would compile again for other arrays.
      object.__setattr__(
          self, name, np.array(getattr(self, name), dtype=np.float32, order="C"))
    if self.bias_1.ndim != 1:
      raise PlacementError(
          f"bias_1 of the scorer has shape {self.bias_1.shape}, expected (H,); train it again")
    h = len(self.bias_1)
    shapes = {"hidden_1": (len(NAMES), h), "bias_1": (h,), "hidden_2": (h, h), "bias_2": (h,),
              "output": (h,)}
    for name, expected in shapes.items():
      found = getattr(self, name)
      if found.shape != expected:
        raise PlacementError(
            f"{name} of the scorer has shape {found.shape}, expected {expected}; train it again "
            "with the features of this version")
      if not np.isfinite(found).all():
        raise PlacementError(f"{name} of the scorer holds NaN or infinity; take an earlier "
                             "checkpoint")

  @property
  def arrays(self) -> Tuple[np.ndarray, ...]:
    """What the compiled loops take."""
    return tuple(getattr(self, name) for name in _FIELDS)

  @classmethod
  def untrained(cls, seed: int = 0, width: int = WIDTH) -> ScorerWeights:
    """Glorot's uniform draws and no biases, as the network starts."""
    rng = np.random.default_rng(seed)

    def draw(rows, columns):
      limit = np.sqrt(6 / (rows + columns))
      return rng.uniform(-limit, limit, (rows, columns))

    return cls(draw(len(NAMES), width), np.zeros(width), draw(width, width), np.zeros(width),
               draw(width, 1)[:, 0])

  def save(self, directory: str, **notes: Any) -> None:
    """Writes weights and a JSON sidecar with the features and `notes`."""
    weight_files.write(
        directory, {name: getattr(self, name) for name in _FIELDS},
        {"version": 1, "predicts": _PREDICTS, "features": list(NAMES), **notes})

  @classmethod
  def load(cls, directory: str) -> ScorerWeights:
    """Reads the directory, or the `weights` of a run's root directory.

    Args:
      directory: of the weights.

    Raises:
      PlacementError: they are missing, of another list of features, or predict something else.
    """
    remedy = "give a directory of scorer weights, or train them again"
    sidecar = weight_files.read_sidecar(directory, remedy=remedy, error_type=PlacementError)
    if sidecar.get("features") != list(NAMES):
      raise PlacementError(
          f"the weights in {directory} are of another list of features than this version's; train "
          "them again")
    found = sidecar.get("predicts")
    if found != _PREDICTS:
      raise PlacementError(
          f"the weights in {directory} predict {user_files.brief(found)}, expected {_PREDICTS}; "
          "train them with --policy=device_pointer")
    arrays = weight_files.read_arrays(directory, remedy=remedy, error_type=PlacementError)
    missing = [name for name in _FIELDS if name not in arrays]
    if missing:
      raise PlacementError(
          f"the weights in {directory} have no array {missing[0]!r}; {remedy}")
    return cls(**{name: arrays[name] for name in _FIELDS})


def pretrained_directory() -> Optional[str]:
  """Where weights that ship with the package are; None where it has none."""
  directory = os.path.join(os.path.dirname(__file__), _DIRECTORY)
  return directory if os.path.exists(os.path.join(directory, weight_files.SIDECAR)) else None


def pretrained() -> ScorerWeights:
  """Weights that ship with the package. Raises: PlacementError where it has none."""
  directory = pretrained_directory()
  if directory is None:
    raise PlacementError(
        "this copy of the package has no trained weights for device_pointer; install it with its "
        "data files, or choose another method")
  return ScorerWeights.load(directory)


@compiled(nogil=True)
def score(pairs, weights, scores):
  """Fills scores [D] float32 from pairs [D, F] float32."""
  hidden_1, bias_1, hidden_2, bias_2, output = weights
  h = bias_1.shape[0]
  first = np.empty(h, np.float32)
  second = np.empty(h, np.float32)
  for d in range(scores.shape[0]):
    first[:] = bias_1
    for f in range(pairs.shape[1]):
      x = pairs[d, f]
      if x != 0:
        for j in range(h):
          first[j] += x * hidden_1[f, j]
    second[:] = bias_2
    for i in range(h):
      x = first[i]
      if x > 0:
        for j in range(h):
          second[j] += x * hidden_2[i, j]
    total = np.float32(0)
    for j in range(h):
      total += max(second[j], np.float32(0)) * output[j]
    scores[d] = total / (np.float32(1) + abs(total) / np.float32(CAP))
