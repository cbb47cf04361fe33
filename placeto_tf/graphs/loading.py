"""`load_graph`: turns a TensorFlow graph of any format into a `ComputationGraph`.

To add a format, write a reader (a function from the source to a `ReadGraph`), and call it in
`_read`. `graph_defs` then prunes and analyses graphs of all formats in the same way.
"""

from __future__ import annotations

import inspect
import os
from typing import Any, Mapping, Optional, Sequence

from placeto_tf.errors import GraphError
from placeto_tf.graphs import (
  concrete_functions,
  cost_graphs,
  files,
  keras_files,
  keras_models,
  saved_model_reading,
  shapes,
)
from placeto_tf.graphs import fetches as fetches_lib
from placeto_tf.graphs.computation_graph import ComputationGraph, GraphSource
from placeto_tf.graphs.graph_defs import ReadGraph, from_graph_def

ZOO_PREFIX = "zoo:"
FAMILY_PREFIX = "family:"


def load_graph(
    source: Any,
    *,
    fetches: Optional[Sequence[str]] = None,
    feeds: Optional[Sequence[str]] = None,
    format: Optional[str] = None,
    batch_size: Optional[int] = None,
    feed_shapes: Optional[Mapping[str, Sequence[int]]] = None,
    trip_count: Optional[int] = None,
    split_loops: bool = False,
    signature: Optional[str] = None,
    tags: Optional[Sequence[str]] = None,
    trusted: bool = False,
) -> ComputationGraph:
  """Reads a graph and keeps the ops that the fetches need.

  No part of the graph is run, and every part is checked before it is passed to TensorFlow's C++.

  Args:
    source: "zoo:NAME[:key=value...]", "family:NAME[index]", the path of a graph file (.pb or .pbtxt
      GraphDef, .meta or .meta.pbtxt MetaGraphDef, .cost_graph.pb or .cost_graph.pbtxt
      CostGraphDef), of a SavedModel directory or of a Keras model (.keras, .h5), a `tf.Graph`,
      GraphDef, MetaGraphDef, CostGraphDef, ConcreteFunction, `tf.function` with one trace or an
      input signature, or Keras model (its inference; for its training see `compile_placed`).
    fetches: names of the ops or tensors to run; by default the outputs of the signature or
      function, or the collection train_op, else the ops without consumers, except ops that
      initialize, save, read or watch variables.
    feeds: names of tensors that are fed; ops needed only to compute them are left out. Needed
      placeholders are always fed.
    format: "graph_def", "meta_graph_def" or "cost_graph_def", for a file whose suffix does not
      show its format; or "saved_model". A directory is always a SavedModel.
    batch_size: for unknown first dimensions of feeds.
    feed_shapes: op or tensor name -> dimensions of the feed.
    trip_count: the number of iterations of every loop; by default inferred where the bound is known
      before the run (a constant, or from the shapes of feeds), else 10.
    split_loops: whether the ops of a loop may be on several devices. Each iteration then sends
      tensors between these devices, and one signal to each device besides the first. By default
      all ops of a loop are on one device.
    signature: signature of a SavedModel; by default "serving_default" or the only one.
    tags: tags of a SavedModel's graph; by default "serve" or the tags of the only graph.
    trusted: whether code in a Keras file (Lambda layers) may be run to load it.

  Returns:
    The graph; its `notes` list assumptions.

  Raises:
    GraphError: the source cannot be read, is damaged or inconsistent, or has another format. Or a
      given name or shape is wrong, or a needed one is missing.
  """
  if trip_count is not None and not (isinstance(trip_count, int) and trip_count >= 0):
    raise GraphError(f"trip count {trip_count!r} is not a whole number; try 10")
  # Names may be TensorFlow's own objects.
  fetches = fetches_lib.given_names(fetches, "fetches")
  feeds = fetches_lib.given_names(feeds, "feeds")
  if isinstance(source, (str, os.PathLike)) and keras_files.is_keras_file(source):
    if format is not None:
      raise GraphError(f"{os.fspath(source)!r} is a Keras model by its name; leave format out")
    source = keras_files.load_model(source, trusted)
  read = _read(source, format, signature, tags)
  if read.source.format == "cost_graph_def":
    return cost_graphs.from_cost_graph(read.source, fetches)
  return from_graph_def(
      read, fetches=fetches, feeds=feeds, batch_size=batch_size, feed_shapes=feed_shapes,
      trip_count=trip_count, split_loops=split_loops)


# Arguments of load_graph besides the source.
LOAD_OPTIONS = tuple(
    name for name, parameter in inspect.signature(load_graph).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY)


def _read(
    source: Any, format: Optional[str], signature: Optional[str],
    tags: Optional[Sequence[str]],
) -> ReadGraph:
  is_path = isinstance(source, (str, os.PathLike))
  if is_path and saved_model_reading.is_saved_model(os.fspath(source)):
    if format not in (None, "saved_model"):
      raise GraphError(
          f"{os.fspath(source)!r} is a SavedModel, but was handed over as {format!r}; leave format "
          "out")
    return saved_model_reading.read_saved_model(os.fspath(source), signature, tags)
  if format == "saved_model":
    raise GraphError(
        f"{os.fspath(source) if is_path else type(source).__name__!r} is no directory with a "
        "SavedModel in it; give the directory that holds saved_model.pb")
  # A text with a colon, such as zoo:NAME, is no path.
  is_missing = is_path and not os.path.exists(source) and ":" not in os.fspath(source)
  if (signature is not None or tags is not None) and not is_missing:
    raise GraphError("only a SavedModel directory has a signature and tags; leave them out")
  if keras_models.is_keras_model(source):
    return concrete_functions.read_keras_model(source)
  if concrete_functions.is_concrete_function(source) or concrete_functions.is_function(source):
    return concrete_functions.read_concrete_function(concrete_functions.concrete_of(source))
  return _read_graph(source, format)


def _read_graph(source: Any, format: Optional[str]) -> ReadGraph:
  if isinstance(source, str) and source.startswith((ZOO_PREFIX, FAMILY_PREFIX)):
    from placeto_tf.zoo import build

    model = build(source[len(ZOO_PREFIX):] if source.startswith(ZOO_PREFIX) else source)
    return _from_proto(model.meta_graph_def(), "meta_graph_def")
  if isinstance(source, (str, os.PathLike)):
    path = os.fspath(source)
    if isinstance(path, str) and os.path.isdir(path):
      raise GraphError(
          f"{path!r} is a directory without saved_model.pb; expected a SavedModel or a graph file")
    format, proto, text = files.read_file(path, format)
    return _from_proto(proto, format, path, text)
  found = files.format_of(source)
  if found is not None:
    if format not in (None, found):
      raise GraphError(f"a {files.TITLES[found]} was handed over as {format!r}; leave format out")
    return _from_proto(source, found)
  if hasattr(source, "as_graph_def") and hasattr(source, "get_collection"):
    return _read_tf_graph(source)
  raise GraphError(
      f"cannot read a graph from {type(source).__name__}; expected a path, 'zoo:NAME', tf.Graph, "
      "GraphDef, MetaGraphDef, CostGraphDef, ConcreteFunction or Keras model")


def _from_proto(
    proto: Any, format: str, path: Optional[str] = None, text: bool = False) -> ReadGraph:
  if format == "meta_graph_def":
    return ReadGraph(
        GraphSource(format, proto, path, text, graph_def=proto.graph_def),
        fetches_lib.collected_train_ops(proto))
  graph_def = proto if format == "graph_def" else None
  return ReadGraph(GraphSource(format, proto, path, text, graph_def=graph_def))


def _read_tf_graph(tf_graph: Any) -> ReadGraph:
  def shape_hint(name):
    try:
      return shapes.dimensions(tf_graph.get_tensor_by_name(name).shape.as_proto())
    except KeyError:  # an op of a function
      return None

  graph_def = tf_graph.as_graph_def()
  return ReadGraph(
      GraphSource("tf_graph", graph_def, tf_graph=tf_graph, graph_def=graph_def),
      fetches_lib.live_train_ops(tf_graph), shape_hint, together=True)
