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

from typing import Dict, List, Sequence, Set, Tuple

import numpy as np

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.costs.op_costs import OpCosts
from placeto_tf.graphs.computation_graph import CONTROL, ComputationGraph
from placeto_tf.replication.replicated_graph import SHARED, ReplicatedGraph
from placeto_tf.simulation import SimulationResult, Simulator

# A bucket for each tensor, buckets of two usual sizes, one bucket for all gradients.
BUCKETS_BYTES = (0.0, 4e6, 32e6, float("inf"))


def data_parallel(
    replicated: ReplicatedGraph, costs: OpCosts, cluster: Cluster, devices: Sequence[int],
    host_of_op: np.ndarray,
) -> SimulationResult:
  """Simulates mirrored data parallelism.

  Args:
    replicated: as many replicas as devices, or fewer.
    costs: of its graph.
    cluster: devices and links.
    devices: the device of each replica.
    host_of_op: [N] device of an op that cannot run on its replica's device, -1 for other ops.

  Returns:
    The fastest step over `BUCKETS_BYTES`, of the global batch; steps that fit into memory are
    preferred. Its ops are those of the step that is simulated, rings included.
  """
  found = []
  for bucket_bytes in BUCKETS_BYTES if replicated.replicas > 1 else BUCKETS_BYTES[:1]:
    mirrored = _Mirrored(replicated, costs, devices, host_of_op, bucket_bytes)
    found.append(
        Simulator(mirrored.graph, mirrored.costs, cluster).simulate(mirrored.placement))
  return min(found, key=lambda each: (not each.fits, each.step_time_us))


class _Mirrored:
  """The graph of one step; see the module."""

  def __init__(
      self, replicated: ReplicatedGraph, costs: OpCosts, devices: Sequence[int],
      host_of_op: np.ndarray, bucket_bytes: float):
    self._replicated, self._costs, self._devices = replicated, costs, list(devices)
    # (name, type, bytes of outputs, op of the replicated graph whose costs apply or -1, device)
    self._ops: List[Tuple[str, str, List[float], int, int]] = []
    self._edges: List[Tuple[int, int, int]] = []
    graph, count = replicated.graph, replicated.replicas
    of_op = replicated.replica_of_op.tolist()
    # (op of the original, replica) -> op of the replicated graph.
    copies = {
        (original, r): op for op, (original, r) in enumerate(
            zip(replicated.original_of_op.tolist(), of_op)) if original >= 0 and r != SHARED}
    # The rewriting writes all-reduces as AddN, all-gathers of rows as ConcatV2.
    added = (replicated.original_of_op < 0) & (replicated.replica_of_op == SHARED)
    sums, gathers = ({op for op in np.flatnonzero(added).tolist() if graph.op_types[op] == op_type}
                     for op_type in ("AddN", "ConcatV2"))
    # A shared op becomes one op for each device; a copy becomes one op.
    image: Dict[Tuple[int, int], int] = {}  # (op, replica) -> op here
    for op in graph.topological_order.tolist():
      for r in range(count) if of_op[op] == SHARED else (of_op[op],):
        if op not in sums:
          image[op, r] = self._add(
              f"{graph.op_names[op]}/mirror_{r}", graph.op_types[op], self._bytes(op), op,
              self._devices[r] if host_of_op[op] < 0 else int(host_of_op[op]))
    parts: Dict[int, Dict[int, Tuple[int, int]]] = {op: {} for op in sums | gathers}
    of_sums = []
    for producer, port, consumer in graph.edges:
      # Parts of an all-reduce or all-gather: one for each replica.
      owner = of_op[producer]
      if consumer in parts and port != CONTROL and owner != SHARED:
        parts[consumer][owner] = (image[producer, owner], port)
        continue
      if consumer in sums:
        continue
      for r in range(count) if of_op[consumer] == SHARED else (of_op[consumer],):
        target = image[consumer, r]
        # Results of all-reduces are known only after the rings are written.
        if producer in sums:
          of_sums.append((producer, r, target))
        elif owner in (SHARED, r):
          self._edges.append((image[producer, r], port, target))
        elif owner == 0:  # readers of the first replica's value read their own replica's here
          copy = copies.get((int(replicated.original_of_op[producer]), r))
          # A replica has no such op where nothing in the replica needs one.
          self._edges.append((image[producer, 0] if copy is None else image[copy, r], port, target))
    # Rings first, then the ops that wait for them.
    results = self._reduce(sums, parts, bucket_bytes)
    for op in gathers:
      if len(parts[op]) == count:
        # Ring all-gather: R - 1 rounds, in which each device passes on 1/R of the rows.
        size = self._bytes(op)[0]
        done = self._rounds(
            f"all_gather/{graph.op_names[op]}", [[parts[op][r]] for r in range(count)], count - 1,
            size / count, [size * (count - 1) / count])
        for r in range(count):
          self._edges += [(*parts[op][r], image[op, r]), (done[r], 0, image[op, r])]
    for op, r, target in of_sums:
      self._edges.append((*results[op][r], target))
    self._finish(gathers)

  def _reduce(
      self, sums: Set[int], parts: Dict[int, Dict[int, Tuple[int, int]]], bucket_bytes: float
  ) -> Dict[int, List[Tuple[int, int]]]:
    """Adds a ring all-reduce for each bucket; returns op -> [R] tensors of the sum."""
    replicated, graph, count = self._replicated, self._replicated.graph, self._replicated.replicas
    # MirroredStrategy does not all-reduce statistics and fetches.
    results = {op: [parts[op][r] for r in range(count)] for op in sums
               if graph.op_names[op] in replicated.own_reductions or count == 1}
    depths, level = graph.depths, self._levels(sums)
    buckets: List[List[int]] = []
    filled = 0.0
    # In the order of readiness: by the number of all-reduces before, then by depth.
    for op in sorted(sums - results.keys(), key=lambda op: (level[op], int(depths[op]), op)):
      # A bucket is full, or the op waits for a sum of the bucket.
      if not buckets or filled > bucket_bytes or level[op] > level[buckets[-1][-1]]:
        buckets.append([])
        filled = 0.0
      buckets[-1].append(op)
      filled += self._bytes(op)[0]
    for bucket in buckets:
      sizes = [self._bytes(op)[0] for op in bucket]
      # Ring all-reduce: 2 (R - 1) rounds, in each of which a device sends 1/R of the bytes.
      done = self._rounds(
          f"all_reduce/{graph.op_names[bucket[0]]}",
          [[parts[op][r] for op in bucket] for r in range(count)], 2 * (count - 1),
          sum(sizes) / count, sizes)
      results.update((op, [(each, i) for each in done]) for i, op in enumerate(bucket))
    return results

  def _levels(self, sums: Set[int]) -> np.ndarray:
    """Returns the largest number of all-reduces on a path to each op, [N]."""
    graph = self._replicated.graph
    level = np.zeros(graph.num_ops, dtype=np.int64)
    # Forwards, edge by edge: producers first.
    for edge in np.argsort(graph.topological_rank[graph.edge_consumers], kind="stable").tolist():
      producer, consumer = graph.edge_producers[edge], graph.edge_consumers[edge]
      level[consumer] = max(level[consumer], level[producer] + (producer in sums))
    return level

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

  def _add(self, name: str, op_type: str, outputs: List[float], origin: int, device: int) -> int:
    self._ops.append((name, op_type, outputs, origin, device))
    return len(self._ops) - 1

  def _finish(self, gathers: Set[int]) -> None:
    names, op_types, outputs, origins, places = zip(*self._ops)
    # Ops of the rings, of origin -1, cost nothing: a row of zeros behind the costs.
    compute, persistent, temporary = (
        np.append(values, np.zeros_like(values[:1]), axis=0)[list(origins)] for values in (
            self._costs.compute_us, self._costs.persistent_bytes, self._costs.temporary_bytes))
    # Packing is free here, in favor of the baseline.
    compute[[
        op for op, (origin, op_type) in enumerate(zip(origins, op_types))
        if origin >= 0 and op_type in ("ConcatV2", "SplitV") and
        self._replicated.original_of_op[origin] < 0 and origin not in gathers]] = 0
    self.graph = ComputationGraph.from_edges(
        names, op_types, [len(each) for each in outputs],
        np.array(self._edges, dtype=np.int64).reshape(-1, 3))
    self.costs = OpCosts(
        compute, np.array([size for each in outputs for size in each]), persistent, temporary)
    self.placement = np.array(places, dtype=np.int32)
