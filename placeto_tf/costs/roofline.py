"""Peak speed of a device from its DeviceProperties, by the formula of grappler's cost model.

A device's flops a microsecond and bytes a microsecond turn counted work into estimated time.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from placeto_tf.clusters import Device
from placeto_tf.errors import ClusterError

# Cores of a multiprocessor by compute capability: the first row whose limit is above it.
_CORES_OF_MULTIPROCESSOR = ((3.0, 32), (4.0, 192), (6.0, 128), (math.inf, 64))


class Peak(NamedTuple):
  """The peak speed of a device: a fused multiply-add is two flops."""

  flops_per_us: float
  bytes_per_us: float


def peak(device: Device) -> Peak:
  """Reads the peak from the properties, as grappler's `GetDeviceInfo` does.

  Raises:
    ClusterError: a property is missing or is not a number, so that ops would cost nothing.
  """
  cores, megahertz = _number(device, "numCores"), _number(device, "frequency")
  if device.type == "GPU":
    capability = _number(device, "environment.architecture")
    # numCores counts multiprocessors; each of their cores does a multiply-add, two flops, a cycle.
    factor = 2 * next(count for limit, count in _CORES_OF_MULTIPROCESSOR if capability < limit)
  else:
    factor = 1
  # MHz * cores * flops per cycle = flops/us; bandwidth is in kB/s, 1e-3 makes bytes/us of that.
  return Peak(cores * megahertz * factor, _number(device, "bandwidth") * 1e-3)


def _number(device: Device, name: str) -> float:
  """Returns a property, or "environment.PROPERTY", that is a number above 0."""
  folder, _, last = name.rpartition(".")
  value = (device.properties.get(folder, {}) if folder else device.properties).get(last)
  try:
    number = float("" if value is None else value)  # proto JSON writes 64-bit integers as strings
  except (TypeError, ValueError):
    number = math.nan
  if not (math.isfinite(number) and number > 0):
    raise ClusterError(
        f"property {name} of {device.name} is {value!r}; expected a number above 0, from which "
        "costs are estimated, or take costs from a file")
  return number
