"""`Cluster`: devices and the links between them, for the simulator and the policies.

A cluster comes from a short string, a JSON file or its parts:

  Cluster.parse("k80:4")          four K80 dies and their host's CPU
  Cluster.parse("a100:2+cpu:1")   two A100s and one CPU that may take any op
  Cluster.parse("v100:4x2")       two hosts, each with four V100s and a CPU
  Cluster.parse("local")          the devices that TensorFlow finds on this machine
  Cluster.parse("cluster.json")   a file in the format of `cluster_json`

Dimensions: D devices, K device kinds (every op costs the same on all devices of a kind).
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from typing import Any, Dict, Mapping, Tuple, Union

import numpy as np

from placeto_tf.clusters import cluster_json, device_names, local, presets
from placeto_tf.clusters.device import MOST, Device, is_number
from placeto_tf.errors import ClusterError, check_one_of, listed
from placeto_tf.files import outputs, user_files

READY_ORDERS = ("arrival", "executor")
TRANSFERS = ("device", "pair", "unlimited")


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Cluster:
  """Devices, links, and the parameters of their simulation.

  Attributes:
    devices: [D].
    bandwidth_bytes_per_us: [D, D] float64, from row to column; the diagonal is not used.
    latency_us: [D, D] float64, the time from a transfer's end until its consumers have it.
    op_overhead_us: time for which a device is busy after an op that launches a kernel.
    bus_gap_us: time for which a bus is busy after a transfer.
    launch_us: the part of a launch that the process of a host does for one device after another,
      so that the overheads of several busy devices wait for each other.
    overlapped_launches: whether a GPU launches its next op while a kernel runs, so that an op takes
      the longer of its kernel and its overhead instead of both.

  The fields below extend the reference simulator; their defaults switch the extensions off.

    transfers: the queues of transfers: "device", one outgoing bus per device; "pair", a link for
      each pair of devices; "unlimited", no queues. With the last two, an output for several devices
      is sent once to each.
    transfer_per_destination: an output for several devices is sent once to each, in the order of
      the devices, instead of once to all.
    sender_us_per_transfer, sender_us_per_byte: compute time that a transfer takes on its sender
      (packing), queued like an op, before the transfer enters the bus queue.
    receiver_us_per_transfer, receiver_us_per_byte: compute time that a transfer takes on each
      receiver (unpacking), queued like an op when the transfer ends; the consumers wait for it.
    ready_order: "arrival", or "executor" for the order of TensorFlow's executor with one thread per
      device, depth first; unpacking then happens at once, and interrupts the device's op.
    inline_op_types: op types that the executor runs at once, in the thread that makes them ready.
    busy_slowdown: under the executor's order, the extra time of an op that begins while another
      device computes, as a fraction of its compute time, for all ways in which workers slow each
      other down.

  The simulator does not use the last field:

    core_probe_us: time of the probe of `runtime.core_speed` at full speed on the calibrated
      machine, 0 if not known; later measurements on that machine are scaled to the same speed.
  """

  devices: Tuple[Device, ...]
  bandwidth_bytes_per_us: np.ndarray  # [D, D]
  latency_us: np.ndarray  # [D, D]
  op_overhead_us: float = 0.0
  bus_gap_us: float = 0.0
  launch_us: float = 0.0
  overlapped_launches: bool = False
  transfers: str = "device"
  transfer_per_destination: bool = False
  sender_us_per_transfer: float = 0.0
  sender_us_per_byte: float = 0.0
  receiver_us_per_transfer: float = 0.0
  receiver_us_per_byte: float = 0.0
  ready_order: str = "arrival"
  inline_op_types: Tuple[str, ...] = ()
  busy_slowdown: float = 0.0
  core_probe_us: float = 0.0

  def __post_init__(self) -> None:
    object.__setattr__(self, "devices", tuple(self.devices))
    if not self.devices:
      raise ClusterError("the cluster has zero devices; expected at least one")
    # Names are compared in TensorFlow's spelling, so that "/gpu:0" and "/GPU:0" are one device.
    seen = set()
    for name in self.device_names:
      canonical = device_names.canonical(name) or name
      if canonical in seen:
        raise ClusterError(f"device name {name!r} appears twice, perhaps in another spelling; give "
                           "each device its own name")
      seen.add(canonical)
    # The class is frozen: checked copies replace the given arrays.
    for field in ("bandwidth_bytes_per_us", "latency_us"):
      object.__setattr__(self, field, self._link_matrix(field))
    # By the type of the default, which also covers fields added later.
    for each in dataclasses.fields(self):
      value = getattr(self, each.name)
      # bool before float: a number given for a switch is an error.
      if isinstance(each.default, bool):
        if not isinstance(value, bool):
          raise ClusterError(f"{each.name} is {value!r}; expected true or false")
      elif isinstance(each.default, float) and (not is_number(value) or not 0 <= value <= MOST):
        raise ClusterError(f"{each.name} is {value!r:.60}; expected a number that is 0 or more, "
                           f"{MOST:g} at most")
    types = self.inline_op_types
    if isinstance(types, str) or not all(isinstance(op_type, str) for op_type in types):
      raise ClusterError(f"inline_op_types is {types!r}; expected a list of op types")
    object.__setattr__(self, "inline_op_types", tuple(types))
    check_one_of(READY_ORDERS, self, "ready_order", error_type=ClusterError)
    check_one_of(TRANSFERS, self, "transfers", error_type=ClusterError)
    # Under the order of arrival, other workers have no effect.
    if self.busy_slowdown and self.ready_order != "executor":
      raise ClusterError(f"busy_slowdown is {self.busy_slowdown} with ready_order "
                         f"{self.ready_order!r}; it needs \"executor\"")

  def _link_matrix(self, field: str) -> np.ndarray:
    """Returns a checked [D, D] copy; the unused diagonal has the best bandwidth, or latency 0."""
    d, name = len(self.devices), self.device_names
    try:
      matrix = np.array(getattr(self, field), dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
      raise ClusterError(f"{field} is not an array of numbers; expected [{d}, {d}]") from None
    if matrix.shape != (d, d):
      raise ClusterError(
          f"{field} has shape {list(matrix.shape)}, expected [{d}, {d}] for {d} devices")
    bandwidth = field == "bandwidth_bytes_per_us"
    # Finite everywhere, so that features computed from whole rows stay finite.
    np.fill_diagonal(matrix, 1.0 if bandwidth else 0.0)
    # Within limits, so that sums over a graph stay finite and keep their order.
    wrong = np.argwhere(~((matrix <= MOST) & (matrix >= (1 / MOST if bandwidth else 0.0))))
    if len(wrong):
      i, j = (int(k) for k in wrong[0])
      raise ClusterError(
          f"{field} from {name[i]} to {name[j]} is {matrix[i, j]}; expected a finite number "
          + ("above 0" if bandwidth else "that is not negative") + f", {MOST:g} at most")
    # The best link, so that a device's link to itself is never slower than a transfer.
    if bandwidth and d > 1:
      np.fill_diagonal(matrix, matrix.max())
    matrix.flags.writeable = False
    return matrix

  @classmethod
  def parse(cls, text: str) -> Cluster:
    """Returns the cluster that a string describes: presets, a JSON file's path, or "local".

    A GPU preset has a host "/CPU:0", which searches use if it makes the step shorter; with an
    explicit "+cpu:n" there is no such host, and the CPUs are devices like the others. "x2" after
    the count makes two such hosts; "@100gbit" at the end is the rate of the network between them.

    Raises:
      ClusterError: the preset is unknown, a count is below 1, or the file is wrong.
    """
    if not isinstance(text, str) or not text.strip():
      raise ClusterError(f"the cluster is {text!r}; {presets.expected()}")
    text = text.strip()
    if text == "local":
      return cls(**local.found_devices())
    # Taken as a path, rather than a preset, if anything looks like a path.
    if text.endswith(".json") or os.sep in text or os.path.isfile(text):
      return cls.load(text)
    return cls(**presets.parse(text))

  @classmethod
  def from_json(cls, source: Union[str, Mapping[str, Any]]) -> Cluster:
    """Reads JSON text or its parsed object, in the format of `cluster_json`.

    Raises:
      ClusterError: bad JSON; an unknown, missing or wrong field; a link that is missing.
    """
    fields = cluster_json.from_json(source, [field.name for field in dataclasses.fields(cls)])
    try:
      return cls(**fields)
    except (TypeError, ValueError, OverflowError) as error:  # an extension of the wrong type
      raise ClusterError(f"a field of the cluster has a wrong value: {error}") from None

  def to_json(self) -> dict:
    """Returns a JSON object that `from_json` reads back to an equal cluster."""
    return cluster_json.to_json(cluster_json.changed_fields(self))

  @classmethod
  def load(cls, path: str) -> Cluster:
    """Reads a JSON file.

    Raises:
      ClusterError: the file cannot be read, or is wrong; the message names the file.
    """
    text = user_files.read_text(
        path, what="the cluster file", remedy="expected a JSON file's path",
        error_type=ClusterError, most_bytes=user_files.MOST_JSON_BYTES)
    try:
      return cls.from_json(text)
    except ClusterError as error:
      raise ClusterError(f"{path}: {error}") from None

  def save(self, path: str) -> None:
    """Writes a JSON file, atomically.

    Raises:
      ClusterError: the file cannot be written.
    """
    outputs.write_json(path, self.to_json(), what="the cluster file ", error_type=ClusterError)

  def __repr__(self) -> str:
    """Lists the devices in one line."""
    # Memory in GiB, hosts, and names shortened for reading.
    gb = [device.memory_bytes / 2**30 for device in self.devices]
    hosts = [device_names.short_name(device.name) for device in self.devices if device.host]
    names = [device_names.short_name(name) for name in self.device_names]
    return (f"Cluster({listed(names, most=8)}; {min(gb):,.0f} to {max(gb):,.0f} GiB each"
            f"{f'; host {listed(hosts)}' if hosts else ''})")

  @property
  def num_devices(self) -> int:
    """Returns the number of devices, D."""
    return len(self.devices)

  @property
  def device_names(self) -> Tuple[str, ...]:
    """Returns the names, [D]."""
    return tuple(device.name for device in self.devices)

  @functools.cached_property
  def fixed_us(self) -> np.ndarray:
    """Returns the time of a transfer of 0 bytes, [D, D]: packing, latency, gap and unpacking."""
    packing_us = self.sender_us_per_transfer + self.receiver_us_per_transfer
    return np.where(np.eye(self.num_devices, dtype=bool), 0.0,
                    self.latency_us + self.bus_gap_us + packing_us)

  @functools.cached_property
  def us_per_byte(self) -> np.ndarray:
    """Returns the further time of each byte, [D, D], packing included; 0 on the diagonal."""
    return np.where(np.eye(self.num_devices, dtype=bool), 0.0,
                    1 / self.bandwidth_bytes_per_us
                    + (self.sender_us_per_byte + self.receiver_us_per_byte))

  @functools.cached_property
  def memory_bytes(self) -> np.ndarray:
    """Returns the memory of each device, [D] float64."""
    return np.array([device.memory_bytes for device in self.devices], dtype=np.float64)

  @functools.cached_property
  def device_kinds(self) -> np.ndarray:
    """Returns the kind of each device, [D] int32: its column of `OpCosts.compute_us`."""
    # All fields that costs depend on; memory and links may differ within a kind.
    kinds: Dict[Any, int] = {}
    index = []
    for device in self.devices:
      key = (device.own_costs and device.name, json.dumps(outputs.plain([
          device.type, device.efficiency, device.properties, device.op_efficiency,
          device.op_start_us, device.product_peaks]), sort_keys=True))
      index.append(kinds.setdefault(key, len(kinds)))
    return np.array(index, dtype=np.int32)

  @functools.cached_property
  def first_of_kind(self) -> np.ndarray:
    """Returns the index of the first device of each kind, [K]."""
    return np.unique(self.device_kinds, return_index=True)[1]

  @functools.cached_property
  def kind_devices(self) -> Tuple[Device, ...]:
    """Returns the first device of each kind, [K]."""
    return tuple(self.devices[i] for i in self.first_of_kind.tolist())

  @functools.cached_property
  def overlap(self) -> np.ndarray:
    """Returns 1 for devices whose launches overlap with kernels, 0 for others, [D] float64."""
    return np.array([float(self.overlapped_launches and device.type == "GPU")
                     for device in self.devices])

  def pause_us(self, compute_us: np.ndarray, devices: np.ndarray) -> np.ndarray:
    """Returns how long devices remain busy after the end of ops.

    Args:
      compute_us: [..., X] time of ops on each of X devices, 0 where no kernel is launched.
      devices: [X] the devices.

    Returns:
      [..., X] us.
    """
    left_us = self.op_overhead_us - self.overlap[devices] * compute_us
    return np.where(compute_us > 0, np.maximum(left_us, 0.0), 0.0)
