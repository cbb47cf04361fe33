"""Fetches and feeds: given names, the train op, or the ends of the graph.

Legend: M nodes of the file.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from typing import Any, FrozenSet, Iterable, Optional, Sequence, Set, Tuple

import numpy as np

from placeto_tf.errors import GraphError, listed
from placeto_tf.graphs import tensor_names, traversal
from placeto_tf.graphs.node_table import NodeTable

TRAIN_OP = "train_op"
# Collections of ops that prepare or watch the step, none of which is its purpose.
_SIDE_COLLECTIONS = (
    "init_op", "local_init_op", "ready_op", "ready_for_local_init_op", "legacy_init_op",
    "saved_model_main_op", "saved_model_init_op", "table_initializer", "summary_op", "summaries",
    "saved_model_assets",
)
# They ask whether a variable is initialized, for sessions that wait for it.
_PROBES = ("VarIsInitializedOp", "IsVariableInitialized")
_TRAIN_NAME = re.compile(r"(?i)train(_?(op|step))?(_\d+)?\Z")
# How the types of ops that apply gradients begin.
_UPDATES = ("Apply", "ResourceApply", "SparseApply", "ResourceSparseApply")
_MAX_COMPARED = 50_000  # names, with one that is not there
_MAX_ENDS = 100  # of a graph that may be its train op
_VARIABLE_COLLECTIONS = ("variables", "trainable_variables", "local_variables", "model_variables")


@dataclasses.dataclass(frozen=True)
class Endpoint:
  """A fetch or feed: an op, or one of its outputs.

  Attributes:
    name: as given.
    node: index into [M].
    port: output, or None for the op itself.
  """

  name: str
  node: int
  port: Optional[int]


@dataclasses.dataclass(frozen=True)
class Roles:
  """The roles of ops that a MetaGraph or live graph states.

  Attributes:
    train_ops: names in the collection train_op.
    side_ops: names of initialisers, savers and summaries.
  """

  train_ops: Tuple[str, ...] = ()
  side_ops: FrozenSet[str] = frozenset()


def meta_graph_roles(meta_graph: Any) -> Roles:
  """Roles that a MetaGraphDef states in its collections and SaverDef."""
  from google.protobuf import message
  from tensorflow.core.framework import variable_pb2

  collections = meta_graph.collection_def
  train_ops = tuple(collections[TRAIN_OP].node_list.value) if TRAIN_OP in collections else ()
  side = set()
  for key in _SIDE_COLLECTIONS:
    if key in collections:
      side.update(collections[key].node_list.value)
  for key in _VARIABLE_COLLECTIONS:
    if key not in collections:
      continue
    for serialized in collections[key].bytes_list.value:
      try:
        variable = variable_pb2.VariableDef.FromString(serialized)
      except message.DecodeError:
        continue  # a collection of the user's own that happens to have this name
      side.update((variable.initializer_name, variable.snapshot_name))
  saver = meta_graph.saver_def
  side.update((saver.filename_tensor_name, saver.save_tensor_name, saver.restore_op_name))
  return Roles(train_ops, frozenset(tensor_names.op_of(name) for name in side if name))


def live_graph_roles(tf_graph: Any) -> Roles:
  """Roles that the collections of a `tf.Graph` state."""
  train_ops = tuple(
      item if isinstance(item, str) else item.name for item in tf_graph.get_collection(TRAIN_OP)
      if isinstance(item, str) or hasattr(item, "name"))
  side: Set[Any] = set()
  for key in _SIDE_COLLECTIONS:
    side.update(getattr(item, "name", item) for item in tf_graph.get_collection(key))
  for key in _VARIABLE_COLLECTIONS:
    for variable in tf_graph.get_collection(key):
      for attribute in ("initializer", "_snapshot", "_graph_element"):
        side.add(getattr(getattr(variable, attribute, None), "name", None))
  return Roles(train_ops, frozenset(
      tensor_names.op_of(name) for name in side if isinstance(name, str)))


def given_names(values: Any, what: str) -> Optional[Tuple[str, ...]]:
  """Names of ops and tensors, from strings or from TensorFlow's own objects.

  Raises:
    GraphError: something that has no name.
  """
  if values is None:
    return None
  if isinstance(values, str) or not isinstance(values, Iterable) or hasattr(values, "name"):
    values = (values,)
  names = []
  for value in values:
    name = value if isinstance(value, str) else getattr(value, "name", None)
    if not isinstance(name, str) or not name:
      raise GraphError(
          f"{value!r} cannot be one of the {what}; expected the name of an op or tensor")
    names.append(name)
  return tuple(names)


def find_endpoint(table: NodeTable, name: str, what: str) -> Endpoint:
  """The op ("a/b") or tensor ("a/b:0") of that name.

  Raises:
    GraphError: it does not exist.
  """
  op_name, port = tensor_names.parse(name)
  whole = op_name == name  # the op itself, and none of its outputs
  node = table.index.get(op_name)
  if node is None:
    remedy = ("an op or tensor as one of fetches (--fetches)" if what == "fetch"
              else "a tensor as one of feeds (--feeds)")
    raise GraphError(
        f"{what} {name!r} names no op of the graph{_similar(op_name, table.names)}; pass the name "
        f"of {remedy}")
  if not whole and port >= table.num_outputs[node]:
    raise GraphError(
        f"{what} {name!r} asks for output {port} of an op ({table.types[node]}) that "
        f"has {int(table.num_outputs[node])}")
  return Endpoint(name, node, None if whole else port)


def choose_fetches(
    table: NodeTable, given: Optional[Sequence[str]], roles: Roles
) -> Tuple[Tuple[Endpoint, ...], Tuple[str, ...]]:
  """The fetches and notes: those given, else the train op, else ops without a consumer.

  Where no collection names the train op, it is the one end of the graph that waits for all ops
  that apply gradients.

  Raises:
    GraphError: a fetch does not exist, or the graph has no ends.
  """
  if given is not None and not given:
    raise GraphError("the list of fetches is empty; name at least one op or tensor")
  names = given if given is not None else roles.train_ops
  if names:
    return tuple(find_endpoint(table, name, "fetch") for name in dict.fromkeys(names)), ()
  train_op = _train_op(table)
  if train_op is not None:
    name, updates = table.names[train_op], _count(table, train_op)
    return (Endpoint(name, train_op, None),), (
        f"no fetches were given; taken as the step is {name!r}, which applies gradients to "
        f"{updates} variable{'s' if updates > 1 else ''}",)
  consumed = np.zeros(table.num_nodes, dtype=bool)
  consumed[table.producers] = True
  ends = np.flatnonzero(~consumed).tolist()
  wanted = [i for i in ends if not _is_side(table, i, roles.side_ops)] or ends
  if not wanted:
    raise GraphError(
        "every op of the graph has a consumer, so nothing can be told to be its result; name "
        "what is run with fetches=[...] (--fetches)")
  fetches = []
  for i in wanted:
    width = int(table.num_outputs[i])
    if width:
      fetches += [Endpoint(f"{table.names[i]}:{port}", i, port) for port in range(width)]
    else:
      fetches.append(Endpoint(table.names[i], i, None))
  shown = listed([repr(table.names[i]) for i in wanted])
  return tuple(fetches), (
      f"no fetches were given; taken are the ops that nobody consumes: {shown}",)


def _train_op(table: NodeTable) -> Optional[int]:
  """The end that waits for all ops that apply gradients; of several, the one with such a name.

  None if no op applies gradients.

  Raises:
    GraphError: several ends may be the train op. A step with initialisers and savers among the
      fetches would be one that nobody runs.
  """
  updates = _updates(table)
  if not len(updates):
    return None
  consumed = np.zeros(table.num_nodes, dtype=bool)
  consumed[table.producers] = True
  after = traversal.ancestors(  # of the edges turned round
      table.num_nodes, table.consumers, table.producers, updates.tolist())
  ends = np.flatnonzero(after & ~consumed).tolist()
  whole = [end for end in ends[:_MAX_ENDS] if _count(table, end) == len(updates)]
  if len(whole) > 1:
    called_so = [i for i in whole if _TRAIN_NAME.match(table.names[i].rpartition("/")[2])]
    whole = called_so or whole
  if len(whole) == 1:
    return whole[0]
  shown = ", ".join(repr(table.names[end]) for end in (whole or ends)[:5])
  found = "several ops wait" if whole else "no single op waits"
  raise GraphError(
      f"{found} for all that applies gradients, which ends in {shown}; name what a step runs with "
      "fetches=[...] (--fetches)")


def _updates(table: NodeTable) -> np.ndarray:
  """Indices of the ops that apply gradients to variables."""
  return np.flatnonzero([kind.startswith(_UPDATES) for kind in table.types])


def _count(table: NodeTable, end: int) -> int:
  """The number of ops that apply gradients among an op and those it waits for."""
  needed = traversal.ancestors(table.num_nodes, table.producers, table.consumers, [end])
  return int(needed[_updates(table)].sum())


def _is_side(table: NodeTable, node: int, side_ops: FrozenSet[str]) -> bool:
  """Whether an end of the graph is an initialiser, a saver or a group of these only."""
  if table.names[node] in side_ops or table.types[node] in _PROBES:
    return True
  if table.types[node] != "NoOp" or not table.nodes[node].input or not side_ops:
    return False
  return all(text.lstrip("^") in side_ops for text in table.nodes[node].input)


def _similar(name: str, names: Sequence[str]) -> str:
  """A hint at a name that ends the same, or is written almost the same, or ""."""
  last = name.rpartition("/")[2]
  found = next((other for other in names if other.rpartition("/")[2] == last), None)
  if found is None and len(names) <= _MAX_COMPARED:
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.8)
    found = close[0] if close else None
  return f" (there is {found!r})" if found else ""
