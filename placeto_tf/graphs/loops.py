"""Loops of v1 control flow: which ops belong to which frame, and how often those run.

A loop is a frame: its values come in by Enter, go round by NextIteration -> Merge, and leave by
Exit. Frames nest. An op runs as often as its frame's trip count times what encloses it.

Legend: N ops, F frames; frame -1 is outside all loops.
"""

from __future__ import annotations

import dataclasses
from typing import Any, List, Optional, Sequence, Tuple

import numpy as np

from placeto_tf.errors import GraphError
from placeto_tf.graphs.computation_graph import CONTROL

DEFAULT_TRIPS = 10
MAX_TRIPS = 1e12

_ENTER = ("Enter", "RefEnter")
_EXIT = ("Exit", "RefExit")
_MERGE = ("Merge", "RefMerge")
_NEXT = ("NextIteration", "RefNextIteration")
_PASSING = ("Identity", "Switch", "RefSwitch") + _ENTER
_ADD = ("Add", "AddV2")
_INTEGERS = (3, 9)  # DT_INT32, DT_INT64


@dataclasses.dataclass(frozen=True)
class Loops:
  """Loops of one graph.

  Attributes:
    outermost: [N] int64, the outermost frame an op belongs to, Enter and Exit included, or -1.
    executions: [N] float64, how often the op runs in one step.
    notes: trip counts and where they are from.
  """

  outermost: np.ndarray  # [N]
  executions: np.ndarray  # [N]
  notes: Tuple[str, ...]


def back_edges(
    types: Sequence[str], producers: np.ndarray, consumers: np.ndarray
) -> np.ndarray:
  """[E] bool, the edges NextIteration -> Merge."""
  goes_round = np.array([op_type in _NEXT for op_type in types], dtype=bool)
  merges = np.array([op_type in _MERGE for op_type in types], dtype=bool)
  return goes_round[producers] & merges[consumers]


def find_loops(
    nodes: Sequence[Any],
    producers: np.ndarray,
    ports: np.ndarray,
    consumers: np.ndarray,
    order: np.ndarray,
    trip_count: Optional[int] = None,
) -> Loops:
  """Assigns ops to frames.

  Args:
    nodes: [N] NodeDefs.
    producers: [E] op indices, edges sorted by consumer and in the order of its inputs, back edges
      left out.
    ports: [E].
    consumers: [E].
    order: [N] op indices, producers first.
    trip_count: for every loop, or None to infer it where the bound is a constant.

  Raises:
    GraphError: an op has inputs from two frames, or an Exit stands outside a loop.
  """
  n = len(nodes)
  types = [node.op for node in nodes]
  if not any(op_type in _ENTER for op_type in types):
    stray = next((i for i, op_type in enumerate(types) if op_type in _EXIT), None)
    if stray is not None:
      raise _stray_exit(nodes[stray])
    return Loops(np.full(n, -1), np.ones(n), ())
  inputs = _Inputs(nodes, producers, ports, consumers)
  frames, parents, frame_names = _frames(nodes, types, inputs, order)
  trips, notes = _trip_counts(types, nodes, inputs, frames, frame_names, trip_count)
  executions_of, outermost_of = [], []
  for frame, parent in enumerate(parents):  # a parent comes before its children
    above = 1.0 if parent < 0 else executions_of[parent]
    executions_of.append(min(above * trips[frame], MAX_TRIPS))
    outermost_of.append(frame if parent < 0 else outermost_of[parent])
  executions, outermost = np.ones(n), np.full(n, -1)
  for op, frame in enumerate(frames):
    if frame >= 0:
      outermost[op] = outermost_of[frame]
      # Enter and Exit pass a value across the border once.
      outside = types[op] in _ENTER or types[op] in _EXIT
      frame = parents[frame] if outside else frame
      executions[op] = 1.0 if frame < 0 else executions_of[frame]
  return Loops(outermost, executions, notes)


class _Inputs:
  """The producers of each op's inputs."""

  def __init__(self, nodes, producers, ports, consumers):
    self._starts = np.searchsorted(consumers, np.arange(len(nodes) + 1)).tolist()
    self._producers = producers.tolist()
    self._ports = ports.tolist()

  def all(self, op: int) -> List[int]:
    return self._producers[self._starts[op]:self._starts[op + 1]]

  def data(self, op: int) -> List[int]:
    edges = range(self._starts[op], self._starts[op + 1])
    return [self._producers[e] for e in edges if self._ports[e] != CONTROL]


def _stray_exit(node) -> GraphError:
  return GraphError(
      f"op {node.name!r} ({node.op}) leaves a loop that no Enter op opens; export the graph again")


def _frames(nodes, types, inputs, order):
  """[N] the frame each op belongs to (for Exit the one it leaves), [F] parents and names."""
  frames = [-1] * len(nodes)
  gives = [-1] * len(nodes)  # the frame of an op's outputs
  ids, parents, names = {}, [], []
  for op in order.tolist():
    frame, source = -1, None
    for producer in inputs.all(op):
      if source is None:
        frame, source = gives[producer], producer
      elif gives[producer] != frame:
        raise GraphError(
            f"op {nodes[op].name!r} ({types[op]}) mixes values of different loops, from "
            f"{nodes[source].name!r} and {nodes[producer].name!r}; export the graph again")
    if types[op] in _ENTER:
      key = (frame, nodes[op].attr["frame_name"].s)
      if key not in ids:
        ids[key] = len(parents)
        parents.append(frame)
        names.append(key[1].decode("utf-8", "replace"))
      frames[op] = gives[op] = ids[key]
    elif types[op] in _EXIT:
      if frame < 0:
        raise _stray_exit(nodes[op])
      frames[op], gives[op] = frame, parents[frame]
    else:
      frames[op] = gives[op] = frame
  return frames, parents, names


def _trip_counts(types, nodes, inputs, frames, frame_names, trip_count):
  """[F] trip counts, and notes."""
  if trip_count is not None:
    return [float(trip_count)] * len(frame_names), (
        f"every loop is taken to run {trip_count} times, as given",)
  conditions = {}
  for op, op_type in enumerate(types):
    if op_type == "LoopCond":
      conditions.setdefault(frames[op], inputs.data(op))
  resolver = _Bounds(types, nodes, inputs, frames, conditions)
  trips, notes = [], []
  for frame, name in enumerate(frame_names):
    found = resolver.trips(frame)
    trips.append(float(DEFAULT_TRIPS if found is None else found))
    notes.append(
        f"loop {name!r} is assumed to run {DEFAULT_TRIPS} times" if found is None
        else f"loop {name!r} runs {found} times, by the constant bound of its condition")
  return trips, tuple(notes)


class _Bounds:
  """Infers trip counts from conditions like `counter < constant`."""

  def __init__(self, types, nodes, inputs, frames, conditions):
    self._types = types
    self._nodes = nodes
    self._inputs = inputs
    self._frames = frames
    self._conditions = conditions
    self._index = {node.name: i for i, node in enumerate(nodes)}
    self._pushed = {}  # stack -> op whose value is pushed on it
    for op, op_type in enumerate(types):
      if op_type == "StackPushV2":
        handle, value = inputs.data(op)
        self._pushed[self._origin(handle)] = value
    self._busy = set()

  def trips(self, frame: int) -> Optional[int]:
    """The trip count of a frame, or None."""
    if frame in self._busy or frame not in self._conditions:
      return None
    self._busy.add(frame)
    try:
      counts = [
          count for op in self._conditions[frame] for count in self._of_condition(op, 0)
          if count is not None and 0 <= count <= MAX_TRIPS]
    finally:
      self._busy.discard(frame)
    return min(counts) if counts else None

  def _of_condition(self, op: int, depth: int) -> List[Optional[int]]:
    op = self._origin(op, ("Identity",))
    data = self._inputs.data(op)
    if self._types[op] == "LogicalAnd" and depth < 8:
      return [count for side in data for count in self._of_condition(side, depth + 1)]
    if len(data) != 2:
      return []
    if self._types[op] in ("Less", "LessEqual"):
      start, bound = self._start(data[0]), self._constant(data[1])
      step = self._step(data[0])
      if bound is None and start == 0 and step == 1:
        # The loop of the gradients counts up to what the forward loop has counted.
        return [self._counted_by(data[1])]
      if start is None or bound is None or step is None or step < 1:
        return []
      span = bound - start + (self._types[op] == "LessEqual")
      return [max(-(-span // step), 0)]
    if self._types[op] in ("GreaterEqual", "Greater"):
      # The loop of the gradients counts down from what the forward loop counted up to.
      return [self._counted_by(data[0])]
    return []

  def _start(self, op: int) -> Optional[int]:
    """What a counter begins with: Merge(Enter(constant), NextIteration)."""
    if self._types[op] not in _MERGE:
      return None
    data = self._inputs.data(op)
    return self._constant(data[0]) if data else None

  def _step(self, merge: int) -> Optional[int]:
    """What a counter grows by: Merge(.., NextIteration(Add(counter, constant)))."""
    if len(self._nodes[merge].input) < 2:
      return None
    op = self._index.get(self._nodes[merge].input[1].partition(":")[0])
    if op is None or self._types[op] not in _NEXT:
      return None
    op = self._origin(op, _NEXT + ("Identity",))
    if self._types[op] not in _ADD:
      return None
    steps = [self._constant(side) for side in self._inputs.data(op)]
    return next((step for step in steps if step is not None), None)

  def _counted_by(self, op: int) -> Optional[int]:
    """Trips of the loop whose Exit a counter begins with, if need be through a stack."""
    if self._types[op] in _MERGE:
      data = self._inputs.data(op)
      if not data:
        return None
      op = data[0]
    op = self._origin(op)
    if self._types[op] == "StackPopV2":
      op = self._pushed.get(self._origin(self._inputs.data(op)[0]), op)
      op = self._origin(op)
    return self.trips(self._frames[op]) if self._types[op] in _EXIT else None

  def _origin(self, op: int, passing: Sequence[str] = _PASSING) -> int:
    """The op that computes what reaches this one through ops that only pass it on."""
    while self._types[op] in passing:
      data = self._inputs.data(op)
      if not data:
        break
      op = data[0]
    return op

  def _constant(self, op: int) -> Optional[int]:
    """The scalar integer that reaches the op, or None."""
    op = self._origin(op)
    if self._types[op] != "Const":
      return None
    tensor = self._nodes[op].attr["value"].tensor
    values = tensor.int_val or tensor.int64_val
    if tensor.tensor_shape.dim or tensor.dtype not in _INTEGERS:
      return None
    if tensor.tensor_content:
      return int.from_bytes(tensor.tensor_content, "little", signed=True)
    return int(values[0]) if values else 0
