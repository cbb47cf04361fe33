"""Reads SavedModel directories: the graph of one tag set and one signature.

Only the proto is read. Initializers are not run, variables are not loaded, and no code in the
directory is executed.
"""

from __future__ import annotations

import os
from typing import Mapping, Optional, Sequence, Tuple

from placeto_tf.errors import GraphError, option
from placeto_tf.graphs import fetches as fetches_lib
from placeto_tf.graphs import files
from placeto_tf.graphs.computation_graph import GraphSource
from placeto_tf.graphs.graph_defs import ReadGraph
from placeto_tf.on_use import MetaGraphDef, SavedModel, TensorInfo

FILES = (("saved_model.pb", False), ("saved_model.pbtxt", True))
DEFAULT_TAGS = ("serve",)
DEFAULT_SIGNATURE = "serving_default"
_INIT_SIGNATURE = "__saved_model_init_op"


def is_saved_model(path: str) -> bool:
  """Returns whether the path is a directory with a SavedModel in it."""
  return os.path.isdir(path) and any(os.path.exists(os.path.join(path, f)) for f, _ in FILES)


def read_saved_model(
    path: str, signature: Optional[str] = None,
    tags: Optional[Sequence[str]] = None,
) -> ReadGraph:
  """Reads the graph, fetches and feeds of a signature.

  Args:
    path: the directory.
    signature: key of the signature; by default "serving_default", or the only signature.
    tags: tags of the MetaGraph; by default "serve", or the tags of the only MetaGraph.

  Returns:
    The graph, with the tensors that the signature returns and takes as fetches and feeds.

  Raises:
    GraphError: there is no SavedModel, it is damaged, or it lacks the tags or the signature.
  """
  name, text = next(found for found in FILES if os.path.exists(os.path.join(path, found[0])))
  file = os.path.join(path, name)
  proto = files.parse(files.read_bytes(file), "saved_model", text, file)
  meta_graph = _choose_meta_graph(proto, tags, path)
  key, fetches, feeds = _choose_signature(meta_graph, signature, path)
  source = GraphSource(
      "saved_model", proto, path, text, graph_def=meta_graph.graph_def, meta_graph=meta_graph)
  others = sorted(set(meta_graph.signature_def) - {key, _INIT_SIGNATURE})
  notes: Tuple[str, ...] = ()
  if others:  # the user may want another one
    notes = (
        f"only the signature {key!r} is placed; further ops of {', '.join(map(repr, others))} "
        "share the devices of the variables that they use, or run on the host",)
  elif signature is None and key != DEFAULT_SIGNATURE:
    notes = (f"the signature {key!r} is placed",)
  return ReadGraph(
      source, fetches_lib.collected_train_ops(meta_graph), notes=notes, fetches=fetches,
      feeds=feeds)


def _choose_meta_graph(proto: SavedModel, tags: Optional[Sequence[str]], path: str) -> MetaGraphDef:
  found = [tuple(meta_graph.meta_info_def.tags) for meta_graph in proto.meta_graphs]
  wanted = set((tags,) if isinstance(tags, str) else tags or DEFAULT_TAGS)
  # The tags must match exactly. Without tags, take the only graph.
  for meta_graph, its_tags in zip(proto.meta_graphs, found):
    if set(its_tags) == wanted:
      return meta_graph
  if tags is None and len(found) == 1:
    return proto.meta_graphs[0]
  raise GraphError(
      f"the SavedModel {path!r} has no graph with the tags {','.join(sorted(wanted))}; pass "
      f"{option('tags')} with one of "
      f"{' | '.join(','.join(its_tags) for its_tags in found) or '(none)'}")


def _choose_signature(meta_graph: MetaGraphDef, signature: Optional[str], path: str):
  signatures = meta_graph.signature_def
  keys = sorted(key for key in signatures if key != _INIT_SIGNATURE)
  key = signature
  # In order: the given signature, the default one, the only one.
  if key is None and DEFAULT_SIGNATURE in keys:
    key = DEFAULT_SIGNATURE
  elif key is None and len(keys) == 1:
    key = keys[0]
  if key is None or key not in signatures:
    found = f"no signature {key!r}" if key else f"{len(keys)} signatures and none is the default"
    raise GraphError(
        f"the SavedModel {path!r} has {found}; pass {option('signature')} with one of "
        f"{', '.join(keys) or '(it has none: save it with signatures)'}")
  chosen = signatures[key]
  fetches = _tensor_names(chosen.outputs)
  feeds = _tensor_names(chosen.inputs)
  if not fetches:
    raise GraphError(
        f"signature {key!r} of the SavedModel {path!r} has no outputs; name the ops to run with "
        f"{option('fetches')} or choose another signature")
  return key, fetches, feeds


def _tensor_names(infos: Mapping[str, TensorInfo]) -> Tuple[str, ...]:
  """Returns the names of a signature's tensors, composite tensors by their parts, sorted by key."""
  names = []
  # Sort by key, so that the order does not depend on the file.
  for _, info in sorted(infos.items()):
    encoding = info.WhichOneof("encoding")
    if encoding == "name":
      names.append(info.name)
    elif encoding == "coo_sparse":
      sparse = info.coo_sparse
      names += [
          sparse.values_tensor_name, sparse.indices_tensor_name, sparse.dense_shape_tensor_name]
    elif encoding == "composite_tensor":
      names += [part.name for part in info.composite_tensor.components if part.name]
  return tuple(dict.fromkeys(name for name in names if name))
