"""`TrainedPair`: a graph and its replicas, each in a session, with a map of their variables."""

from __future__ import annotations

import copy
from typing import Dict, Iterator, List, Optional, Set, Tuple

import numpy as np

from placeto_tf.errors import GraphError, ReplicaMismatchError
from placeto_tf.graphs import captures
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.graphs.loops import PASSING
from placeto_tf.graphs.variable_parts import owner_of
from placeto_tf.on_use import tf
from placeto_tf.replication import op_roles
from placeto_tf.replication.batch_norm import with_plain_batch_norm
from placeto_tf.replication.replicated_graph import ReplicatedGraph
from placeto_tf.runtime.tensor_differences import SeenDifference, difference, rounded, varied
from placeto_tf.runtime.trainable_graph import NotCompared, NotRunnable, TrainableGraph
from placeto_tf.runtime.training_memory import check_memory


class TrainedPair:
  """Runs a graph and its replicas, and maps their variables to each other.

  Attributes:
    graph: the given graph.
    replicated: its given replicas.
    whole, parts: the runnable forms of the graph and of its replicas.
    rounded: the graph in one more session, with first values that differ by some roundings; None
      until `begin` opens it.
    variables: of the graph, without states of random generators, which each replica advances.
    copies: variable -> its names among the replicas.
    updated: the variables that an op of the step changes.
    tensors: the fetches that are tensors.
    double: whether both are in double precision.
    signed: whether half of the weights begin with negative numbers, so that sums do not saturate.
  """

  def __init__(
      self, graph: ComputationGraph, replicated: ReplicatedGraph, double: bool = False,
      repeated: bool = False):
    """Makes both runnable, and finds the copies of each variable.

    Args:
      graph: at the global batch.
      replicated: its replicas.
      double: whether both are in double precision, with written out batch normalizations.
      repeated: whether batch normalizations are written out without the corrections by how many
        examples there are.

    Raises:
      NotRunnable: the graph cannot be trained here.
      ReplicaMismatchError: it can be imported, but not its replicas.
    """
    if any(kind in op_roles.PIPELINES for kind in graph.op_types):
      raise NotCompared("it reads an input pipeline, which gives each graph other examples")

    def written(each: ComputationGraph) -> ComputationGraph:
      return with_plain_batch_norm(each, corrected=not repeated) if double or repeated else each

    self.signed = False
    self.graph, self.replicated, self.double = graph, replicated, double
    check_memory(graph, replicated, 2.0 if double else 1.0)
    self.whole = TrainableGraph(written(graph), double)
    try:
      self.parts = TrainableGraph(written(replicated.graph), double)
    except GraphError as problem:
      raise ReplicaMismatchError(
          f"the graph can be imported but its replicas cannot: {problem}; train with one replica"
      ) from None
    self.rounded: Optional[TrainableGraph] = None
    self._first: Dict[str, np.ndarray] = {}  # variables as they were first
    self.tensors = [name for name in graph.fetches if ":" in name]
    self.variables = [name for name, kind in zip(graph.op_names, graph.op_types)
                      if kind in op_roles.VARIABLES and not _is_generator(graph, name)]
    self.copies = self._find_copies()
    changed = _updated(replicated.graph, self.parts.tf_graph)  # where functions are expanded
    self.updated = {name for name, copies in self.copies.items() if not changed.isdisjoint(copies)}
    self.whole.add(self.variables)
    self.parts.add(each for name in self.variables for each in self.copies[name])

  def begin(self, seed: int, rounds: bool = False) -> None:
    """Initialises the graph and its replicas alike.

    Args:
      seed: of the first values.
      rounds: whether `rounded` is opened, too.
    """
    self.parts.open(initialises=False)
    self.whole.open(initialises=True)
    rng = np.random.default_rng(seed)
    # Elements of variables differ, so that an exchange of parts would show.
    self._first = {name: varied(value, rng) for name, value in zip(
        self.variables, self.whole.first(self.variables))}
    if self.signed:
      self._first = {
          name: (value * rng.choice([-1, 1], value.shape)).astype(value.dtype)
          if value.ndim > 1 and value.dtype.kind == "f" else value
          for name, value in self._first.items()}
    self.whole.write(self._first)
    self.parts.write({each: part for name, value in self._first.items()
                      for each, part in self._by_copy(name, value).items()})
    if rounds:
      self.rounded, rng = copy.copy(self.whole), np.random.default_rng(seed + 1)
      self.rounded.open(initialises=True)
      self.rounded.write({name: rounded(value, rng) for name, value in self._first.items()})

  def restart(self) -> None:
    """Gives the variables of the graph their first values again."""
    self.whole.write(self._first)

  def close(self) -> None:
    """Ends the sessions."""
    for each in filter(None, (self.whole, self.parts, self.rounded)):
      each.close()

  def compared(self) -> List[SeenDifference]:
    """Compares the variables of the graph with their copies."""
    # One run of the session reads all copies, in the order in which they are compared below.
    found = iter(self.parts.read([
        each for name in self.variables for each in self.copies[name]]))
    seen = []
    for name, value in zip(self.variables, self.whole.read(self.variables)):
      # Tolerances are relative to the change since the first values.
      change = difference(value, self._first[name]) if name in self.updated else 1.0
      seen += [SeenDifference.of(name, part, next(found), change)
               for part in self._by_copy(name, value).values()]
    return seen

  def beside(self, other: TrainableGraph) -> Iterator[Tuple[str, np.ndarray, np.ndarray]]:
    """Returns (variable, its value in the graph, its value in `other`, which is `rounded`)."""
    names = self.variables
    return zip(names, self.whole.read(names), other.read(names))

  def _find_copies(self) -> Dict[str, List[str]]:
    """Returns variable -> its names among the replicas."""
    graph, replicated = self.graph, self.replicated
    names, original = replicated.graph.op_names, replicated.original.op_names
    found: Dict[str, List[str]] = {}
    for i, kind in enumerate(replicated.graph.op_types):
      # -1: an op that replication added.
      at = int(replicated.original_of_op[i])
      if kind in op_roles.VARIABLES and at >= 0:
        place = replicated.slices.get(original[at])
        found.setdefault(place.variable if place else original[at], []).append(names[i])
    if graph.origin.format == "concrete_function":
      # A live function's replicas capture the same variable objects, whatever its ops are named.
      theirs: Dict[int, List[str]] = {}
      for name, variable in self.parts.captured.items():
        owner = owner_of(captures.unwrapped(variable))
        theirs.setdefault(id(captures.unwrapped(variable) if owner is None else owner.whole),
                          []).append(name)
      found = {name: theirs[id(captures.unwrapped(variable))]
               for name, variable in self.whole.captured.items()
               if id(captures.unwrapped(variable)) in theirs}
    missing = [name for name in self.variables if name not in found]
    if missing:
      raise NotRunnable(f"variable {missing[0]!r} is not found among the replicas")
    return {name: found[name] for name in self.variables}

  def _by_copy(self, name: str, value: np.ndarray) -> Dict[str, np.ndarray]:
    """Returns the replicas' copies of a variable -> the values they should hold."""
    graph, replicated, found = self.parts.tf_graph, self.replicated, {}
    for copied in self.copies[name]:
      op = replicated.graph.op_index[copied]
      place = replicated.slices.get(replicated.original.op_names[replicated.original_of_op[op]])
      shape = [dim.size for dim in graph.get_operation_by_name(
          copied).node_def.attr["shape"].shape.dim]
      # The axis along which a copy is smaller than the graph's variable is divided: the columns
      # of a table by slice, the rows of a variable that keeps examples by replica.
      axes = [axis for axis, size in enumerate(shape) if 0 <= size != value.shape[axis]] if (
          len(shape) == value.ndim) else []
      found[copied] = value if not axes else np.split(
          value, place.count if place else replicated.replicas, axis=axes[0])[
              place.index if place else replicated.replica_of_op[op]]
    return found


def _is_generator(graph: ComputationGraph, name: str) -> bool:
  """Returns whether the variable is the state of a random generator."""
  readers = graph.edge_consumers[graph.edge_producers == graph.op_index[name]].tolist()
  return any(graph.op_types[reader] in op_roles.VARIABLE_RANDOM for reader in readers)


def _updated(graph: ComputationGraph, tf_graph: tf.Graph) -> Set[str]:
  """Returns the variables that an op of the step changes, in branches and loops, too."""
  found = set()
  for name, kind in zip(graph.op_names, graph.op_types):
    if not op_roles.is_update(kind):
      continue
    op = tf_graph.get_operation_by_name(name)
    for arg, tensor in zip(op.op_def.input_arg, op.inputs):
      if arg.is_ref or arg.type == tf.resource.as_datatype_enum:
        # Back through loops and branches to the variable's op.
        while tensor.op.type in PASSING:
          tensor = tensor.op.inputs[0]
        found.add(tensor.op.name)
  return found
