"""`Device`: one device of a cluster, described as in grappler and TensorFlow."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Dict, Mapping

import numpy as np

from placeto_tf.errors import ClusterError

_KINDS = ("CPU", "GPU")
# Full or short names with type and index, such as /job:worker/task:1/device:GPU:0.
_NAME = re.compile(
    r"(?:/job:[\w.-]+)?(?:/replica:\d+)?(?:/task:\d+)?/(?:device:)?([A-Za-z_]\w*):\d+\Z")
MOST = 1e15  # of bytes, microseconds, and bytes or flops per microsecond
MOST_EFFICIENCY = 10.0  # no algorithm saves more of the counted work
# Types that matrix products may have a peak for -> their numbers in TensorFlow's DataType.
PRODUCT_TYPES = {"float32": 1, "float64": 2, "bfloat16": 14, "float16": 19}


@dataclasses.dataclass(frozen=True)
class Device:
  """One device.

  Attributes:
    name: in TensorFlow's spelling: "/GPU:0", "/job:worker/task:1/device:CPU:0".
    type: TensorFlow device type, which decides the available kernels: "GPU", "CPU".
    memory_bytes: the most memory that placements may use.
    efficiency: achieved speed divided by peak speed; estimated compute costs are divided by it. It
      is above 1 where an algorithm needs fewer flops than are counted (Winograd's convolutions).
    properties: tensorflow.DeviceProperties as JSON fields (type, vendor, model, frequency,
      numCores, bandwidth, environment, ...), from which grappler estimates costs.
    host: whether the device serves other devices; searches put ops on it if that makes the step
      shorter, or if the ops run nowhere else.
    own_costs: whether the device has its own column of `OpCosts`, even if other devices are equal.
    op_efficiency: op type, or a kind of kernels (`OpRule.kind`), -> efficiency, where known to
      differ. A convolution of stride 1 may have one by its window, "Conv2D 3x3"; a product one by
      its type, "MatMul float16", "convolution 3x3 float16". Op types count before kinds, then the
      name with most parts, then a type before a window.
    op_start_us: likewise, time of a kernel beside its work, in which few of the cores are busy.
    product_peaks: type of the inputs, such as "float16" -> {"flops_per_us": peak of matrix products
      and convolutions, "efficiency": of these}; without an efficiency it is the device's. Other
      types have the peak of the properties.
  """

  name: str
  type: str
  memory_bytes: int
  efficiency: float = 1.0
  properties: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  host: bool = False
  op_efficiency: Mapping[str, float] = dataclasses.field(default_factory=dict)
  op_start_us: Mapping[str, float] = dataclasses.field(default_factory=dict)
  product_peaks: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
  own_costs: bool = False

  def __post_init__(self) -> None:
    for field in ("name", "type"):
      value = getattr(self, field)
      if not isinstance(value, str) or not value:
        raise ClusterError(f"a device's {field} is {value!r}; expected a string such as "
                           f"{'/GPU:0' if field == 'name' else 'GPU'!r}")
    # A name of another type than the device's would find other kernels.
    match = _NAME.match(self.name)
    if match is None or match.group(1).upper() != self.type.upper():
      raise ClusterError(
          f"a device of type {self.type} is called {self.name!r}; expected a name as TensorFlow "
          f"writes it, such as /{self.type}:0 or /job:worker/task:1/device:{self.type}:0")
    self._check_kinds()
    self._check_number("memory_bytes", self.memory_bytes, "bytes")
    for field in ("properties", "op_efficiency", "op_start_us", "product_peaks"):
      if not isinstance(getattr(self, field), Mapping):
        raise ClusterError(
            f"{field} of {self.name} is {getattr(self, field)!r}; expected a mapping")
    # All efficiencies, whichever field they are in.
    for label, value in [("efficiency", self.efficiency)] + [
        (f"op_efficiency[{op!r}]", value) for op, value in self.op_efficiency.items()] + [
            (f"product_peaks[{kind!r}]['efficiency']", value)
            for kind, value in self._checked_peaks().items()]:
      self._check_number(label, value, "achieved over peak speed", MOST_EFFICIENCY)
    for op, value in self.op_start_us.items():
      self._check_number(f"op_start_us[{op!r}]", value, "microseconds", zero=True)

  def _check_number(
      self, label: str, value: Any, what: str, most: float = MOST, zero: bool = False) -> None:
    """Checks a number, which is 0 only where that is allowed."""
    if not is_number(value) or not (0 <= value <= most) or not (value or zero):
      raise ClusterError(f"{label} of {self.name} is {value!r:.60}; expected {what}, "
                         f"{'0 or more' if zero else 'more than 0'} and at most {most:g}")

  def _check_kinds(self) -> None:
    """Checks the spelling, because TensorFlow finds no kernels for "gpu"."""
    properties = self.properties if isinstance(self.properties, Mapping) else {}
    for field, kind in (("type", self.type), ("properties['type']", properties.get("type"))):
      written = str(kind).upper()
      if kind != written in _KINDS:
        raise ClusterError(
            f"{field} of {self.name} is {kind!r}; expected {written!r}, as TensorFlow writes it")

  def _checked_peaks(self) -> Dict[str, Any]:
    """Returns the efficiency of each type in `product_peaks`, whose other fields it checks."""
    for kind, fields in self.product_peaks.items():
      if kind not in PRODUCT_TYPES:
        raise ClusterError(f"product_peaks of {self.name} has a type {kind!r}; expected one of "
                           f"{', '.join(PRODUCT_TYPES)}")
      if not isinstance(fields, Mapping) or not (
          {"flops_per_us"} <= set(fields) <= {"flops_per_us", "efficiency"}):
        raise ClusterError(f"product_peaks[{kind!r}] of {self.name} is {fields!r:.60}; expected "
                           "flops_per_us and, perhaps, efficiency")
      self._check_number(f"flops_per_us of {kind}", fields["flops_per_us"], "flops")
    return {kind: fields.get("efficiency", self.efficiency)
            for kind, fields in self.product_peaks.items()}


def is_number(value: object) -> bool:
  """Returns whether a value is a finite real number; JSON's true and false are no numbers."""
  # Comparisons with NaN are false; bool is a subclass of int.
  return (isinstance(value, (int, float, np.integer, np.floating))
          and not isinstance(value, bool) and bool(-1e300 < value < 1e300))
