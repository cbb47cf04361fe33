"""`PlacingResult.apply`: applies a result to a graph of any type and returns the same type.

The graph of several replicas differs from the graph that was given to `place()`. So the target is
first compared with the given graph, and then replaced by the graph of the replicas.
"""

from __future__ import annotations

import os
from typing import Any, Optional

import numpy as np

from placeto_tf.errors import PlacementError
from placeto_tf.graphs import (
  concrete_functions,
  files,
  keras_files,
  keras_models,
  saved_model_reading,
)
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.graphs.functions import inline_functions
from placeto_tf.graphs.loading import load_graph
from placeto_tf.graphs.rebuilt_functions import rebuilt_function
from placeto_tf.on_use import tf
from placeto_tf.placements import Placement, place_function
from placeto_tf.placements.writing import write_placed
from placeto_tf.replication.batches import is_spec, split_spec
from placeto_tf.replication.reloading import frozen, live_graph, reloaded
from placeto_tf.replication.replicated_graph import ReplicatedGraph
from placeto_tf.replication.replicating import replicated_meta_graph


def apply_result(result: Any, target: Any, out_dir: Optional[str], **options: Any) -> Any:
  """Returns the placed target, with the replicas of the result; see `PlacingResult.apply`.

  Args:
    result: a `PlacingResult`.
    target: the graph that was given to `place()`, as any type that `place()` takes.
    out_dir: for a path, the directory to write the placed graph to.
    **options: options of `Placement.apply`, for protos and live graphs.

  Returns:
    The placed graph as the type of the target, or the path that was written.

  Raises:
    PlacementError: the target is not the graph that was placed, `out_dir` is missing, or the target
      takes no `out_dir`.
  """
  if isinstance(target, (str, os.PathLike)):
    return _apply_to_path(result, os.fspath(target), out_dir, **options)
  if out_dir is not None:
    raise PlacementError(
        f"out_dir is for paths, and a {type(target).__name__} was given; leave it out, or write "
        "the result with write_placed(result.graph, result.placement, out_dir)")
  # Models become functions; functions, protos and live graphs are placed.
  if keras_models.is_keras_model(target):
    placed = result.graph.origin.tf_graph
    # The function that was placed, if it is this model's.
    target = placed if getattr(placed, "_placeto_model", None) is target else (
        keras_models.inference_function(target))
  is_live = concrete_functions.is_concrete_function(target) or (
      concrete_functions.is_function(target))
  target = concrete_functions.concrete_of(target) if is_live else target
  replicated = result.replicated
  if replicated is None and not is_live:
    return result.placement.apply(target, **options)
  if not _is_graph(target, result.graph if replicated is None else result.replication.whole):
    raise PlacementError(
        f"the {type(target).__name__} is not the graph that was placed; give that graph, or "
        "place this one")
  if replicated is None:
    return place_function(result.placement, target)
  if is_live:
    if replicated.slices or replicated.mirrored:
      raise PlacementError(
          "slices and copies of a function's variables are kept by the training of a model, "
          "compile_placed; train so, or place with slices=1 and mirrored_variables=False")
    # The function with the ops of its replicas, which takes the whole batch.
    return place_function(result.placement, rebuilt_function(
        target, replicated.written.graph_def, resized=True))
  if files.format_of(target) == "graph_def":
    return result.placement.apply(replicated.graph.origin.graph_def, **options)
  if files.format_of(target) == "meta_graph_def":
    return _placed_meta_graph(result, replicated, target)
  # Place a live graph's MetaGraphDef, which keeps the collections.
  with target.as_default():
    meta_graph = tf.compat.v1.train.export_meta_graph()
  return live_graph(_placed_meta_graph(result, replicated, meta_graph))  # it cannot be rewritten


def _placed_meta_graph(result: Any, replicated: ReplicatedGraph, original: Any) -> Any:
  """Returns the placed MetaGraphDef of the replicas, with the collections of the original.

  The MetaGraphDef has ops that the GraphDef of the replicas lacks: the ops that copy variables at
  the start. These ops are placed like all other ops that a step does not need.
  """
  if replicated.slices:  # with collections that name the slices
    original = frozen(replicated.original).origin.proto
  meta_graph = original if replicated.written is None else replicated_meta_graph(
      original, replicated.written)
  graph = reloaded(replicated.graph, meta_graph)
  # [N of the MetaGraph's ops]; the placement may have savers that a live graph does not export.
  names = result.cluster.device_names
  indices = np.array([names.index(result.placement[op]) for op in graph.op_names], np.int32)
  return Placement.from_indices(graph, result.cluster, indices).apply(meta_graph)


def _apply_to_path(result: Any, path: str, out_dir: Optional[str], **options: Any) -> Any:
  """Returns the placed content of a file, or the path that was written in `out_dir`."""
  if keras_files.is_keras_file(path) and out_dir is None:
    placed = getattr(result.graph.origin.tf_graph, "_placeto_model", None)
    return apply_result(result, keras_files.load_model(path) if placed is None else placed, None,
                        **options)
  whole = result.graph if result.replicated is None else result.replication.whole
  if out_dir is not None:
    placed_path = whole.origin.path
    # Compare resolved paths, because symbolic links may name the same file.
    if placed_path is not None and os.path.realpath(placed_path) != os.path.realpath(path):
      raise PlacementError(
          f"{path!r} is not the file that was placed, {placed_path!r}; give that one, or place "
          "this one")
    os.makedirs(out_dir, exist_ok=True)
    return write_placed(result.graph, result.placement, out_dir)
  if saved_model_reading.is_saved_model(path):
    raise PlacementError(
        f"{path!r} is a SavedModel, which is written as a directory; say where with out_dir=...")
  if is_spec(path):
    # Load the spec without its number of replicas, because the result has the replicas.
    proto = load_graph(split_spec(path)[0]).origin.proto
  else:
    own = whole.origin.format  # also of live graphs, which no file has
    _, proto, _ = files.read_file(path, own if own in files.FORMATS else None)
  return apply_result(result, proto, None, **options)


def _graph_def(target: Any) -> Any:
  """Returns the GraphDef of a proto, live graph or function; None for any other type."""
  if concrete_functions.is_concrete_function(target):
    return concrete_functions.read_concrete_function(target).source.graph_def
  if hasattr(target, "as_graph_def"):
    return target.as_graph_def()
  format = files.format_of(target)
  return target.graph_def if format == "meta_graph_def" else target if (
      format == "graph_def") else None


def _is_graph(target: Any, graph: ComputationGraph) -> bool:
  """Returns whether a target has all ops of a graph, with inlined calls, and no others."""
  found, wanted = (
      None if each is None else {node.name: node.op for node in inline_functions(each)[0].node}
      for each in (_graph_def(target), graph.origin.graph_def))
  return found == wanted
