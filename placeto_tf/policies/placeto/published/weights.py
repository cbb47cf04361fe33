"""Files of weights trained by the published process, with everything that is needed to use them.

A directory holds weights.npz (the network's variables in their order, "0", "1", ...) and
weights.json: `config`, the `PublishedConfig` of training; `devices`, the number of devices, hosts
included; `iteration`; `training`, the configuration of the run.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Tuple

import numpy as np

from placeto_tf.errors import PlacetoError
from placeto_tf.policies import weight_files
from placeto_tf.policies.placeto.published.config import PublishedConfig


@dataclasses.dataclass(frozen=True, eq=False)
class PublishedWeights:
  """The content of the files; the module describes its attributes."""

  arrays: Tuple[np.ndarray, ...]
  config: PublishedConfig
  devices: int

  def save(self, directory: str, **notes: Any) -> None:
    """Writes the directory; each file appears when it is complete.

    Args:
      directory: made where it does not exist.
      **notes: iteration and configuration of the run.
    """
    weight_files.write_network(
        directory, self.arrays, self.config, devices=self.devices, **notes)

  @classmethod
  def load(cls, directory: str) -> PublishedWeights:
    """Reads weights from a directory, or from `weights` in a run's root directory.

    Args:
      directory: of the weights, or of the run.

    Raises:
      PlacetoError: the directory holds no weights of the published process.
    """
    sidecar, config, arrays = weight_files.read_network(
        directory, PublishedConfig, "--policy=placeto --preset=paper")
    return cls(tuple(arrays), config, sidecar.get("devices", 0))

  def check(self, devices: int) -> None:
    """Checks that the weights are for a cluster.

    Args:
      devices: the cluster's number of devices, hosts included.

    Raises:
      PlacetoError: the weights are for another number of devices.
    """
    if devices != self.devices:
      raise PlacetoError(
          f"the weights are for clusters of {self.devices} devices, hosts included, this one has "
          f"{devices}; the published network does not carry over, train it for this cluster")
