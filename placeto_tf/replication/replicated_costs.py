"""Costs of replicas from the costs of one: every copy of an op does the work of the op.

Counting the work of R replicas would take R times as long as for one replica and give the same
numbers. All-reduces and all-gathers cost the bytes that they move. Ops that read the rows of all
replicas (sparse gradients) have R times the rows of one replica. A feed that is divided holds the
whole batch; the op that divides the batch, and the parts that are sent, cost the same as when the
written graph is read and estimated.

Times measured for the unreplicated graph, or for one replica of several, hold for every copy; see
`placeto_tf.costs.measured_costs`.

Dimensions: N ops of the replicated graph, O its outputs, R replicas.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.costs import OpCosts, estimate_costs, measured_costs
from placeto_tf.costs.estimate import from_work, work_of
from placeto_tf.costs.work import OpWork
from placeto_tf.graphs.computation_graph import CONTROL, ComputationGraph
from placeto_tf.replication import op_roles
from placeto_tf.replication.replicated_graph import SHARED, ReplicatedGraph

if TYPE_CHECKING:
  from tensorflow.core.framework.node_def_pb2 import NodeDef

_SCALAR_BYTES = 8
_NO_KERNEL = ("Const", "NoOp")
_KEPT_NAMES = ("IdentityN", "NoOp")
_MOVES = ("ConcatV2", "SplitV", "Split")


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
  graph, original = replicated.graph, replicated.original
  if replicated.replicas == 1:
    return estimate_costs(graph, cluster, source=source)
  if source == "grappler":
    return from_work(graph, cluster, replicated_work(replicated, work_of(original)))
  measured = measured_costs.read(source, {*graph.op_names, *original.op_names})
  # Times that were measured for the replicated graph need no mapping.
  if any(name not in original.op_index for name in measured):  # of the replicated graph
    return estimate_costs(graph, cluster, source=source)
  estimated = from_work(graph, cluster, replicated_work(replicated, work_of(original)))
  if all(each.replicas == 1 for found in measured.values() for each in found):
    return dataclasses.replace(estimated, notes=(*estimated.notes, (
        f"{source} has times of the whole batch alone: the costs of {replicated.replicas} "
        f"replicas are estimated; calibrate with --replicas={replicated.replicas}")))
  # Every copy has the times of its original.
  of_copies = {
      graph.op_names[op]: measured[original.op_names[origin]]
      for op, origin in enumerate(replicated.original_of_op.tolist())
      if origin >= 0 and original.op_names[origin] in measured}
  return measured_costs.apply(graph, cluster, of_copies, estimated, replicated.replicas)


def replicated_work(replicated: ReplicatedGraph, work: OpWork) -> OpWork:
  """Returns the work of all replicas, computed from the work of one.

  Args:
    replicated: the replicas.
    work: the work of one replica.

  Returns:
    Work of every op of the replicated graph.
  """
  graph, original = replicated.graph, replicated.original
  origin = replicated.original_of_op
  known = origin >= 0
  # -1 would index the last op; masked by `known`.
  source = np.maximum(origin, 0)
  # An op that keeps a fetched op's name only passes on the results of the copies.
  computes = known & np.array([
      op_type not in _KEPT_NAMES or op_type == original.op_types[i]
      for op_type, i in zip(graph.op_types, source.tolist())])
  # Values of the original: what it holds for every copy, what it does only where the op computes.
  fields = {
      name: getattr(work, name)[source] * where for where, names in (
          (known, ("persistent_bytes", "product_types")),
          (computes, ("flops", "moved_bytes", "temporary_bytes", "launches", "launches_on_gpu")))
      for name in names}
  output_bytes = np.zeros(graph.num_outputs)
  widths, theirs = np.diff(graph.output_offsets), np.diff(original.output_offsets)
  # Outputs by position; a copy may have fewer or more than the original.
  for op in np.flatnonzero(known).tolist():
    start, begin = int(graph.output_offsets[op]), int(original.output_offsets[origin[op]])
    width = min(int(widths[op]), int(theirs[origin[op]]))
    output_bytes[start:start + width] = work.output_bytes[begin:begin + width]
  # [N] data inputs as (producer, port).
  inputs: list = [[] for _ in range(graph.num_ops)]
  for producer, port, consumer in zip(
      graph.edge_producers.tolist(), graph.edge_ports.tolist(), graph.edge_consumers.tolist()):
    if port != CONTROL:
      inputs[consumer].append((producer, port))
  # The whole batch of each feed that is divided.
  for name in replicated.written.divided:
    op, _, port = name.rpartition(":")
    output_bytes[graph.output_offsets[graph.op_index[op]] + int(port)] *= replicated.replicas
  many = _behind_rows(replicated, inputs, output_bytes)
  # An op that reads gathered rows has R times the rows of one replica.
  for name in ("flops", "moved_bytes", "temporary_bytes"):
    fields[name][many] *= replicated.replicas
  for op in many:
    output_bytes[graph.output_offsets[op]:graph.output_offsets[op + 1]] *= replicated.replicas
  # Ops of the rewriting, in topological order, so that the sizes of their inputs are known.
  for op in graph.topological_order.tolist():
    if known[op]:
      continue
    if graph.op_types[op] in _NO_KERNEL:
      if graph.op_types[op] == "Const":  # a scale, an axis, a shape
        fields["persistent_bytes"][op] = output_bytes[graph.output_offsets[op]] = (
            _constant(graph, graph.op_names[op]).nbytes)
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
      sizes = _constant(graph, _node(graph, op).input[1])
      output_bytes[offset] = written * sizes / max(1, sizes.sum())
    else:
      output_bytes[offset] = written / max(1, int(widths[op]))
    if graph.op_types[op] == "Reshape":  # moves nothing
      continue
    fields["launches"][op] = fields["launches_on_gpu"][op] = True
    fields["moved_bytes"][op] = max(total + written, _SCALAR_BYTES)
    if graph.op_types[op] not in _MOVES:
      # One flop for each float32 number of the result; of k summands k - 1.
      fields["flops"][op] = (total - written if graph.op_types[op] == "AddN" else written) / 4
  return dataclasses.replace(
      work, **fields, output_bytes=output_bytes,
      executions=np.where(known, work.executions[source], graph.executions))


def _constant(graph: ComputationGraph, name: str) -> np.ndarray:
  """Returns the value of a Const."""
  import tensorflow as tf

  return tf.make_ndarray(_node(graph, graph.op_index[name]).attr["value"].tensor)


def _node(graph: ComputationGraph, op: int) -> NodeDef:
  source = graph.origin
  assert source.positions is not None
  return source.graph_def.node[source.positions[op]]


def _behind_rows(replicated: ReplicatedGraph, inputs: list, output_bytes: np.ndarray) -> list:
  """Returns the ops that work on the rows of all replicas, up to updates of variables."""
  graph, owner = replicated.graph, replicated.replica_of_op
  reached = np.zeros(graph.num_ops, dtype=bool)
  found = []
  for op in graph.topological_order.tolist():
    # An all-gather concatenates the rows of several replicas.
    gathers = replicated.original_of_op[op] < 0
    if gathers and graph.op_types[op] == "ConcatV2" and (
        len({owner[producer] for producer, _ in inputs[op]} - {SHARED}) > 1):
      reached[op] = True
    elif any(reached[producer] for producer, _ in inputs[op]):
      sizes = output_bytes[graph.output_offsets[op]:graph.output_offsets[op + 1]]
      update = op_roles.is_update(graph.op_types[op])
      # Stop at updates, and at sizes and other scalars, which hold no rows.
      reached[op] = gathers or (not update and bool((sizes > _SCALAR_BYTES).any()))
      if not gathers:
        found.append(op)
  return found
