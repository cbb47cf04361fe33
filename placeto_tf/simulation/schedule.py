"""`SimulationResult`: one simulated step, with its ops, transfers and memory.

Dimensions: N ops, T transfers, J jobs, D devices.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Dict, Tuple

import numpy as np

from placeto_tf.clusters.cluster import Cluster


@dataclasses.dataclass(frozen=True, eq=False)
class Transfers:
  """Transfers of one step, in the order of (producer, port, destination).

  Attributes:
    ops: [T] int32 producers.
    ports: [T] int32 output ports, -1 for control edges.
    sources: [T] int32 devices.
    destinations: [T, D] bool.
    sizes_bytes: [T] float64.
    start_us, end_us: [T] float64; consumers have the tensor a latency after the end.
  """

  ops: np.ndarray
  ports: np.ndarray
  sources: np.ndarray
  destinations: np.ndarray
  sizes_bytes: np.ndarray
  start_us: np.ndarray
  end_us: np.ndarray

  def __len__(self) -> int:
    return len(self.ops)

  def of_edges(self) -> Dict[Tuple[int, int, int], int]:
    """Maps (producer, output port, destination) to the transfer that carries the edge."""
    return {(op, port, d): t for t, (op, port, to) in enumerate(zip(
        self.ops.tolist(), self.ports.tolist(), self.destinations))
            for d in np.flatnonzero(to).tolist()}


@dataclasses.dataclass(frozen=True, eq=False)
class Jobs:
  """Packing and unpacking of transfers on compute queues; none in the reference simulator.

  Attributes:
    packing: [J] bool, else unpacking.
    transfers: [J] int32 index into `Transfers`.
    devices: [J] int32.
    start_us, end_us: [J] float64.
  """

  packing: np.ndarray
  transfers: np.ndarray
  devices: np.ndarray
  start_us: np.ndarray
  end_us: np.ndarray

  def __len__(self) -> int:
    return len(self.packing)


@dataclasses.dataclass(frozen=True, eq=False)
class SimulationResult:
  """One simulated step; data that comparisons of placements do not need are computed on use.

  Attributes:
    cluster: on which the step was simulated.
    placement: [N] int32 device of each op.
    step_time_us: when the last op ended.
    start_us, end_us: [N] float64.
    peak_memory_bytes: [D] float64.
    launches_us: [N] float64, time of launches between the runs of an op in a loop, which is part of
      the op's time.
  """

  cluster: Cluster
  placement: np.ndarray
  step_time_us: float
  start_us: np.ndarray
  end_us: np.ndarray
  peak_memory_bytes: np.ndarray
  launches_us: np.ndarray
  # The transfers and jobs are computed from the engine's record when they are asked for.
  _engine: Any = dataclasses.field(repr=False)
  _record: Tuple[np.ndarray, ...] = dataclasses.field(repr=False)

  @property
  def fits(self) -> bool:
    """Returns whether every device can hold its peak."""
    return bool((self.peak_memory_bytes <= self.cluster.memory_bytes).all())

  @property
  def transfers(self) -> Transfers:
    """Returns the transfers of the step."""
    return self._schedule[0]

  @property
  def jobs(self) -> Jobs:
    """Returns packing and unpacking; empty unless transfers take compute time on the cluster."""
    return self._schedule[1]

  @functools.cached_property
  def busy_us(self) -> np.ndarray:
    """Returns compute time of ops, packing and unpacking, [D], without overheads."""
    d = self.cluster.num_devices
    jobs = self.jobs
    return np.bincount(
        self.placement, weights=self.end_us - self.start_us, minlength=d) + np.bincount(
            jobs.devices, weights=jobs.end_us - jobs.start_us, minlength=d)

  @functools.cached_property
  def transfer_us(self) -> np.ndarray:
    """Returns the time that the transfers of each device take, [D], without latencies."""
    sent = self.transfers
    return np.bincount(
        sent.sources, weights=sent.end_us - sent.start_us, minlength=self.cluster.num_devices)

  @functools.cached_property
  def transfer_bytes(self) -> float:
    """Adds up the bytes sent; a tensor sent to several devices in one transfer counts once."""
    return float(self.transfers.sizes_bytes.sum())

  @functools.cached_property
  def _schedule(self) -> Tuple[Transfers, Jobs]:
    return self._engine.schedule(self.placement, self._record)
