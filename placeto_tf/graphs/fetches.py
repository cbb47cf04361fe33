"""Finds the fetches and feeds: given names, the train op, or the ends of the graph.

Dimensions: M nodes of the file.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from typing import Any, Iterable, List, Optional, Sequence, Tuple

import numpy as np

from placeto_tf.errors import GraphError, listed, option
from placeto_tf.graphs import shapes, tensor_names, traversal
from placeto_tf.graphs.node_table import NodeTable
from placeto_tf.ops import FILLS, VARIABLES

TRAIN_OP = "train_op"
_TRAIN_NAME = re.compile(r"(?i)train(_?(op|step))?(_\d+)?\Z")
# First parts of the types of ops that apply gradients.
_UPDATES = ("Apply", "ResourceApply", "SparseApply", "ResourceSparseApply")
_MAX_COMPARED = 50_000  # names to compare with an unknown name
_MAX_ENDS = 100  # ends of a graph that are checked for the train op

# First parts of the types of ops that prepare a step or save its variables.
_PREPARING = (
    "Save", "Restore", "MergeV2Checkpoints", "IteratorToStringHandle", "MultiDeviceIteratorInit",
    "QueueEnqueue", "QueueClose", *FILLS)
_SUMMARY = re.compile(r"(Scalar|Histogram|Image|Audio|Tensor|Merge)Summary(V2)?\Z")
# Ops that test whether a variable is initialized, for sessions that wait for initialization.
_PROBES = ("VarIsInitializedOp", "IsVariableInitialized")
_ASSIGNMENTS = ("Assign", "AssignVariableOp")
_VARIABLES = (*VARIABLES, "TemporaryVariable")
_HANDING_ON = ("Identity", "ReadVariableOp")
# Ops that only wait for others or pass a value on.
_GLUE = ("NoOp", "Identity", shapes.WITH_DEFAULT)
# First parts of the types of ops whose values differ from step to step.
_DATA = ("Placeholder", "IteratorGetNext", "QueueDequeue", "Reader", "Unstage")


@dataclasses.dataclass(frozen=True)
class Endpoint:
  """A fetch or feed: an op, or one of its outputs.

  Attributes:
    name: the given name.
    node: index into [M].
    port: number of the output, or None for the op itself.
  """

  name: str
  node: int
  port: Optional[int]


def collected_train_ops(meta_graph: Any) -> Tuple[str, ...]:
  """Returns the names in the collection train_op of a MetaGraphDef."""
  collections = meta_graph.collection_def
  return tuple(collections[TRAIN_OP].node_list.value) if TRAIN_OP in collections else ()


def live_train_ops(tf_graph: Any) -> Tuple[str, ...]:
  """Returns the names in the collection train_op of a `tf.Graph`."""
  return tuple(
      item if isinstance(item, str) else item.name for item in tf_graph.get_collection(TRAIN_OP)
      if isinstance(item, str) or hasattr(item, "name"))


def given_names(values: Any, what: str) -> Optional[Tuple[str, ...]]:
  """Returns names of ops and tensors, from strings or from TensorFlow's own objects.

  Args:
    values: a name or object, several of them, or None.
    what: "fetches" or "feeds", for the error.

  Returns:
    The names, or None for None.

  Raises:
    GraphError: a value has no name, or there are no fetches.
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
  if what == "fetches" and not names:
    raise GraphError(
        "the list of fetches is empty; name at least one op or tensor with "
        f"{option('fetches')}")
  return tuple(names)


def find_endpoint(table: NodeTable, name: str, what: str) -> Endpoint:
  """Finds the op ("a/b") or tensor ("a/b:0") of a name.

  Args:
    table: all nodes.
    name: of the op or tensor.
    what: "fetch" or "feed", for the error.

  Raises:
    GraphError: the op or tensor does not exist.
  """
  # "a/b" may name the op itself, "a/b:0" names a tensor.
  op_name, port = tensor_names.parse(name)
  whole = op_name == name  # the op itself, and none of its outputs
  node = table.index.get(op_name)
  if node is None:
    remedy = (f"an op or tensor in {option('fetches')}" if what == "fetch"
              else f"a tensor in {option('feeds')}")
    raise GraphError(
        f"{what} {name!r} names no op of the graph{_similar(op_name, table.names)}; pass the name "
        f"of {remedy}")
  if not whole and port >= table.num_outputs[node]:
    raise GraphError(
        f"{what} {name!r} asks for output {port} of an op ({table.types[node]}) that "
        f"has {int(table.num_outputs[node])}")
  return Endpoint(name, node, None if whole else port)


def choose_fetches(
    table: NodeTable, given: Optional[Sequence[str]], train_ops: Sequence[str]
) -> Tuple[Tuple[Endpoint, ...], Tuple[str, ...]]:
  """Chooses the fetches: the given ones, else the train ops, else the graph's results.

  If no collection names the train op, the train op is the end of the graph that waits for all ops
  that apply gradients.

  Args:
    table: all nodes.
    given: names of ops or tensors, or None.
    train_ops: names in the collection train_op.

  Returns:
    The fetches, and notes that explain the choice.

  Raises:
    GraphError: a fetch does not exist, or the graph has no ends.
  """
  # In this order: given names, the collection train_op, an end that trains, all results.
  names = list(dict.fromkeys(given if given is not None else train_ops))
  if names:
    notes = () if given is not None or len(names) == 1 else (
        f"the collection train_op names {len(names)} ops, {listed([*map(repr, names)])}; they are "
        f"placed as one step: name the ops of a single step with {option('fetches')}",)
    return tuple(find_endpoint(table, name, "fetch") for name in names), notes
  train_op = _train_op(table)
  if train_op is not None:
    name, updates = table.names[train_op], len(_updates(table))
    return (Endpoint(name, train_op, None),), (
        f"no fetches were given; taken as the step is {name!r}, which applies gradients to "
        f"{updates} variable{'s' if updates > 1 else ''}",)
  ends = _ends(table)
  if not ends:
    raise GraphError(
        "every op of the graph has a consumer, so the graph has no visible result; name the ops to "
        f"run with {option('fetches')}")
  wanted = _results(table, ends) or ends
  fetches = []
  # An end with outputs is fetched by each of them, else as an op.
  for i in wanted:
    width = int(table.num_outputs[i])
    if width:
      fetches += [Endpoint(f"{table.names[i]}:{port}", i, port) for port in range(width)]
    else:
      fetches.append(Endpoint(table.names[i], i, None))
  shown = listed([repr(table.names[i]) for i in wanted])
  left = f"; {len(ends) - len(wanted)} others initialize, save, read or watch" if len(
      wanted) < len(ends) else ""
  return tuple(fetches), (
      f"no fetches were given; taken are the ops that nobody consumes: {shown}{left}",)


def _ends(table: NodeTable) -> List[int]:
  """Returns the ops without consumers."""
  consumed = np.zeros(table.num_nodes, dtype=bool)
  consumed[table.producers] = True
  return np.flatnonzero(~consumed).tolist()


def _results(table: NodeTable, ends: Sequence[int]) -> List[int]:
  """Returns the ends that compute a result of the graph.

  Left out are ends that initialize variables, tables or iterators, fill or close queues, save,
  restore, summarize, probe initialization, and unused placeholders, constants and variables.
  """
  types = table.types
  # Ops whose values change from step to step, because they depend on feeds, iterators or queues.
  changing = _descendants(table, [
      i for i, kind in enumerate(types) if kind.startswith(_DATA) and kind != shapes.WITH_DEFAULT])
  # Ops that depend neither on data nor on a variable: their values are equal in every run.
  constant = ~(changing | _descendants(table, _readers(table)))
  asking = _descendants(table, [i for i, kind in enumerate(types) if kind in _PROBES])
  origins = _origins(table)
  side = np.zeros(table.num_nodes, dtype=bool)
  for i, (node, kind) in enumerate(zip(table.nodes, types)):
    if kind in _ASSIGNMENTS:
      # An assignment's second data input is the value.
      value = table.index[tensor_names.op_of(tensor_names.data_inputs(node)[1])]
      fed = types[origins[value]] in shapes.PLACEHOLDERS  # such as embeddings that a user loads
      # The assignment initializes: a probe tests the variable, a user feeds it, or it is constant.
      side[i] = asking[value] or fed or constant[value] and not changing[i]
    else:
      # No result: ops that prepare, save, summarize, or only pass a variable on.
      side[i] = (
          kind.startswith(_PREPARING) or _SUMMARY.match(kind) is not None or not node.input
          or asking[i] and not changing[i]
          or kind in _HANDING_ON and types[origins[i]] in _VARIABLES)
  return [i for i in ends if not _is_side(table, i, side, constant)]


def _train_op(table: NodeTable) -> Optional[int]:
  """Returns the end that waits for all ops that apply gradients, or None if no op applies any.

  If several ends do, the name decides.

  Raises:
    GraphError: several ends may be the train op. Fetching all of them could run initializers and
      savers in every step.
  """
  updates = _updates(table)
  if not len(updates):
    return None
  # Ends that wait for at least one update, and those that wait for all.
  after = _descendants(table, updates.tolist())
  ends = [end for end in _ends(table) if after[end]]
  whole = [end for end in ends[:_MAX_ENDS] if traversal.ancestors(
      table.num_nodes, table.producers, table.consumers, [end])[updates].all()]
  if len(whole) > 1:
    whole = [i for i in whole if _TRAIN_NAME.match(table.names[i].rpartition("/")[2])] or whole
  if len(whole) == 1:
    return whole[0]
  shown = ", ".join(repr(table.names[end]) for end in (whole or ends)[:5])
  found = "several ops wait" if whole else "no single op waits"
  raise GraphError(
      f"{found} for all ops that apply gradients, which end in {shown}; name the ops of a step "
      f"with {option('fetches')}")


def _updates(table: NodeTable) -> np.ndarray:
  """Returns the indices of the ops that apply gradients to variables."""
  return np.flatnonzero([kind.startswith(_UPDATES) for kind in table.types])


def _descendants(table: NodeTable, nodes: Sequence[int]) -> np.ndarray:
  """Returns [M] bool, the nodes and all nodes that depend on one of them."""
  # Edges reversed: descendants are ancestors of the reversed graph.
  return traversal.ancestors(table.num_nodes, table.consumers, table.producers, nodes)


def _readers(table: NodeTable) -> List[int]:
  """Returns the readers of a variable's handle or reference, except assignments and probes."""
  is_variable = np.array([kind in _VARIABLES for kind in table.types], dtype=bool)
  readers = np.unique(table.consumers[is_variable[table.producers]]).tolist()
  return [i for i in readers if table.types[i] not in (*_ASSIGNMENTS, *_PROBES)]


def _origins(table: NodeTable) -> List[int]:
  """Returns [M] the op whose value each op passes on; the op itself if it computes a value."""
  found = np.arange(table.num_nodes)
  for i in np.flatnonzero(np.isin(table.types, _HANDING_ON)).tolist():
    found[i] = table.index[tensor_names.op_of(table.nodes[i].input[0])]
  # Pointer jumping: each round halves the ways. Cycles are refused later.
  for _ in range(table.num_nodes.bit_length()):
    found = found[found]
  return found.tolist()


def _is_side(table: NodeTable, end: int, side: np.ndarray, constant: np.ndarray) -> bool:
  """Returns whether an end only waits for other ops, or passes on a value that is no result.

  Args:
    table: all nodes.
    end: index of the op.
    side: [M] bool, ops that prepare, save, read or watch.
    constant: [M] bool, ops that depend neither on a variable nor on values that change from step to
      step.
  """

  def before(node: int) -> Iterable[int]:
    """Yields the ops that a glue op waits for or passes on."""
    if side[node] or table.types[node] not in _GLUE:
      return
    # An op that waits for others passes on a constant when they have run.
    waits = bool(tensor_names.control_inputs(table.nodes[node]))
    for text in table.nodes[node].input:
      producer = table.index[tensor_names.op_of(text)]
      if text.startswith("^") or not (waits and constant[producer]):
        yield producer

  return all(side[node] or table.types[node] in _GLUE
             for node in traversal.reachable([end], before))


def _similar(name: str, names: Sequence[str]) -> str:
  """Returns a hint that suggests a similar name or a name with the same ending, or ""."""
  # A name with the same ending is most likely the same op in another scope.
  last = name.rpartition("/")[2]
  found = next((other for other in names if other.rpartition("/")[2] == last), None)
  if found is None and len(names) <= _MAX_COMPARED:
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.8)
    found = close[0] if close else None
  return f" (there is {found!r})" if found else ""
