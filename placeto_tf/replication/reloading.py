"""Loads a graph again in the format of its source: at another batch, or with other nodes."""

from __future__ import annotations

import re
from typing import Any, Callable, Mapping, Optional, Tuple

from placeto_tf.graphs import load_graph
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.graphs.rebuilt_functions import rebuilt_function
from placeto_tf.graphs.shapes import declared_shape
from placeto_tf.on_use import GraphDef, Message, MetaGraphDef, tf
from placeto_tf.replication.op_roles import captured_ops


def has_free_batch(graph: ComputationGraph, feed: str) -> bool:
  """Returns whether the first dimension of a feed was unknown before it was bound.

  A feed of unknown rank may have been bound to a scalar (a keep probability, a flag).

  Args:
    graph: the graph.
    feed: name of a fed tensor.

  Returns:
    True if the batch of the feed is free.
  """
  source = graph.origin
  if not source.feed_shapes[feed]:
    return False
  assert source.positions is not None
  position = source.positions[graph.op_index[feed.rpartition(":")[0]]]
  declared = declared_shape(source.graph_def.node[position])
  return declared is None or bool(declared) and declared[0] == -1


def unknown_batch(graph: ComputationGraph) -> bool:
  """Returns whether all feeds with examples have a free batch.

  If one feed has a free batch, a feed of known shape is equal for all replicas (a learning rate).
  """
  source = graph.source
  if source is None or source.graph_def is None or not source.feed_shapes:
    return False
  captures = captured_ops(source)
  feeds = [name for name, shape in source.feed_shapes.items()
           if shape and name.rpartition(":")[0] not in captures]
  free = [name for name in feeds if has_free_batch(graph, name)]
  # A feed of a known shape counts as examples if its first size is a batch.
  sizes = {source.feed_shapes[name][0] for name in free}
  return bool(free) and all(
      name in free or source.feed_shapes[name][0] not in sizes for name in feeds)


def at_batch(graph: ComputationGraph, resize: Callable[[int, str], int]) -> ComputationGraph:
  """Returns the graph with another batch size; its batch must be free.

  Args:
    graph: at any batch.
    resize: (examples, feed) -> examples at the other batch.

  Returns:
    The graph, of the same source.
  """
  return reloaded(graph, shapes={
      name: (resize(shape[0], name), *shape[1:])
      for name, shape in graph.origin.feed_shapes.items() if has_free_batch(graph, name)})


def reloaded(
    graph: ComputationGraph, proto: Optional[Message] = None,
    shapes: Optional[Mapping[str, Tuple[int, ...]]] = None, live: bool = False, **captured: Any,
) -> ComputationGraph:
  """Loads a graph again, with other nodes or feeds of other shapes.

  Args:
    graph: the graph.
    proto: GraphDef or MetaGraphDef that replaces the source's.
    shapes: feed -> new dimensions, for feeds whose dimensions change.
    live: whether to load the graph as a `tf.Graph`, from a MetaGraphDef.
    **captured: captures and copies of a function, see `rebuilt_function`.

  Returns:
    The graph with the same fetches and feeds.
  """
  source = graph.origin
  bound = {name.rpartition(":")[0]: tuple(shape)
           for name, shape in {**source.feed_shapes, **(shapes or {})}.items()}
  if source.format == "concrete_function":
    function = source.tf_graph if proto is None else (
        rebuilt_function(source.tf_graph, proto, resized=True, **captured))
    return load_graph(function, feed_shapes=bound)
  found: Any = proto
  if proto is None:
    found = source.tf_graph if source.format == "tf_graph" else source.proto
  # The batch of iterators that state none, as it was given or assumed before.
  batch = next((dims[0] for each in source.iterator_shapes.values() for dims in each if dims), None)
  return load_graph(
      live_graph(found) if live else found, fetches=graph.fetches, feeds=graph.feeds,
      feed_shapes=bound, batch_size=batch)


def check_shapes(graph_def: GraphDef) -> None:
  """Raises ValueError where TensorFlow rejects shapes; the shape analysis accepts some of these."""
  with tf.Graph().as_default():
    tf.graph_util.import_graph_def(graph_def, name="")


def frozen(graph: ComputationGraph) -> ComputationGraph:
  """Returns a live graph as a MetaGraphDef with inlined function calls; other graphs unchanged."""
  if graph.origin.format != "tf_graph":
    return graph
  with graph.origin.tf_graph.as_default():
    meta_graph = tf.compat.v1.train.export_meta_graph()
  # An optimizer that is applied in a branch adds an op of the branch's own graph to TRAIN_OP.
  there = {node.name for node in meta_graph.graph_def.node}
  for collection in meta_graph.collection_def.values():
    names = collection.node_list.value
    kept = [name for name in names if re.sub(r":\d+$", "", name) in there]
    if len(kept) < len(names):
      names[:] = kept
  return reloaded(graph, meta_graph)


def live_graph(meta_graph: MetaGraphDef) -> tf.Graph:
  """Returns a `tf.Graph` of a MetaGraphDef, with its collections."""
  graph = tf.Graph()
  with graph.as_default():
    tf.compat.v1.train.import_meta_graph(meta_graph)
  return graph
