"""Described machines: what stands behind "k80:4", "a100:2+cpu:1" and the like.

What grappler reads of DeviceProperties, and how (its `OpLevelCostEstimator::GetDeviceInfo`):

  GPU  flops = numCores * frequency (MHz) * 2 * cores of a multiprocessor, which it looks up in
       environment["architecture"]: 192 for "3.x" (Kepler), 128 for "5.x", 64 from "6.x" on.
       Tensor cores do not enter, so `a100` and `h100` count more multiprocessors than there are,
       as many as give the peak.
  CPU  flops = numCores * frequency (MHz): one a cycle, where a core with AVX2 does 32 (two fused
       multiply-adds of 8 lanes), so that `cpu` counts 32 for each of its cores.
  both bandwidth is memory bandwidth in KB/s.

Where the figures come from:
  Multiprocessors, boost clock, memory and its bandwidth: NVIDIA's data sheets and architecture
    white papers of Tesla K80, P100 (PCIe, 16 GB), V100 (SXM2, 16 GB), A100 (SXM4, 40 GB) and
    H100 (SXM5, 80 GB). A K80 board carries two GK210 dies; TensorFlow sees each as a GPU, and so
    does `k80`. 823 MHz is the clock at which TensorFlow reports these dies.
  Links of `k80`, its overhead and its memory: the machine of Placeto's authors (Addanki et al.
    2019): 7,600 bytes/us, 25 us, 5.7 us an op, 12 GB a die.
  Other links: three quarters, by assumption, of the rate one direction is rated at:
    PCIe 3/4/5 x16 (15.75, 31.5, 63 GB/s), one NVLink 2 between two V100s (25 GB/s), NVLink 3 and 4
    through NVSwitch (300, 450 GB/s). P100 and K80 are PCIe cards. Latency and overhead are
    mostly TensorFlow's own (send and receive, executor, launch), so `k80`'s stand for all cards.
    `calibrate` replaces all of these by what a machine really does.
  Efficiency: see `_PRESETS`, entry by entry.
"""

from __future__ import annotations

import dataclasses
import os
import re
from typing import Any, Dict, List, Mapping, Tuple

import numpy as np

from placeto_tf.clusters.cluster import Cluster, Device
from placeto_tf.errors import ClusterError

_GB = 2**30
_MAX_DEVICES = 4096  # more is a typing error, and would fill the memory with links


@dataclasses.dataclass(frozen=True)
class Link:
  """Bandwidth and latency, both ways."""

  bandwidth_bytes_per_us: float
  latency_us: float


_PCIE_K80 = Link(7_600.0, 25.0)
_PCIE_3 = Link(12_000.0, 25.0)
_PCIE_4 = Link(24_000.0, 25.0)
_PCIE_5 = Link(47_000.0, 25.0)


@dataclasses.dataclass(frozen=True)
class Preset:
  """One kind of device: `peer` links it to its like, `host` to anything else of its machine."""

  type: str
  memory_bytes: int
  efficiency: float
  properties: Mapping[str, Any]
  peer: Link
  host: Link
  op_overhead_us: float = 5.7


def _gpu(model: str, architecture: str, num_cores: int, frequency: int, bandwidth_gb: float,
         memory_gb: int, efficiency: float, peer: Link, host: Link) -> Preset:
  """Args: num_cores as grappler counts them; frequency in MHz; bandwidth in 10^9 bytes/s."""
  properties = {
      "type": "GPU", "vendor": "NVIDIA", "model": model, "frequency": frequency,
      "numCores": num_cores, "environment": {"architecture": architecture},
      "memorySize": memory_gb * _GB, "bandwidth": int(bandwidth_gb * 1e6)}
  return Preset("GPU", memory_gb * _GB, efficiency, properties, peer, host)


_PRESETS: Dict[str, Preset] = {
    # Gains of placements simulated with 0.3 are those that Placeto's authors measured.
    "k80": _gpu("Tesla K80", "3.7", 13, 823, 240, 12, 0.3, _PCIE_K80, _PCIE_K80),
    # TensorFlow's benchmarks of 2017 on one P100 (synthetic data, float32): ResNet-50 219 and
    # InceptionV3 142 images/s. At the peak they come to 264 and 208: 0.83 and 0.68, so about 0.75.
    "p100": _gpu("Tesla P100-PCIE-16GB", "6.0", 56, 1303, 732, 16, 0.75, _PCIE_3, _PCIE_3),
    # ResNet-50 in float32 trains at about 380 images/s, 393 at the peak: 0.97, lowered in the ratio
    # in which P100's 0.75 is below its ResNet-50.
    "v100": _gpu("Tesla V100-SXM2-16GB", "7.0", 80, 1530, 900, 16, 0.88,
                 Link(19_000.0, 25.0), _PCIE_3),
    # TensorFlow multiplies float32 matrices in TF32 here, whose data-sheet peak is 8 times that of
    # the multiprocessors (156 TFLOPS). ResNet-50 trains at about 800 images/s, 1,310 at the peak:
    # 0.61, lowered as for V100.
    "a100": _gpu("NVIDIA A100-SXM4-40GB", "8.0", 8 * 108, 1410, 1555, 40, 0.55,
                 Link(225_000.0, 25.0), _PCIE_4),
    # TF32 again (495 TFLOPS without sparsity, at 1,830 MHz); efficiency assumed to be A100's.
    "h100": _gpu("NVIDIA H100 80GB HBM3", "9.0", 16 * 132, 1830, 3350, 80, 0.55,
                 Link(337_000.0, 25.0), _PCIE_5),
    # A typical server: eight cores with AVX2 at 2.6 GHz, four channels of DDR4-2400. That half of
    # the peak is reached is assumed. Links and overhead were measured between worker processes of
    # one machine: loopback gRPC takes about 0.45 us a kB and 90 us, an op 4 us.
    "cpu": Preset(
        "CPU", 64 * _GB, 0.5,
        {"type": "CPU", "vendor": "GenuineIntel", "model": "8 cores with AVX2",
         "frequency": 2600, "numCores": 8 * 32, "memorySize": 64 * _GB, "bandwidth": 76_800_000},
        Link(2_200.0, 90.0), _PCIE_3, op_overhead_us=4.0),
}

PRESETS: Tuple[str, ...] = tuple(_PRESETS)


def parse(text: str) -> Cluster:
  """See `Cluster.parse`."""
  if not isinstance(text, str) or not text.strip():
    raise ClusterError(f"the cluster is {text!r}; {_expected()}")
  text = text.strip()
  if text == "local":
    from placeto_tf.clusters import local  # needs TensorFlow
    return local.local_cluster()
  if text.endswith(".json") or os.sep in text or os.path.isfile(text):
    return Cluster.load(text)
  return from_counts([_term(term, text) for term in text.split("+")])


def from_counts(terms: List[Tuple[str, int]]) -> Cluster:
  """A cluster of (preset, count) pairs; devices of one type are numbered through."""
  members: List[Tuple[Preset, Device]] = []
  numbers: Dict[str, int] = {}
  for name, count in terms:
    preset = _PRESETS[name]
    for _ in range(count):
      members.append((preset, _device(preset, numbers)))
  if all(preset.type != "CPU" for preset, _ in members):
    preset = _PRESETS["cpu"]
    members.append((preset, _device(preset, numbers, host=True)))
  d = len(members)
  bandwidth, latency = np.ones((d, d)), np.zeros((d, d))
  presets = [preset for preset, _ in members]
  joined: Dict[Tuple[int, int], Link] = {}  # by identity: there are only a few presets
  for i, a in enumerate(presets):
    for j, b in enumerate(presets):
      key = (id(a), id(b))
      if key not in joined:
        joined[key] = a.peer if a is b else slower_host_link(a, b)
      bandwidth[i, j] = joined[key].bandwidth_bytes_per_us
      latency[i, j] = joined[key].latency_us
  overhead = max(preset.op_overhead_us for preset in presets)
  return Cluster(tuple(device for _, device in members), bandwidth, latency, overhead)


def _device(preset: Preset, numbers: Dict[str, int], host: bool = False) -> Device:
  number = numbers.get(preset.type, 0)
  numbers[preset.type] = number + 1
  return Device(f"/{preset.type}:{number}", preset.type, preset.memory_bytes, preset.efficiency,
                dict(preset.properties), host)


def preset(name: str) -> Preset:
  """The preset of this name, one of `PRESETS`."""
  return _PRESETS[name]


def slower_host_link(a: Preset, b: Preset) -> Link:
  """The bus on which two devices meet, at least one of them a GPU."""
  buses = [one.host for one in (a, b) if one.type != "CPU"]
  return min(buses, key=lambda link: link.bandwidth_bytes_per_us)


def _term(term: str, text: str) -> Tuple[str, int]:
  name, colon, count = (part.strip() for part in term.partition(":"))
  if name not in _PRESETS:
    raise ClusterError(f"the cluster {text!r} names an unknown preset {name!r}; {_expected()}")
  if not colon:
    raise ClusterError(f"the cluster {text!r} gives no count for {name}; write {name}:1")
  if not re.fullmatch(r"[0-9]+", count) or not 1 <= int(count[:9]) <= _MAX_DEVICES:
    raise ClusterError(f"the cluster {text!r} asks for {count!r} devices of {name}; expected a "
                       f"number from 1 to {_MAX_DEVICES}, as in {name}:4")
  return name, int(count)


def _expected() -> str:
  return (f"expected preset:count[+preset:count] of {', '.join(PRESETS)}, the path of a JSON file, "
          "or local")
