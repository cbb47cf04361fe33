"""`replicate`: makes R replicas of a training graph, with shared or mirrored variables.

Ops that depend on a feed or on an input pipeline are copied for each replica: forward pass and
gradients. Variables and optimizer exist once, or with mirrored variables once for each replica. A
step of R replicas of batch b computes the same as a step of the original graph with a batch of R b:

- partial values are all-reduced where an op needs the global value: gradients before the optimizer,
  or before clipping by the global norm; the sum of a mask that divides a loss; the maximum in the
  condition of a loop. The graph determines whether parts are added up or averaged;
- sparse gradients (IndexedSlices) are the gathered rows of all replicas;
- a random op that samples for examples is copied for each replica, with a seed made of the op's
  seed and the replica's number; other random ops exist once;
- each replica normalizes by the statistics of its own batch, as in `tf.distribute.MirroredStrategy`
  (batch normalization), and moving averages take the mean over the replicas. With synchronized
  statistics, the results of batch normalization are those of the global batch, too;
- feeds take the global batch, and fetches give the values of the original graph.

With mirrored variables, only gradients and rows are sent, and they are sent during the backward
pass. The first replica's variables keep their names; replica r has `w` as `replica_r/w`. The
variables of all replicas are equal: every op of the graph that writes `w` outside the step, such as
an initializer or a saver's restoring op, is repeated for each replica and waits for the others.
So initializers and savers that were made before (`tf.compat.v1.global_variables_initializer()`,
`w.initializer`, `saver.restore`) set the variables of all replicas. Collections such as
GLOBAL_VARIABLES hold only the first replica's variables, so checkpoints have the same entries as
checkpoints of the original graph. Writes that are added to the replicated graph later (a new saver,
`w.load`) change only the first replica's variables.

Dimensions: N needed ops, R replicas.
"""

from __future__ import annotations

import dataclasses
from typing import AbstractSet, Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from placeto_tf.errors import GraphError, listed, option
from placeto_tf.graphs import load_graph
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.graphs.shapes import ASSUMED
from placeto_tf.graphs.variable_parts import Part, captured_parts
from placeto_tf.replication import op_roles, rewriting
from placeto_tf.replication.batch_norm import with_plain_batch_norm
from placeto_tf.replication.dataflow import Dataflow, Tensor, analyse_dataflow, closure
from placeto_tf.replication.local_copies import add_local_copies
from placeto_tf.replication.mirroring import Plan, find_mirrors
from placeto_tf.replication.op_partition import OpPartition, outputs_of_fetched_ops, partition_ops
from placeto_tf.replication.propagation import Propagated, propagate
from placeto_tf.replication.rebatching import baked_in, rebatched
from placeto_tf.replication.reloading import at_batch, check_shapes, frozen, reloaded, unknown_batch
from placeto_tf.replication.replicated_graph import SHARED, ReplicatedGraph
from placeto_tf.replication.scaling import ODD, Scaling
from placeto_tf.replication.sparse_updates import sparse_updates
from placeto_tf.replication.statistics import kept_statistics

REPLICA, SYNCHRONIZED = "replica", "synchronized"
# Collections that only the building of gradients needs.
_CONTEXTS = ("while_context", "cond_context")
# Op types that take some rows of their input, or write rows into another tensor.
_TAKING = ("StridedSlice", "StridedSliceGrad", "Slice", "Gather", "GatherV2", "GatherNd")


def check_replicas(replicas: Any) -> int:
  """Returns the number of replicas.

  Raises:
    GraphError: `replicas` is no whole number of at least 1.
  """
  if not hasattr(replicas, "__index__") or isinstance(replicas, bool) or replicas < 1:
    raise GraphError(f"the number of replicas is {replicas!r}; expected a whole number of at "
                     "least 1, or auto")
  return int(replicas)


def replicate(
    graph: Any, replicas: int, *, whole: Optional[ComputationGraph] = None, mirrored: bool = False,
    single: AbstractSet[str] = frozenset(), batch_norm: str = REPLICA, micro_batches: int = 1,
) -> ReplicatedGraph:
  """Makes R replicas of a training graph; see the module.

  Args:
    graph: the graph of one replica, with the batch of one replica: a `ComputationGraph` of a
      GraphDef, MetaGraphDef, `tf.Graph`, ConcreteFunction or graph of the zoo, or anything else
      that `load_graph` takes.
    replicas: R.
    whole: the same graph built for the global batch, R times as large. It shows which numbers in
      the graph count examples. Not needed if the batch is free (an unknown first dimension of the
      feeds). If the batch is baked into the graph and `whole` is None, such numbers are guessed.
    mirrored: whether each replica has variables and an optimizer of its own.
    single: names of variables that replicas share even if `mirrored`, such as variables on a host.
    batch_norm: "replica": each replica normalizes by the statistics of its own batch.
      "synchronized": all replicas normalize by the statistics of the global batch.
    micro_batches: M: R / M groups of M replicas. Gradients are added up within a group first. All
      replicas of a group must get equal placements.

  Returns:
    The replicas; with R = 1 the unchanged graph.

  Raises:
    GraphError: the results may differ from the results at the global batch, because the batch
      cannot be followed through an op, an op shuffles examples, or nothing is trained; the message
      names the op. Or variables cannot be mirrored, because a function call outside the step
      writes them.
  """
  replicas = check_replicas(replicas)
  if batch_norm not in (REPLICA, SYNCHRONIZED):
    raise GraphError(f"batch_norm is {batch_norm!r}; expected {REPLICA!r} (each replica's own "
                     f"statistics) or {SYNCHRONIZED!r} (statistics of the global batch)")
  if micro_batches != 1 and (mirrored or replicas % micro_batches):
    raise GraphError(
        f"{replicas} replicas are no groups of {micro_batches} micro-batches; give a multiple of it"
        if replicas % micro_batches else "micro-batches share variables; leave out mirrored")
  graph = graph if isinstance(graph, ComputationGraph) else load_graph(graph)
  source = graph.origin
  if source is None or source.graph_def is None:
    raise GraphError("only a graph with TensorFlow nodes can be replicated, not one of arrays or "
                     "a CostGraphDef; give a GraphDef, MetaGraphDef, tf.Graph or function")
  live = source.format == "tf_graph"
  graph = frozen(graph)
  # Written out in plain ops, statistics are combined like all other means.
  if batch_norm == SYNCHRONIZED:
    graph = with_plain_batch_norm(graph)
    whole = None if whole is None else with_plain_batch_norm(whole)
  flow = analyse_dataflow(graph)
  fetched, run = endpoints(graph)
  if replicas == 1:
    return _only_replica(graph, flow)
  # Numbers that differ between the graphs at both batches count examples.
  at_whole = _at_whole_batch(graph, flow, whole, replicas)
  scaling = Scaling(flow, at_whole, replicas)
  # Without the whole graph, the graph at the global batch is a guess if the batch is baked in.
  grown = whole is None and not unknown_batch(graph)
  if grown:
    _check_growth(flow, scaling)
  # Each replica keeps its own statistics, unless they are synchronized.
  own = kept_statistics(flow) if batch_norm == REPLICA else frozenset()
  # Follow the batch, choose copies and all-reduces, write the nodes, and load them.
  once = not mirrored and micro_batches == 1  # whether shared tables are looked up once for all
  found = propagate(flow, sparse_updates(flow, scaling if once else None), scaling, own, once)
  if source.format != "concrete_function":  # whose ops to run are its side effects
    fetched += outputs_of_fetched_ops(flow, found, run)
  partition = partition_ops(flow, found, fetched, run)
  mirrors = find_mirrors(flow, found, partition, single, mirrored)
  written = rewriting.Writer(Plan(
      flow, found, partition, mirrors, scaling, frozenset(fetched), run, micro_batches)).run()
  try:
    if grown and not live and source.format != "concrete_function":
      check_shapes(written.graph_def)
    result = _load(graph, written, replicas, live)
  except ValueError as problem:  # TensorFlow raises it where shapes do not fit
    if not grown:
      raise GraphError(
          f"ops of the replicas do not fit together ({str(problem).splitlines()[0]}): the step's "
          "code states the batch size; train with one replica") from None
    raise baked_in(
        f"ops do not fit together when each of {replicas} replicas has the whole batch "
        f"({str(problem).splitlines()[0]})") from None
  # Look up the replica and the original of each op of the new graph by its name.
  names = graph.op_index
  statistics = tuple(flow.graph.op_names[op] for op in sorted(found.statistics & partition.copies))
  owners = np.array([written.replica_of.get(name, SHARED) for name in result.op_names], np.int32)
  originals = np.array(
      [names.get(written.original_of.get(name, ""), -1) for name in result.op_names], np.int32)
  # Ops that are no copies, and feeds that are divided, have the values of the global batch.
  whole_of_op = np.array([
      (scaling.other((op, 0)) or (-1,))[0] if op >= 0 and (
          owner == SHARED or op not in partition.copies) else -1
      for op, owner in zip(originals.tolist(), owners.tolist())], np.int32)
  return ReplicatedGraph(
      result, graph, replicas, owners, originals, found.batch * replicas, mirrored,
      written.own_reductions, _notes(
          statistics, mirrored and source.format != "concrete_function",
          [flow.graph.op_names[op] for op in sorted(found.assumed)], written.of_first),
      statistics, frozenset(single), micro_batches, written=written, whole=at_whole,
      whole_of_op=whole_of_op, decisions=_decisions(flow, found, partition))


def _decisions(
    flow: Dataflow, found: Propagated, partition: OpPartition) -> Tuple[Tuple[str, Any], ...]:
  """Returns (op, how it is rewritten) of copies and shared ops, without any size of the batch."""
  decided: Dict[int, List[Any]] = {
      op: [op in partition.shared] for op in sorted(partition.copies | partition.shared)}
  for (op, i), fix in sorted(found.fixes.items()):
    if op in decided:
      decided[op].append((i, fix))
  for (op, port), how in sorted(partition.combined.items(), key=lambda each: each[0]):
    if op in decided:
      decided[op].append((port, how))
  return tuple((flow.graph.op_names[op], each) for op, each in decided.items())


def with_order(
    replicated: ReplicatedGraph, edges: Sequence[Tuple[str, str]]) -> ReplicatedGraph:
  """Returns the same replicas with control edges that fix the order of ops.

  Ops of a live graph may get other indices.

  Args:
    replicated: the result of `replicate`, of more than one replica.
    edges: (op, op that waits for it) by name.

  Returns:
    The replicas, whose graph has the edges.
  """
  if not edges:
    return replicated
  written = replicated.written
  graph_def = type(written.graph_def)()
  graph_def.CopyFrom(written.graph_def)
  # Op -> ops that it waits for.
  waits: Dict[str, List[str]] = {}
  for awaited, waiting in edges:
    waits.setdefault(waiting, []).append(f"^{awaited}")
  for node in graph_def.node:
    node.input.extend([text for text in waits.get(node.name, ()) if text not in node.input])
  written = dataclasses.replace(written, graph_def=graph_def)
  loaded = _load(
      replicated.original, written, replicated.replicas,
      replicated.graph.origin.format == "tf_graph")
  # [N] old index of each op, because loading may change indices.
  before = np.array([replicated.graph.op_index[name] for name in loaded.op_names])
  return dataclasses.replace(
      replicated, graph=loaded, written=written, order=tuple(edges),
      replica_of_op=replicated.replica_of_op[before],
      original_of_op=replicated.original_of_op[before],
      whole_of_op=replicated.whole_of_op[before])


def _only_replica(graph: ComputationGraph, flow: Dataflow) -> ReplicatedGraph:
  """Returns the unchanged graph as one replica; ops that depend on the batch are replica 0's."""
  # All ops that depend on a feed or an input pipeline.
  batch, sources = op_roles.batch_feeds(flow, Scaling(flow, flow, 1))
  reached = closure(set(sources), flow.consumers)
  count = np.arange(graph.num_ops, dtype=np.int32)
  return ReplicatedGraph(
      graph, graph, 1, np.where(np.isin(count, list(reached)), 0, SHARED).astype(np.int32), count,
      batch)


def _at_whole_batch(
    graph: ComputationGraph, flow: Dataflow, whole: Optional[ComputationGraph], replicas: int
) -> Dataflow:
  """Returns the dataflow of the graph at the global batch."""
  if whole is not None:
    return analyse_dataflow(frozen(whole))
  if unknown_batch(graph):
    return analyse_dataflow(at_batch(graph, lambda size, feed: size * replicas))
  return rebatched(flow, replicas)


def _check_growth(flow: Dataflow, scaling: Scaling) -> None:
  """Raises GraphError where a fixed batch does not grow as a whole, as in `x[8:]` of 16."""
  for op, op_type in enumerate(flow.types):
    results = flow.outputs(op)
    # An axis that grows, but not R times: some examples are added or left out.
    some = any(scaling.axes(each) == ODD for each in results)
    if op_type in _TAKING:
      rows, taken = flow.inputs[op][0], results[0]
      if op_type == "StridedSliceGrad":
        rows, taken = results[0], flow.inputs[op][4]
      # The result keeps its size though the input grows.
      some = some or scaling.axes(taken) == [] and scaling.axes(rows) not in (None, [])
    if some:
      raise baked_in(f"op {flow.graph.op_names[op]!r} ({op_type}) takes some of the examples")


def endpoints(graph: ComputationGraph) -> Tuple[List[Tensor], List[int]]:
  """Returns the fetched tensors, and the fetched ops that have no result."""
  fetched, run = [], []
  for name in graph.fetches:
    op_name, colon, port = name.rpartition(":")
    if colon and port.isdecimal():
      fetched.append((graph.op_index[op_name], int(port)))
    else:
      run.append(graph.op_index[name])
  return fetched, run


def _load(
    graph: ComputationGraph, written: rewriting.Rewritten, replicas: int, live: bool
) -> ComputationGraph:
  """Loads the written graph in the format of the source."""
  source = graph.origin
  # Feeds that are divided take the global batch.
  shapes = {name: (shape[0] * replicas, *shape[1:])
            for name, shape in source.feed_shapes.items() if name in written.divided}
  proto = replicated_meta_graph(source.proto, written) if (
      source.format == "meta_graph_def") else written.graph_def
  copies = {name: Part(original, written.replica_of[name], replicas)
            for name, original in written.original_of.items()
            if source.format == "concrete_function" and written.replica_of.get(name, 0) > 0
            and graph.op_types[graph.op_index[original]] in op_roles.VARIABLES}
  return reloaded(graph, proto, shapes, live, **(
      captured_parts(source.tf_graph, copies, copies=True) if copies else {}))


def replicated_meta_graph(original: Any, written: rewriting.Rewritten) -> Any:
  """Returns the MetaGraphDef with the written nodes; collections name the first replica's copies.

  Args:
    original: the MetaGraphDef of the graph.
    written: the `rewriting.Rewritten` of its graph.
  """
  result = type(original)()
  result.CopyFrom(original)
  result.graph_def.CopyFrom(written.graph_def)
  # Contexts of loops and branches name ops that are copies now.
  for key in _CONTEXTS:
    if key in result.collection_def:
      del result.collection_def[key]
  there = {node.name for node in written.graph_def.node}
  # Original op -> the first replica's copy.
  first = {
      original_name: name for name, original_name in written.original_of.items()
      if written.replica_of.get(name) == 0}

  def renamed(text: str) -> str:
    name, colon, port = text.partition(":")
    # Ops that still exist keep their names.
    return text if name in there or name not in first else f"{first[name]}{colon}{port}"

  for collection in result.collection_def.values():
    values = collection.node_list.value
    for i, text in enumerate(values):
      values[i] = renamed(text)
  # Variables of all replicas but the first are local copies.
  add_local_copies(result, {
      name: original_name for name, original_name in written.original_of.items()
      if written.replica_of.get(name, 0) > 0 and original_name not in written.owned})
  for signature in result.signature_def.values():
    for tensors in (signature.inputs, signature.outputs):
      for info in tensors.values():
        if info.name:
          info.name = renamed(info.name)
  return result


def _notes(
    statistics: Tuple[str, ...], mirrored: bool, indices: Sequence[str], of_first: Sequence[str]
) -> Tuple[str, ...]:
  notes: Tuple[str, ...] = ()
  if indices:
    notes += (f"{ASSUMED}{listed(indices)} holds positions within an example, as replicas need; "
              "replicas=1 needs none",)
  if mirrored:
    notes += ("each replica has a copy of the variables; all copies are equal, so it is enough to "
              "save the variables with the original names, and the graph's own init and restore "
              "ops write all copies; after a Saver that is made later restores the originals, run "
              "local_variables_initializer (a MonitoredSession does)",)
  if of_first:
    notes += (f"not fetched, so of the first replica's examples alone: {listed(of_first, most=2)}; "
              f"{option('fetches')} with these and the train op is for all",)
  if not statistics:
    return notes
  return (*notes, "statistics of batch normalization are each replica's own in "
          f"{len(statistics)} ops ({listed(statistics)}); {option('batch_norm', 'synchronized')} "
          "computes the statistics of the global batch")
