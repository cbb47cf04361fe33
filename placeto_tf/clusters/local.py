"""`Cluster.parse("local")`: the devices that TensorFlow finds on this machine.

Grappler describes them as DeviceProperties. This module corrects three things that grappler gets
wrong for its own cost model or cannot know:
  - It counts 64 cores per GPU multiprocessor from compute capability 6 on, and no tensor cores.
    Multiprocessors that do more are counted as several.
  - It counts one flop per cycle for a CPU core, whatever its vector units.
  - It knows neither links nor efficiency. These are taken from the preset of the same model, or
    else of the same generation, with PCIe between GPUs, because TensorFlow does not tell where
    NVLink is.
Logical CPU devices share the cores: each device has all cores, and an op that begins while another
device computes takes longer in proportion to the sharing. So several devices only use the time in
which one device leaves cores idle.
`calibrate` measures these assumptions.
"""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any, Dict, List, Sequence, Tuple

import numpy as np

from placeto_tf.clusters import presets
from placeto_tf.clusters.device import Device
from placeto_tf.errors import ClusterError
from placeto_tf.on_use import tf

if TYPE_CHECKING:
  from tensorflow.core.protobuf.device_properties_pb2 import DeviceProperties

# Compute capability -> multiprocessors of 64 cores that equal one. Consumer cards, and all cards
# since 8.6, have 128 cores; data-center cards multiply float32 matrices on tensor cores, in TF32,
# eight times as fast as on their 64 or 128 cores.
_WORTH = {(6, 1): 2, (8, 0): 8, (9, 0): 16, (10, 0): 16}
_WORTH_SINCE = ((8, 6), 2)
# The first compute capability that the preset does not describe.
_GENERATIONS = (((6, 0), "k80"), ((7, 0), "p100"), ((8, 0), "v100"), ((9, 0), "a100"))
_NEWEST = "h100"
_MODELS = {preset.device.properties["model"]: preset for preset in presets.PRESETS.values()}
# Flops per cycle in float32: fused multiply-adds on two vector units.
_FLOPS_OF_FLAG = (("avx512f", 64), ("avx2", 32), ("avx", 16))
_FLOPS_WITHOUT_FLAG = 16  # two units of four lanes (SSE, NEON)
# Training InceptionV3 with a batch of 4 took one core with AVX-512 1.17 s, 0.95 s at its peak.
_CPU_EFFICIENCY = 0.8
_CPU_BANDWIDTH_KB = 32_000_000  # grappler's assumption if the properties have none
_CPU_FREQUENCY = 2_500
_UNKNOWN_MEMORY_BYTES = 16 * 2**30
# Logical CPU devices hand tensors over without copying them; a thread has to be woken.
_SHARED_CPU = presets.Link(32_000.0, 10.0)


def found_devices() -> Dict[str, Any]:
  """Returns the fields of a `Cluster` that describes this machine.

  With GPUs, "/CPU:0" is their host. Logical CPU devices, made with
  `tf.config.set_logical_device_configuration`, are separate devices.

  Raises:
    ClusterError: TensorFlow finds no device.
  """
  # "GPU:0" -> properties, whatever job the name begins with.
  found = {named.name.rpartition("device:")[2]: named.properties for named in _grappler_devices()}
  logical: List[Tuple[str, DeviceProperties]] = []
  for kind in ("GPU", "CPU"):
    number = 0
    for physical in tf.config.list_physical_devices(kind):
      properties = found.get(f"{kind}:{physical.name.rpartition(':')[2]}")
      # A physical device without a configuration is one logical device.
      for _ in tf.config.get_logical_device_configuration(physical) or [None]:
        if properties is not None:
          logical.append((f"/{kind}:{number}", properties))
        number += 1
  return from_properties(logical)


def from_properties(named: Sequence[Tuple[str, DeviceProperties]]) -> Dict[str, Any]:
  """Returns the fields of a `Cluster` of the devices that TensorFlow describes.

  Returns:
    Field -> value: devices, [D, D] links, overheads, and the sharing of cores between CPU devices.

  Raises:
    ClusterError: there is no device.
  """
  if not named:
    raise ClusterError("TensorFlow finds no CPU or GPU on this machine; describe a cluster, as in "
                       "k80:4")
  with_gpus = any(properties.type == "GPU" for _, properties in named)
  cpus = sum(properties.type == "CPU" for _, properties in named)
  devices, members = [], []
  for name, properties in named:
    if properties.type == "GPU":
      device, preset = _gpu(name, properties)
    else:
      device, preset = _cpu(name, properties, cpus, host=with_gpus)
    devices.append(device)
    members.append(preset)
  d = len(devices)
  bandwidth, latency = np.ones((d, d)), np.zeros((d, d))
  # Two CPU devices share memory; any other pair meets on a GPU's bus.
  for i, a in enumerate(members):
    for j, b in enumerate(members):
      both_cpus = a.device.type == b.device.type == "CPU"
      link = _SHARED_CPU if both_cpus else presets.slower_host_link(a, b)
      bandwidth[i, j], latency[i, j] = link.bandwidth_bytes_per_us, link.latency_us
  sharing: Dict[str, Any] = {}
  # With n devices on the same cores, each op may take up to n times as long.
  if cpus > 1 and not with_gpus:
    sharing = dict(ready_order="executor", busy_slowdown=float(cpus - 1))
  return dict(
      devices=tuple(devices), bandwidth_bytes_per_us=bandwidth, latency_us=latency,
      **presets.slowest_fields(members), **sharing)


def _grappler_devices() -> List[DeviceProperties]:
  """Returns the NamedDevices of this machine."""
  from tensorflow.python.grappler import cluster as grappler_cluster

  cluster = grappler_cluster.Cluster()
  try:
    return cluster.ListDevices()
  finally:
    cluster.Shutdown()


def _gpu(name: str, properties: DeviceProperties) -> Tuple[Device, presets.Preset]:
  """Returns a GPU with the properties found, and the preset of its model or generation."""
  capability = _capability(properties.environment.get("architecture", ""))
  # The first generation whose limit is above the capability.
  own = _MODELS.get(properties.model)
  preset = own or presets.PRESETS[next(
      (known for limit, known in _GENERATIONS if capability < limit), _NEWEST)]
  usual = preset.device
  fields = _fields(properties)
  since, worth = _WORTH_SINCE
  fields["numCores"] = usual.properties["numCores"] if own else properties.num_cores * _WORTH.get(
      capability, worth if capability >= since else 1)
  # Some CUDA versions no longer report clocks.
  for field in ("numCores", "frequency", "bandwidth"):
    fields[field] = int(fields.get(field, 0)) or usual.properties[field]
  fields["environment"] = {"architecture": f"{capability[0]}.{capability[1]}"}
  memory_bytes = properties.memory_size if properties.memory_size > 0 else usual.memory_bytes
  # Half precision is as much faster than float32 as the preset's.
  speed = (fields["numCores"] * fields["frequency"]) / (
      usual.properties["numCores"] * usual.properties["frequency"])
  peaks = {kind: {**peak, "flops_per_us": peak["flops_per_us"] * speed}
           for kind, peak in usual.product_peaks.items()}
  return dataclasses.replace(
      usual, name=name, memory_bytes=memory_bytes, properties=fields,
      product_peaks=peaks), preset


def _cpu(
    name: str, properties: DeviceProperties, sharing: int, host: bool
) -> Tuple[Device, presets.Preset]:
  """Describes a CPU; `sharing` is the number of CPU devices that share its memory."""
  fields = _fields(properties)
  fields["numCores"] = max(1, properties.num_cores) * _flops_a_cycle()
  fields["frequency"] = properties.frequency if properties.frequency > 0 else _CPU_FREQUENCY
  fields["bandwidth"] = (
      properties.bandwidth if properties.bandwidth > 0 else _CPU_BANDWIDTH_KB)
  # TensorFlow reports 256 MB for every CPU device.
  memory_bytes = _physical_memory_bytes() // sharing
  fields.pop("memorySize", None)
  return Device(name, "CPU", memory_bytes, _CPU_EFFICIENCY, fields, host), presets.PRESETS["cpu"]


def _fields(properties: DeviceProperties) -> Dict[str, Any]:
  """Converts properties to proto JSON, with 64-bit integers as numbers."""
  from google.protobuf import json_format

  return {key: int(value) if isinstance(value, str) and value.isdigit() and key != "model"
          else value for key, value in json_format.MessageToDict(properties).items()}


def _capability(text: str) -> Tuple[int, int]:
  """Parses a compute capability: (7, 0) of "7.0"; (0, 0) if it is no number."""
  major, _, minor = text.partition(".")
  if not major.isdigit():
    return 0, 0
  return int(major), int(minor) if minor.isdigit() else 0


def _flops_a_cycle() -> int:
  """Returns the flops per cycle of one core, from the flags that Linux lists."""
  try:
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
      flags = next((line.split() for line in file if line.startswith("flags")), [])
  except OSError:
    flags = []
  return next((flops for flag, flops in _FLOPS_OF_FLAG if flag in flags), _FLOPS_WITHOUT_FLAG)


def _physical_memory_bytes() -> int:
  """Returns the memory of this machine; a guess if the system does not report it."""
  try:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
  except (AttributeError, OSError, ValueError):  # Windows does not have this call
    return _UNKNOWN_MEMORY_BYTES
