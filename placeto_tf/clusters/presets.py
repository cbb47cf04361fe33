"""Presets: the machines that "k80:4", "a100:2+cpu:1", "v100:4x2" and the like describe.

The fields of DeviceProperties that grappler reads, and how (its
`OpLevelCostEstimator::GetDeviceInfo`):

  GPU  flops = numCores * frequency (MHz) * 2 * cores of a multiprocessor, which it looks up in
       environment["architecture"]: 192 for "3.x" (Kepler), 128 for "5.x", 64 from "6.x" on.
       Tensor cores do not count. TensorFlow multiplies float32 matrices in TF32 from Ampere on, so
       presets of such cards have more multiprocessors than the card, as many as give the TF32
       peak without sparsity. Products of float16 and bfloat16 have a peak of their own
       (`product_peaks`), that of tensor cores without sparsity, with sums in float32 as TensorFlow
       takes them.
  CPU  flops = numCores * frequency (MHz): one per cycle, while a core with AVX2 does 32 (two
       fused multiply-adds of 8 lanes), so `cpu` has 32 times its number of cores.
  both bandwidth is memory bandwidth in KB/s.

Where the figures come from:
  Multiprocessors, boost clock, peaks of TF32 and of half precision, memory and its bandwidth:
    NVIDIA's data sheet or architecture white paper named at each entry; compared, all but those of
    half precision, with published tables of specifications in November 2026 (all but P100, A100
    80 GB, H100 for PCIe and RTX A6000). A K80 board carries two GK210 dies; TensorFlow sees each
    as a GPU, and so does `k80`. 823 MHz is the clock at which TensorFlow reports these dies.
  `k80_placeto`: the machine of Placeto's authors (Addanki et al. 2019): 7,600 bytes/us, 5.7 us per
    op, 12 GB per die, and 25 us that their simulator leaves on a bus after a transfer, which does
    not delay consumers (`bus_gap_us`). `k80` has their bandwidth.
  Kernels: efficiency and start by kind, fitted by scripts/benchmarks/fit_presets.py to published
    kernels and whole training steps, whose sources it names (docs/results/predictions.md has the
    errors). Kernels of H100 were timed on a card; an H200 has the same multiprocessors, and the fit
    predicts its kernels as well. Lookups read rows in memory, at the speed that TorchRec's planner
    counts: timed ones found their rows in the card's cache. Cards without published steps have the
    kernels of the nearest card: A100 80 GB those of A100; L4, A10 and L40S those of RTX A6000; RTX
    4090 those of RTX 3090 (float32 as fast as TF32); H100 for PCIe, H200 and B200 those of H100; T4
    its own from DeepBench, with the mean scales of K80, P100 and V100.
  XLA: an op is a kernel of its own. Published steps of A100, RTX 3090 and RTX A6000 in TF32 and of
    BERT are of graphs compiled by XLA; the same graphs without XLA took 1.1 times as long (A100,
    float32 without TF32), ResNet-50 v1.5 on V100 1.14 times (float32) and 1.29 times (mixed).
  Other links: three quarters, by assumption, of the rated speed in one direction:
    PCIe 3/4/5 x16 (15.75, 31.5, 63 GB/s), one NVLink 2 between two V100s (25 GB/s), NVLink 3, 4 and
    5 through NVSwitch (300, 450, 900 GB/s). A preset has NVLink where every card of its name is
    sold with it, so cards whose bridge is an option (RTX 3090, RTX A6000, A100 and H100 for
    PCIe) are PCIe cards here; describe a bridge in a JSON file. Drivers give GeForce cards no
    direct access to one another, so a transfer crosses the bus twice: two RTX 4090 reached 15 GB/s
    each way at once (p2pBandwidthLatencyTest, in docs/results/data/published.csv).
    `calibrate` replaces all of these by measurements.
  Latency: the wait of an op on another device beside the bytes, mostly TensorFlow's own doing.
    The copy waits for an event of the compute stream and is itself a launch (5 us: the launch of a
    small kernel or copy, as CUDA's samples and PyTorch's profiles show it); reading another card's
    memory takes 4 us and more (github.com/lukealonso/p2pmark: 4.1 us alone, 6.1 us under load, on
    PCIe; NVLink has more bandwidth, not less latency: Li et al., "Evaluating modern GPU
    interconnect", arXiv:1903.04611); TensorFlow sees that it has ended when its event manager
    polls, every 10 us (`polling_active_delay_usecs` in its gpu_event_mgr.cc); then the executor
    hands the tensor over and launches the consumer (6 us, as any op). That adds up to 25 us. From
    the launch of a small kernel to its start pass up to 20 us (NVIDIA's guide to Nsight Systems, on
    a V100), so 25 us is not pessimistic. Through the host a tensor is copied twice: 35 us.
  Overhead: 5.7 us per op for all cards, because it is the executor's and the launch's own. It
    passes while the kernel before runs (`overlapped_launches`): steps of ResNet-50 on an H100 took
    as long as their kernels at batch 64, as long as their launches at batch 8 (docs/results/
    predictions.md). Of these 3 us are the driver's (`launch_us`; an empty kernel on recent
    systems, forums.developer.nvidia.com/t/233645), in which it holds a lock of the whole process:
    threads that launch to several GPUs wait for one another (github.com/tensorflow/tensorflow/
    issues/53759; github.com/chelsea0x3b/cudarc/issues/169 and the threads of NVIDIA's forum named
    there).
  Links between hosts: the measured speed of gRPC between worker processes, as for `cpu`, which is
    below that of an Ethernet of 25 Gbit/s. "@100gbit" means a network whose rate TensorFlow can use
    (RDMA, several connections); three quarters of the rate are assumed.
  Half precision: the peak of tensor cores, and kernels fitted to DeepBench's (V100, T4) or to
    those of the H100, with the scales of float32. Before V100 TensorFlow computes products of half
    precision in float32 (its guide to mixed precision), and Turing and Volta have none of bfloat16.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import re
from typing import Any, Dict, List, Mapping, Sequence, Tuple

import numpy as np

from placeto_tf.clusters.cluster_json import MAX_DEVICES
from placeto_tf.clusters.device import Device
from placeto_tf.errors import ClusterError

_GB = 2**30


@dataclasses.dataclass(frozen=True)
class Link:
  """Bandwidth and latency, both ways."""

  bandwidth_bytes_per_us: float
  latency_us: float


_PCIE_K80 = Link(7_600.0, 25.0)
_P100 = Link(5_900.0, 25.0)
_PCIE_3 = Link(12_000.0, 25.0)
_PCIE_4 = Link(24_000.0, 25.0)
_PCIE_4_STAGED = Link(15_000.0, 35.0)
_PCIE_5 = Link(47_000.0, 25.0)
_BETWEEN_HOSTS = Link(2_200.0, 90.0)
_BYTES_PER_US_PER_GBIT = 0.75 * 125.0  # three quarters of the rated rate
# Card -> "float32" (TF32 from Ampere on) and "half" -> kind of kernel (`OpRule.kind`; with windows
# of convolutions of stride 1) -> efficiency, us beside the work; see the module. And card, "" for
# all -> published steps whose estimates were within 25 % where the fit had not seen the model on
# the card, of how many.
with open(os.path.join(os.path.dirname(__file__), "kernels.json"), encoding="utf-8") as _file:
  KERNELS: Dict[str, Mapping[str, Mapping[str, Sequence[float]]]] = json.load(_file)
_WITHIN: Mapping[str, Sequence[int]] = KERNELS.pop("held out")  # type: ignore[assignment]
# Preset -> what is known of the errors of its steps; where fewer than three were published, of all.
_ACCURACY = {
    **{card: (f"was within 25 % in {within} of {count}" if count > 2 else
              "and five other cards were within 25 % in {} of {}".format(*_WITHIN[""]))
             + " published training steps" for card, (within, count) in _WITHIN.items()},
    "h100": "took 0.9 to 1.2 times the estimate in six measured steps",
    "k80_placeto": "is a simulator's; real K80s are up to three times as fast"}
_ACCURACY["a100_pcie"] = _ACCURACY["a100"]
# Preset -> bytes/us at which NCCL's ring passes tensors on: over PCIe as DeepBench's NCCL 2 on 2 to
# 8 cards (K80: M40); over all six NVLinks of a V100, where a copy between two takes one; 208
# between A100s (NVIDIA/nccl-tests issue 178).
_ALL_REDUCE = {"k80": 6_000.0, "p100": 5_900.0, "v100": 6 * 19_000.0, "a100": 208_000.0}
_LAUNCH_US = 3.0  # the part of an op's overhead that the driver does under a lock


@dataclasses.dataclass(frozen=True)
class Preset:
  """One kind of device.

  Attributes:
    device: a device of this kind, with the kinds of kernels that were measured.
    peer: the link between two of them.
    host: the link to the rest of the machine.
    op_overhead_us, bus_gap_us, launch_us, overlapped_launches: see `Cluster`.
  """

  device: Device
  peer: Link
  host: Link
  op_overhead_us: float = 5.7
  bus_gap_us: float = 0.0
  launch_us: float = 0.0
  overlapped_launches: bool = False


def _gpu(model: str, architecture: str, num_cores: int, frequency: int, bandwidth_gb: float,
         memory_gb: int, kernels: str, peer: Link, host: Link, half: float = 0.0) -> Preset:
  """Describes a GPU.

  Args:
    model, architecture: as TensorFlow reports them.
    num_cores: multiprocessors, as grappler counts them.
    frequency: in MHz.
    bandwidth_gb: of the memory, in 10^9 bytes/s.
    memory_gb: in 2^30 bytes.
    kernels: card of `KERNELS`.
    peer, host: see `Preset`.
    half: the peak of products of float16 in TFLOPS, and from Ampere on of bfloat16, too.
  """
  properties = {
      "type": "GPU", "vendor": "NVIDIA", "model": model, "frequency": frequency,
      "numCores": num_cores, "environment": {"architecture": architecture},
      "memorySize": memory_gb * _GB, "bandwidth": int(bandwidth_gb * 1e6)}
  # Architectures below 8 (before Ampere) have no products of bfloat16.
  types = ("float16", "bfloat16")[:0 if not half else 1 if float(architecture) < 8 else 2]
  tables = KERNELS[kernels]
  figures = {kind + suffix: figure for precision, table in tables.items()
             for suffix in ([""] if precision == "float32" else [f" {name}" for name in types])
             for kind, figure in table.items()}
  device = Device(
      "/GPU:0", "GPU", memory_gb * _GB, tables["float32"]["element-wise"][0], properties,
      product_peaks={name: {"flops_per_us": half * 1e6, "efficiency": tables["half"]["product"][0]}
                     for name in types},
      op_efficiency={name: each for name, (each, _) in sorted(figures.items())},
      op_start_us={name: us for name, (_, us) in sorted(figures.items())})
  return Preset(device, peer, host, launch_us=_LAUNCH_US, overlapped_launches=True)


PRESETS: Mapping[str, Preset] = {
    # The machine of Placeto's authors, for comparisons with their simulator alone: one efficiency,
    # 0.3, with which simulated gains of placements are those that they measured, and launches after
    # kernels. Real dies are up to three times as fast: see `k80`.
    "k80_placeto": Preset(
        Device("/GPU:0", "GPU", 12 * _GB, 0.3, {
            "type": "GPU", "vendor": "NVIDIA", "model": "Tesla K80", "frequency": 823,
            "numCores": 13, "environment": {"architecture": "3.7"}, "memorySize": 12 * _GB,
            "bandwidth": 240_000_000}),
        Link(7_600.0, 0.0), Link(7_600.0, 0.0), bus_gap_us=25.0),
    # One die, on the links that Placeto's authors measured.
    "k80": _gpu("Tesla K80", "3.7", 13, 823, 240, 12, "k80", _PCIE_K80, _PCIE_K80),
    # "NVIDIA Tesla P100" white paper: the SXM2 card, of whose machine (DGX-1) the published steps
    # are. Its link is what all-reduces of 2 to 8 P100s reached (DeepBench), with which those steps
    # on 8 GPUs also fit better than with NVLink 1's 20 GB/s. The PCIe card has 1,303 MHz.
    "p100": _gpu("Tesla P100-SXM2-16GB", "6.0", 56, 1480, 732, 16, "p100", _P100, _PCIE_3),
    "p100_pcie": _gpu("Tesla P100-PCIE-16GB", "6.0", 56, 1303, 732, 16, "p100", _PCIE_3, _PCIE_3),
    "v100": _gpu("Tesla V100-SXM2-16GB", "7.0", 80, 1530, 900, 16, "v100",
                 Link(19_000.0, 25.0), _PCIE_3, half=125),
    # TensorFlow multiplies float32 matrices in TF32 here, whose data-sheet peak is 8 times that of
    # the multiprocessors (156 TFLOPS).
    "a100": _gpu("NVIDIA A100-SXM4-40GB", "8.0", 8 * 108, 1410, 1555, 40, "a100",
                 Link(225_000.0, 25.0), _PCIE_4, half=312),
    # "NVIDIA A100 Tensor Core GPU" data sheet: the PCIe card has the same peak and memory.
    "a100_pcie": _gpu("NVIDIA A100-PCIE-40GB", "8.0", 8 * 108, 1410, 1555, 40, "a100", _PCIE_4,
                      _PCIE_4, half=312),
    # The same sheet: 80 GB of HBM2e at 2,039 GB/s.
    "a100_80gb": _gpu("NVIDIA A100-SXM4-80GB", "8.0", 8 * 108, 1410, 2039, 80, "a100",
                      Link(225_000.0, 25.0), _PCIE_4, half=312),
    # TF32 again (495 TFLOPS without sparsity, at 1,830 MHz; 989 in half precision).
    "h100": _gpu("NVIDIA H100 80GB HBM3", "9.0", 16 * 132, 1830, 3350, 80, "h100",
                 Link(337_000.0, 25.0), Link(55_000.0, 25.0), half=989),
    # "NVIDIA H100 Tensor Core GPU" data sheet, H100 PCIe: TF32 756 TFLOPS with sparsity (half
    # precision 1,513), 2 TB/s.
    "h100_pcie": _gpu("NVIDIA H100 PCIe", "9.0", 16 * 114, 1620, 2000, 80, "h100", _PCIE_5, _PCIE_5,
                      half=756),
    # "NVIDIA H200 Tensor Core GPU" data sheet, SXM: H100's peak, 141 GB at 4.8 TB/s.
    "h200": _gpu("NVIDIA H200", "9.0", 16 * 132, 1830, 4800, 141, "h100", Link(337_000.0, 25.0),
                 Link(55_000.0, 25.0), half=989),
    # "NVIDIA HGX B200" data sheet, an eighth of its eight GPUs: TF32 18 PFLOPS with sparsity (1.1
    # per GPU without), half precision 36 (2.25), 1.44 TB, 62 TB/s; NVLink 5 of 1.8 TB/s both ways.
    # The sheet has no clock: 1,940 MHz and 30 times its 148 multiprocessors give the peak. Grappler
    # compares architectures as text, in which "10.0" comes before "3.0": with "9.0" it counts 64
    # cores.
    "b200": _gpu("NVIDIA B200", "9.0", 30 * 148, 1940, 7700, 180, "h100",
                 Link(675_000.0, 25.0), _PCIE_5, half=2250),
    # "NVIDIA T4" data sheet and Turing white paper: 40 multiprocessors, 8.1 TFLOPS, 16 GB at
    # 320 GB/s, PCIe 3; 65 TFLOPS in half precision. No TF32.
    "t4": _gpu("Tesla T4", "7.5", 40, 1590, 320, 16, "t4", _PCIE_3, _PCIE_3, half=65),
    # "NVIDIA L4" data sheet: TF32 120 TFLOPS with sparsity, half precision 242; 58
    # multiprocessors, 24 GB at 300 GB/s.
    "l4": _gpu("NVIDIA L4", "8.9", 4 * 58, 2040, 300, 24, "rtxa6000", _PCIE_4, _PCIE_4, half=121),
    # "NVIDIA A10" data sheet: TF32 62.5 TFLOPS, half precision 125; 72 multiprocessors, 24 GB at
    # 600 GB/s.
    "a10": _gpu("NVIDIA A10", "8.6", 4 * 72, 1695, 600, 24, "rtxa6000", _PCIE_4, _PCIE_4, half=125),
    # "NVIDIA Ampere GA102" white paper: TF32 35.6 TFLOPS, as without tensor cores, half
    # precision 71 with sums in float32; 82 multiprocessors, 24 GB at 936 GB/s.
    "rtx3090": _gpu("NVIDIA GeForce RTX 3090", "8.6", 2 * 82, 1695, 936, 24, "rtx3090",
                    _PCIE_4_STAGED, _PCIE_4, half=71),
    # "NVIDIA Ada" white paper: TF32 82.6 TFLOPS, half precision 165 with sums in float32; 128
    # multiprocessors, 24 GB at 1,008 GB/s.
    "rtx4090": _gpu("NVIDIA GeForce RTX 4090", "8.9", 2 * 128, 2520, 1008, 24, "rtx3090",
                    _PCIE_4_STAGED, _PCIE_4, half=165),
    # "NVIDIA RTX A6000" data sheet and GA102 white paper: TF32 77.4 TFLOPS, half precision 155;
    # 84 multiprocessors, 48 GB at 768 GB/s.
    "rtxa6000": _gpu("NVIDIA RTX A6000", "8.6", 4 * 84, 1800, 768, 48, "rtxa6000", _PCIE_4, _PCIE_4,
                     half=155),
    # "NVIDIA L40S" data sheet: TF32 183 TFLOPS, half precision 362; 142 multiprocessors, 48 GB at
    # 864 GB/s.
    "l40s": _gpu("NVIDIA L40S", "8.9", 4 * 142, 2520, 864, 48, "rtxa6000", _PCIE_4, _PCIE_4,
                  half=362),
    # A typical server: eight cores with AVX2 at 2.6 GHz, four channels of DDR4-2400. That half of
    # the peak is reached is assumed. Links and overhead were measured between worker processes of
    # one machine: loopback gRPC takes about 0.45 us per kB plus 90 us, an op 4 us.
    "cpu": Preset(
        Device("/CPU:0", "CPU", 64 * _GB, 0.5, {
            "type": "CPU", "vendor": "GenuineIntel", "model": "8 cores with AVX2",
            "frequency": 2600, "numCores": 8 * 32, "memorySize": 64 * _GB,
            "bandwidth": 76_800_000}),
        Link(2_200.0, 90.0), _PCIE_3, op_overhead_us=4.0),
}


def accuracy(devices: Sequence[Device]) -> str:
  """Returns a sentence on the errors of estimated times on devices.

  Args:
    devices: of a cluster.

  Returns:
    What is known of each kind of device that is no host, by its model.
  """
  found: Dict[str, None] = {}
  for device in devices:
    name = _name_of(device)
    if device.type == "GPU":
      found[f"{name} {_ACCURACY.get(name, 'has no published step')}" if name else (
          "GPUs that are no preset have not been compared")] = None
    elif not device.host:
      found["CPU workers were measured at up to 12 times the estimate"] = None
  return f"Times are estimates: {'; '.join(found)} (placeto-calibrate measures them)."


def all_reduce_bandwidth(devices: Sequence[Device], bandwidth: np.ndarray) -> np.ndarray:
  """Returns the bandwidth of a ring of NCCL's, which may use several links of a card at once.

  Args:
    devices: of a cluster.
    bandwidth: [D, D] bytes/us of its links.

  Returns:
    [D, D]; links that are no preset's are unchanged.
  """
  found, names = bandwidth.copy(), [_name_of(device) for device in devices]
  for name, rate in _ALL_REDUCE.items():
    mine = np.array([name == each for each in names])
    found[np.outer(mine, mine) & (bandwidth == PRESETS[name].peer.bandwidth_bytes_per_us)] = rate
  return found


def _name_of(device: Device) -> str:
  """Returns the preset of a device, "" for none."""
  return next((name for name, preset in PRESETS.items() if (
      preset.device.efficiency, preset.device.op_efficiency, preset.device.properties["model"]) == (
          device.efficiency, device.op_efficiency, device.properties.get("model"))), "")


def parse(text: str) -> Dict[str, Any]:
  """Returns the fields of the `Cluster` that a string such as "v100:4x2@100gbit" describes.

  Devices are numbered by type. On several hosts they have TensorFlow's names of workers' devices,
  such as /job:worker/task:1/device:GPU:0, and every host has a CPU of its own.

  Returns:
    Field -> value: devices, [D, D] links, and the fields of the slowest preset.

  Raises:
    ClusterError: an unknown preset, or a count or a rate that is wrong.
  """
  # preset:count[xhosts][+preset:count[xhosts]...][@rate]
  text, at, rate = text.partition("@")
  parsed = [_term(term, text) for term in text.split("+")]
  if len({hosts for _, _, hosts in parsed}) > 1:
    raise ClusterError(
        f"the cluster {text!r} gives its presets different numbers of hosts; every host has the "
        "same devices, as in k80:2x3+v100:1x3: describe others in a JSON file")
  terms, hosts = [(name, count) for name, count, _ in parsed], parsed[0][2]
  if at and hosts == 1:
    raise ClusterError(
        f"the cluster {text!r} has one host, which needs no network; leave out @{rate}")
  network = _network(rate, text) if at else _BETWEEN_HOSTS
  # GPUs alone bring a CPU that serves as their host.
  if all(PRESETS[name].device.type != "CPU" for name, _ in terms):
    terms, own_host = [*terms, ("cpu", 1)], True
  else:
    own_host = False
  members: List[Tuple[Preset, Device]] = []
  for task in range(hosts):
    numbers: Dict[str, int] = collections.Counter()  # of devices, by type
    prefix = f"/job:worker/task:{task}/device:" if hosts > 1 else "/"
    for kind, count in terms:
      preset, device_type = PRESETS[kind], PRESETS[kind].device.type
      for _ in range(count):
        members.append((preset, dataclasses.replace(
            preset.device, name=f"{prefix}{device_type}:{numbers[device_type]}",
            host=own_host and device_type == "CPU")))
        numbers[device_type] += 1
  # [kinds, kinds] links between distinct presets, looked up for all pairs of devices.
  presets = list({id(preset): preset for preset, _ in members}.values())
  links = [[a.peer if a is b else slower_host_link(a, b) for b in presets] for a in presets]
  number = np.array([presets.index(preset) for preset, _ in members])
  # [D] host of each device: devices are listed host by host.
  machine = np.arange(len(members)) // (len(members) // hosts)
  # [D, D] whether two devices are on one host; else the network links them.
  pairs, together = np.ix_(number, number), machine[:, None] == machine
  bandwidth, latency = (
      np.where(together, np.array([[getattr(link, field) for link in row] for row in links])[pairs],
               getattr(network, field)) for field in ("bandwidth_bytes_per_us", "latency_us"))
  return dict(
      devices=tuple(device for _, device in members), bandwidth_bytes_per_us=bandwidth,
      latency_us=latency, **slowest_fields([preset for preset, _ in members]))


def slowest_fields(members: Sequence[Preset]) -> Dict[str, Any]:
  """Returns the common fields of a `Cluster`: for each field, the value of the slowest preset."""
  gpus = [preset for preset in members if preset.device.type == "GPU"]
  return {"overlapped_launches": all(preset.overlapped_launches for preset in gpus),
          **{field: max(getattr(preset, field) for preset in members)
             for field in ("op_overhead_us", "bus_gap_us", "launch_us")}}


def slower_host_link(a: Preset, b: Preset) -> Link:
  """Returns the bus on which two devices meet, at least one of them a GPU.

  Returns:
    The slower of the GPUs' links to their host.
  """
  # A CPU is on the bus of the GPU; two GPUs meet on the slower of their buses.
  buses = [one.host for one in (a, b) if one.device.type != "CPU"]
  return min(buses, key=lambda link: link.bandwidth_bytes_per_us)


def _term(term: str, text: str) -> Tuple[str, int, int]:
  """Parses a term into preset, devices per host, hosts."""
  name, colon, counts = (part.strip() for part in term.partition(":"))
  name = name.lower()
  if name not in PRESETS:
    raise ClusterError(f"the cluster {text!r} names an unknown preset {name!r}; {expected()}")
  if not colon:
    raise ClusterError(f"the cluster {text!r} gives no count for {name}; write {name}:1")
  count, times, hosts = counts.partition("x")
  # Digits alone, cut to nine, so that huge numbers are refused without being parsed.
  for number in (count, hosts if times else "1"):
    if not re.fullmatch(r"[0-9]+", number) or not 1 <= int(number[:9]) <= MAX_DEVICES:
      raise ClusterError(f"the cluster {text!r} asks for {number!r} devices of {name}; expected a "
                         f"number from 1 to {MAX_DEVICES}, as in {name}:4, or {name}:4x2 for 4 on "
                         "each of 2 hosts")
  if int(count) * int(hosts or 1) > MAX_DEVICES:
    raise ClusterError(f"the cluster {text!r} has more than {MAX_DEVICES} devices; ask for fewer")
  return name, int(count), int(hosts or 1)


def _network(rate: str, text: str) -> Link:
  """Returns the link between hosts of a network of this rate, such as "100gbit"."""
  match = re.fullmatch(r"([0-9]{1,6})gbit", rate.strip().lower())
  if match is None or not int(match.group(1)):
    raise ClusterError(f"the cluster {text!r} has a network of {rate!r}; expected a rate such as "
                       f"{text}@100gbit, or links in a JSON file")
  return Link(int(match.group(1)) * _BYTES_PER_US_PER_GBIT, _BETWEEN_HOSTS.latency_us)


def expected() -> str:
  """Describes the argument of `Cluster.parse`, for errors."""
  return (f"expected preset:count[+preset:count] of {', '.join(PRESETS)}, the path of a JSON file, "
          "or local")
