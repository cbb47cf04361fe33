"""Mirrored variables: finds the ops besides forward and backward pass that each replica repeats.

Inside the step, replicas repeat all ops that exist once with shared variables: the variables, the
optimizer, and the ops that read all-reduced gradients. Some ops still exist once: ops with state
that is no variable (an input pipeline, a table), the variable of a random generator (equal
generators would give all replicas equal noise), random ops, placeholders, and variables that the
caller names. The variables of all replicas are always equal, because they start equal and get the
same updates.

Outside the step, every op that writes a mirrored variable is repeated for each replica and writes
the same value there. So initializers and restoring from a checkpoint set the variables of all
replicas.

Dimensions: N needed ops.
"""

from __future__ import annotations

import dataclasses
from typing import AbstractSet, Dict, FrozenSet, List, Mapping, Sequence, Set

import numpy as np

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.clusters.constraints import allowed_devices
from placeto_tf.errors import GraphError
from placeto_tf.graphs.colocation import RESOURCE
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.graphs.functions import named_functions
from placeto_tf.graphs.loops import PASSING
from placeto_tf.graphs.op_defs import REF, OpDefs
from placeto_tf.graphs.tensor_names import data_inputs, op_of
from placeto_tf.graphs.traversal import reachable
from placeto_tf.on_use import NodeDef
from placeto_tf.replication import op_roles
from placeto_tf.replication.dataflow import Dataflow, Tensor
from placeto_tf.replication.op_partition import OpPartition
from placeto_tf.replication.propagation import Propagated
from placeto_tf.replication.scaling import Scaling

# Op types that pass on a handle or reference.
_CARRIERS = (*PASSING, "RefIdentity")
# Op types that create handles which can be followed.
_ROOTS = (*op_roles.VARIABLES, "TemporaryVariable")


@dataclasses.dataclass(frozen=True)
class Mirrors:
  """Ops that exist once for each replica, besides its copies.

  Attributes:
    needed: names of such ops in the step.
    outside: name of such an op outside the step -> its inputs that are handles of variables. The
      op of a replica reads the handles of that replica; all other inputs are shared.
  """

  needed: FrozenSet[str] = frozenset()
  outside: Mapping[str, FrozenSet[str]] = dataclasses.field(default_factory=dict)

  def __contains__(self, name: str) -> bool:
    return name in self.needed or name in self.outside


@dataclasses.dataclass(frozen=True)
class Plan:
  """Everything that the writing of the replicas needs to know.

  Attributes:
    flow: the graph of one replica.
    propagated: the ops that depend on the batch.
    partition: which ops are copied, and which tensors are combined.
    mirrors: which other ops each replica has; empty if variables are shared.
    scaling: the parts of the graph that grow with the batch, for R replicas.
    fetched: tensors that are fetched.
    run: ops that are fetched without a result.
    micro_batches: M consecutive replicas are a group, whose parts are added up first.
    part: begins the names of a replica's ops: "replica", or "slice" of a table.
  """

  flow: Dataflow
  propagated: Propagated
  partition: OpPartition
  mirrors: Mirrors
  scaling: Scaling
  fetched: FrozenSet[Tensor]
  run: Sequence[int]
  micro_batches: int = 1
  part: str = "replica"


def find_mirrors(
    flow: Dataflow, propagated: Propagated, partition: OpPartition, single: AbstractSet[str],
    mirrored: bool) -> Mirrors:
  """Returns the ops that each replica repeats, besides its copies.

  Args:
    flow, propagated, partition: of the graph.
    single: names of variables that replicas share even if variables are mirrored.
    mirrored: whether variables are mirrored; variables that keep examples are repeated anyway.

  Returns:
    The ops in the step and outside.

  Raises:
    GraphError: an op may write a variable in a way that cannot be followed.
  """
  names = flow.graph.op_names
  owned = {names[op] for op in propagated.owned if op in partition.copies}
  if not mirrored:
    return Mirrors(frozenset(), _Outside(flow, owned).run() if owned else {})
  needed = _needed(flow, propagated, partition, single)
  variables = owned | {names[op] for op in needed if flow.types[op] in op_roles.VARIABLES}
  return Mirrors(frozenset(names[op] for op in needed), _Outside(flow, variables).run())


def host_variables(graph: ComputationGraph, cluster: Cluster) -> FrozenSet[str]:
  """Returns the variables that only hosts can hold, in a cluster that has other devices, too.

  Replicas share hosts. If such variables were mirrored, one host would do each update R times.

  Args:
    graph: with the variables.
    cluster: with the devices.

  Returns:
    Names of variables.
  """
  hosts = np.array([device.host for device in cluster.devices], dtype=bool)
  # Ops that a device other than a host may hold; all ops if the cluster has only hosts.
  held = allowed_devices(graph, cluster)[:, ~hosts].any(axis=1) | hosts.all()
  return frozenset(graph.op_names[op] for op in np.flatnonzero(~held)
                   if graph.op_types[op] in op_roles.VARIABLES)


def _needed(
    flow: Dataflow, propagated: Propagated, partition: OpPartition, single: AbstractSet[str]
) -> Set[int]:
  """Returns the ops of the step that every replica repeats, besides its copies."""
  # Candidates: all ops that are no copies.
  several = {op for op in range(len(flow.types))
             if op in partition.shared or op not in propagated.copied}
  # Ops that must exist once: ops with tables or pipelines, merged loops, generators' variables.
  once = {op for op in several if not _of_one_replica(flow.types[op])}
  once.update(flow.graph.op_index[name] for name in single)
  once.update(op for op in several if flow.frames[op] in propagated.merged)
  once.update(flow.origin(flow.inputs[op][0])[0] for op, op_type in enumerate(flow.types)
              if op_type in op_roles.VARIABLE_RANDOM)
  # Ops that carry a handle go with its variable.
  handles = {op: [tensor for tensor in flow.inputs[op] if _is_handle(flow.dtype(tensor))]
             for op in several}
  order = [op for op in flow.order if handles.get(op)]
  size = -1
  # Until nothing changes: if an op exists once, so do readers of its handle, its loop, and the
  # variables that it updates.
  while size != len(once):
    size = len(once)
    for op in order:
      if any(producer in once for producer, _ in handles[op]):
        once.add(op)
    if any(flow.frames[op] for op in once):  # a loop runs as a whole
      once.update(op for op in several if flow.frames[op])
    # A single update keeps all of its variables single.
    for op in order:
      if op in once and op_roles.is_update(flow.types[op]):
        once.update(flow.origin(tensor)[0] for tensor in handles[op])
  return several - once


def _of_one_replica(op_type: str) -> bool:
  """Returns whether each replica may have an op of this type for its own variables."""
  return (op_roles.is_stateless(op_type) or op_roles.is_update(op_type)
          or op_type in op_roles.OF_VARIABLES or op_type in op_roles.STEP_CONTAINERS
          or op_type.startswith(("TensorArray", "Stack")))


def _is_handle(dtype: int) -> bool:
  return dtype % REF == RESOURCE or dtype >= REF


class _Outside:
  """Ops outside the step that write mirrored variables; see `Mirrors.outside`."""

  def __init__(self, flow: Dataflow, variables: Set[str]):
    source = flow.graph.origin.graph_def
    self._nodes = {node.name: node for node in source.node}
    self._defs = OpDefs(source.library)
    self._needed, self._variables = flow.graph.op_index, set(variables)

  def run(self) -> Dict[str, FrozenSet[str]]:
    """Returns op to repeat outside the step -> its inputs that are handles."""
    # Updates outside of the step, and calls of functions that may write.
    writes, calls = [], []
    for name, node in self._nodes.items():
      if name not in self._needed:
        if op_roles.is_update(node.op):
          writes.append(node)
        elif self._writing_functions(node):
          calls.append(node)
    # The way of each handle from the update back to the variable.
    ways = {node.name: [self._way(text) for text in self._handles(node)] for node in writes}
    size = -1
    while size != len(self._variables):  # an optimizer outside the step may have other slots
      size = len(self._variables)
      for some in ways.values():
        if any(way[-1] in self._variables for way in some):
          self._variables.update(way[-1] for way in some if way[-1] not in self._needed)
    found: Dict[str, FrozenSet[str]] = {}
    for node in writes:
      # An update of mirrored and shared variables at once cannot be repeated.
      mixed = len({way[-1] in self._variables for way in ways[node.name]}) > 1
      for way in ways[node.name]:
        if self._nodes[way[-1]].op not in _ROOTS or mixed:
          raise self._unseen(node)
        if way[-1] in self._variables:
          found[node.name] = frozenset(self._handles(node))
          found.update({name: frozenset(list(self._nodes[name].input)[:1])
                        for name in way if name not in self._needed})
    for node in calls:
      for text in self._handles(node):
        if self._way(text)[-1] in self._variables:
          raise self._unseen(node)
    return found

  def _handles(self, node: NodeDef) -> List[str]:
    """Returns the inputs that are handles or references."""
    return [text for text, dtype in zip(data_inputs(node), self._defs.signature(node).inputs)
            if _is_handle(dtype)]

  def _way(self, text: str) -> List[str]:
    """Returns the ops that a handle passes from an input back to its variable, in this order."""
    way = [op_of(text)]
    while self._nodes[way[-1]].op in _CARRIERS:
      way.append(op_of(self._nodes[way[-1]].input[0]))
    return way

  def _writing_functions(self, node: NodeDef) -> bool:
    """Returns whether the op calls a function that changes a variable."""
    functions = self._defs.functions

    def called(nodes: Sequence[NodeDef]) -> Set[str]:
      return {name for each in nodes for name in named_functions(each) if name in functions}

    # All functions that it calls, also through others.
    found = reachable(called([node]), lambda name: called(functions[name].node_def))
    return any(op_roles.is_update(inner.op) for name in found for inner in functions[name].node_def)

  def _unseen(self, node: NodeDef) -> GraphError:
    return GraphError(
        f"op {node.name!r} ({node.op}) may write variables of the step in a way that cannot be "
        "followed, so that replicas cannot have variables of their own; take it out of the graph, "
        "or share the variables")
