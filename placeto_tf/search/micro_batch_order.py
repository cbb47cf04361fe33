"""Control edges that fix the order in which the devices of a pipeline work on micro-batches.

TensorFlow runs ready ops in no particular order. Without control edges, all micro-batches of a
pipeline go forward side by side: a stage ends its first micro-batch late, the next stage waits, and
all activations are in memory at once. Here a device goes on with one micro-batch while it has ready
ops, then takes the oldest one, so that a backward pass goes before the next forward pass ("one
forward, one backward": Narayanan et al., PipeDream, 2019; Fan et al., DAPPLE, 2021). A micro-batch
begins only when few enough others are under way. A simulated step with these rules gives the
sequence of ops on each device. A run is a stretch of that sequence with ops of one micro-batch.
Control edges from the end of each run to the first ops of the next run fix the sequence.

Edges go from ops that the schedule starts earlier to ops that it starts later, so there is no
cycle. They change the time at which an op runs, never the op's result. Graphs with branches or
loops get no edges: an edge from an op in a branch that is not taken would switch off the ops that
wait for that op, and no edge may lead into a loop.

Dimensions: N ops, E edges, D devices, M micro-batches.
"""

from __future__ import annotations

import collections
import dataclasses
import heapq
import itertools
from typing import Callable, Dict, Iterable, List, Optional, Tuple

import numpy as np

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.costs.op_costs import OpCosts
from placeto_tf.graphs.computation_graph import CONTROL, ComputationGraph
from placeto_tf.ops import rule_of
from placeto_tf.search.layers import downstream
from placeto_tf.simulation.path_lengths import longest_path_us

# The micro-batch that goes first: the oldest one, so that backward passes go before forward passes;
# or the one with the least progress, so that forward passes go first (GPipe, Huang et al. 2019).
OLDEST, SHALLOWEST = "oldest", "shallowest"


def can_be_ordered(op_types: Iterable[str]) -> bool:
  """Returns whether ops of these types, without branches and loops, may get control edges."""
  return not any(rule_of(op_type).flow in ("enter", "merge", "switch") for op_type in op_types)


def order_edges(
    graph: ComputationGraph, costs: OpCosts, cluster: Cluster, placement: np.ndarray,
    micro_batch_of_op: np.ndarray, group_of_op: np.ndarray, in_flight: int, first: str = OLDEST,
) -> Optional[List[Tuple[int, int]]]:
  """Returns the control edges that fix the order of micro-batches on each device.

  Args:
    graph, costs, cluster: of the replicas.
    placement: [N] int32, device of each op.
    micro_batch_of_op: [N] int32, micro-batch of each op; -1 for ops that run once a step.
    group_of_op: [N] int32, the group (replica) of micro-batches that each op belongs to.
    in_flight: the most micro-batches of one group that may be under way at the same time.
    first: the ready micro-batch that a device takes: `OLDEST` or `SHALLOWEST`.

  Returns:
    List of (op, op that waits for the first op); None if a micro-batch cannot end before a later
    one begins, because some op combines values of both.
  """
  # Simulate one step with the order; `started` lists ops in the order in which they start.
  started = _Schedule(
      graph, costs, cluster, placement, micro_batch_of_op, group_of_op, in_flight, first).run()
  if started is None:
    return None
  # A lane is one micro-batch of one group, numbered group-major: [N], -1 for ops that run once.
  lane = group_of_op.astype(np.int64) * (int(micro_batch_of_op.max()) + 1) + micro_batch_of_op
  once = micro_batch_of_op < 0
  lane[once] = -1
  # Ops that run once before the micro-batches are not held back. Sums and updates are held back
  # until the device has done its last micro-batch.
  by_depth = np.argsort(graph.depths[graph.edge_consumers], kind="stable")
  works = (costs.compute_us.max(axis=1) > 0) & (~once | downstream(
      graph.edge_producers[by_depth], graph.edge_consumers[by_depth], ~once))
  run_of_op = np.full(graph.num_ops, -1, dtype=np.int64)
  # The op of each run that starts last, and its deepest op, which ends last in a serial execution.
  ends_of_run: List[List[int]] = []
  depths = graph.depths.tolist()
  before: List[int] = []  # the run before on the same device, or -1
  current: Dict[int, Tuple[int, int]] = {}  # device -> (lane, run)
  # Split each device's sequence of ops into runs: stretches of one lane.
  for op in started:
    device = int(placement[op])
    here = current.get(device)
    if here is None or here[0] != lane[op]:
      # Ops without cost never begin a run: they may run at any time.
      if not works[op]:
        continue
      before.append(-1 if here is None else here[1])
      current[device] = here = (int(lane[op]), len(ends_of_run))
      ends_of_run.append([op, op])
    run_of_op[op] = here[1]
    if works[op]:
      # Ties in depth keep the op seen first.
      ends = ends_of_run[here[1]]
      ends[0], ends[1] = op, max(op, ends[1], key=depths.__getitem__)
  # Inverse permutation: [N] place of each op in the schedule.
  position = np.empty(graph.num_ops, dtype=np.int64)
  position[started] = np.arange(graph.num_ops)
  # Hold back the first working ops of each run until the device's previous run has ended.
  return [(end, op) for op, run in _first_of_runs(graph, run_of_op, works, position)
          if before[run] >= 0 for end in set(ends_of_run[before[run]])]


def with_edges(graph: ComputationGraph, edges: List[Tuple[int, int]]) -> ComputationGraph:
  """Returns a copy of the graph's arrays with more control edges; the source is not changed.

  Args:
    graph: arrays of a graph with N ops.
    edges: (op, op that waits for the first op) for each new edge.

  Returns:
    A graph of N ops whose edges are sorted and distinct.
  """
  added = np.array(edges, dtype=np.int64).reshape(-1, 2)
  # [E, 3] producer, port, consumer; `np.unique` sorts by producer and drops duplicates.
  rows = np.concatenate([
      np.stack([graph.edge_producers, graph.edge_ports, graph.edge_consumers], axis=1),
      np.stack([added[:, 0], np.full(len(added), CONTROL), added[:, 1]], axis=1)])
  rows = np.unique(rows, axis=0).astype(np.int32)
  return dataclasses.replace(
      graph, edge_producers=rows[:, 0].copy(), edge_ports=rows[:, 1].copy(),
      edge_consumers=rows[:, 2].copy())


def _first_of_runs(
    graph: ComputationGraph, run_of_op: np.ndarray, works: np.ndarray, position: np.ndarray
) -> List[Tuple[int, int]]:
  """Returns (op, run) of the first working ops of each run: no other working op precedes them."""
  behind = np.zeros(graph.num_ops, dtype=bool)
  producers, consumers = graph.edge_producers, graph.edge_consumers
  # Edges inside one run, in the order in which their consumers start.
  inside = (run_of_op[producers] == run_of_op[consumers]) & (run_of_op[producers] >= 0)
  order = np.flatnonzero(inside)
  order = order[np.argsort(position[consumers[order]], kind="stable")]
  for u, v in zip(producers[order].tolist(), consumers[order].tolist()):
    # An op downstream of a working op of its run waits for that op already.
    if works[u] or behind[u]:
      behind[v] = True
  first = np.flatnonzero(works & (run_of_op >= 0) & ~behind)
  return list(zip(first.tolist(), run_of_op[first].tolist()))


class _Schedule:
  """Simulates a step in which each device takes micro-batches in order.

  Links behave as in the simulator.
  """

  def __init__(
      self, graph: ComputationGraph, costs: OpCosts, cluster: Cluster, placement: np.ndarray,
      micro_batch_of_op: np.ndarray, group_of_op: np.ndarray, in_flight: int, first: str):
    n = graph.num_ops
    self._count = int(micro_batch_of_op.max()) + 1
    self._in_flight = in_flight
    self._depth = graph.depths.tolist() if first == SHALLOWEST else [0] * n
    self._place = placement.tolist()
    cost_us = costs.compute_us[np.arange(n), cluster.device_kinds[placement]]
    self._cost_us = cost_us.tolist()
    self._pause_us = cluster.pause_us(cost_us, placement).tolist()
    # Packing delays a transfer; that it keeps devices busy is left out.
    self._us_per_byte, self._gap_us = cluster.us_per_byte.tolist(), cluster.bus_gap_us
    self._wait_us = (cluster.fixed_us - cluster.bus_gap_us).tolist()
    self._bytes = costs.edge_bytes(graph).tolist()
    # Edges are sorted by producer: those of op i are begin[i]:begin[i + 1].
    self._begin = np.searchsorted(graph.edge_producers, np.arange(n + 1)).tolist()
    self._ports, self._consumers = graph.edge_ports.tolist(), graph.edge_consumers.tolist()
    # [N] number of inputs that have not arrived.
    self._missing = np.bincount(graph.edge_consumers, minlength=n).tolist()
    # A lane is a micro-batch of a group. An op that runs once comes before all micro-batches if one
    # of them needs it, else after them.
    once = micro_batch_of_op < 0
    by_depth = np.argsort(-graph.depths[graph.edge_producers], kind="stable")
    needed = once & downstream(
        graph.edge_consumers[by_depth], graph.edge_producers[by_depth], ~once)
    lane = micro_batch_of_op.astype(np.int64) + group_of_op * self._count
    self._lanes = int(group_of_op.max() + 1) * self._count
    self._lane = np.where(needed, -1, np.where(once, self._lanes, lane)).tolist()
    # [lanes] number of ops of each micro-batch that have not ended.
    self._left = np.bincount(lane[~once], minlength=self._lanes).tolist()
    # Lane -> ops that are held back until that lane has ended.
    self._held: Dict[int, List[int]] = {}
    # [N] rank by the longest path to the end; of equal ones the op nearer to the inputs is first.
    to_end_us = longest_path_us(graph, costs.compute_us.min(axis=1), onwards=True)
    self._rank = np.argsort(np.lexsort((graph.depths, -to_end_us))).tolist()
    # Ready ops by device and lane.
    self._ready: List[Dict[int, List[Tuple[int, int]]]] = [
        {} for _ in range(cluster.num_devices)]
    self._working_on = [-1] * cluster.num_devices
    self._busy = [False] * cluster.num_devices
    self._queued, self._paired = cluster.transfers != "unlimited", cluster.transfers == "pair"
    self._to_each = cluster.transfer_per_destination or cluster.transfers != "device"
    # (device, receiver; -1 for all) -> when the link is free.
    self._link_free_us: Dict[Tuple[int, int], float] = collections.defaultdict(float)
    # Instant, number, method, op or device.
    self._events: List[Tuple[float, int, Callable[[int, float], None], int]] = []
    self._numbers = itertools.count()

  def run(self) -> Optional[List[int]]:
    """Returns [N], the ops in the order in which they start; None if some never do."""
    started: List[int] = []
    for op, missing in enumerate(self._missing):
      if not missing:
        self._make_ready(op)
    now = 0.0
    # Event loop: start ops on free devices, then handle all events of the next instant.
    while True:
      for device, busy in enumerate(self._busy):
        if not busy and self._ready[device]:
          self._start(device, now, started)
      # Ops that wait for a held micro-batch never start: the order cannot be kept.
      if not self._events:
        return started if len(started) == len(self._place) else None
      now = self.end = self._events[0][0]
      # All events of one instant come before the next start, so ties do not depend on the heap.
      while self._events and self._events[0][0] == now:
        _, _, handle, item = heapq.heappop(self._events)
        handle(item, now)

  def _push(self, when: float, handle: Callable[[int, float], None], item: int) -> None:
    """Queues an event: the call of a method with an op or a device, and the instant."""
    heapq.heappush(self._events, (when, next(self._numbers), handle, item))

  def _free(self, device: int, now: float) -> None:
    """Frees a device after an op and its overhead."""
    self._busy[device] = False

  def _turn(self, lane: int, op: int) -> Tuple[int, int, int, int]:
    """Returns a key that is smallest for the lane that goes first; `op` is the lane's next op."""
    if not 0 <= lane < self._lanes:
      # Lane -1 comes before all micro-batches, the last lane after them.
      return lane, 0, 0, 0
    # `SHALLOWEST`: the least depth first (`OLDEST`: always 0); then by micro-batch, then by group.
    return 0, self._depth[op], lane % self._count, lane

  def _make_ready(self, op: int) -> None:
    """Queues an op on its device, or holds its micro-batch back until an earlier one ends."""
    lane = self._lane[op]
    # A micro-batch begins when the one `in_flight` before it in its group has ended.
    earlier = lane - self._in_flight
    if 0 <= lane < self._lanes and lane % self._count >= self._in_flight and self._left[earlier]:
      self._held.setdefault(earlier, []).append(op)
      return
    heapq.heappush(self._ready[self._place[op]].setdefault(lane, []), (self._rank[op], op))

  def _start(self, device: int, now: float, started: List[int]) -> None:
    """Starts the next op of the device's lane, or of the lane whose turn comes."""
    ready = self._ready[device]
    # A device goes on with its micro-batch as long as that micro-batch has ready ops.
    lane = self._working_on[device]
    if lane not in ready:
      lane = min(ready, key=lambda lane: self._turn(lane, ready[lane][0][1]))
      self._working_on[device] = lane
    op = heapq.heappop(ready[lane])[1]
    if not ready[lane]:
      del ready[lane]
    started.append(op)
    self._busy[device] = True
    self._push(now + self._cost_us[op], self._end, op)

  def _end(self, op: int, now: float) -> None:
    """Frees the device after an op, sends its outputs and releases held micro-batches."""
    device = self._place[op]
    self._push(now + self._pause_us[op], self._free, device)
    edges = range(self._begin[op], self._begin[op + 1])
    for _, same in itertools.groupby(edges, key=self._ports.__getitem__):
      found = list(same)  # edges of one output
      targets = [self._place[self._consumers[e]] for e in found]
      others = sorted(set(targets) - {device})
      # Device -> when it has the output, after a transfer to each, or one to all of them at the
      # slowest link's rate.
      arrives_us = {}
      for receivers in [[to] for to in others] if self._to_each else filter(None, [others]):
        link = device, receivers[0] if self._paired else -1
        slowest = max(self._us_per_byte[device][to] for to in receivers)
        begin_us = max(now, self._link_free_us[link]) if self._queued else now
        sent_us = begin_us + self._bytes[found[0]] * slowest
        # The link is busy until the transfer and the gap after it are over.
        self._link_free_us[link] = sent_us + self._gap_us
        arrives_us.update({to: sent_us + self._wait_us[device][to] for to in receivers})
      for e, to in zip(found, targets):
        if to == device:
          self._lose(self._consumers[e], now)
        else:
          self._push(arrives_us[to], self._lose, self._consumers[e])
    # The last op of a micro-batch releases the ops that are held back until it ends.
    lane = self._lane[op]
    if 0 <= lane < self._lanes:
      self._left[lane] -= 1
      if not self._left[lane]:
        for waiting in self._held.pop(lane, ()):
          self._make_ready(waiting)

  def _lose(self, op: int, now: float) -> None:
    """Counts one more input of an op as arrived; the op is ready once no input is missing."""
    self._missing[op] -= 1
    if not self._missing[op]:
      self._make_ready(op)
