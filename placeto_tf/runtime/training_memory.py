"""Checks whether a graph and its replicas can be trained in this machine's memory."""

from __future__ import annotations

import math

import numpy as np

from placeto_tf.clusters import Cluster
from placeto_tf.costs import estimate_costs
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.replication.replicated_graph import ReplicatedGraph
from placeto_tf.runtime.trainable_graph import NotEnoughMemory
from placeto_tf.simulation import Simulator

_PARALLEL_OPS = 2.0  # ops that run at the same time hold more than one after the other


def check_memory(graph: ComputationGraph, replicated: ReplicatedGraph, size: float) -> None:
  """Checks that variables and a step's tensors fit into this machine's memory.

  Args:
    graph: the graph.
    replicated: the replicas.
    size: bytes of a number, relative to those of the graph.

  Raises:
    NotEnoughMemory: they do not fit.
  """
  cluster = Cluster.parse("cpu:1")
  costs = estimate_costs(graph, cluster)
  # Peak of the step with all ops on one CPU, in order.
  step = Simulator(graph, costs, cluster).simulate(np.zeros(graph.num_ops, np.int32))
  variables = float(costs.persistent_bytes.sum())
  # Variables of the graph: in two sessions, their first values, and the values that are read; and
  # those of the replicas, in their session and as they are read.
  copies = 4 + 2 * (replicated.replicas if replicated.mirrored else 1)
  needed = size * (
      copies * variables + _PARALLEL_OPS * float(step.peak_memory_bytes.max() - variables))
  free = _free_bytes()
  if needed > free:
    raise NotEnoughMemory(f"the step takes {needed / 1e9:.1f} GB of memory, and this machine has "
                          f"{free / 1e9:.1f} GB left")


def _free_bytes() -> float:
  """Returns the bytes that other programs leave, where the system tells; else infinity."""
  try:
    with open("/proc/meminfo", encoding="ascii") as file:
      found = dict(line.split(":", 1) for line in file)
    return 1024.0 * int(found["MemAvailable"].split()[0])
  except (OSError, KeyError, ValueError):
    return math.inf
