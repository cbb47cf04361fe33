"""Trained weights on file: weights.npz, the arrays by name, and weights.json, all about them."""

from __future__ import annotations

import io
import os
from typing import Any, Dict, Mapping

import numpy as np

from placeto_tf import atomic

ARRAYS, SIDECAR = "weights.npz", "weights.json"


def directory_of(directory: str) -> str:
  """Where the files are: in the directory, or in the `weights` of a training run's."""
  inner = os.path.join(directory, "weights")
  return inner if os.path.exists(os.path.join(inner, SIDECAR)) else directory


def write(directory: str, arrays: Mapping[str, np.ndarray], sidecar: Dict[str, Any]) -> None:
  """Writes both files; each appears when it is complete.

  Raises:
    PlacementError: they cannot be written.
  """
  os.makedirs(directory, exist_ok=True)
  content = io.BytesIO()
  np.savez(content, **arrays)
  atomic.write(os.path.join(directory, ARRAYS), content.getvalue(), what="the weights ")
  atomic.write_json(os.path.join(directory, SIDECAR), sidecar)
