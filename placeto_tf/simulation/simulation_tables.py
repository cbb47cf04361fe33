"""`SimulationTables`: a graph and its costs as arrays for the compiled event loops.

Dimensions: N ops, S segments, E edges, O outputs, R data inputs, D devices, K device kinds. A
segment is an output port, or the control port, of an op with at least one consumer.
"""

from __future__ import annotations

from typing import Any, Dict, NamedTuple

import numpy as np

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.costs.op_costs import OpCosts
from placeto_tf.errors import CostError
from placeto_tf.graphs.computation_graph import CONTROL, ComputationGraph


class SimulationTables(NamedTuple):
  """Arrays that do not depend on the placement; they are writable, see `_int32`."""

  op_segments: np.ndarray  # [N+1] uint32; segments of op i are op_segments[i]:op_segments[i+1]
  segment_edges: np.ndarray  # [S+1] uint32, likewise the edges of a segment, by consumer
  edge_consumers: np.ndarray  # [E] uint32
  segment_ops: np.ndarray  # [S] int32 producers
  segment_ports: np.ndarray  # [S] int32
  segment_outputs: np.ndarray  # [S] uint32, the largest number for control
  # [S] float64, 0 for control. In loops: the bytes of all rounds, plus the waits of all rounds but
  # the last, as the bytes that the link could move in that time.
  segment_bytes: np.ndarray
  segment_fetched: np.ndarray  # [S] int32, 1 for an output that is held to the end of the step
  in_degrees: np.ndarray  # [N] int32 edges that end at each op
  roots: np.ndarray  # uint32, ops without inputs
  input_offsets: np.ndarray  # [N+1] uint32
  input_outputs: np.ndarray  # [R] uint32, outputs that each op reads
  fetched: np.ndarray  # uint32, outputs that are fetched and also consumed
  fetched_ops: np.ndarray  # uint32, their producers
  persistent_ops: np.ndarray  # uint32, ops that hold persistent bytes
  compute_us: np.ndarray  # [N, K] float64
  persistent_bytes: np.ndarray  # [N] float64
  hold_bytes: np.ndarray  # [N] float64, allocated when an op starts: its outputs and temporaries
  # [N] float64, freed when it ends: temporaries, and outputs without consumers or fetches.
  release_bytes: np.ndarray
  output_bytes: np.ndarray  # [O] float64
  kinds: np.ndarray  # [D] uint32
  bandwidth: np.ndarray  # [D, D] float64 bytes/us, inf on the diagonal
  latency: np.ndarray  # [D, D] float64 us, 0 on the diagonal
  bus_gap_us: float
  overhead_us: float
  launchers: np.ndarray  # [D] uint32, the first device that the same process launches to
  launch_us: float
  overlap: np.ndarray  # [D] float64, 1 where an op's launch overlaps with its kernel, else 0

  @property
  def num_ops(self) -> int:
    """Returns the number of ops, N."""
    return len(self.in_degrees)

  @property
  def num_segments(self) -> int:
    """Returns the number of segments, S."""
    return len(self.segment_ops)

  @property
  def segment_of_edge(self) -> np.ndarray:
    """Returns the segment of each edge, [E] int64."""
    sizes = np.diff(self.segment_edges.astype(np.int64))
    return np.repeat(np.arange(self.num_segments), sizes)  # type: ignore[arg-type]

  @property
  def num_devices(self) -> int:
    """Returns the number of devices, D."""
    return len(self.kinds)

  @classmethod
  def build(cls, graph: ComputationGraph, costs: OpCosts, cluster: Cluster) -> SimulationTables:
    """Builds the tables of a graph on a cluster.

    Args:
      graph: N ops.
      costs: of this graph for this cluster.
      cluster: D devices.

    Returns:
      The tables, as writable copies.

    Raises:
      CostError: the costs are of another graph or of another cluster.
    """
    _check(graph, costs, cluster)
    n, o = graph.num_ops, graph.num_outputs
    producers, ports, consumers = graph.edge_producers, graph.edge_ports, graph.edge_consumers
    # Edges are sorted by (producer, port), so a segment begins wherever either changes.
    first = np.ones(graph.num_edges, dtype=bool)
    first[1:] = (producers[1:] != producers[:-1]) | (ports[1:] != ports[:-1])
    segment_edges = _uint32(np.append(np.flatnonzero(first), graph.num_edges))
    segment_ops = producers[first]
    outputs = graph.edge_outputs[first]
    # Control segments have output -1, and no bytes.
    data = outputs >= 0
    fetched = graph.fetched_outputs
    consumed = np.zeros(o, dtype=bool)
    consumed[outputs[data]] = True
    owners = np.repeat(np.arange(n), np.diff(graph.output_offsets))
    segment_bytes = np.zeros(len(segment_ops))
    segment_bytes[data] = costs.output_bytes[outputs[data]]
    executions = graph.executions if costs.executions is None else costs.executions
    # A loop sends an output once per round; each round but the last waits for a latency and a gap.
    rounds = _rounds(graph, executions, np.flatnonzero(first))
    segment_bytes *= rounds
    segment_bytes += (rounds - 1) * _bytes_of_a_wait(cluster)
    segment_fetched = np.zeros(len(segment_ops), dtype=np.int32)
    segment_fetched[data] = fetched[outputs[data]]
    # Data inputs by consumer, for the release of memory.
    data_edges = np.flatnonzero(ports != CONTROL)
    data_edges = data_edges[np.argsort(consumers[data_edges], kind="stable")]
    in_degrees = np.bincount(consumers, minlength=n)
    held = np.bincount(owners, weights=costs.output_bytes, minlength=n)
    # Outputs without consumers or fetches are freed when their op ends.
    unheld = np.bincount(
        owners, weights=np.where(consumed | fetched, 0, costs.output_bytes), minlength=n)
    # Only these outputs keep a reference to the end of the step.
    both = np.flatnonzero(fetched & consumed)
    bandwidth = np.array(cluster.bandwidth_bytes_per_us, dtype=np.float64, order="C")
    latency = np.array(cluster.latency_us, dtype=np.float64, order="C")
    np.fill_diagonal(bandwidth, np.inf)  # consumers on the same device do not slow down a transfer
    return cls(
        op_segments=_offsets(segment_ops, n),
        segment_edges=segment_edges,
        segment_ops=_int32(segment_ops),
        segment_ports=_int32(ports[first]),
        segment_outputs=_uint32(outputs),
        segment_bytes=segment_bytes,
        segment_fetched=segment_fetched,
        edge_consumers=_uint32(consumers),
        in_degrees=_int32(in_degrees),
        roots=_uint32(np.flatnonzero(in_degrees == 0)),
        input_offsets=_offsets(consumers[data_edges], n),
        input_outputs=_uint32(graph.edge_outputs[data_edges]),
        fetched=_uint32(both),
        fetched_ops=_uint32(owners[both]),
        persistent_ops=_uint32(np.flatnonzero(costs.persistent_bytes)),
        compute_us=costs.compute_us.copy(),
        persistent_bytes=costs.persistent_bytes.copy(),
        hold_bytes=costs.temporary_bytes + held,
        release_bytes=costs.temporary_bytes + unheld,
        output_bytes=costs.output_bytes.copy(),
        kinds=_uint32(cluster.device_kinds),
        bandwidth=bandwidth,
        latency=latency,
        bus_gap_us=float(cluster.bus_gap_us),
        overhead_us=float(cluster.op_overhead_us),
        launchers=_launchers(cluster),
        launch_us=float(cluster.launch_us),
        overlap=cluster.overlap.copy(),
    )


def _rounds(
    graph: ComputationGraph, executions: np.ndarray, first_edges: np.ndarray) -> np.ndarray:
  """Returns the number of times that each segment is sent if it crosses devices, [S].

  In a loop, into a loop, or out of one, a segment is sent once per round.

  Args:
    graph: the edges.
    executions: [N] of the ops.
    first_edges: [S] the first edge of each segment.
  """
  if not graph.num_edges or (executions == 1).all():
    return np.ones(len(first_edges))
  # A segment is sent as often as its op runs or, into a loop, as often as its consumers run.
  rounds = np.maximum(executions[graph.edge_producers], executions[graph.edge_consumers])
  return np.maximum(np.maximum.reduceat(rounds, first_edges), 1)


def _launchers(cluster: Cluster) -> np.ndarray:
  """Returns the first GPU of each GPU's host, [D] uint32; CPUs compute in threads of their own."""
  first: Dict[Any, int] = {}
  # The host is the part of a name before the device: "/job:worker/task:1".
  return _uint32(np.array([
      first.setdefault(device.name.rsplit("/", 1)[0] if device.type == "GPU" else d, d)
      for d, device in enumerate(cluster.devices)]))


def _bytes_of_a_wait(cluster: Cluster) -> float:
  """Returns the bytes that a usual link of the cluster could move in its latency and gap."""
  # The median over pairs of devices; the diagonal is not a link.
  apart = ~np.eye(cluster.num_devices, dtype=bool)
  wait_us = cluster.latency_us + cluster.bus_gap_us
  return float(np.median(
      (wait_us * cluster.bandwidth_bytes_per_us)[apart])) if apart.any() else 0.0


def _uint32(array: np.ndarray) -> np.ndarray:
  """Converts to unsigned, which numba indexes without a check for negatives; -1 becomes END."""
  return np.array(array, dtype=np.int64).astype(np.uint32)


def _int32(array: np.ndarray) -> np.ndarray:
  """Copies to a writable array, because numba compiles again for read-only arrays."""
  return np.array(array, dtype=np.int32)


def _offsets(sorted_owners: np.ndarray, n: int) -> np.ndarray:
  """Returns the start of each owner's run of entries, [n+1]."""
  offsets = np.zeros(n + 1, dtype=np.uint32)
  np.cumsum(np.bincount(sorted_owners, minlength=n), out=offsets[1:])
  return offsets


def _check(graph: ComputationGraph, costs: OpCosts, cluster: Cluster) -> None:
  if costs.num_ops != graph.num_ops or len(costs.output_bytes) != graph.num_outputs:
    raise CostError(
        f"the costs are of {costs.num_ops} ops with {len(costs.output_bytes)} outputs, the graph "
        f"has {graph.num_ops} with {graph.num_outputs}; estimate the costs of this graph")
  kinds = int(cluster.device_kinds.max()) + 1
  if costs.num_kinds != kinds:
    raise CostError(
        f"the costs are of {costs.num_kinds} kinds of devices, the cluster has {kinds}; estimate "
        "the costs for this cluster")
