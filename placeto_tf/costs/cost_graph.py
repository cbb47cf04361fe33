"""Known costs in TensorFlow's own formats: CostGraphDef and OpPerformanceList.

CostGraphDef holds a graph together with its costs, in whole microseconds. Its costs are used
unchanged, on every kind of device: a `compute_cost` of 0 is an op that launches no kernel.

  node.name, node.id               op; ids are positions
  node.input_info, control_input   edges
  node.output_info[].size          bytes of an output; -1, not known to TensorFlow, counts as 0
  node.compute_cost                microseconds
  node.temporary_memory_size, persistent_memory_size
  node.is_final                    the outputs are fetched

OpPerformanceList holds costs alone, in nanoseconds, an entry for each op and kind of device:

  op_performance.node, op.op       op and its type
  op_performance.op.device         DeviceProperties of the kind; its type says where it was measured
                                   and its model, if it is a name such as /GPU:1, on which device
  op_performance.compute_cost      nanoseconds, all executions in a step and the launches between
  op_performance.op_memory         output_memory[], temp_memory, persistent_memory
  op_performance.op.attr           "replicas": R, where one of R replicas was measured (1 without)

Dimensions: N ops, K device kinds, O outputs of all ops together.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Dict, List, Optional, Sequence, Tuple

import numpy as np

from placeto_tf import graphs
from placeto_tf.clusters import Cluster
from placeto_tf.costs.op_costs import OpCosts
from placeto_tf.errors import CostError, counted, listed
from placeto_tf.graphs.computation_graph import ComputationGraph

if TYPE_CHECKING:
  from tensorflow.core.framework.cost_graph_pb2 import CostGraphDef
  from tensorflow.core.grappler.costs.op_performance_data_pb2 import OpPerformanceList


@dataclasses.dataclass
class Measurement:
  """Costs of one op on one type of device, read from a file.

  Attributes:
    device_type: "CPU", "GPU", or "" if not in the file.
    device: the device that the costs are for, "" for all devices of the type.
    compute_us: time of all executions in a step.
    output_bytes: bytes of each output, or None if not in the file.
    temporary_bytes, persistent_bytes: None if not in the file.
    replicas: R if measured with the graph of one of R replicas, which has 1/R of the batch.
    executions: number of runs of the op in the step, if `compute_us` lacks the launches between the
      runs; None if it contains them.
  """

  device_type: str
  compute_us: float
  output_bytes: Optional[Sequence[int]] = None
  temporary_bytes: Optional[int] = None
  persistent_bytes: Optional[int] = None
  replicas: int = 1
  executions: Optional[float] = None
  device: str = ""


def own_costs(graph: ComputationGraph, cluster: Cluster) -> OpCosts:
  """Returns the costs in the CostGraphDef that a graph was read from.

  Args:
    graph: N ops.
    cluster: K device kinds, each of which gets the same costs.

  Returns:
    The costs, with a note on outputs of unknown size.

  Raises:
    CostError: a cost or size is negative.
    GraphError: the graph is from another source.
  """
  output_bytes = np.zeros(graph.num_outputs)
  compute_us = np.zeros(graph.num_ops)
  temporary, persistent = np.zeros(graph.num_ops), np.zeros(graph.num_ops)
  unknown: List[str] = []
  for i, node in enumerate(graphs.cost_nodes(graph)):
    measured = _of_cost_node(node, unknown)
    compute_us[i] = measured.compute_us
    temporary[i], persistent[i] = measured.temporary_bytes, measured.persistent_bytes
    output_bytes[graph.output_offsets[i]:graph.output_offsets[i + 1]] = measured.output_bytes
  # [N, K]: one cost for all kinds of devices.
  return OpCosts(
      np.repeat(compute_us[:, None], len(cluster.kind_devices), axis=1), output_bytes, persistent,
      temporary, _unknown_sizes(unknown))


def of_cost_graph(cost_graph: CostGraphDef) -> Tuple[Dict[str, List[Measurement]], Tuple[str, ...]]:
  """Returns op name -> its costs in a CostGraphDef, and notes.

  Raises:
    CostError: a cost or size is negative.
  """
  found: Dict[str, List[Measurement]] = {}
  unknown: List[str] = []
  for node in cost_graph.node:
    found.setdefault(node.name, []).append(_of_cost_node(node, unknown))
  return found, _unknown_sizes(unknown)


def of_op_performances(performances: OpPerformanceList) -> Dict[str, List[Measurement]]:
  """Returns op name -> its costs in an OpPerformanceList.

  Raises:
    CostError: a cost or size is negative.
  """
  found: Dict[str, List[Measurement]] = {}
  for entry in performances.op_performance:
    memory = entry.op_memory
    sizes = list(memory.output_memory) + [memory.temp_memory, memory.persistent_memory]
    if entry.compute_cost < 0 or any(size < 0 for size in sizes):
      raise CostError(f"op {entry.node!r} has a negative cost or size in its OpPerformance; "
                      "measure it again")
    known, model = entry.HasField("op_memory"), entry.op.device.model
    # `compute_cost` is in nanoseconds here.
    found.setdefault(entry.node, []).append(Measurement(
        entry.op.device.type, entry.compute_cost * 1e-3,
        list(memory.output_memory) if known else None,
        memory.temp_memory if known else None, memory.persistent_memory if known else None,
        max(1, entry.op.attr["replicas"].i if "replicas" in entry.op.attr else 1),
        # A model is a device only if it is a name such as /GPU:1.
        device=model if model.startswith("/") else ""))
  return found


def device_type(name: str) -> str:
  """Returns the type in a device name: "GPU" for "/job:worker/device:GPU:0" or "/GPU:0", or ""."""
  # The last part is the most specific: /job:worker/replica:0/task:0/device:GPU:0.
  for part in reversed(name.split("/")):
    fields = part.split(":")
    if fields[0] == "device" and len(fields) > 1:
      return fields[1].upper()
    if fields[0].upper() in ("CPU", "GPU", "TPU"):
      return fields[0].upper()
  return ""


def _of_cost_node(node: CostGraphDef.Node, unknown: List[str]) -> Measurement:
  """Appends the node's name to `unknown` if sizes of its outputs are unknown."""
  for field in ("compute_cost", "temporary_memory_size", "persistent_memory_size"):
    if getattr(node, field) < 0:
      raise CostError(f"op {node.name!r} has {field} {getattr(node, field)} in its CostGraphDef; "
                      "expected a number that is not negative")
  sizes = [info.size for info in node.output_info]
  if any(size < -1 for size in sizes):
    raise CostError(f"op {node.name!r} has an output of {min(sizes)} bytes in its CostGraphDef; "
                    "expected a number that is not negative")
  if any(size < 0 for size in sizes):
    unknown.append(node.name)
  return Measurement(
      device_type(node.device), float(node.compute_cost), [max(size, 0) for size in sizes],
      node.temporary_memory_size, node.persistent_memory_size)


def _unknown_sizes(names: List[str]) -> Tuple[str, ...]:
  if not names:
    return ()
  return (f"outputs of {counted(len(names), 'op')} ({listed(names)}) have sizes that the "
          "CostGraphDef does not know (-1): taken as 0 bytes",)
