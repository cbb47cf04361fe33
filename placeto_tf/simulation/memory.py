"""Lifetimes of the bytes that devices hold, and the tensors alive at each peak.

The event loop counts bytes during the simulation and keeps only the peaks. This module computes the
lifetimes of all tensors from a finished schedule, for reports and pictures.

Dimensions: N ops, E edges, L lifetimes, D devices.
"""

from __future__ import annotations

import dataclasses
from typing import List, Tuple

import numpy as np

from placeto_tf.costs.op_costs import OpCosts
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.simulation.schedule import SimulationResult

GIB = 2**30
KINDS = ("persistent", "temporary", "output", "copy")
_MOST_NAMED = 3


@dataclasses.dataclass(frozen=True, eq=False)
class Lifetimes:
  """Bytes that devices hold, each from one moment to another, without empty ones.

  Attributes:
    devices: [L] int32.
    since_us, until_us: [L] float64.
    sizes_bytes: [L] float64.
    ops: [L] int32, the op of the bytes; for a copy, the producer.
    kinds: [L] int8, index into `KINDS`.
  """

  devices: np.ndarray
  since_us: np.ndarray
  until_us: np.ndarray
  sizes_bytes: np.ndarray
  ops: np.ndarray
  kinds: np.ndarray

  @classmethod
  def of(cls, graph: ComputationGraph, costs: OpCosts, result: SimulationResult) -> Lifetimes:
    """Computes all lifetimes of a simulated step.

    Args:
      graph, costs: of the step.
      result: its schedule.

    Returns:
      L lifetimes, persistent bytes first, then temporaries, outputs and copies.
    """
    n, d = graph.num_ops, result.cluster.num_devices
    place, start_us, end_us = result.placement, result.start_us, result.end_us
    # [O], the op of each output
    owners = np.repeat(np.arange(n, dtype=np.int32), np.diff(graph.output_offsets))
    sent = result.transfers
    # Copies: one for each data transfer and destination; control has no bytes.
    rows, targets = np.nonzero(sent.destinations & (sent.ports >= 0)[:, None])
    outputs = graph.output_offsets[sent.ops[rows]] + sent.ports[rows]
    copies = outputs.astype(np.int64) * d + targets  # one key a copy
    order = np.argsort(copies)
    copies, arrived_us = copies[order], sent.end_us[rows][order]
    copy_until_us = np.zeros(len(copies))
    # An output lives on its device until its op, its transfers and its consumers there have ended
    # ...
    home_until_us = end_us[owners]
    np.maximum.at(home_until_us, outputs, sent.end_us[rows])
    data = np.flatnonzero(graph.edge_ports >= 0)
    edge_outputs, consumers = graph.edge_outputs[data], graph.edge_consumers[data]
    here = place[graph.edge_producers[data]] == place[consumers]
    np.maximum.at(home_until_us, edge_outputs[here], end_us[consumers[here]])
    # ... and a copy elsewhere until its last consumer there has ended.
    keys = edge_outputs[~here].astype(np.int64) * d + place[consumers[~here]]
    np.maximum.at(copy_until_us, np.searchsorted(copies, keys), end_us[consumers[~here]])
    # Fetched outputs are held to the end of the step.
    home_until_us[graph.fetched_outputs] = result.step_time_us
    copied = (copies // d).astype(np.int64)
    # Each row: devices, since, until, bytes, ops; in the order of `KINDS`.
    parts = (
        (place, np.zeros(n), np.full(n, np.inf), costs.persistent_bytes, np.arange(n)),
        (place, start_us, end_us, costs.temporary_bytes, np.arange(n)),
        (place[owners], start_us[owners], home_until_us, costs.output_bytes, owners),
        (copies % d, arrived_us, copy_until_us, costs.output_bytes[copied], owners[copied]),
    )
    devices, since_us, until_us, sizes_bytes, ops = (
        np.concatenate(column) for column in zip(*parts))
    kinds = np.repeat(np.arange(len(parts), dtype=np.int8), [len(part[0]) for part in parts])
    # Drop lifetimes without duration or without bytes.
    held = (until_us > since_us) & (sizes_bytes > 0)
    return cls(
        devices[held].astype(np.int32), since_us[held], until_us[held], sizes_bytes[held],
        ops[held].astype(np.int32), kinds[held])

  def usage(self, device: int) -> Tuple[np.ndarray, np.ndarray]:
    """Returns moments, from 0 on, and the bytes that a device holds from each to the next."""
    mine = self.devices == device
    until = mine & np.isfinite(self.until_us)
    moments = np.concatenate([[0.0], self.since_us[mine], self.until_us[until]])
    # A lifetime adds its bytes at its begin and subtracts them at its end.
    changes = np.concatenate([[0.0], self.sizes_bytes[mine], -self.sizes_bytes[until]])
    times_us, index = np.unique(moments, return_inverse=True)
    return times_us, np.cumsum(np.bincount(index, weights=changes))

  def at_peak(self, device: int) -> Tuple[float, np.ndarray]:
    """Returns the moment of the first peak and the lifetimes that make it up, largest first."""
    times_us, held_bytes = self.usage(device)
    moment_us = float(times_us[held_bytes.argmax()])
    # Half-open intervals: lifetimes that end at this moment do not count, lifetimes that begin do.
    alive = np.flatnonzero(
        (self.devices == device) & (self.since_us <= moment_us) & (moment_us < self.until_us))
    return moment_us, alive[np.argsort(-self.sizes_bytes[alive], kind="stable")]


def memory_report(
    graph: ComputationGraph, costs: OpCosts, result: SimulationResult) -> List[str]:
  """Writes a sentence for each device that cannot hold its peak.

  For example: "out of memory on /GPU:1 by 1.2 GB (13.2 GB at 5210 us, 12.0 GB there; largest:
  conv1/Conv2D output 0.5 GB)".

  Args:
    graph, costs: of the step.
    result: its schedule and peaks.

  Returns:
    The sentences, in the order of the devices; none if the placement fits.
  """
  excess_bytes = result.peak_memory_bytes - result.cluster.memory_bytes
  full = np.flatnonzero(excess_bytes > 0).tolist()
  if not full:
    return []
  lifetimes, sentences = Lifetimes.of(graph, costs, result), []
  for device in full:
    moment_us, alive = lifetimes.at_peak(device)
    largest = ", ".join(
        f"{graph.op_names[lifetimes.ops[k]]} {KINDS[lifetimes.kinds[k]]} "
        f"{size_text(lifetimes.sizes_bytes[k])}" for k in alive[:_MOST_NAMED])
    sentences.append(
        f"out of memory on {result.cluster.device_names[device]} by "
        f"{size_text(excess_bytes[device])} ({size_text(result.peak_memory_bytes[device])} at "
        f"{moment_us:.0f} us, {size_text(result.cluster.memory_bytes[device])} there; largest: "
        f"{largest})")
  return sentences


def size_text(size_bytes: float) -> str:
  """Formats bytes with one decimal, in GiB, MiB or KiB, whichever shows at least 0.1."""
  for unit, size in (("GiB", GIB), ("MiB", 2**20), ("KiB", 2**10)):
    if size_bytes >= 0.1 * size:
      return f"{size_bytes / size:.1f} {unit}"
  return f"{size_bytes:.0f} bytes"
