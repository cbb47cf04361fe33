"""The baseline `data_parallel`: a simulated step of `tf.distribute.MirroredStrategy`.

There is one replica per device. Variables and optimizer are mirrored: every device has all of them
and does every update. Gradients are summed by a ring all-reduce over the links: a tensor is divided
into R chunks, and each device sends one chunk to the next in 2 (R - 1) rounds (reduce-scatter, then
all-gather; Patarasuk and Yuan 2009). Rows of sparse gradients are gathered by a ring: R - 1
rounds in which each device passes on the rows it received. As in MirroredStrategy, each device has
its own moving averages of batch normalization until they are read. Fetches are not averaged here.

Assumptions, all in favour of the baseline:

- a gradient's all-reduce starts as soon as every replica has it, and overlaps with the
  backward pass; sending occupies only the links, and adding the chunks takes no time;
- gradients are packed into buckets in the order in which they become ready; `bucket_bytes` of
  several sizes are tried, from the packs of the replicas to a single bucket, and the best result
  counts; packing takes no time.

The baseline is a graph for the same simulator, so links, queues, memory and overheads are
simulated as for every other method. The baseline is no placement of the user's graph, which has no
mirrored variables.

Dimensions: N ops of the replicated graph, R replicas, D devices.
"""

from __future__ import annotations

import dataclasses
from typing import Dict, List, Sequence, Tuple

import numpy as np

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.costs.op_costs import OpCosts
from placeto_tf.graphs.computation_graph import CONTROL, ComputationGraph
from placeto_tf.replication.replicated_graph import SHARED, ReplicatedGraph
from placeto_tf.simulation import Simulator

# A bucket for each tensor, buckets of two usual sizes, one bucket for all gradients.
BUCKETS_BYTES = (0.0, 4e6, 32e6, float("inf"))


@dataclasses.dataclass(frozen=True, eq=False)
class DataParallel:
  """A simulated step of mirrored variables.

  Attributes:
    step_time_us: of the global batch.
    peak_memory_bytes: [D].
    fits: whether every device has memory for its peak.
    bucket_bytes: size of the buckets that the gradients were packed into.
    reduced_bytes: bytes of one replica's gradients that are summed over the devices.
  """

  step_time_us: float
  peak_memory_bytes: np.ndarray  # [D]
  fits: bool
  bucket_bytes: float
  reduced_bytes: float


def data_parallel(
    replicated: ReplicatedGraph, costs: OpCosts, cluster: Cluster, devices: Sequence[int],
    host_of_op: np.ndarray,
) -> DataParallel:
  """Simulates mirrored data parallelism.

  Args:
    replicated: as many replicas as devices, or fewer.
    costs: of its graph.
    cluster: devices and links.
    devices: the device of each replica.
    host_of_op: [N] device of an op that cannot run on its replica's device, -1 for other ops.

  Returns:
    The fastest step over `BUCKETS_BYTES`; steps that fit into memory are preferred.
  """
  found = []
  for bucket_bytes in BUCKETS_BYTES if replicated.replicas > 1 else BUCKETS_BYTES[:1]:
    mirrored = _Mirrored(replicated, costs, devices, host_of_op, bucket_bytes)
    simulated = Simulator(mirrored.graph, mirrored.costs, cluster).simulate(mirrored.placement)
    found.append(DataParallel(
        simulated.step_time_us, simulated.peak_memory_bytes, simulated.fits, bucket_bytes,
        mirrored.reduced_bytes))
  return min(found, key=lambda each: (not each.fits, each.step_time_us))


class _Mirrored:
  """The graph of one step; see the module."""

  def __init__(
      self, replicated: ReplicatedGraph, costs: OpCosts, devices: Sequence[int],
      host_of_op: np.ndarray, bucket_bytes: float):
    self._replicated, self._costs, self._devices = replicated, costs, list(devices)
    self._hosts, self._bucket_bytes = host_of_op, bucket_bytes
    self.reduced_bytes = 0.0
    # (name, type, bytes of outputs, op of the replicated graph whose costs apply or -1, device)
    self._ops: List[Tuple[str, str, List[float], int, int]] = []
    self._edges: List[Tuple[int, int, int]] = []
    self._image: Dict[Tuple[int, int], int] = {}  # (op, replica) -> op here
    # (op of the original, replica) -> op of the replicated graph.
    self._copies = {
        (original, r): op for op, (original, r) in enumerate(zip(
            replicated.original_of_op.tolist(), replicated.replica_of_op.tolist()))
        if original >= 0 and r != SHARED}
    self._build()

  def _build(self) -> None:
    replicated, graph = self._replicated, self._replicated.graph
    count = replicated.replicas
    of_op = replicated.replica_of_op.tolist()
    sums, gathers = self._collectives()
    self._gathers = gathers
    # A shared op becomes one op for each device; a copy becomes one op.
    for op in graph.topological_order.tolist():
      for r in range(count) if of_op[op] == SHARED else (of_op[op],):
        if op not in sums:
          self._image[op, r] = self._add(
              f"{graph.op_names[op]}/mirror_{r}", graph.op_types[op], self._bytes(op), op,
              self._device(op, r))
    parts: Dict[int, Dict[int, Tuple[int, int]]] = {op: {} for op in sums | gathers}
    of_sums = []
    for producer, port, consumer in zip(
        graph.edge_producers.tolist(), graph.edge_ports.tolist(), graph.edge_consumers.tolist()):
      # Parts of an all-reduce or all-gather: one for each replica.
      owner = of_op[producer]
      if consumer in parts and port != CONTROL and owner != SHARED:
        parts[consumer][owner] = (self._image[producer, owner], port)
        continue
      if consumer in sums:
        continue
      for r in range(count) if of_op[consumer] == SHARED else (of_op[consumer],):
        target = self._image[consumer, r]
        # Results of all-reduces are known only after the rings are written.
        if producer in sums:
          of_sums.append((producer, r, target))
        elif owner in (SHARED, r):
          self._edges.append((self._image[producer, r], port, target))
        elif owner == 0:  # readers of the first replica's value read their own replica's here
          copy = self._copies.get((int(replicated.original_of_op[producer]), r))
          # A replica has no such op where nothing in the replica needs one.
          source = self._image[producer, 0] if copy is None else self._image[copy, r]
          self._edges.append((source, port, target))
    # Rings first, then the ops that wait for them.
    results = self._reduce(sums, parts)
    for op in gathers:
      self._gather(op, parts[op])
    for producer, r, target in of_sums:
      self._edges.append((*results[producer][r], target))
    self._finish()

  def _collectives(self):
    """Returns the ops that all-reduce, and the ops that all-gather rows."""
    replicated, graph = self._replicated, self._replicated.graph
    added = np.flatnonzero((replicated.original_of_op < 0)
                           & (replicated.replica_of_op == SHARED)).tolist()
    # The rewriting writes sums as AddN, gathered rows as ConcatV2.
    return [{op for op in added if graph.op_types[op] == op_type}
            for op_type in ("AddN", "ConcatV2")]

  def _reduce(self, sums, reduced) -> Dict[int, List[Tuple[int, int]]]:
    """Adds a ring all-reduce for each bucket; returns op -> [R] tensors of the sum."""
    replicated, graph = self._replicated, self._replicated.graph
    results: Dict[int, List[Tuple[int, int]]] = {}
    depths, level = graph.depths, self._levels(sums)
    bucket: List[int] = []
    filled = 0.0
    # In the order of readiness: by the number of all-reduces before, then by depth.
    for op in sorted(sums, key=lambda op: (level[op], int(depths[op]), op)):
      parts = reduced[op]
      if bucket and level[op] > level[bucket[-1]]:  # the op waits for a sum of this bucket
        self._ring(bucket, reduced, results)
        bucket, filled = [], 0.0
      size = self._bytes(op)[0]
      # MirroredStrategy does not all-reduce statistics and fetches.
      if graph.op_names[op] in replicated.own_reductions or replicated.replicas == 1:
        results[op] = [parts[r] for r in range(replicated.replicas)]
        continue
      self.reduced_bytes += size
      bucket.append(op)
      filled += size
      if filled > self._bucket_bytes:
        self._ring(bucket, reduced, results)
        bucket, filled = [], 0.0
    if bucket:
      self._ring(bucket, reduced, results)
    return results

  def _levels(self, sums) -> np.ndarray:
    """Returns the largest number of all-reduces on a path to each op, [N]."""
    graph = self._replicated.graph
    level = np.zeros(graph.num_ops, dtype=np.int64)
    inputs: Dict[int, List[int]] = {}
    for producer, consumer in zip(graph.edge_producers.tolist(), graph.edge_consumers.tolist()):
      inputs.setdefault(consumer, []).append(producer)
    for op in graph.topological_order.tolist():
      level[op] = max((level[each] + (each in sums) for each in inputs.get(op, ())), default=0)
    return level

  def _ring(self, bucket: List[int], reduced, results) -> None:
    count = self._replicated.replicas
    sizes = [self._bytes(op)[0] for op in bucket]
    name = f"all_reduce/{self._replicated.graph.op_names[bucket[0]]}"
    # Ring all-reduce: 2 (R - 1) rounds, in each of which a device sends 1/R of the bytes.
    done = self._rounds(
        name, [[reduced[op][r] for op in bucket] for r in range(count)], 2 * (count - 1),
        sum(sizes) / count, sizes)
    for i, op in enumerate(bucket):
      results[op] = [(each, i) for each in done]

  def _gather(self, op: int, parts: Dict[int, Tuple[int, int]]) -> None:
    """Adds a ring all-gather, in which each device passes on the rows that it received."""
    count = self._replicated.replicas
    if len(parts) < count:
      return
    # Ring all-gather: R - 1 rounds with 1/R of the rows each.
    size = self._bytes(op)[0]
    done = self._rounds(
        f"all_gather/{self._replicated.graph.op_names[op]}", [[parts[r]] for r in range(count)],
        count - 1, size / count, [size * (count - 1) / count])
    for r in range(count):
      self._edges += [(*parts[r], self._image[op, r]), (done[r], 0, self._image[op, r])]

  def _rounds(
      self, name: str, sources: Sequence[Sequence[Tuple[int, int]]], rounds: int, chunk: float,
      received: List[float]) -> List[int]:
    """Adds the rounds of a ring, in each of which a device sends a chunk to the next.

    Args:
      name: of the ops.
      sources: [R] tensors that each device needs to begin.
      rounds: number of rounds, at least 1.
      chunk: bytes that a device sends in a round.
      received: bytes of the tensors that each device has in the end.

    Returns:
      [R] ops whose outputs are the received tensors.
    """
    devices = self._devices[:len(sources)]
    before: List[int] = []
    for step in range(rounds):
      now = [self._add(f"{name}/round_{step}/{r}", "RingSend", [chunk], -1, device)
             for r, device in enumerate(devices)]
      for r, send in enumerate(now):
        # Device r passes on the chunk of device r - 1, after its own last send.
        self._edges += [(before[r - 1], 0, send), (before[r], CONTROL, send)] if step else [
            (*source, send) for source in sources[r]]
      before = now
    done = [self._add(f"{name}/done_{r}", "RingDone", received, -1, device)
            for r, device in enumerate(devices)]
    for r, each in enumerate(done):
      self._edges += [(before[r - 1], 0, each), (before[r], CONTROL, each)]
    return done

  def _bytes(self, op: int) -> List[float]:
    offsets = self._replicated.graph.output_offsets
    return self._costs.output_bytes[offsets[op]:offsets[op + 1]].tolist()

  def _device(self, op: int, r: int) -> int:
    host = int(self._hosts[op])
    return host if host >= 0 else self._devices[r]

  def _add(self, name: str, op_type: str, outputs: List[float], origin: int, device: int) -> int:
    self._ops.append((name, op_type, outputs, origin, device))
    return len(self._ops) - 1

  def _finish(self) -> None:
    names, op_types, outputs, origins, places = zip(*self._ops)
    # Ops of the rings, of origin -1, cost nothing: a row of zeros behind the costs.
    compute, persistent, temporary = (
        np.append(values, np.zeros_like(values[:1]), axis=0)[list(origins)] for values in (
            self._costs.compute_us, self._costs.persistent_bytes, self._costs.temporary_bytes))
    # Packing is free here, in favor of the baseline.
    compute[[
        op for op, (origin, op_type) in enumerate(zip(origins, op_types))
        if origin >= 0 and op_type in ("ConcatV2", "SplitV") and
        self._replicated.original_of_op[origin] < 0 and origin not in self._gathers]] = 0
    self.graph = ComputationGraph.from_edges(
        names, op_types, [len(each) for each in outputs],
        np.array(self._edges, dtype=np.int64).reshape(-1, 3))
    self.costs = OpCosts(
        compute, np.array([size for each in outputs for size in each]), persistent, temporary)
    self.placement = np.array(places, dtype=np.int32)
