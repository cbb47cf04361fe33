"""`Trajectory`: a simulated placement from which moved placements are simulated faster.

Moving ops cannot change what happens before the first of their producers has ended: until then
no queue has seen them, and no output knows who will consume it. While a trajectory's placement is
simulated, the state of the event loop is recorded at equal steps of progress. A move goes on from
the last state before that first moment, through the same code, so that the result is that of a
simulation from scratch to the bit. Moving an op without inputs starts from the beginning, as it
is ready at 0.

What this can gain depends on the graph. Where late ops read what was made shortly before
(inference, forward passes), late moves are several times faster; where they read what was made
early (the backward pass of a training graph reads activations of the forward pass, optimizers
read variables), the first moment is early, and there is little to reuse.

Legend: N ops, D devices, K snapshots.
"""

from __future__ import annotations

from typing import Tuple

import numpy as np

from placeto_tf.errors import PlacementError
from placeto_tf.simulation import event_loop
from placeto_tf.simulation.engines import ReferenceEngine
from placeto_tf.simulation.simulator import Simulator

MAX_SNAPSHOT_BYTES = 2**27


class Trajectory:
  """One placement, and what it takes to simulate its neighbours. Not for several threads.

  Example:
    trajectory = Trajectory(simulator, placement)
    step_time_us, peak_memory_bytes = trajectory.move(ops, device)
    if step_time_us < trajectory.step_time_us:
      trajectory.accept()

  Attributes:
    placement: [N] int32.
    step_time_us: of the placement.
    peak_memory_bytes: [D] float64.
    start_us: [N] float64.
    reused: share of the ops that the last move did not simulate again, in [0, 1).
  """

  def __init__(self, simulator: Simulator, placement: np.ndarray, *, num_snapshots: int = 24):
    """Simulates the placement.

    Args:
      simulator: with extensions switched on, moves are simulated from scratch.
      placement: [N] int32.
      num_snapshots: K; fewer where they would fill more than 128 MB.

    Raises:
      PlacementError: wrong length, or a device out of range.
    """
    self._simulator = simulator
    placement = simulator.check(np.array(placement))
    graph, self._d = simulator.graph, simulator.cluster.num_devices
    n, o = graph.num_ops, graph.num_outputs
    self.reused = 0.0
    self._resumes = isinstance(simulator.engine, ReferenceEngine)
    if self._resumes:
      k = min(num_snapshots, MAX_SNAPSHOT_BYTES // (4 * (n + o * self._d)))
      self._snapshots = event_loop.make_snapshots(k, n, o, self._d)
      self._workspace = event_loop.make_workspace(n, simulator.tables.num_segments, o, self._d)
      by_consumer = np.argsort(graph.edge_consumers, kind="stable")
      self._producers = graph.edge_producers[by_consumer].astype(np.int32)
      self._producer_offsets = np.searchsorted(
          graph.edge_consumers[by_consumer], np.arange(n + 1)).astype(np.int32)
      _, _, next_op, next_segment, _, *segment_times, _, _, _, _, _ = self._workspace
      self._base = tuple(np.empty_like(x) for x in (
          placement, np.empty(n), next_op, next_segment, *segment_times))
      self._snapshots[-1][:] = np.inf
      self._base[0][:] = placement
    self._changed = placement
    self.accept()

  def move(self, ops: np.ndarray, device: int) -> Tuple[float, np.ndarray]:
    """(step time, peak memory [D]) with some ops on another device; the trajectory stays.

    Raises:
      PlacementError: an op or the device does not exist.
    """
    ops = np.atleast_1d(np.asarray(ops))
    if len(ops) and (ops.min() < 0 or ops.max() >= len(self.placement)):
      raise PlacementError(
          f"cannot move op {int(ops.max())}; expected indices of the {len(self.placement)} ops")
    if not 0 <= device < self._d:
      raise PlacementError(
          f"cannot move ops to device {device}; the cluster has devices 0 to {self._d - 1}")
    moved = self.placement.copy()
    moved[ops] = device
    return self.change(moved)

  def change(self, placement: np.ndarray) -> Tuple[float, np.ndarray]:
    """Like `move`, to any other placement [N]."""
    placement = self._simulator.check(np.array(placement))
    if placement.ndim != 1:
      raise PlacementError(f"the placement has shape {placement.shape}; expected one dimension")
    self._changed = placement
    step_time_us, peak_memory_bytes, _ = self._simulate(record=False)
    return step_time_us, peak_memory_bytes

  def accept(self) -> None:
    """Makes the last move or change the trajectory's own placement."""
    self.step_time_us, self.peak_memory_bytes, self.start_us = self._simulate(record=True)
    self.placement = self._changed

  def _simulate(self, *, record: bool) -> Tuple[float, np.ndarray, np.ndarray]:
    if not self._resumes:
      result = self._simulator.simulate(self._changed)
      return result.step_time_us, result.peak_memory_bytes, result.start_us
    start_us, peak_memory_bytes = np.empty(len(self._changed)), np.empty(self._d)
    step_time_us, snapshot = event_loop.simulate_change(
        self._changed, self._base, self._producer_offsets, self._producers,
        self._simulator.engine.arguments, self._workspace, self._snapshots, record, start_us,
        peak_memory_bytes)
    self.reused = 0.0 if snapshot < 0 else 1 - self._snapshots[-1][snapshot, 1] / len(start_us)
    if record:
      _, _, next_op, next_segment, _, *segment_times, _, _, _, _, _ = self._workspace
      for kept, array in zip(
          self._base, (self._changed, start_us, next_op, next_segment, *segment_times)):
        kept[:] = array
    return step_time_us, peak_memory_bytes, start_us
