"""`replicate`: a training graph becomes R replicas that share its variables, or have their own.

Ops that depend on a feed or on an input pipeline are copied for each replica: forward pass and
gradients. Variables and optimizer exist once, or with mirrored variables once for each replica. In
between,

- gradients are averaged before the optimizer, or before a nonlinear op that precedes it: clipping
  by the global norm sees the mean;
- gradients of single rows (IndexedSlices) are the rows of all replicas, scaled by 1 / R;
- each replica normalizes its own batch in batch normalization, and moving averages are updated by
  the mean over replicas, as in `tf.distribute.MirroredStrategy`;
- fetched losses and metrics are means over the replicas; so are additions to a metric's state,
  whose ratios are those of the global batch; fetched examples are those of all replicas in order;
- random ops of a replica draw with a seed made of the op's seed and the replica's number.

So a step of R replicas of batch b equals a step of the graph with a batch of R b, provided that its
loss is a mean over the batch, not a sum.

With mirrored variables only means of gradients and rows travel, while the backward pass goes on.
The first replica's variables keep their names; replica r has `w` as `replica_r/w`. All replicas'
are equal, because every op of the graph that writes `w` outside the step has a twin for each of the
others, on which it waits: initialisers, and the restoring ops of savers. So an
`init = tf.compat.v1.global_variables_initializer()` of before, `w.initializer`, and
`saver.restore` of a saver of before serve all replicas. Collections such as GLOBAL_VARIABLES have
the originals only, so that checkpoints stay those of the graph. Writes that are added to the
replicated graph later (a new saver, `w.load`) reach the originals alone.

Legend: N needed ops, R replicas.
"""

from __future__ import annotations

from typing import AbstractSet, Any, List, Tuple

import numpy as np

from placeto_tf.errors import GraphError
from placeto_tf.graphs import load_graph
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.replication import rewriting
from placeto_tf.replication.cuts import find_cut
from placeto_tf.replication.dataflow import Dataflow, Tensor, analyse_dataflow
from placeto_tf.replication.mirroring import Mirrors, find_mirrors
from placeto_tf.replication.propagation import Spread, spread
from placeto_tf.replication.replicated_graph import SHARED, ReplicatedGraph
from placeto_tf.replication.sparse_updates import sparse_updates
from placeto_tf.replication.statistics import check_statistics

# Collections that only the building of gradients needs.
_CONTEXTS = ("while_context", "cond_context")
# Above this many ops their names are not listed.
_LISTED = 3


def check_replicas(replicas: Any) -> int:
  """The number of replicas.

  Raises:
    GraphError: it is no whole number of at least 1.
  """
  if not hasattr(replicas, "__index__") or isinstance(replicas, bool) or replicas < 1:
    raise GraphError(f"the number of replicas is {replicas!r}; expected a whole number of at "
                     "least 1, or auto")
  return int(replicas)


def replicate(
    graph: Any, replicas: int, *, split_feeds: bool = False, mirrored: bool = False,
    single: AbstractSet[str] = frozenset(),
) -> ReplicatedGraph:
  """Makes R replicas of a training graph; see the module.

  Args:
    graph: one replica: a `ComputationGraph` of a GraphDef, MetaGraphDef, `tf.Graph`,
      ConcreteFunction or graph of the zoo, or anything else that `load_graph` takes. Its batch is
      that of a replica.
    replicas: R.
    split_feeds: whether the graph takes the global batch and cuts it itself; otherwise every
      replica has feeds of its own. A ConcreteFunction always takes the global batch.
    mirrored: whether each replica has variables and an optimizer of its own.
    single: names of variables that are shared all the same, such as those on a host that replicas
      share.

  Returns:
    The replicas; with R = 1 the unchanged graph.

  Raises:
    GraphError: the results would not be those of the global batch, or it is not sure that they
      are: a feed is no batch, an op draws without a seed or holds state that is no variable, or
      nothing is trained; the message names the op. Or variables cannot be mirrored: those of a
      ConcreteFunction, or some that are written by a function call outside the step.
  """
  replicas = check_replicas(replicas)
  graph = graph if isinstance(graph, ComputationGraph) else load_graph(graph)
  source = graph.origin
  if source is None or source.graph_def is None:
    raise GraphError("only a graph with TensorFlow nodes can be replicated, not one of arrays or "
                     "a CostGraphDef; give a GraphDef, MetaGraphDef, tf.Graph or function")
  function = source.format == "concrete_function"
  if function and mirrored:
    raise GraphError("the variables of a ConcreteFunction are objects of the program, of which "
                     "replicas cannot have their own; share them, or give the graph")
  live = source.tf_graph if source.format == "tf_graph" else None
  if live is not None:
    graph = _frozen(graph)
  flow = analyse_dataflow(graph)
  fetched, run = _endpoints(graph)
  found = spread(flow, sparse_updates(flow))
  check_statistics(flow, found)
  cut = find_cut(flow, found, fetched, run)
  mirrored = mirrored and replicas > 1
  notes = _notes(flow, found, replicas, mirrored)
  if replicas == 1:
    count = np.arange(graph.num_ops, dtype=np.int32)
    return ReplicatedGraph(
        graph, graph, 1, np.where(np.isin(count, list(cut.copies)), 0, SHARED).astype(np.int32),
        count, found.batch, {name: (name,) for name in graph.feeds}, notes=notes)
  written = rewriting.rewrite(
      flow, found, cut, find_mirrors(flow, found, cut, single) if mirrored else Mirrors(), replicas,
      split_feeds or function, fetched, run)
  result = _load(graph, written, replicas, live is not None)
  names = graph.op_index
  return ReplicatedGraph(
      result, graph, replicas,
      np.array([written.replica_of.get(name, SHARED) for name in result.op_names], np.int32),
      np.array([names.get(written.original_of.get(name, ""), -1) for name in result.op_names],
               np.int32),
      found.batch * replicas, written.feeds, mirrored, written.own_joins, notes)


def _endpoints(graph: ComputationGraph) -> Tuple[List[Tensor], List[int]]:
  """Fetched tensors, and ops that are run for their effects."""
  fetched, run = [], []
  for name in graph.fetches:
    op_name, colon, port = name.rpartition(":")
    if colon and port.isdecimal():
      fetched.append((graph.op_index[op_name], int(port)))
    else:
      run.append(graph.op_index[name])
  return fetched, run


def _frozen(graph: ComputationGraph) -> ComputationGraph:
  """A live graph as the MetaGraphDef of it, whose function calls are inlined."""
  import tensorflow as tf

  with graph.origin.tf_graph.as_default():
    meta_graph = tf.compat.v1.train.export_meta_graph()
  shapes = {name.rpartition(":")[0]: shape for name, shape in graph.origin.feed_shapes.items()}
  return load_graph(meta_graph, fetches=graph.fetches, feeds=graph.feeds, feed_shapes=shapes)


def _load(
    graph: ComputationGraph, written: rewriting.Rewritten, replicas: int, live: bool
) -> ComputationGraph:
  """The written graph in the format of the source."""
  source = graph.origin
  shapes = {}
  for name, tensors in written.feeds.items():
    shape = tuple(source.feed_shapes[name])
    if len(tensors) == 1:
      shape = (shape[0] * replicas, *shape[1:])
    shapes.update({tensor.rpartition(":")[0]: shape for tensor in tensors})
  if source.format == "concrete_function":
    from placeto_tf.replication.traced import replicated_function

    return load_graph(
        replicated_function(source.tf_graph, written, replicas), feed_shapes=shapes)
  proto = written.graph_def
  if source.format == "meta_graph_def":
    proto = _meta_graph(source.proto, written)
  if live:
    import tensorflow as tf

    proto, graph_def = tf.Graph(), proto
    with proto.as_default():
      tf.compat.v1.train.import_meta_graph(graph_def)
  feeds = [tensor for tensors in written.feeds.values() for tensor in tensors]
  return load_graph(proto, fetches=graph.fetches, feeds=feeds, feed_shapes=shapes)


def _meta_graph(original: Any, written: rewriting.Rewritten) -> Any:
  """The MetaGraphDef with the written nodes; what it names is the first replica's where copied."""
  result = type(original)()
  result.CopyFrom(original)
  result.graph_def.CopyFrom(written.graph_def)
  for key in _CONTEXTS:
    if key in result.collection_def:
      del result.collection_def[key]
  there = {node.name for node in written.graph_def.node}
  first = {
      original_name: name for name, original_name in written.original_of.items()
      if written.replica_of.get(name) == 0}

  def renamed(text):
    name, colon, port = text.rpartition(":")
    name = name if colon else text
    if name in there or name not in first:
      return text
    return f"{first[name]}:{port}" if colon else first[name]

  for collection in result.collection_def.values():
    values = collection.node_list.value
    for i, text in enumerate(values):
      values[i] = renamed(text)
  for signature in result.signature_def.values():
    for tensors in (signature.inputs, signature.outputs):
      for info in tensors.values():
        if info.name:
          info.name = renamed(info.name)
  return result


def _notes(flow: Dataflow, found: Spread, replicas: int, mirrored: bool) -> Tuple[str, ...]:
  notes: Tuple[str, ...] = ()
  if mirrored:
    notes += ("replicas have variables of their own; all are equal, so saving those with the "
              "original names is enough, and the graph's own init and restore ops write all",)
  if not found.statistics or replicas == 1:
    return notes
  names = [flow.graph.op_names[op] for op in sorted(found.statistics)]
  listed = ", ".join(names[:_LISTED]) + (", ..." if len(names) > _LISTED else "")
  return (*notes, f"statistics of a batch are each replica's own in {len(names)} ops ({listed})",)
