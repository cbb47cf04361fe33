"""`Device`: one device of a cluster, as grappler and TensorFlow describe it."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Mapping

import numpy as np

from placeto_tf.errors import ClusterError

_NAME = re.compile(
    r"(?:/job:[\w.-]+)?(?:/replica:\d+)?(?:/task:\d+)?/(?:device:)?([A-Za-z_]\w*):\d+\Z")
MOST = 1e15  # of bytes, microseconds and bytes per microsecond


@dataclasses.dataclass(frozen=True)
class Device:
  """One device.

  Attributes:
    name: as TensorFlow writes it: "/GPU:0", "/job:worker/task:1/device:CPU:0".
    type: TensorFlow device type, which decides what kernels there are: "GPU", "CPU".
    memory_bytes: the most that placements may use.
    efficiency: achieved over peak speed, in (0, 1]; estimated compute costs are divided by it.
    properties: tensorflow.DeviceProperties as JSON fields (type, vendor, model, frequency,
      numCores, bandwidth, environment, ...), from which grappler estimates costs.
    host: takes only ops that have no kernel on a device that is not a host.
    op_efficiency: op type -> efficiency, for types known to differ.
  """

  name: str
  type: str
  memory_bytes: int
  efficiency: float = 1.0
  properties: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  host: bool = False
  op_efficiency: Mapping[str, float] = dataclasses.field(default_factory=dict)

  def __post_init__(self) -> None:
    for field in ("name", "type"):
      value = getattr(self, field)
      if not isinstance(value, str) or not value:
        raise ClusterError(f"a device's {field} is {value!r}; expected a string such as "
                           f"{'/GPU:0' if field == 'name' else 'GPU'!r}")
    match = _NAME.match(self.name)
    if match is None or match.group(1).upper() != self.type.upper():
      raise ClusterError(
          f"a device of type {self.type} is called {self.name!r}; expected a name as TensorFlow "
          f"writes it, such as /{self.type}:0 or /job:worker/task:1/device:{self.type}:0")
    if not is_number(self.memory_bytes) or not 0 < self.memory_bytes <= MOST:
      raise ClusterError(f"memory_bytes of {self.name} is {self.memory_bytes!r:.60}; expected more "
                         f"than 0 and at most {MOST:g} bytes")
    for field in ("properties", "op_efficiency"):
      if not isinstance(getattr(self, field), Mapping):
        raise ClusterError(
            f"{field} of {self.name} is {getattr(self, field)!r}; expected a mapping")
    for label, value in [("efficiency", self.efficiency)] + [
        (f"op_efficiency[{op!r}]", value) for op, value in self.op_efficiency.items()]:
      if not is_number(value) or not 0 < value <= 1:
        raise ClusterError(f"{label} of {self.name} is {value!r}; expected achieved over peak "
                           "speed, more than 0 and at most 1")


def is_number(value: Any) -> bool:
  """A finite real number; JSON's true and false are not numbers."""
  return (isinstance(value, (int, float, np.integer, np.floating))
          and not isinstance(value, bool) and bool(-1e300 < value < 1e300))
