"""`OpCosts`: the costs of each op of a graph on each kind of device.

Dimensions: N ops, E edges, K device kinds (`Cluster.kind_devices`), O outputs of all ops together.
"""

from __future__ import annotations

import dataclasses
from typing import Optional, Tuple

import numpy as np

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.errors import CostError
from placeto_tf.graphs.computation_graph import ComputationGraph


def launches_between_us(
    compute_us: np.ndarray, executions: np.ndarray, cluster: Cluster, devices: np.ndarray
) -> np.ndarray:
  """Returns the time of the launches between the runs of each op in a step.

  Args:
    compute_us: [N, K] float64 time of the kernels of all runs, 0 where none is launched.
    executions: [N, 1] float64, the number of runs of each op, each of which is a launch.
    cluster: the cluster, whose `op_overhead_us` is the time of a launch.
    devices: [K] the devices.

  Returns:
    [N, K] float64 us. The simulator adds the launch after the last run; where launches overlap with
    kernels it is here, because the simulator takes all runs for one kernel.
  """
  pause_us = cluster.pause_us(compute_us / np.maximum(executions, 1), devices)
  return pause_us * launches_between(executions, cluster.overlap[devices])


def launches_between(executions: np.ndarray, overlap: np.ndarray) -> np.ndarray:
  """Returns the number of launches between the runs of ops; see `launches_between_us`.

  Args:
    executions: the number of runs of each op.
    overlap: 1 where launches overlap with kernels, else 0; see `Cluster.overlap`.

  Returns:
    float64 numbers in the shape of both together; 0 for an op that runs once.
  """
  return np.where(executions > 1, executions - 1 + overlap, 0.0)


@dataclasses.dataclass(frozen=True, eq=False)
class OpCosts:
  """Compute time and bytes of every op of one graph on the device kinds of one cluster.

  Attributes:
    compute_us: [N, K] float64 time for all executions of the op in a step, launches between them
      included (that after the last is the cluster's `op_overhead_us`); exactly 0 only for an op
      that launches no kernel, and so pays no per-op overhead.
    output_bytes: [O] float64 bytes of each output tensor.
    persistent_bytes: [N] float64 held throughout the step (variables).
    temporary_bytes: [N] float64 held while the op runs.
    executions: [N] float64, the number of runs of each op in a step; None for the graph's numbers.
    notes: sentences on assumptions, for the user.
    unknown: unknown shapes and trip counts, as part of a sentence; a real step may take longer than
      the simulated one. "" if there are none.
  """

  compute_us: np.ndarray  # [N, K]
  output_bytes: np.ndarray  # [O]
  persistent_bytes: np.ndarray  # [N]
  temporary_bytes: np.ndarray  # [N]
  notes: Tuple[str, ...] = ()
  executions: Optional[np.ndarray] = None  # [N]
  unknown: str = ""

  def __post_init__(self) -> None:
    n = len(self.compute_us)
    for name, ndim in (("compute_us", 2), ("output_bytes", 1), ("persistent_bytes", 1),
                       ("temporary_bytes", 1), ("executions", 1)):
      if getattr(self, name) is None:
        continue
      array = np.ascontiguousarray(getattr(self, name), dtype=np.float64)
      object.__setattr__(self, name, array)
      # Output bytes have a length of their own, O, which only the graph knows.
      if array.ndim != ndim or (name != "output_bytes" and len(array) != n):
        raise CostError(f"{name} has shape {array.shape}, expected {ndim} dimensions and {n} rows")
      wrong = np.argwhere(~(np.isfinite(array) & (array >= 0)))
      if len(wrong):
        at = tuple(int(i) for i in wrong[0])
        raise CostError(
            f"{name}{list(at)} is {array[at]}; expected a finite number that is not negative")
      # Frozen, because several searches share the arrays.
      array.flags.writeable = False

  def edge_bytes(self, graph: ComputationGraph) -> np.ndarray:
    """Returns [E] bytes of the tensor on each edge of the graph, 0 on control edges."""
    # Control edges have output -1.
    outputs = graph.edge_outputs
    size = np.zeros(graph.num_edges)
    size[outputs >= 0] = self.output_bytes[outputs[outputs >= 0]]
    return size

  def made_bytes(self, graph: ComputationGraph) -> np.ndarray:
    """Returns the bytes of all outputs of each op, [N]."""
    owners = np.repeat(np.arange(graph.num_ops), np.diff(graph.output_offsets))  # [O]
    return np.bincount(owners, self.output_bytes, minlength=graph.num_ops)

  @property
  def num_ops(self) -> int:
    """Returns N."""
    return len(self.compute_us)

  @property
  def num_kinds(self) -> int:
    """Returns K."""
    return self.compute_us.shape[1]
