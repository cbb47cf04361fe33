"""Checks whether a graph and its replicas can be trained in this machine's memory."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from placeto_tf.clusters import Cluster
from placeto_tf.costs import estimate_costs
from placeto_tf.costs.estimate import work_of
from placeto_tf.costs.tensor_sizes import item_bytes, num_elements
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.replication import op_roles
from placeto_tf.replication.dataflow import analyse_dataflow, known_dims
from placeto_tf.replication.replicated_graph import ReplicatedGraph
from placeto_tf.runtime.trainable_graph import NotEnoughMemory
from placeto_tf.simulation import Simulator

if TYPE_CHECKING:
  from tensorflow.core.framework.node_def_pb2 import NodeDef

# Of variables that are read or written at a time: each run of a session with other ends costs a
# pass over the graph, so that one for each variable would take longer than training.
CHUNK_BYTES = 1e9
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
  variables = sum(variable_bytes(node) for node in graph.origin.graph_def.node
                  if node.op in op_roles.VARIABLES)
  # One chunk on the client, 3 copies of the graph's variables, and those of the replicas.
  held = CHUNK_BYTES + variables * (3 + (replicated.replicas if replicated.mirrored else 1))
  free = _free_bytes()
  # A quick upper bound; only graphs above it are simulated.
  if size * (held + _bytes_of_tensors(graph)) <= free:
    return
  cluster = Cluster.parse("cpu:1")
  costs = estimate_costs(graph, cluster)
  # Peak of the step with all ops on one CPU, in order.
  step = Simulator(graph, costs, cluster).simulate(np.zeros(graph.num_ops, np.int32))
  needed = size * (held + _PARALLEL_OPS * float(
      step.peak_memory_bytes.max() - costs.persistent_bytes.sum()))
  if needed > free:
    raise NotEnoughMemory(f"the step takes {needed / 1e9:.1f} GB of memory, and this machine has "
                          f"{free / 1e9:.1f} GB left")


def _bytes_of_tensors(graph: ComputationGraph) -> float:
  """Returns the bytes of all tensors of a step; infinite if a shape is unknown.

  This sum is much faster to compute than the peak memory.
  """
  flow = analyse_dataflow(graph)
  total = 0.0
  # [N]; trip counts of loops need a separate analysis.
  rounds = graph.executions if (graph.executions == 1).all() else work_of(graph).executions
  for op, executions in enumerate(rounds.tolist()):
    for tensor in flow.outputs(op):
      size = item_bytes(flow.dtype(tensor))  # 0 for a handle, which may have any shape
      try:
        total += executions * size * math.prod(known_dims(flow.shape(tensor))) if size else 0.0
      except ValueError:
        return math.inf
  return total


def variable_bytes(node: NodeDef) -> float:
  """Returns the bytes of a variable's handle op; unknown dimensions count as one."""
  elements, _ = num_elements(node.attr["shape"].shape)
  return float(elements * item_bytes(node.attr["dtype"].type))


def _free_bytes() -> float:
  """Returns the bytes that other programs leave, where the system tells; else infinity."""
  try:
    with open("/proc/meminfo", encoding="ascii") as file:
      found = dict(line.split(":", 1) for line in file)
    return 1024.0 * int(found["MemAvailable"].split()[0])
  except (OSError, KeyError, ValueError):
    return math.inf
