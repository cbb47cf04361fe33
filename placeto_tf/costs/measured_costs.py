"""Known costs in TensorFlow's own formats: CostGraphDef and OpPerformanceList.

CostGraphDef holds a graph together with its costs, in whole microseconds. Its costs are used
unchanged, on every kind of device: a `compute_cost` of 0 is an op that launches no kernel.

  node.name, node.id               op; ids are positions
  node.input_info, control_input   edges
  node.output_info[].size          bytes of an output; -1, not known to TensorFlow, counts as 0
  node.compute_cost                microseconds
  node.temporary_memory_size, persistent_memory_size
  node.is_final                    the outputs are fetched

OpPerformanceList holds measured costs alone, in nanoseconds, an entry for each op and kind of
device:

  op_performance.node, op.op       op and its type
  op_performance.op.device         DeviceProperties of the kind; its type says where it was measured
                                   and its model, if it is a name such as /GPU:1, on which device
  op_performance.compute_cost      nanoseconds, all executions in a step and the launches between
  op_performance.op_memory         output_memory[], temp_memory, persistent_memory
  op_performance.op.attr           "replicas": R, where one of R replicas was measured (1 without)

A time holds for all devices of the type that it was measured on, or for all devices if the file has
no type. If the file names a device with costs of its own (`Device.own_costs`), the time holds for
this device. Times are used unchanged: no efficiency is applied. Times that the file lacks are
estimated, and noted.

A kernel is less efficient on fewer examples. A file can hold times for several batch sizes: of the
whole graph, and of the graph of one of R replicas, which has 1/R of the batch. Times between two
sizes are interpolated linearly. Times below the smallest size are extrapolated along the last line,
but are at least proportional to the size.

In a graph of R replicas, the copies `replica_r/op` have the times of the file's `op` on 1/R of the
batch, unless the file has times of copies. Times of the whole batch alone say nothing of copies.

Dimensions: N ops, K device kinds, O outputs of all ops together.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Collection, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from placeto_tf import graphs
from placeto_tf.clusters.cluster import Cluster
from placeto_tf.clusters.device_names import find_device
from placeto_tf.costs.op_costs import OpCosts
from placeto_tf.errors import CostError, counted, listed
from placeto_tf.files import user_files
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.graphs.tensor_names import copy_of

if TYPE_CHECKING:
  from tensorflow.core.grappler.costs import op_performance_data_pb2 as protos


@dataclasses.dataclass
class Measurement:
  """Costs of one op on one type of device.

  Attributes:
    device_type: "CPU", "GPU", or "" if not in the file.
    compute_us: time of all executions in a step, and of the launches between them.
    memory: bytes of outputs, temporary and persistent; None if not in the file.
    replicas: R if measured with the graph of one of R replicas, which has 1/R of the batch.
    device: the device that the costs are for, "" for all devices of the type.
  """

  device_type: str
  compute_us: float
  memory: Optional[protos.OpPerformance.OpMemory] = None
  replicas: int = 1
  device: str = ""


def own_costs(graph: ComputationGraph, cluster: Cluster) -> OpCosts:
  """Returns the costs in the CostGraphDef that a graph was read from.

  Args:
    graph: N ops.
    cluster: K device kinds, each of which gets the same costs.

  Returns:
    The costs, with a note on outputs of unknown size.

  Raises:
    GraphError: the graph is from another source.
  """
  nodes = graphs.cost_nodes(graph)
  # [O], in the order of the ops.
  sizes = np.array([info.size for node in nodes for info in node.output_info], dtype=np.float64)
  unknown = [node.name for node in nodes if any(info.size < 0 for info in node.output_info)]
  notes = (f"outputs of {counted(len(unknown), 'op')} ({listed(unknown)}) have sizes that the "
           "CostGraphDef does not know (-1): taken as 0 bytes",) if unknown else ()
  # [N, K]: one cost for all kinds of devices.
  compute_us = np.array([[node.compute_cost] * len(cluster.kind_devices) for node in nodes])
  return OpCosts(
      compute_us.reshape(graph.num_ops, -1), np.maximum(sizes, 0),
      np.array([node.persistent_memory_size for node in nodes]),
      np.array([node.temporary_memory_size for node in nodes]), notes)


def read(path: str, op_names: Collection[str]) -> Tuple[Dict[str, List[Measurement]], int]:
  """Reads the costs of a graph's ops from a file.

  Args:
    path: of the file.
    op_names: of the graph.

  Returns:
    Op name -> measurements, of ops of the graph alone; and R, 1 without copies of measured ops.

  Raises:
    CostError: the file cannot be read, is no OpPerformanceList, names no op of the graph, or has a
      negative cost.
  """
  from google.protobuf import message
  from tensorflow.core.grappler.costs import op_performance_data_pb2

  content = user_files.read_bytes(
      path, what="the costs file", remedy="expected an OpPerformanceList", error_type=CostError)
  try:
    found = of_op_performances(op_performance_data_pb2.OpPerformanceList.FromString(content))
  except message.DecodeError:
    raise CostError(
        f"{path}: it is no OpPerformanceList; give a file that placeto-calibrate wrote") from None
  except CostError as error:
    raise CostError(f"{path}: {error}") from None
  ours = {name: found[name] for name in op_names if name in found}
  copies = {name: copy for name in op_names if (copy := copy_of(name)) and copy[1] in found}
  if ours.keys() & copies:  # the file is of the replicated graph
    copies = {}
  ours.update((name, found[original]) for name, (_, original) in copies.items())
  if not ours:
    raise CostError(f"the costs file {path!r} names no op of the graph; expected an "
                    "OpPerformanceList of this very graph")
  return ours, 1 + max((replica for replica, _ in copies.values()), default=0)


def of_op_performances(performances: protos.OpPerformanceList) -> Dict[str, List[Measurement]]:
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
    model = entry.op.device.model
    # `compute_cost` is in nanoseconds here.
    found.setdefault(entry.node, []).append(Measurement(
        entry.op.device.type, entry.compute_cost * 1e-3,
        memory if entry.HasField("op_memory") else None,
        max(1, entry.op.attr["replicas"].i if "replicas" in entry.op.attr else 1),
        # A model is a device only if it is a name such as /GPU:1.
        device=model if model.startswith("/") else ""))
  return found


def apply(
    graph: ComputationGraph, cluster: Cluster, measured: Mapping[str, Sequence[Measurement]],
    replicas: int, estimated: OpCosts,
) -> OpCosts:
  """Replaces estimated costs by measured ones, where available.

  Args:
    graph, cluster, estimated: the problem that the measurements are of.
    measured, replicas: see `read`; sizes are taken from measurements with as many replicas.

  Returns:
    Times [N, K] in us and sizes in bytes; notes name the ops without a measured time.

  Raises:
    CostError: a measured op has another number of outputs.
  """
  if replicas > 1 and all(each.replicas == 1 for found in measured.values() for each in found):
    return dataclasses.replace(estimated, notes=(*estimated.notes, (
        f"the costs file has times of the whole batch alone: the costs of {replicas} replicas are "
        f"estimated; placeto-calibrate with --replicas={replicas}")))
  compute_us = estimated.compute_us.copy()
  output_bytes = estimated.output_bytes.copy()
  temporary, persistent = estimated.temporary_bytes.copy(), estimated.persistent_bytes.copy()
  covered = np.zeros(compute_us.shape, dtype=bool)
  # [N, K]: mean of the times that hold for an op and a kind of device.
  for name, measurements in measured.items():
    i = graph.op_index[name]
    for k, device in enumerate(cluster.kind_devices):
      own = [m for m in measurements if m.device and find_device([device.name], m.device) == 0]
      typed = [m for m in measurements if not m.device and m.device_type in ("", device.type)]
      # Times of this device override times of its type.
      times: Dict[float, List[float]] = {}  # by the share of the batch, 1 for the whole graph
      for m in own or typed:
        times.setdefault(1 / m.replicas, []).append(m.compute_us)
      if times:
        compute_us[i, k] = _time_at(1 / replicas, {
            share: sum(found) / len(found) for share, found in times.items()})
        covered[i, k] = True
    # Sizes are taken from graphs of the same share alone.
    same = [m for m in measurements if m.replicas == replicas]
    memory = same[0].memory if same else None
    if memory is not None:
      temporary[i], persistent[i] = memory.temp_memory, memory.persistent_memory
      start, end = graph.output_offsets[i], graph.output_offsets[i + 1]
      if len(memory.output_memory) == end - start:
        output_bytes[start:end] = memory.output_memory
      elif memory.output_memory:
        raise CostError(f"op {name!r} has {end - start} outputs, but its measured costs have "
                        f"{len(memory.output_memory)}; measure this graph")
  notes = list(estimated.notes) if not covered.all() else []
  # A time is missing only if the estimate is above 0: ops without a kernel need no time.
  for k, device in enumerate(cluster.kind_devices):
    missing = np.flatnonzero(~covered[:, k] & (estimated.compute_us[:, k] > 0))
    if len(missing):
      names = listed([graph.op_names[i] for i in missing])
      notes.append(f"costs of {counted(len(missing), 'op')} ({names}) were not measured on a "
                   f"{device.type} such as {device.name}: estimated instead")
  return OpCosts(compute_us, output_bytes, persistent, temporary, tuple(notes),
                 estimated.executions, "" if covered.all() else estimated.unknown)


def _time_at(share: float, times: Mapping[float, float]) -> float:
  """Returns the time of an op on a share of the batch, from times at some shares; see above."""
  shares = sorted(times)
  least = shares[0]
  if share >= least or len(shares) == 1:
    # At and above the least share: on the line between two shares.
    return float(np.interp(share, shares, [times[each] for each in shares]))
  # us for each unit of share, between the two smallest.
  slope = (times[shares[1]] - times[least]) / (shares[1] - least)
  # Below: along that line, at least in proportion.
  return max(times[least] - slope * (least - share), times[least] * share / least)
