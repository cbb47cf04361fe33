"""`sliced`: splits embedding tables into slices of columns, each a variable of its own.

A table [V, D] becomes S variables [V, D / S], and so do the slots of its optimizer. Each slice
gathers its columns of the rows, and updates them with its columns of the gradient
(`table_columns`). Ops on whole rows read the concatenation of the slices. The result is a training
graph like any other: it can be replicated, and its slices are placed one by one.

The slices are written as replicas are: slice s of op "a" is "slice_s/a", "all_gather/a_0"
concatenates the slices of "a:0". Ops outside the step that write a table write all slices. Ops that
read it read the concatenation, under the name that the read of the table had. So a saver of the
graph writes and restores whole tables, and checkpoints of the original graph fit. For savers that
are made later, the slices state their place in the table (`SaveSliceInfo`).

Dimensions: S slices, V rows, D columns.
"""

from __future__ import annotations

import functools
from typing import Any, Dict, FrozenSet, List, Mapping, Sequence, Set, Tuple

import numpy as np

from placeto_tf.errors import GraphError
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.graphs.shapes import write_shape
from placeto_tf.graphs.tensor_names import data_inputs, op_of, parse
from placeto_tf.graphs.variable_defs import variable_defs
from placeto_tf.graphs.variable_parts import Part, captured_parts
from placeto_tf.replication import exponents, rewriting
from placeto_tf.replication.dataflow import Dataflow, Tensor, analyse_dataflow, closure
from placeto_tf.replication.mirroring import Plan, find_mirrors
from placeto_tf.replication.nodes import tensor_name
from placeto_tf.replication.op_partition import partition_ops
from placeto_tf.replication.propagation import Propagated
from placeto_tf.replication.reloading import frozen, reloaded
from placeto_tf.replication.replicating import endpoints
from placeto_tf.replication.specs import REPLICATED, Dimensions, Sharded, Spec
from placeto_tf.replication.table_columns import COLUMNS, MEASURES, SHAPE, Columns, tables

_DIVIDE = "divide"  # fix of a shape: its last entry becomes the columns of a slice
_READS = ("ReadVariableOp", "ResourceGather")
_WRITES = ("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp")


def sliced(
    graph: ComputationGraph, slices: Mapping[str, int]
) -> Tuple[ComputationGraph, Dict[str, Part]]:
  """Splits tables, with the slots of their optimizer, into slices of columns.

  Args:
    graph: a training graph.
    slices: name of a table -> S, which must divide D.

  Returns:
    The graph with slices, in the format of the source; name of each new variable -> its place.

  Raises:
    GraphError: a name is no table, S does not divide D, or an op uses a table in a way that has no
      rule.
  """
  live = graph.origin.format == "tf_graph"
  place: Dict[str, Part] = {}
  graph = frozen(graph)
  for count in sorted({each for each in slices.values() if each > 1}):
    graph, made = _sliced(graph, [name for name, each in slices.items() if each == count], count)
    place.update(made)
  return (reloaded(graph, graph.origin.proto, live=True) if live and place else graph), place


def _sliced(
    graph: ComputationGraph, names: Sequence[str], count: int
) -> Tuple[ComputationGraph, Dict[str, Part]]:
  """Splits some tables into equally many slices; see `sliced`."""
  flow = analyse_dataflow(graph)
  found, variables = tables(flow), set()
  for name in names:
    table = graph.op_index.get(name, -1)
    if table not in found:
      raise GraphError(f"{name!r} is no table of the step; tables are "
                       f"{', '.join(graph.op_names[op] for op in found) or 'not there'}")
    width = flow.nodes[table].attr["shape"].shape.dim[-1].size
    if width % count:
      raise GraphError(f"table {name!r} has {width} columns, which {count} slices do not divide; "
                       "choose a number of slices that divides the columns")
    variables |= found[table]
  region = Columns(flow, variables)
  if region.refused:
    raise GraphError(f"variable {graph.op_names[min(region.refused)]!r} is used by an op that is "
                     "not known to treat each column alone; leave this table whole")
  read = _read_outside(flow)
  fetched, run = endpoints(graph)
  region.extend({*read, *fetched})
  outside = {tensor for tensor in read if tensor[0] in region.ops}
  # The writer of replicas writes the slices: of every op of the region one for each slice.
  found_specs, scaling = _specs(flow, region, variables, count), _Slicing(flow, count)
  kept = [*fetched, *sorted(outside)]
  partition = partition_ops(flow, found_specs, kept, run)
  written = _SliceWriter(Plan(
      flow, found_specs, partition, find_mirrors(flow, found_specs, partition, frozenset(), False),
      scaling, frozenset(kept), run, part="slice"), variables).run()  # type: ignore[arg-type]
  place = {name: Part(written.original_of[name], index, count)
           for name, index in written.replica_of.items()
           if written.original_of.get(name) in {graph.op_names[op] for op in variables}}
  proto: Any = written.graph_def
  if graph.origin.format == "meta_graph_def":
    proto = _meta_graph(graph.origin.proto, written, place)
  if graph.origin.format != "concrete_function":
    return reloaded(graph, proto), place
  return reloaded(graph, proto, **captured_parts(graph.origin.tf_graph, place)), place


def table_names(graph: ComputationGraph) -> List[str]:
  """Returns the names of a graph's tables, in an order that other traces of the step share."""
  return [graph.op_names[op] for op in sorted(tables(analyse_dataflow(graph)))]


def of_other(
    slices: Mapping[str, int], graph: ComputationGraph, other: ComputationGraph) -> Dict[str, int]:
  """Returns the slices of a graph's tables by their names in another trace, or batch, of it.

  Args:
    slices: name of a variable of `graph` -> S; names that are no tables (slots) are left out.
    graph, other: the two graphs.

  Returns:
    Name of a table of `other` -> S.

  Raises:
    GraphError: the other graph has other tables.
  """
  if not slices:
    return {}
  own, others = table_names(graph), table_names(other)
  if len(own) != len(others):
    raise GraphError(f"another trace of the step has {len(others)} tables, not {len(own)}; leave "
                     "tables whole (slices=1)")
  return {name: slices[mine] for mine, name in zip(own, others) if mine in slices}


class _Slicing:
  """Stands for the comparison of two batches, which replicas have: the slices of D columns."""

  slices: Dict[int, np.ndarray] = {}

  def __init__(self, flow: Dataflow, count: int):
    self._flow, self.replicas = flow, count

  def factors(self, tensor: Tensor) -> np.ndarray:
    """Returns the ratios of a whole tensor's dimensions to those of a slice."""
    rank = (self._flow.shape(tensor) or (2,))[0]
    return np.array([1] * ((rank or 2) - 1) + [self.replicas])


def _specs(flow: Dataflow, region: Columns, variables: Set[int], count: int) -> Propagated:
  """Returns the specs of all ops that depend on the region, as of replicas."""
  copied = closure(set(region.ops), flow.consumers)
  specs: Dict[int, List[Spec]] = {}
  fixes: Dict[Tuple[int, int], exponents.Fix] = {}
  for op in copied:
    outputs = flow.outputs(op)
    if op not in region.ops:
      specs[op] = [REPLICATED] * len(outputs)
      continue
    specs[op] = [region.partial(op) or (
        Dimensions() if flow.types[op] in MEASURES else
        Sharded(max(0, len(flow.shape(each) or ()) - 1))) for each in outputs]
    for i, (role, tensor) in enumerate(zip(region.ops[op], flow.inputs[op])):
      if role == COLUMNS and not region.holds(tensor):
        fixes[op, i] = (exponents.SLICE, -1)
      elif role == SHAPE and tensor[0] not in region.ops:
        fixes[op, i] = (_DIVIDE, (flow.shape((op, 0)) or (0,))[-1] // count)  # type: ignore
      elif role not in (COLUMNS, SHAPE) and tensor[0] in region.ops:
        fixes[op, i] = (exponents.GLOBAL,)
  return Propagated(
      batch=count, copied=frozenset(copied), specs=specs, fixes=fixes,
      once=frozenset(copied - region.ops.keys()), owned=frozenset(variables))


def _read_outside(flow: Dataflow) -> Set[Tensor]:
  """Returns the tensors, but handles, that ops outside the step read."""
  index = flow.graph.op_index
  return {(index[name], port) for node in flow.graph.origin.graph_def.node
          if node.name not in index for name, port in map(parse, data_inputs(node))
          if name in index and flow.types[index[name]] != "VarHandleOp"}


class _SliceWriter(rewriting.Writer):
  """Writes slices: splits what they read and write, concatenates what others read."""

  def __init__(self, plan: Plan, variables: Set[int]):
    super().__init__(plan)
    self._variables = {self._op_names[op] for op in variables}
    self._node: Any = None  # of an op outside the step, while it is written
    # Kept ops pass on whole tensors under the old names.
    self._kept = {self._op_names[op] for op, _ in plan.fetched}

  def run(self) -> rewriting.Rewritten:
    result = super().run()
    for node in result.graph_def.node:
      if node.name in result.replica_of:
        node.attr.pop("_output_shapes", None)
        # [V, D] -> [V, D / S]; the first slice is no longer the variable that others may share.
        if result.original_of.get(node.name) in self._variables:
          dims = [dim.size for dim in node.attr["shape"].shape.dim]
          write_shape(node.attr["shape"].shape, (*dims[:-1], dims[-1] // self._replicas))
          if not result.replica_of[node.name]:
            self._rename(node, 0, ("shared_name",))
    return result

  def _copy_input(self, op: int, i: int, text: str, r: int) -> str:
    fix = self._propagated.fixes.get((op, i))
    if fix is None or fix[0] == exponents.GLOBAL:
      return super()._copy_input(op, i, text, r)
    tensor = (self._flow.graph.op_index[parse(text)[0]], parse(text)[1])
    found, dtype = self._names.of_replica(tensor, r), self._flow.dtype(tensor) % 100
    if fix[0] == exponents.SLICE:
      return self._part_of(found, r, -1, dtype)
    made = f"{self._names.prefixes[r]}/{self._op_names[op]}/input_{i}"
    known = self._flow.constant(tensor[0])  # other shapes may be those of another batch
    with self._writer.owned(r):
      if known is not None:
        return self._writer.constant(made, np.append(known[:-1], fix[1]), dtype)
      # All entries but the last stay as they are; an open one, -1, too.
      rank = (self._flow.shape((op, 0)) or ())[:-1]
      most = self._writer.constant(
          f"{made}/most", [*[np.iinfo(np.int32).max] * len(rank), fix[1]], dtype)
      return self._writer.new(made, "Minimum", [found, most], T=dtype).name

  def _outside(self, node: Any, frames: Set[bytes]) -> None:
    self._node = node
    if not any(op_of(text) in self._variables for text in data_inputs(node)) or (
        node.name in self._mirrors.outside or node.op == "VarIsInitializedOp"):
      super()._outside(node, frames)
      return
    if node.op not in _READS:
      raise GraphError(f"op {node.name!r} ({node.op}) uses table {op_of(node.input[0])!r} in a way "
                       "that slices have no rule for; leave this table whole")
    parts = []
    for r, prefix in enumerate(self._names.prefixes):
      part = self._writer.copy(node, f"{prefix}/{node.name}", r)
      self._colocate(part, functools.partial(self._names.in_replica, r=r), True)
      part.input.extend(each for i, text in enumerate(node.input) for each in (
          (tensor_name(self._names.in_replica(op_of(text), r), 0),) if not i else
          self._input_outside(frozenset(), 0, text)))
      parts.append(part.name)
    self._writer.concat(node.name, parts, node.attr["dtype"].type, -1)

  def _input_outside(self, handles: FrozenSet[str], r: int, text: str) -> Sequence[str]:
    name = op_of(text)
    if not text.startswith("^") and self._names.is_copy(name) and name in self._kept:
      return (text,)
    found = super()._input_outside(handles, r, text)
    if not handles or text in handles or text.startswith("^"):
      return found
    if self._node.op not in _WRITES:
      raise GraphError(f"op {self._node.name!r} ({self._node.op}) writes a table outside the step "
                       "in a way that slices have no rule for; leave this table whole")
    return (self._part_of(found[0], r, -1, self._node.attr["dtype"].type),)


def _meta_graph(original: Any, written: rewriting.Rewritten, place: Mapping[str, Part]) -> Any:
  """Returns the MetaGraphDef with slices, which its collections name in place of tables."""
  from tensorflow.core.framework import variable_pb2

  result = type(original)()
  result.CopyFrom(original)
  result.graph_def.CopyFrom(written.graph_def)
  nodes = {node.name: node for node in original.graph_def.node}
  of_table: Dict[str, List[str]] = {}
  for name, each in place.items():  # in the order of the slices
    of_table.setdefault(each.variable, []).append(name)
  there = {node.name for node in written.graph_def.node}

  def own(text: str, prefix: str) -> str:
    """Returns the slice's tensor, if there is one."""
    return f"{prefix}/{text}" if f"{prefix}/{op_of(text)}" in there else text

  defs = variable_defs(original)
  for collection in result.collection_def.values():
    values = []
    for serialized in collection.bytes_list.value:
      known = next((each for each in of_table if each in defs
                    and defs[each].SerializeToString() == serialized), None)
      for i, name in enumerate(of_table[known] if known is not None else ()):
        made = variable_pb2.VariableDef.FromString(serialized)
        prefix = name[:-len(known) - 1]  # type: ignore[arg-type]
        made.variable_name = f"{name}:0"
        made.initializer_name = own(made.initializer_name, prefix)
        made.snapshot_name = own(made.snapshot_name, prefix)
        # The initializer of a slice reads its columns of the initial value.
        assign = next(node for node in result.graph_def.node if node.name == op_of(
            made.initializer_name))
        made.initial_value_name = tensor_name(*parse(assign.input[1]))
        shape = [dim.size for dim in nodes[known].attr["shape"].shape.dim]
        width = shape[-1] // place[name].count
        info = made.save_slice_info_def
        info.full_name = known
        info.full_shape.extend(shape)
        info.var_offset.extend([*[0] * (len(shape) - 1), i * width])
        info.var_shape.extend([*shape[:-1], width])
        values.append(made.SerializeToString())
      if known is None:
        values.append(serialized)
    if values:
      collection.bytes_list.value[:] = values
  return result
