"""Finds the boundary between sparse gradients (IndexedSlices) and the optimizer.

An embedding's gradient consists of rows and their indices. Later ops may scale the rows, compute
their norm, or add rows of equal index; all of these ops need the rows of every replica. So the
search goes back from an update that takes rows, through such ops, to the rows of the gradient. The
search also starts at rows that are squared (or the like) and then made dense, as in optimizers of
Keras 3, because the sum of squares is no mean over replicas.
"""

from __future__ import annotations

import dataclasses
from typing import Callable, FrozenSet, List, Optional, Sequence, Set, Tuple

from placeto_tf.graphs.loops import MERGE, SWITCH
from placeto_tf.graphs.traversal import reachable
from placeto_tf.ops import rule_of
from placeto_tf.replication import op_roles
from placeto_tf.replication.dataflow import Dataflow, Tensor, closure
from placeto_tf.replication.scaling import Scaling

_NOT_LINEAR = frozenset("Square Mul Pow Abs Sqrt".split())
_UNIQUE = ("Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2")
_STATE = ("ResourceGather", "Gather", "GatherV2", "ReadVariableOp", "Const")
_REPEATING = ("Reshape", "Tile")
_SAME_INDICES = (*_UNIQUE, "Identity", "Cast", *SWITCH)


@dataclasses.dataclass(frozen=True)
class SparseUpdate:
  """The rows of a sparse gradient and their indices.

  Attributes:
    values: the rows.
    indices: the index of each row in the variable.
    readers: ops that read the values or the indices only for the update. Other readers of the same
      tensor use it as part of the examples.
  """

  values: Tensor
  indices: Tensor
  readers: FrozenSet[int]


def sparse_updates(flow: Dataflow, scaling: Optional[Scaling] = None) -> List[SparseUpdate]:
  """Returns the gradient rows of all updates that change single rows of a variable.

  Args:
    flow: the graph.
    scaling: the parts that grow with the batch, to find rows before they are repeated for each id
      of an example; None for the rows after that.
  """
  # Update -> (values, indices).
  updates = {}
  for op in range(len(flow.types)):
    arguments = op_roles.sparse_arguments(flow, op)
    # Squared rows that are made dense are part of the optimizer.
    if arguments is None and flow.types[op] == "UnsortedSegmentSum" and (
        flow.types[flow.inputs[op][0][0]] in _NOT_LINEAR):
      arguments = flow.inputs[op][0], flow.inputs[op][1]
    if arguments is not None:
      updates[op] = arguments
  # Updates of optimizer slots read scaled versions of the same rows.
  every = set(updates)
  for values, _ in updates.values():
    every |= _way_of_rows(flow, values, set())[1]
  found = []
  # Back from the update to the rows of the gradient.
  for op, (values, indices) in updates.items():
    rows, way = _gradient_rows(flow, values, op, every)
    rows = {each for each in rows if _is_for_update(flow, each, {*way, op}, every)}
    for first in _gradient_indices(flow, indices):
      readers = _readers(flow, first, {*way, *every, op}, {each for each, _ in rows})
      for each in sorted(rows):
        repeating = _repeating(flow, each, scaling) if scaling else []
        found.append(SparseUpdate(
            flow.inputs[repeating[-1]][0] if repeating else each, first,
            readers.union(repeating)))
  return list(dict.fromkeys(found))


def _repeating(flow: Dataflow, rows: Tensor, scaling: Scaling) -> List[int]:
  """Returns the ops, last first, that repeat or reshape the rows of each example in its place."""
  found: List[int] = []
  while flow.types[rows[0]] in _REPEATING and not flow.frames[rows[0]]:
    before, *sizes = flow.inputs[rows[0]]
    times = flow.value(sizes[0]) if flow.types[rows[0]] == "Tile" else None
    readers = [tensor for reader in flow.consumers[before[0]] for tensor in flow.inputs[reader]]
    # The examples stay the first axis, and the sizes are known at the global batch.
    if any(scaling.axes(each) != [0] for each in (rows, before)) or readers.count(before) != 1 or (
        scaling.factors(sizes[0]) is None or times is not None and times[0] != 1):
      break
    found.append(rows[0])
    rows = before
  return found


def _back(
    tensor: Tensor, before: Callable[[Tensor], Optional[Sequence[Tensor]]]
) -> Tuple[Set[Tensor], Set[int]]:
  """Goes back from a tensor.

  Args:
    tensor: the first tensor.
    before: returns the tensors to go on to; None where the search ends.

  Returns:
    The tensors at which the search ends, and the ops of the tensors that it passes.
  """
  found = reachable([tensor], lambda at: before(at) or ())
  ends = {each for each in found if before(each) is None}
  return ends, {op for op, _ in found - ends}


def _gradient_indices(flow: Dataflow, tensor: Tensor) -> List[Tensor]:
  """Returns the indices before the optimizer removed duplicates or chose by a cond."""

  def before(at: Tensor) -> Optional[Sequence[Tensor]]:
    if flow.types[at[0]] in _SAME_INDICES:
      return flow.inputs[at[0]][:1]
    return flow.inputs[at[0]] if flow.types[at[0]] in MERGE and not flow.frames[at[0]] else None

  ends, _ = _back(tensor, before)
  # Leave out indices that the optimizer computes from the gradient's indices, such as a union.
  return sorted(end for end in ends if len(ends) == 1 or not any(
      other[0] != end[0] and end[0] in closure({other[0]}, flow.consumers) for other in ends))


def _readers(
    flow: Dataflow, indices: Tensor, way: Set[int], rows: Set[int]) -> FrozenSet[int]:
  """Returns the ops that read indices and whose results only an update reads.

  Args:
    flow: the graph.
    indices: the indices of the gradient.
    way: the updates, and the ops from the gradient's rows to them.
    rows: ops that compute the gradient's rows; ops before them compute examples.
  """

  def copies(op: int) -> bool:
    return flow.types[op] in (*_UNIQUE, "Identity", "Cast")

  def serves_updates(op: int) -> bool:
    # All that is computed of it ends in an update, or begins a branch, and none is an example.
    after = closure({op}, flow.consumers)
    ends = {each for each in after if not flow.consumers[each]} - way
    return not after & rows and all(
        flow.inputs[each] and flow.types[flow.inputs[each][0][0]] in SWITCH for each in ends)

  return frozenset(
      op for op in closure({indices[0]}, flow.consumers, copies) - {indices[0]}
      if copies(op) or op in way or serves_updates(op))


def _gradient_rows(
    flow: Dataflow, tensor: Tensor, update: int, every: Set[int]) -> Tuple[Set[Tensor], Set[int]]:
  """Returns the rows before the optimizer scaled and added them, and the ops in between."""
  others: Set[int] = set()
  # An op with readers outside the optimizer ends the search: its result is a gradient's rows.
  while True:
    rows, way = _way_of_rows(flow, tensor, others)
    found = {op for op in way if not all(
        _is_for_update(flow, (op, port), {*way, update}, every) for port in {
            each[1] for consumer in flow.consumers[op] for each in flow.inputs[consumer]
            if each[0] == op})}
    if not found:
      return rows, way
    others |= found


def _way_of_rows(
    flow: Dataflow, tensor: Tensor, others: Set[int]) -> Tuple[Set[Tensor], Set[int]]:
  """Returns the rows and ops of `_gradient_rows`; the search stops at `others`."""

  def before(at: Tensor) -> Optional[Sequence[Tensor]]:
    op_type, data = flow.types[at[0]], flow.inputs[at[0]]
    if at[0] in others:
      return None
    # A cond chooses between rows: continue with both, and with the rows before the branches.
    if op_type in MERGE and not flow.frames[at[0]]:
      return data
    # Rows of equal index are added up here: continue with the input rows.
    if op_type in SWITCH or op_type == "UnsortedSegmentSum" and (
        flow.types[flow.origin(data[1])[0]] in _UNIQUE):
      return data[:1]
    # Rows are scaled by factors of a lower rank; only inputs of the rows' rank are rows.
    shape = flow.shape(at)
    return [each for each in data if shape is None or len(flow.shape(each) or shape) == len(shape)
            ] if rule_of(op_type).scales_rows else None

  ends, way = _back(tensor, before)
  return {each for each in ends if each[0] in others or flow.types[each[0]] not in _STATE}, way


def _is_for_update(flow: Dataflow, rows: Tensor, way: Set[int], every: Set[int]) -> bool:
  """Returns whether only updates, or norms that clip gradients, read the rows.

  A step may also write examples that its loss reads; such rows are no gradient.

  Args:
    flow: the dataflow of the graph.
    rows: the tensor.
    way: the update and the ops between the rows and the update.
    every: all updates and the ops between their rows and them.
  """
  # Readers on the way to an update are its own.
  return all(
      rows not in flow.inputs[consumer] or consumer in every
      or not way.isdisjoint(closure({consumer}, flow.consumers))
      for consumer in flow.consumers[rows[0]])
