"""Trained weights of Placeto on file, with all that is needed to put them to work.

A directory holds weights.npz (the network's variables in their order, "0", "1", ...) and
weights.json: `placeto`, the `PlacetoConfig` it was trained with; `devices`, how many, hosts
included; `max_groups`, how finely graphs were grouped; `iteration`; `training`, the configuration
of the run.
"""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any, Dict, Optional, Tuple

import numpy as np

from placeto_tf.environments.placement_environment import EnvironmentConfig
from placeto_tf.errors import PlacetoError
from placeto_tf.policies import weight_files
from placeto_tf.policies.placeto.network import NetworkConfig
from placeto_tf.training.placeto_config import PlacetoConfig


@dataclasses.dataclass(frozen=True, eq=False)
class PlacetoWeights:
  """Attributes: arrays, config, devices, max_groups: see the module."""

  arrays: Tuple[np.ndarray, ...]
  config: PlacetoConfig
  devices: int
  max_groups: int

  def save(
      self, directory: str, *, iteration: int = 0,
      training: Optional[Dict[str, Any]] = None) -> None:
    """Writes the directory; each file appears when it is complete."""
    weight_files.write(directory, {str(i): array for i, array in enumerate(self.arrays)}, {
        "placeto": dataclasses.asdict(self.config), "devices": self.devices,
        "max_groups": self.max_groups, "iteration": iteration, "training": training or {}})

  @classmethod
  def load(cls, directory: str) -> PlacetoWeights:
    """Reads the directory, or the `weights` of a run's root directory.

    Raises:
      PlacetoError: it holds no weights of Placeto.
    """
    directory = weight_files.directory_of(directory)
    try:
      with open(os.path.join(directory, weight_files.SIDECAR), encoding="utf-8") as file:
        sidecar = json.load(file)
      with np.load(os.path.join(directory, weight_files.ARRAYS)) as arrays:
        values = tuple(arrays[str(i)] for i in range(len(arrays.files)))
      return cls(
          values, config_from_json(sidecar["placeto"]), sidecar["devices"], sidecar["max_groups"])
    except (OSError, ValueError, KeyError, TypeError) as error:
      raise PlacetoError(
          f"the weights in {directory} were not understood ({error}); give a directory that "
          "scripts/train.py --policy=placeto wrote") from None

  def check(self, devices: int) -> None:
    """Raises PlacetoError where untied weights are for another number of devices."""
    if devices != self.devices and not self.config.network.tied:
      raise PlacetoError(
          f"the weights are for clusters of {self.devices} devices, hosts included, this one has "
          f"{devices}; Placeto's network does not carry over, train it for this cluster")


def config_from_json(content: Dict[str, Any]) -> PlacetoConfig:
  """Back from `dataclasses.asdict` and JSON."""
  return PlacetoConfig(**{
      **content, "environment": EnvironmentConfig(**content["environment"]),
      "network": NetworkConfig(**content["network"]),
      "levels": tuple(tuple(level) for level in content["levels"])})
