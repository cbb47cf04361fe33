"""Finds the ops on a table's columns: those that a slice of the columns can run for itself.

The columns are the last axis of a table [V, D], of the rows that are gathered from it, and of their
gradients. An op is in the region of a table if each column of its result depends on the same column
of its inputs. All other ops, known or not, see whole tensors.

Dimensions: N needed ops; D columns.
"""

from __future__ import annotations

import heapq
from typing import AbstractSet, Callable, Dict, Iterator, List, Optional, Sequence, Set

from placeto_tf.graphs.colocation import RESOURCE
from placeto_tf.graphs.loops import MERGE, SWITCH
from placeto_tf.graphs.op_defs import registered_op_def
from placeto_tf.ops import rule_of
from placeto_tf.replication import op_roles
from placeto_tf.replication.axis_rules import REDUCTIONS
from placeto_tf.replication.dataflow import Dataflow, Tensor
from placeto_tf.replication.specs import Partial

# Roles of an input: it holds columns in its last axis; all slices read it as it is; it is a shape
# whose last entry is the number of columns.
COLUMNS, SAME, SHAPE = "columns", "same", "shape"
Roles = List[str]

MEASURES = ("Shape", "VariableShape")  # their result is the shape of a tensor
_OF_SEGMENTS = ("UnsortedSegment", "SegmentSum", "SegmentMean", "SparseSegment")
# Elementwise by their rule, but not for each column alone, or in a way that attributes state.
_NOT_BY_COLUMN = frozenset(
    "IdentityN Assert Print PrintV2 PlaceholderWithDefault EnsureShape Bitcast DecodeCSV BiasAdd "
    "BiasAddV1 LookupTableFind LookupTableFindV2 Enter RefEnter Exit RefExit NextIteration "
    "RefNextIteration RefSwitch".split())


def tables(flow: Dataflow) -> Dict[int, Set[int]]:
  """Returns the tables of a graph, with the variables that must be sliced with each.

  A table is a variable of rank 2 that rows are gathered from in the step, and that the step
  updates. Its slots are variables of its shape that an update of the table reads.
  """
  shapes: Dict[int, Sequence[int]] = {}
  for op, op_type in enumerate(flow.types):
    if op_type == "VarHandleOp":
      proto = flow.nodes[op].attr["shape"].shape
      shape = tuple(dim.size for dim in proto.dim)
      if len(shape) == 2 and not proto.unknown_rank and min(shape) > 1:
        shapes[op] = shape
  # Updates of each variable, and variables that rows are taken of.
  updated: Dict[int, int] = {}
  gathered: Set[int] = set()
  for op, op_type in enumerate(flow.types):
    of = [flow.origin(tensor)[0] for tensor in flow.inputs[op]]
    if op_roles.is_update(op_type) and of and of[0] in shapes:
      updated[op] = of[0]
    elif rule_of(op_type).axes == "gather":
      read = of[0] if of else -1
      gathered.add(flow.origin(flow.inputs[read][0])[0] if (
          read >= 0 and flow.types[read] == "ReadVariableOp") else read)
  found = {table: {table} for table in sorted(gathered & set(updated.values()))}
  # A slot is read by the table's update, or computed with on the way to it.
  wanted = {shapes[table] for table in found}
  for op in sorted(each for each in shapes if each not in found and shapes[each] in wanted):
    ways = Columns(flow, {op}).ops
    for update in sorted(updated.keys() & {end for at in ways for end in flow.consumers[at]}):
      users = {updated[update], *(flow.origin(tensor)[0] for tensor in flow.inputs[update])}
      for table in found.keys() & users:
        if shapes[table] == shapes[op]:
          found[table].add(op)
  return found


class Columns:
  """The region of some variables.

  Attributes:
    ops: op of the region -> roles of its data inputs.
    refused: variables that an op uses in a way that has no rule.
  """

  def __init__(self, flow: Dataflow, variables: AbstractSet[int]):
    self._flow = flow
    self.ops: Dict[int, Roles] = {}
    self.refused: Set[int] = set()
    # Forwards from the variables, producers first.
    for op in _by_depth(flow, variables, lambda at: [
        reader for reader in flow.consumers[at]
        if any(tensor[0] == at and self.holds(tensor) for tensor in flow.inputs[reader])]):
      roles: Optional[Roles] = [] if op in variables else self._roles(op)
      held = [self.holds(tensor) for tensor in flow.inputs[op]]
      if op in variables or roles is not None and all(
          role == COLUMNS or not each for role, each in zip(roles, held)):
        self.ops[op] = roles or []
      else:
        self.refused |= {flow.origin(tensor)[0] for tensor, each in zip(flow.inputs[op], held)
                         if each and self._is_handle(tensor)}

  def holds(self, tensor: Tensor) -> bool:
    """Returns whether a tensor of the region holds columns, or is the handle of a variable."""
    return tensor[0] in self.ops and self._flow.types[tensor[0]] not in MEASURES and (
        self.partial(tensor[0]) is None)

  def partial(self, op: int) -> Optional[Partial]:
    """Returns the spec of the result if the op reduces the columns to a part of it, or None."""
    op_type, data = self._flow.types[op], self._flow.inputs[op]
    if op_type == "L2Loss":
      return Partial("sum")
    how, axes = REDUCTIONS.get(op_type), self._flow.value(data[1]) if len(data) > 1 else None
    shape = self._flow.shape(data[0]) if data else None
    if how is None or axes is None or not shape or op_type == "Mean" and self._flow.is_integer(
        (op, 0)) or all(axis % len(shape) != len(shape) - 1 for axis in axes.ravel().tolist()):
      return None
    return Partial(how, 1.0 if op_type == "Mean" else 0.0)

  def extend(self, kept: AbstractSet[Tensor]) -> None:
    """Adds ops backwards from the region, all of whose readers are in it.

    A gradient is then split where it is smallest, such as before it is repeated for each id.

    Args:
      kept: tensors that ops outside the step, or the user, read.
    """
    flow = self._flow

    def producers(op: int) -> List[int]:
      return [tensor[0] for tensor in flow.inputs[op]] if op in self.ops else []

    seeds = {producer for op in self.ops for producer in producers(op)} - self.ops.keys()
    for op in _by_depth(flow, seeds, producers, -1):
      readers = [(reader, i) for reader in flow.consumers[op]
                 for i, tensor in enumerate(flow.inputs[reader]) if tensor[0] == op]
      if op in self.ops or not kept.isdisjoint(flow.outputs(op)) or not all(
          reader in self.ops and self.ops[reader][i] == COLUMNS for reader, i in readers):
        continue
      roles = self._roles(op) if flow.types[op] not in (*SWITCH, *MERGE) else None
      if roles and op_roles.is_stateless(flow.types[op]):
        self.ops[op] = roles

  def _is_handle(self, tensor: Tensor) -> bool:
    return self._flow.dtype(tensor) % 100 == RESOURCE

  def _roles(self, op: int) -> Optional[Roles]:
    """Returns the roles of an op's inputs, or None if its columns are not known to be apart."""
    flow, op_type = self._flow, self._flow.types[op]
    data, rule = flow.inputs[op], rule_of(op_type)
    if flow.frames[op] or not data:
      return None
    if op_roles.is_update(op_type):
      return self._of_update(op)
    if self._is_handle(data[0]):
      return {"ReadVariableOp": [COLUMNS], "VariableShape": [COLUMNS], "Identity": [COLUMNS],
              "ResourceGather": [COLUMNS, SAME] if not flow.integer(op, "batch_dims") else None,
              "Switch": [COLUMNS, SAME]}.get(op_type)
    if op_type == "Shape":
      return [COLUMNS]
    if self.partial(op) is not None:
      return [COLUMNS, SAME][:len(data)] if self.holds(data[0]) else None
    result = flow.shape((op, 0))
    if not result or result[-1] is None or result[-1] < 2:
      return None
    width, last = result[-1], len(result) - 1
    shapes = [flow.shape(tensor) for tensor in data]

    def wide(i: int) -> bool:
      return bool(shapes[i]) and shapes[i][-1] == width  # type: ignore[index]

    first = [COLUMNS, *[SAME] * (len(data) - 1)] if wide(0) else None
    if op_type in MERGE:
      return [COLUMNS] * len(data) if all(map(wide, range(len(data)))) else None
    if op_type in SWITCH:
      return first
    if op_type == "Fill":
      return [SHAPE, SAME]
    if op_type in ("Reshape", "BroadcastTo"):
      return [first[0], SHAPE] if first else [SAME, SHAPE] if (
          op_type == "BroadcastTo" and shapes[0] is not None and (shapes[0] or (1,))[-1] == 1
      ) else None
    if op_type.startswith(_OF_SEGMENTS):
      # (data, ids, ...): rows are added up; the ids number the first axes of the data.
      return first if None not in shapes[:2] and len(shapes[0] or ()) > len(
          shapes[1] or ()) else None
    if rule.axes == "elementwise" and op_type not in _NOT_BY_COLUMN:
      # The condition of a Select may also choose rows.
      if op_type == "Select" and shapes[0] != shapes[1]:
        return None
      roles = [COLUMNS if wide(i) else SAME for i in range(len(data))]
      return roles if all(role == COLUMNS or shape is not None and (shape or (1,))[-1] == 1
                          for role, shape in zip(roles, shapes)) else None
    if rule.axes == "gather":
      axis = flow.value(data[2]) if op_type == "GatherV2" else 0
      return first if axis is not None and int(axis) == 0 and len(shapes[0] or ()) > 1 and (
          not flow.integer(op, "batch_dims")) else None
    if rule.axes == "reduce":
      return first if flow.value(data[1]) is not None else None
    if op_type in ("ExpandDims", "Squeeze"):
      return first
    if op_type == "ConcatV2":
      axis = flow.value(data[-1])
      return [COLUMNS] * (len(data) - 1) + [SAME] if axis is not None and (
          int(axis) % (last + 1) != last and all(map(wide, range(len(data) - 1)))) else None
    if op_type == "Pack":
      return [COLUMNS] * len(data) if flow.integer(op, "axis") % (last + 1) != last and all(
          map(wide, range(len(data)))) else None
    if op_type == "Tile":
      times = flow.value(data[1])
      return first if times is not None and times[-1] == 1 else None
    if op_type == "Slice":
      begin = flow.value(data[1])
      return [COLUMNS, SAME, SHAPE] if first and begin is not None and not begin[-1] else None
    return None

  def _of_update(self, op: int) -> Optional[Roles]:
    """Returns the roles of the inputs of an op that changes variables, elementwise or by rows."""
    flow, found = self._flow, []
    names = [arg.name for arg in registered_op_def(flow.types[op]).input_arg]
    if len(names) != len(flow.inputs[op]):
      return None
    for name, tensor in zip(names, flow.inputs[op]):
      shape = flow.shape(tensor)
      if self._is_handle(tensor):
        if tensor[0] not in self.ops:
          return None  # updates a variable that is not sliced
        found.append(COLUMNS)
      elif name == "indices":
        found.append(SAME)
      elif shape is None or shape and shape[-1] is None:
        return None
      else:
        # Gradients and values have the variable's columns; learning rates are scalars.
        found.append(COLUMNS if shape else SAME)
    return found


def _by_depth(
    flow: Dataflow, seeds: AbstractSet[int], following: Callable[[int], Sequence[int]],
    sign: int = 1) -> Iterator[int]:
  """Yields the seeds and what follows those already yielded, shallow ops first (or deep ones)."""
  depths = flow.graph.depths
  heap = sorted((sign * int(depths[op]), op) for op in seeds)
  seen = set(seeds)
  while heap:
    op = heapq.heappop(heap)[1]
    yield op
    for other in following(op):
      if other not in seen:
        seen.add(other)
        heapq.heappush(heap, (sign * int(depths[other]), other))
