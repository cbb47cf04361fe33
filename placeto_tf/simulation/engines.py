"""One interface to the two compiled event loops, with their arguments and records.

Dimensions: N ops, S segments, E edges, O outputs, D devices, B placements, T transfers, J jobs.
"""

from __future__ import annotations

from typing import Any, Sequence, Tuple

import numpy as np

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.simulation import event_loop, extended_loop
from placeto_tf.simulation.schedule import Jobs, Transfers
from placeto_tf.simulation.simulation_tables import SimulationTables


def needs_extensions(cluster: Cluster) -> bool:
  """Returns whether the cluster departs from the reference simulator."""
  return bool(
      cluster.transfers != "device" or cluster.transfer_per_destination
      or cluster.sender_us_per_transfer or cluster.sender_us_per_byte
      or cluster.receiver_us_per_transfer or cluster.receiver_us_per_byte
      or cluster.ready_order != "arrival")


class ReferenceEngine:
  """Runs `event_loop`."""

  simulate_range = staticmethod(event_loop.simulate_range)

  def __init__(self, tables: SimulationTables):
    self._tables = tables

  def workspace(self) -> Tuple[Any, np.ndarray]:
    """Allocates the arrays of one thread, reused from one placement to the next."""
    t = self._tables
    sizes = t.num_ops, t.num_segments, len(t.edge_consumers), len(t.output_bytes), t.num_devices
    # The second array [1, N] is for start times that the caller does not need.
    return event_loop.Workspace.make(*sizes), np.empty((1, t.num_ops))

  def arguments(self, workspace) -> Tuple[Any, ...]:
    """Returns the arguments of the compiled loop between the range and the results."""
    return self._tables, workspace[0]

  def run(self, workspace, placements, first, last, start_us, step_time_us, peak) -> None:
    """Simulates placements[first:last] with the compiled loop, into the arrays given.

    Args:
      workspace: of this thread, from `workspace()`.
      placements: [B, N] int32, the device of each op.
      first, last: the range of placements to simulate.
      start_us: [B, N] float64, filled in the range; None where start times are not wanted.
      step_time_us: [B] float64, filled in the range.
      peak: [B, D] float64 bytes, filled in the range.
    """
    self.simulate_range(
        placements, first, last, *self.arguments(workspace),
        workspace[1] if start_us is None else start_us, step_time_us, peak)

  def op_us(self, workspace, placement) -> np.ndarray:
    """Returns the compute time of each op in the placement that was run last.

    Args:
      workspace: in which it was run.
      placement: [N] int32, the device of each op.

    Returns:
      [N] float64 us.
    """
    del workspace  # this loop has no slowdowns
    return self._tables.compute_us[np.arange(len(placement)), self._tables.kinds[placement]]

  def record(self, workspace) -> Tuple[np.ndarray, ...]:
    """Copies the times of the last placement that was run, for `schedule`."""
    state, _ = workspace
    return state.segment_start_us.copy(), state.segment_us.copy()

  def schedule(self, placement, record) -> Tuple[Transfers, Jobs]:
    """Returns the transfers and jobs of a placement.

    Args:
      placement: [N] int32, the device of each op.
      record: of its run, from `record()`.

    Returns:
      The transfers in the order of (producer, port), and no jobs.
    """
    segment_start_us, segment_us = record
    t, d = self._tables, self._tables.num_devices
    # A segment is sent to each device, other than its producer's, where a consumer is.
    source = placement[t.segment_ops]
    target = placement[t.edge_consumers]
    remote = target != source[t.segment_of_edge]
    # [S, D], whether a segment is sent to a device
    wanted = np.zeros((t.num_segments, d), dtype=bool)
    wanted[t.segment_of_edge[remote], target[remote]] = True
    sent = np.flatnonzero(wanted.any(axis=1))
    transfers = Transfers(
        t.segment_ops[sent], t.segment_ports[sent], source[sent], wanted[sent],
        t.segment_bytes[sent], segment_start_us[sent], segment_start_us[sent] + segment_us[sent])
    none, whole = np.zeros(0), np.zeros(0, dtype=np.int32)
    return transfers, Jobs(np.zeros(0, dtype=bool), whole, whole, none, none)


class ExtendedEngine(ReferenceEngine):
  """Runs `extended_loop`, which has every extension."""

  simulate_range = staticmethod(extended_loop.simulate_range)

  def __init__(self, tables: SimulationTables, cluster: Cluster, op_types: Sequence[str]):
    """Collects the extensions that the cluster uses.

    Args:
      tables: of graph and costs, N ops.
      cluster: states the extensions.
      op_types: [N], some of which run inline in the executor's order.
    """
    super().__init__(tables)
    self._extensions = extended_loop.Extensions.of(cluster, op_types)

  def workspace(self) -> Tuple[Any, np.ndarray]:
    """Allocates the arrays of one thread, reused from one placement to the next."""
    t = self._tables
    return extended_loop.Workspace.make(
        t.num_ops, len(t.edge_consumers), len(t.output_bytes), t.num_devices,
        self._extensions), np.empty((1, t.num_ops))

  def arguments(self, workspace) -> Tuple[Any, ...]:
    """Returns the arguments of the compiled loop between the range and the results."""
    return self._tables, self._extensions, workspace[0]

  def op_us(self, workspace, placement) -> np.ndarray:
    """Returns the compute time of each op in the placement that was run last.

    Args:
      workspace: in which it was run; its times include slowdowns by other devices.
      placement: [N] int32; not used, because the workspace has it.

    Returns:
      [N] float64 us.
    """
    del placement
    return workspace[0].op_us.copy()

  def record(self, workspace) -> Tuple[np.ndarray, ...]:
    """Copies the times of the last placement that was run, for `schedule`."""
    state, _ = workspace
    transfers, jobs = state.counts[extended_loop.TRANSFERS], state.counts[extended_loop.JOBS]
    return (
        state.transfer_ints[:transfers].copy(),
        state.transfer_times[:transfers].copy(), state.job_ints[:jobs].copy(),
        state.job_times[:jobs].copy())

  def schedule(self, placement, record) -> Tuple[Transfers, Jobs]:
    """Returns the transfers and jobs of a placement.

    Args:
      placement: [N] int32, the device of each op.
      record: of its run, from `record()`.

    Returns:
      Transfers in the order of (producer, port, destination), and jobs in the order in which they
      were added.
    """
    transfer_ints, transfer_times, job_ints, job_times = record
    t, d = self._tables, self._tables.num_devices
    # By (segment, destination); segments are in the order of (producer, port).
    order = np.lexsort((transfer_ints[:, 2], transfer_ints[:, 0]))  # transfers were queued by time
    segments, sources, targets = transfer_ints[order].T
    destinations = np.zeros((len(order), d), dtype=bool)
    # Transfers to one device, and then transfers (-1) to every device with a consumer.
    one = np.flatnonzero(targets >= 0)
    destinations[one, targets[one]] = True
    for k in np.flatnonzero(targets < 0):
      edges = slice(t.segment_edges[segments[k]], t.segment_edges[segments[k] + 1])
      destinations[k, placement[t.edge_consumers[edges]]] = True
      destinations[k, sources[k]] = False
    transfers = Transfers(
        t.segment_ops[segments], t.segment_ports[segments], sources, destinations,
        t.segment_bytes[segments], transfer_times[order, 0], transfer_times[order, 1])
    # Jobs have transfers' numbers in the order of queueing; `position` is the inverse of `order`.
    position = np.empty(len(order), dtype=np.int32)
    position[order] = np.arange(len(order), dtype=np.int32)
    jobs = Jobs(
        job_ints[:, 0] == extended_loop.PACK, position[job_ints[:, 1]], job_ints[:, 2],
        job_times[:, 0], job_times[:, 1])
    return transfers, jobs
