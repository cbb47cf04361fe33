"""`Simulator`: step time, memory and schedule of placements of one graph on one cluster.

Dimensions: N ops, D devices, B placements side by side.
"""

from __future__ import annotations

import concurrent.futures
import copy
import os
import threading
from typing import Any, Dict, Optional, Tuple

import numpy as np

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.costs.op_costs import OpCosts, launches_between
from placeto_tf.errors import PlacementError
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.simulation.engines import ExtendedEngine, ReferenceEngine, needs_extensions
from placeto_tf.simulation.schedule import SimulationResult
from placeto_tf.simulation.simulation_tables import SimulationTables


class Simulator:
  """Simulates placements; safe to use from several threads.

  Each device has a first-in-first-out compute queue and an outgoing bus with such a queue.
  docs/simulator.md numbers the rules; `extended_loop` describes the extensions that fields of
  `Cluster` switch on. The model is that of Placeto's training (Addanki et al. 2019, section 4.1 and
  appendix), with exact rules for ties and memory.

  Example:
    result = Simulator(graph, costs, cluster).simulate(placement)
    result.step_time_us, result.peak_memory_bytes, result.fits
  """

  def __init__(
      self,
      graph: ComputationGraph,
      costs: OpCosts,
      cluster: Cluster,
      *,
      num_threads: Optional[int] = None,
  ):
    """Precomputes the tables that do not depend on placements.

    Args:
      graph: the ops and their edges.
      costs: of this graph for this cluster.
      cluster: devices, links, overheads, extensions.
      num_threads: threads of `simulate_many`; by default one per core.

    Raises:
      PlacetoError: graph, costs and cluster do not belong together.
    """
    self.graph, self.costs, self.cluster = graph, costs, cluster
    self.num_threads = num_threads or num_cores()
    self.tables = SimulationTables.build(graph, costs, cluster)
    self.engine = (ExtendedEngine(self.tables, cluster, graph.op_types)
                   if needs_extensions(cluster) else ReferenceEngine(self.tables))
    self._workspaces: list = []
    self._lock = threading.Lock()
    self._pool: Optional[concurrent.futures.ThreadPoolExecutor] = None

  def __getstate__(self) -> Dict[str, Any]:
    """Returns the state for another process, which has threads and buffers of its own."""
    return {**self.__dict__, "_workspaces": [], "_lock": None, "_pool": None}

  def __setstate__(self, state: Dict[str, Any]) -> None:
    self.__dict__.update(state, _lock=threading.Lock())

  def simulate(self, placement: np.ndarray) -> SimulationResult:
    """Simulates one placement, with its schedule.

    Args:
      placement: [N] int32, the device of each op.

    Raises:
      PlacementError: wrong length, or a device out of range.
    """
    # A copy, because the result keeps the placement.
    placement = self.check(np.array(placement))
    if placement.ndim != 1:
      raise PlacementError(
          f"the placement has shape {placement.shape}; expected one dimension, or simulate_many")
    # The engine simulates ranges of placements; this call has the range 0:1.
    placements = placement[None]
    step_time_us, start_us = np.empty(1), np.empty((1, self.graph.num_ops))
    peak = np.empty((1, self.cluster.num_devices))
    workspace = self.take_workspace()
    self.engine.run(workspace, placements, 0, 1, start_us, step_time_us, peak)
    record, op_us = self.engine.record(workspace), self.engine.op_us(workspace, placements[0])
    self.return_workspace(workspace)
    executions = self.graph.executions if self.costs.executions is None else self.costs.executions
    overlap = self.cluster.overlap[placements[0]]
    launches_us = self.cluster.op_overhead_us * launches_between(executions, overlap)
    # Where launches overlap with kernels, the longer of the two is all that is seen of a run.
    launches_us[overlap * op_us > launches_us * (1 + 1e-9)] = 0.0
    return SimulationResult(
        self.cluster, placements[0], float(step_time_us[0]), start_us[0],
        start_us[0] + op_us, peak[0], np.minimum(launches_us, op_us), self.engine, record)

  def simulate_many(
      self, placements: np.ndarray, *, start_us: Optional[np.ndarray] = None
  ) -> Tuple[np.ndarray, np.ndarray]:
    """Simulates placements on all cores.

    Args:
      placements: [B, N] int32, the device of each op.
      start_us: [B, N] float64, filled with the start of each op, if given.

    Returns:
      step_time_us [B] float64 and peak_memory_bytes [B, D] float64.

    Raises:
      PlacementError: wrong shape, or a device out of range.
    """
    placements = self.check(np.atleast_2d(np.asarray(placements)))
    b, n = placements.shape
    step_time_us, peak = np.empty(b), np.empty((b, self.cluster.num_devices))
    if start_us is not None and (
        start_us.shape != (b, n) or start_us.dtype != np.float64
        or not start_us.flags.c_contiguous or not start_us.flags.writeable):
      raise PlacementError(
          f"start_us is {start_us.dtype} {start_us.shape}; expected a contiguous, writable float64 "
          f"array {(b, n)}")
    threads = min(self.num_threads, b)
    # Small pieces, so that a slow core does not delay the whole batch.
    piece = max(1, b // (8 * threads)) if threads > 1 else max(b, 1)

    def run(first: int) -> None:
      workspace = self.take_workspace()
      self.engine.run(
          workspace, placements, first, min(first + piece, b), start_us, step_time_us, peak)
      self.return_workspace(workspace)

    # The list waits for all pieces.
    list((self._threads().map if threads > 1 else map)(run, range(0, b, piece)))
    return step_time_us, peak

  def check(self, placements: np.ndarray) -> np.ndarray:
    """Checks placements and returns them as arrays for the compiled loops.

    Args:
      placements: [N] or [B, N] integers.

    Returns:
      The same shape, contiguous and writable int32.

    Raises:
      PlacementError: the shape or type is wrong, or a device is out of range.
    """
    n, d = self.graph.num_ops, self.cluster.num_devices
    if placements.ndim not in (1, 2) or placements.shape[-1] != n:
      raise PlacementError(
          f"the placement has shape {placements.shape}; expected a device for each of the {n} ops")
    if placements.dtype.kind not in "iu":
      raise PlacementError(
          f"the placement is of type {placements.dtype}; expected int32 device indices")
    if placements.size and (placements.min() < 0 or placements.max() >= d):
      at = tuple(np.argwhere((placements < 0) | (placements >= d))[0])
      raise PlacementError(
          f"op {self.graph.op_names[at[-1]]!r} is on device {placements[at]}; the cluster has "
          f"devices 0 to {d - 1}")
    if not placements.flags.writeable:  # numba would compile again for it
      placements = placements.copy()
    return np.ascontiguousarray(placements, dtype=np.int32)

  def take_workspace(self) -> tuple:
    """Returns the arrays of one thread, for its own use until it returns them."""
    # Under a lock, because a check and a pop are two steps.
    with self._lock:
      if self._workspaces:
        return self._workspaces.pop()
    return self.engine.workspace()

  def return_workspace(self, workspace: tuple) -> None:
    """Returns a workspace for use by the next thread that simulates."""
    self._workspaces.append(workspace)

  def on_one_thread(self) -> Simulator:
    """Returns a copy that simulates on one thread, for threads that simulate side by side."""
    other = copy.copy(self)
    other.num_threads = 1
    return other

  def _threads(self) -> concurrent.futures.ThreadPoolExecutor:
    with self._lock:
      if self._pool is None:
        self._pool = concurrent.futures.ThreadPoolExecutor(
            self.num_threads, thread_name_prefix="simulate")
      return self._pool


def num_cores() -> int:
  """Returns the number of cores that this process may use, for example in a container."""
  if hasattr(os, "sched_getaffinity"):
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1
