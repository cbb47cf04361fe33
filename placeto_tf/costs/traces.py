"""Reads costs from a file: OpPerformanceList, RunMetadata, StepStats or CostGraphDef.

The bytes of one of these protos can be parsed as another, so a file is parsed as each of them, and
the parse that names most ops of the graph is used. From a RunMetadata, the step's statistics are
used, or the cost graph if there are no statistics.

A time holds for all devices of the type that it was measured on, or for all devices if the file has
no type. If the file names a device with costs of its own (`Device.own_costs`), the time holds for
this device. Times are used unchanged: no efficiency is applied. Times that the file lacks are
estimated, and noted.

A kernel is less efficient on fewer examples. A file can hold times for several batch sizes: of the
whole graph, and of the graph of one of R replicas, which has 1/R of the batch. Times between two
sizes are interpolated linearly. Times below the smallest size are extrapolated along the last line,
but are at least proportional to the size.

Dimensions: N ops, K device kinds.
"""

from __future__ import annotations

from typing import Any, Callable, Container, Dict, List, Mapping, Sequence, Tuple

import numpy as np

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.clusters.device_names import find_device
from placeto_tf.costs.cost_graph import (
  Measurement,
  device_type,
  of_cost_graph,
  of_op_performances,
)
from placeto_tf.costs.op_costs import OpCosts, launches_between_us
from placeto_tf.errors import CostError, counted, listed
from placeto_tf.files import user_files
from placeto_tf.graphs.computation_graph import ComputationGraph

_Measurements = Mapping[str, Sequence[Measurement]]
_FORMATS = "an OpPerformanceList, RunMetadata, StepStats or CostGraphDef"
# Streams with times of a GPU's kernels; the device's own entry has the times of launching them.
_ALL_STREAMS = "/stream:all"


def read(path: str, op_names: Container[str]) -> Tuple[_Measurements, Tuple[str, ...]]:
  """Reads the costs of a graph's ops from a file.

  Args:
    path: of the file.
    op_names: of the graph.

  Returns:
    Op name -> measurements, of ops of the graph alone, and notes.

  Raises:
    CostError: the file cannot be read, has none of the formats, names no op of the graph, or has a
      negative cost.
  """
  content = user_files.read_bytes(
      path, what="the costs file", remedy=f"expected {_FORMATS}", error_type=CostError)
  candidates = _candidates(content)
  if not candidates:
    raise CostError(f"the costs file {path!r} is none of the protos that hold costs; expected "
                    f"{_FORMATS}, binary or text")
  # Names of the graph's ops in each reading of the bytes; the reading with the most is the format.
  hits = [sum(_op_name(name, op_names) in op_names for name in names) for _, names in candidates]
  best = int(np.argmax(hits))
  if not hits[best]:
    raise CostError(f"the costs file {path!r} names no op of the graph; expected {_FORMATS} of "
                    "this very graph")
  try:
    found, notes = candidates[best][0]()
  except CostError as error:
    raise CostError(f"{path}: {error}") from None
  ours: Dict[str, List[Measurement]] = {}
  for name, measurements in found.items():
    op = _op_name(name, op_names)
    if op in op_names:
      ours.setdefault(op, []).extend(measurements)
  return ours, notes


def apply(
    graph: ComputationGraph, cluster: Cluster, measured: _Measurements, estimated: OpCosts,
    replicas: int = 1,
) -> OpCosts:
  """Replaces estimated costs by measured ones, where available.

  Args:
    graph, cluster, estimated: the problem that the measurements are of.
    measured: see `read`; sizes are taken from measurements with as many replicas.
    replicas: R if ops work on 1/R of the batch.

  Returns:
    Times [N, K] in us and sizes in bytes; notes name the ops without a measured time.

  Raises:
    CostError: a measured op has another number of outputs.
  """
  compute_us = estimated.compute_us.copy()
  output_bytes = estimated.output_bytes.copy()
  temporary, persistent = estimated.temporary_bytes.copy(), estimated.persistent_bytes.copy()
  executions = (graph.executions if estimated.executions is None else estimated.executions).copy()
  covered = np.zeros(compute_us.shape, dtype=bool)
  with_times = np.zeros((graph.num_ops, 1), dtype=bool)
  # [N, K]: mean of the times that hold for an op and a kind of device.
  for name, measurements in measured.items():
    i = graph.op_index[name]
    for k, device in enumerate(cluster.kind_devices):
      times: Dict[float, List[float]] = {}
      # Times of this device override times of its type.
      named = [m for m in measurements if m.device and find_device([device.name], m.device) == 0]
      for m in named or measurements:
        if m in named or not m.device and m.device_type in ("", device.type):
          # Share of the batch -> times; 1 for the whole graph.
          times.setdefault(1 / m.replicas, []).append(m.compute_us)
      if times:
        compute_us[i, k] = _time_at(1 / replicas, {
            share: sum(found) / len(found) for share, found in times.items()})
        covered[i, k] = True
    # Sizes and runs are taken from graphs of the same share alone.
    same = [m for m in measurements if m.replicas == replicas]
    if same:
      _apply_memory(graph, i, same[0], output_bytes, temporary, persistent)
    runs = [m.executions for m in same if m.executions is not None]
    if runs:
      executions[i], with_times[i] = max(runs), True
  # Times of kernels alone need the launches between them; other files have them already.
  compute_us += np.where(
      covered & with_times, launches_between_us(compute_us, executions, cluster), 0.0)
  notes = list(estimated.notes) if not covered.all() else []
  # A time is missing only if the estimate is above 0: ops without a kernel need no time.
  for k, device in enumerate(cluster.kind_devices):
    missing = np.flatnonzero(~covered[:, k] & (estimated.compute_us[:, k] > 0))
    if len(missing):
      names = listed([graph.op_names[i] for i in missing])
      notes.append(f"costs of {counted(len(missing), 'op')} ({names}) were not measured on a "
                   f"{device.type} such as {device.name}: estimated instead")
  return OpCosts(compute_us, output_bytes, persistent, temporary, tuple(notes), executions,
                 "" if covered.all() else estimated.unknown)


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


def _apply_memory(
    graph: ComputationGraph, i: int, measurement: Measurement, output_bytes: np.ndarray,
    temporary: np.ndarray, persistent: np.ndarray) -> None:
  """Replaces the estimated sizes of op `i` by measured ones."""
  if measurement.output_bytes is not None:
    start, end = graph.output_offsets[i], graph.output_offsets[i + 1]
    if len(measurement.output_bytes) == end - start:
      output_bytes[start:end] = measurement.output_bytes
    elif measurement.output_bytes:
      raise CostError(
          f"op {graph.op_names[i]!r} has {end - start} outputs, but its measured costs have "
          f"{len(measurement.output_bytes)}; measure this graph")
  if measurement.temporary_bytes is not None:
    temporary[i] = measurement.temporary_bytes
  if measurement.persistent_bytes is not None:
    persistent[i] = measurement.persistent_bytes


def _op_name(name: str, op_names: Container[str]) -> str:
  """Returns the op's name; GPU streams append the op type: "dense/MatMul:MatMul"."""
  return name if name in op_names else name.rpartition(":")[0]


def _candidates(content: bytes) -> List[Tuple[Callable[[], Any], List[str]]]:
  """Returns (reader, names of its ops) for every proto that the content can be parsed as."""
  from tensorflow.core.framework import cost_graph_pb2, step_stats_pb2
  from tensorflow.core.grappler.costs import op_performance_data_pb2
  from tensorflow.core.protobuf import config_pb2

  found: List[Tuple[Callable[[], Any], List[str]]] = []
  # The same bytes may parse as several protos, so every reading is a candidate.
  performances = _parse(content, op_performance_data_pb2.OpPerformanceList)
  if performances is not None:
    found.append((lambda: (of_op_performances(performances), ()),
                  [entry.node for entry in performances.op_performance]))
  cost_graph = _parse(content, cost_graph_pb2.CostGraphDef)
  if cost_graph is not None:
    found.append((lambda: of_cost_graph(cost_graph), [node.name for node in cost_graph.node]))
  metadata = _parse(content, config_pb2.RunMetadata)
  if metadata is not None:
    if metadata.step_stats.dev_stats:
      found.append((lambda: (_of_step_stats(metadata.step_stats), ()),
                    _step_names(metadata.step_stats)))
    else:
      found.append((lambda: of_cost_graph(metadata.cost_graph),
                    [node.name for node in metadata.cost_graph.node]))
  step_stats = _parse(content, step_stats_pb2.StepStats)
  if step_stats is not None:
    found.append((lambda: (_of_step_stats(step_stats), ()), _step_names(step_stats)))
  return found


def _parse(content: bytes, proto_type: Any) -> Any:
  """Returns the proto, or None where the content is neither its binary nor its text form."""
  from google.protobuf import message, text_format

  proto = proto_type()
  try:
    proto.ParseFromString(content)
    return proto
  except message.DecodeError:
    pass
  try:
    return text_format.Parse(content.decode("utf-8"), proto_type())
  except (UnicodeDecodeError, text_format.ParseError, RecursionError):
    return None


def _step_names(step_stats: Any) -> List[str]:
  return [node.node_name for device in step_stats.dev_stats for node in device.node_stats]


def _of_step_stats(step_stats: Any) -> Dict[str, List[Measurement]]:
  """Sums the time of each op over all its executions, from start to end of its kernel."""
  totals: Dict[Tuple[str, str], float] = {}
  runs: Dict[Tuple[str, str], int] = {}
  # Sorted so that streams come last and replace the launch times of the same device.
  kernels: Dict[Tuple[str, str], float] = {}
  for device in step_stats.dev_stats:
    streams = "/stream:" in device.device
    if streams and not device.device.endswith(_ALL_STREAMS):
      continue  # each kernel is listed again under its own stream
    kind = device_type(device.device.partition("/stream:")[0])
    for node in device.node_stats:
      spent_us = _spent_us(node)
      if spent_us < 0:
        raise CostError(f"op {node.node_name!r} ends before it starts in its trace; measure it "
                        "again")
      # Streams write "op:OpType", hosts "op".
      name = node.node_name.rpartition(":")[0] or node.node_name if streams else node.node_name
      table = kernels if streams else totals
      table[name, kind] = table.get((name, kind), 0.0) + spent_us
      runs[name, kind] = runs.get((name, kind), 0) + (not streams)
  # The kernels' own times replace the times of launching them.
  totals.update(kernels)
  found: Dict[str, List[Measurement]] = {}
  for (name, kind), spent_us in totals.items():
    found.setdefault(name, []).append(Measurement(
        kind, spent_us, executions=float(runs[name, kind]) or None))
  return found


def _spent_us(node: Any) -> float:
  # Newer traces are in nanoseconds, older ones in microseconds.
  if node.op_end_rel_nanos or node.all_end_rel_nanos:
    if node.op_end_rel_nanos:
      return (node.op_end_rel_nanos - node.op_start_rel_nanos) * 1e-3
    return node.all_end_rel_nanos * 1e-3
  if node.op_end_rel_micros:
    return float(node.op_end_rel_micros - node.op_start_rel_micros)
  return float(node.all_end_rel_micros)
