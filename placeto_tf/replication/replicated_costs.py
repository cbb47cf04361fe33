"""Costs of replicas from the work of the graph at two batches, a replica's and the global one.

Counting the work of R replicas would take R times as long as for one replica and give the same
numbers. Every copy of an op does the work of the op at a replica's batch. An op on global values,
such as the gathered rows of a sparse gradient or a feed that is divided, does its work at the
global batch. All-reduces, all-gathers and divisions cost the bytes that they move.

Times measured for the unreplicated graph, or for one replica of several, hold for every copy; see
`placeto_tf.costs.measured_costs`.

Dimensions: N ops of the replicated graph.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Dict

import numpy as np

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.costs import OpCosts, estimate_costs
from placeto_tf.costs.estimate import work_of
from placeto_tf.costs.work import OpWork, count_work
from placeto_tf.graphs.computation_graph import CONTROL
from placeto_tf.on_use import NodeDef, tf
from placeto_tf.replication.rebatching import resized
from placeto_tf.replication.replicated_graph import ReplicatedGraph

_SCALAR_BYTES = 8
_NO_KERNEL = ("Const", "NoOp")
_KEPT_NAMES = ("IdentityN", "NoOp")
_MOVES = ("ConcatV2", "SplitV", "Split")
# Fields of `OpWork` with a number for each op.
_OF_OPS = ("flops", "moved_bytes", "temporary_bytes", "persistent_bytes", "executions", "launches",
           "launches_on_gpu", "product_types", "windows")


def replicated_costs(
    replicated: ReplicatedGraph, cluster: Cluster, source: str = "grappler") -> OpCosts:
  """Returns the costs of the replicas on a cluster.

  Args:
    replicated: the replicas.
    cluster: the devices to estimate costs for.
    source: "grappler", or a file of costs that were measured for the replicated graph, or for the
      unreplicated graph and one of several replicas (`calibrate.py --replicas=R`).

  Returns:
    Costs of every op of the replicated graph.
  """
  work = functools.partial(replicated_work, replicated) if replicated.replicas > 1 else None
  return estimate_costs(replicated.graph, cluster, source=source, work=work)


def replicated_work(replicated: ReplicatedGraph) -> OpWork:
  """Returns the work of every op of the replicated graph."""
  graph, origin, nodes = replicated.graph, replicated.original_of_op, replicated.graph.nodes
  known = origin >= 0
  works = [(replicated.original, origin, work := work_of(replicated.original))]
  fields: Dict[str, Any] = {
      name: np.zeros(graph.num_ops, getattr(work, name).dtype) for name in _OF_OPS}
  fields["executions"][:] = graph.executions
  widths, output_bytes = np.diff(graph.output_offsets), np.zeros(graph.num_outputs)
  whole = replicated.whole
  if whole is not None:
    # A graph whose shapes were rewritten for the larger batch exists only as its nodes.
    works.append((whole.graph, replicated.whole_of_op, count_work(
        whole.graph, resized(whole, whole.changed)) if whole.changed else work_of(whole.graph)))
  # First all ops as in a replica, then ops on global values as at the global batch.
  for source, source_of_op, counted in works:
    ops = np.flatnonzero(source_of_op >= 0)
    for name, values in fields.items():
      values[ops] = getattr(counted, name)[source_of_op[ops]]
    # Outputs by position; a copy may have fewer or more than the original.
    for op in ops.tolist():
      start, begin = int(graph.output_offsets[op]), int(source.output_offsets[source_of_op[op]])
      end = int(source.output_offsets[source_of_op[op] + 1])
      sizes = counted.output_bytes[begin:min(end, begin + int(widths[op]))]
      output_bytes[start:start + len(sizes)] = sizes
  # An op that keeps a fetched op's name only passes on the results of the copies.
  passes = [op for op in np.flatnonzero(known).tolist() if graph.op_types[op] in _KEPT_NAMES and (
      graph.op_types[op] != replicated.original.op_types[origin[op]])]
  for name in ("flops", "moved_bytes", "temporary_bytes", "launches", "launches_on_gpu"):
    fields[name][passes] = 0
  # [N] data inputs as (producer, port).
  inputs: list = [[] for _ in range(graph.num_ops)]
  for producer, port, consumer in graph.edges:
    if port != CONTROL:
      inputs[consumer].append((producer, port))
  # Ops of the rewriting, in topological order, so that the sizes of their inputs are known.
  for op in graph.topological_order.tolist():
    if known[op]:
      continue
    if graph.op_types[op] in _NO_KERNEL:
      if graph.op_types[op] == "Const":  # a scale, an axis, a shape
        fields["persistent_bytes"][op] = output_bytes[graph.output_offsets[op]] = (
            _constant(nodes[op]).nbytes)
      continue
    # Bytes read, and bytes of the largest input.
    read = [output_bytes[graph.output_offsets[p] + port] for p, port in inputs[op]]
    total, largest = sum(read), max(read, default=0.0)
    offset = slice(graph.output_offsets[op], graph.output_offsets[op + 1])
    # The concatenated tensors, without the constant with the axis.
    rows = sum(size for size, (p, _) in zip(read, inputs[op]) if graph.op_types[p] != "Const")
    written = rows if graph.op_types[op] == "ConcatV2" else largest
    if graph.op_types[op] == "SplitV":
      # Each output has a share of the input; the second input holds the sizes.
      sizes = _constant(nodes[graph.op_index[nodes[op].input[1]]])
      output_bytes[offset] = written * sizes / max(1, sizes.sum())
    else:
      output_bytes[offset] = written / max(1, int(widths[op]))
    if graph.op_types[op] == "Reshape":  # moves nothing
      continue
    fields["launches"][op] = fields["launches_on_gpu"][op] = 1
    fields["moved_bytes"][op] = max(total + written, _SCALAR_BYTES)
    if graph.op_types[op] not in _MOVES:
      # One flop for each float32 number of the result; of k summands k - 1.
      fields["flops"][op] = (total - written if graph.op_types[op] == "AddN" else written) / 4
  return dataclasses.replace(work, **fields, output_bytes=output_bytes)


def _constant(node: NodeDef) -> np.ndarray:
  """Returns the value of a Const."""
  return tf.make_ndarray(node.attr["value"].tensor)
