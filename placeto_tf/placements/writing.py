"""Writes a placed graph in the format of its source."""

from __future__ import annotations

import os

from placeto_tf.errors import PlacementError
from placeto_tf.files import outputs
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.graphs.exported_protos import rewritten_proto
from placeto_tf.placements import placed_saved_models
from placeto_tf.placements.placement import Placement

# Format -> name of the file, binary and text.
_NAMES = {
    "tf_graph": ("graph.pb", "graph.pbtxt"),
    "graph_def": ("graph.pb", "graph.pbtxt"),
    "meta_graph_def": ("graph.meta", "graph.meta.pbtxt"),
    "cost_graph_def": ("graph.cost_graph.pb", "graph.cost_graph.pbtxt"),
    "concrete_function": ("graph.pb", "graph.pbtxt"),
    "saved_model": (placed_saved_models.NAME, placed_saved_models.NAME),
}


PLACED_NAMES = tuple(sorted({name for names in _NAMES.values() for name in names}))


def placed_name(graph: ComputationGraph) -> str:
  """Returns the name of the file or directory that `write_placed` writes for a graph.

  Raises:
    PlacementError: the graph came from no file or proto.
  """
  if graph.source is None or graph.source.format not in _NAMES:
    found = "arrays alone" if graph.source is None else f"format {graph.source.format!r}"
    raise PlacementError(
        f"the graph was made from {found}; expected one of {', '.join(_NAMES)}: only graphs that "
        "were read can be written again")
  return _NAMES[graph.source.format][1 if graph.source.text else 0]


def check_writable(graph: ComputationGraph, out_dir: str) -> None:
  """Checks that `write_placed` could copy the graph's files to a directory.

  Args:
    graph: as `load_graph` returned it.
    out_dir: the directory.

  Raises:
    PlacetoError: the files cannot be copied; only a SavedModel has files to copy.
  """
  if placed_name(graph) == placed_saved_models.NAME:
    placed_saved_models.check_copyable(graph, out_dir)


def write_placed(graph: ComputationGraph, placement: Placement, out_dir: str) -> str:
  """Writes the graph's file with the device of every op set.

  The written graph has the inlined function calls. For a ConcreteFunction the GraphDef is written;
  to get a function that can be called, apply the placement to the function.

  Args:
    graph: the result of `load_graph`; its file need not exist any more.
    placement: of all ops of the file.
    out_dir: a directory that exists.

  Returns:
    The path: `graph.pb`, `graph.meta`, `graph.cost_graph.pb` or the directory `saved_model`; text
    formats if the input was text.

  Raises:
    PlacementError: the graph came from no file or proto, an op has no device, or the file cannot
      be written.
  """
  name = placed_name(graph)
  if name == placed_saved_models.NAME:
    return placed_saved_models.write(graph, placement, out_dir)
  path = os.path.join(out_dir, name)
  outputs.write(path, placed_saved_models.serialized(
      placement.apply(rewritten_proto(graph)), text=graph.origin.text))
  return path
