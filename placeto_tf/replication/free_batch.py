"""Tells whether a graph leaves its batch open: an unknown first dimension of its feeds."""

from __future__ import annotations

from typing import Any

from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.graphs.shapes import declared_shape
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
  if not graph.origin.feed_shapes[feed]:
    return False
  declared = declared_shape(_node(graph, feed.rpartition(":")[0]))
  return declared is None or bool(declared) and declared[0] == -1


def unknown_batch(graph: ComputationGraph) -> bool:
  """Returns whether all feeds with examples have a free batch.

  A feed of known shape beside one with a free batch is the same for all replicas (a learning rate).
  """
  source = graph.source
  if source is None or source.graph_def is None or not source.feed_shapes:
    return False
  captures = captured_ops(source)
  feeds = [name for name, shape in source.feed_shapes.items()
           if name.rpartition(":")[0] not in captures]
  free = [name for name in feeds if has_free_batch(graph, name)]
  if not free:
    return False
  # A feed of a known shape counts as examples if its first size is a batch.
  sizes = {source.feed_shapes[name][0] for name in free}
  return all(name in free or not source.feed_shapes[name]
             or source.feed_shapes[name][0] not in sizes for name in feeds)


def _node(graph: ComputationGraph, name: str) -> Any:
  source = graph.origin
  assert source.positions is not None
  return source.graph_def.node[source.positions[graph.op_index[name]]]
