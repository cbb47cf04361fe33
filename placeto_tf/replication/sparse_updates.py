"""Finds the boundary between sparse gradients (IndexedSlices) and the optimizer.

An embedding's gradient consists of rows and their indices. Later ops may scale the rows, compute
their norm, or add rows of equal index; all of these ops need the rows of every replica. So the
search goes back from an update that takes rows, through such ops, to the rows of the gradient. The
search also starts at rows that are squared (or the like) and then made dense, as in optimizers of
Keras 3, because the sum of squares is no mean over replicas.
"""

from __future__ import annotations

import dataclasses
from typing import FrozenSet, List, Set, Tuple

from placeto_tf.ops import rule_of
from placeto_tf.replication import op_roles
from placeto_tf.replication.dataflow import Dataflow, Tensor, closure

_NOT_LINEAR = frozenset("Square Mul Pow Abs Sqrt".split())
_UNIQUE = ("Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2")
_STATE = ("ResourceGather", "Gather", "GatherV2", "ReadVariableOp", "Const")
_SWITCHES, _MERGES = ("Switch", "RefSwitch"), ("Merge", "RefMerge")
_SAME_INDICES = (*_UNIQUE, "Identity", "Cast", *_SWITCHES)


@dataclasses.dataclass(frozen=True)
class SparseUpdate:
  """The rows of a sparse gradient and their indices.

  Attributes:
    values: the rows.
    indices: the index of each row in the variable.
    readers: ops that read the indices only for the update. Other readers of the same tensor use it
      as part of the examples.
  """

  values: Tensor
  indices: Tensor
  readers: FrozenSet[int]


def sparse_updates(flow: Dataflow) -> List[SparseUpdate]:
  """Returns the gradient rows of all updates that change single rows of a variable."""
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
      found += [SparseUpdate(each, first, readers) for each in sorted(rows)]
  return list(dict.fromkeys(found))


def _gradient_indices(flow: Dataflow, tensor: Tensor) -> List[Tensor]:
  """Returns the indices before the optimizer removed duplicates or chose by a cond."""
  ends, stack, seen = set(), [tensor], {tensor}
  while stack:
    tensor = stack.pop()
    op_type, before = flow.types[tensor[0]], flow.inputs[tensor[0]]
    if op_type in _SAME_INDICES:
      before = before[:1]
    elif op_type not in _MERGES or flow.frames[tensor[0]]:
      ends.add(tensor)
      continue
    stack += [each for each in before if each not in seen]
    seen.update(before)
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
  found: Set[int] = set()
  stack = list(flow.consumers[indices[0]])
  while stack:
    op = stack.pop()
    if op in found:
      continue
    if flow.types[op] in (*_UNIQUE, "Identity", "Cast"):
      found.add(op)
      stack += flow.consumers[op]
    elif op in way:
      found.add(op)
    else:
      # All that is computed of it ends in an update, or begins a branch, and none is an example.
      after = closure({op}, flow.consumers)
      ends = {each for each in after if not flow.consumers[each]} - way
      if not after & rows and all(
          flow.inputs[each] and flow.types[flow.inputs[each][0][0]] in _SWITCHES for each in ends):
        found.add(op)
  return frozenset(found)


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
  rows, way, stack, seen = set(), set(), [tensor], {tensor}
  while stack:
    tensor = stack.pop()
    op = tensor[0]
    op_type, before = flow.types[op], flow.inputs[op]
    if op in others:
      rows.add(tensor)
      continue
    # A cond chooses between rows: continue with both, and with the rows before the branches.
    if op_type in _SWITCHES:
      before = before[:1]
    elif op_type in _MERGES and not flow.frames[op]:
      pass
    # Rows of equal index are added up here: continue with the input rows.
    elif op_type == "UnsortedSegmentSum" and flow.types[flow.origin(before[1])[0]] in _UNIQUE:
      before = before[:1]
    elif rule_of(op_type).scales_rows:
      # Rows are scaled by factors of a lower rank; only inputs of the rows' rank are rows.
      shape = flow.shape(tensor)
      before = [each for each in before
                if shape is None or len(flow.shape(each) or shape) == len(shape)]
    elif op_type not in _STATE:
      rows.add(tensor)
      continue
    else:
      continue
    way.add(op)
    for each in before:
      if each not in seen:
        seen.add(each)
        stack.append(each)
  return rows, way


def _is_for_update(flow: Dataflow, rows: Tensor, way: Set[int], every: Set[int]) -> bool:
  """Returns whether only updates, or norms that clip gradients, read the rows.

  A step may also write examples that its loss reads; such rows are no gradient.

  Args:
    flow: the dataflow of the graph.
    rows: the tensor.
    way: the update and the ops between the rows and the update.
    every: all updates and the ops between their rows and them.

  Returns:
    Whether the rows are a gradient.
  """
  for consumer in flow.consumers[rows[0]]:
    # Readers on the way to an update are its own.
    if rows not in flow.inputs[consumer] or consumer in every:
      continue
    if not closure({consumer}, flow.consumers) & way:
      return False
  return True
