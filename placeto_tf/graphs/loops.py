"""Loops of v1 control flow: the frame of each op, and how often it runs.

A loop is a frame: its values enter by Enter, go round by NextIteration -> Merge, and leave by Exit.
Frames nest. An op runs as often as the product of the trip counts of the frames around it; the ops
that decide whether a loop goes on run once more, to end it.

Legend: N ops, F frames; frame -1 is outside all loops.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Dict, List, Mapping, Optional, Sequence, Set, Tuple

import numpy as np

from placeto_tf.errors import GraphError
from placeto_tf.graphs.static_values import PASSING, Inputs, StaticValues, Tensor

if TYPE_CHECKING:
  from tensorflow.core.framework.node_def_pb2 import NodeDef

DEFAULT_TRIPS = 10
MAX_TRIPS = 1e12

_ENTER = ("Enter", "RefEnter")
_EXIT = ("Exit", "RefExit")
_MERGE = ("Merge", "RefMerge")
_NEXT = ("NextIteration", "RefNextIteration")
_ADD = ("Add", "AddV2")
# Comparisons that hold below, or above, a bound -> 1 if they also hold at the bound.
_BELOW = {"Less": 0, "LessEqual": 1}
_ABOVE = {"Greater": 0, "GreaterEqual": 1}


@dataclasses.dataclass(frozen=True)
class Loops:
  """Loops of one graph.

  Attributes:
    outermost: [N] int64, the outermost frame an op belongs to, Enter and Exit included, or -1.
    executions: [N] float64, how often the op runs in one step.
    notes: trip counts and their sources.
    signals: rows of (LoopCond, op), the ops that need a signal in each iteration, if they are on
      another device, whether their loop goes on.
    ends: rows of (NextIteration, Exit) of one frame: values leave a loop after its last round, for
      which they wait by back edges alone, which are left out.
  """

  outermost: np.ndarray  # [N]
  executions: np.ndarray  # [N]
  notes: Tuple[str, ...]
  signals: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((0, 2), np.int64))
  ends: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((0, 2), np.int64))


def back_edges(
    types: Sequence[str], producers: np.ndarray, consumers: np.ndarray
) -> np.ndarray:
  """[E] bool, the edges NextIteration -> Merge."""
  goes_round = np.array([op_type in _NEXT for op_type in types], dtype=bool)
  merges = np.array([op_type in _MERGE for op_type in types], dtype=bool)
  return goes_round[producers] & merges[consumers]


def find_loops(
    nodes: Sequence[NodeDef],
    producers: np.ndarray,
    ports: np.ndarray,
    consumers: np.ndarray,
    order: np.ndarray,
    trip_count: Optional[int] = None,
    feed_shapes: Optional[Mapping[str, Tuple[int, ...]]] = None,
) -> Loops:
  """Assigns ops to frames.

  Args:
    nodes: [N] NodeDefs.
    producers: [E] op indices, edges sorted by consumer and in the order of its inputs, back edges
      left out.
    ports: [E].
    consumers: [E].
    order: [N] op indices, producers first.
    trip_count: for every loop, or None to infer it where the bound is known before the run.
    feed_shapes: tensor name -> dimensions of a feed, on which a bound may depend.

  Raises:
    GraphError: an op has inputs from two frames, or an Exit is outside a loop.
  """
  n = len(nodes)
  types = [node.op for node in nodes]
  if not any(op_type in _ENTER for op_type in types):
    stray = next((i for i, op_type in enumerate(types) if op_type in _EXIT), None)
    if stray is not None:
      raise _stray_exit(nodes[stray])
    return Loops(np.full(n, -1), np.ones(n), ())
  inputs = Inputs(producers, ports, consumers, n)
  frames, parents, frame_names = _frames(nodes, types, inputs, order)
  trips, notes = _trip_counts(
      types, nodes, inputs, frames, frame_names, trip_count, feed_shapes or {})
  executions_of: List[float] = []
  outermost_of: List[int] = []
  for frame, parent in enumerate(parents):  # a parent comes before its children
    above = 1.0 if parent < 0 else executions_of[parent]
    executions_of.append(min(above * trips[frame], MAX_TRIPS))
    outermost_of.append(frame if parent < 0 else outermost_of[parent])
  executions, outermost = np.ones(n), np.full(n, -1)
  deciders = _deciders(types, inputs, frames)
  deciding = set().union(*deciders.values())
  for op, frame in enumerate(frames):
    if frame >= 0:
      outermost[op] = outermost_of[frame]
      # Enter and Exit pass a value across the border once.
      outside = types[op] in _ENTER or types[op] in _EXIT
      around = parents[frame] if outside else frame
      executions[op] = 1.0 if around < 0 else executions_of[around]
      if op in deciding and not outside:
        executions[op] += 1.0 if parents[frame] < 0 else executions_of[parents[frame]]
  return Loops(
      outermost, executions, notes, _signals(types, deciders, frames), _ends(types, frames))


def _ends(types: Sequence[str], frames: Sequence[int]) -> np.ndarray:
  """Rows of (NextIteration, Exit) of each frame."""
  rounds: Dict[int, List[int]] = {}
  for op, op_type in enumerate(types):
    if op_type in _NEXT:
      rounds.setdefault(frames[op], []).append(op)
  rows = [(last, op) for op, op_type in enumerate(types) if op_type in _EXIT
          for last in rounds.get(frames[op], ())]
  return np.array(rows, dtype=np.int64).reshape(-1, 2)


def _deciders(
    types: Sequence[str], inputs: Inputs, frames: Sequence[int]) -> Dict[int, Set[int]]:
  """Finds the ops that decide whether a loop goes on: LoopCond -> what it needs inside its loop."""
  found: Dict[int, Set[int]] = {}
  for cond, op_type in enumerate(types):
    if op_type != "LoopCond" or frames[cond] < 0:
      continue
    before, stack = {cond}, [cond]
    while stack:
      op = stack.pop()
      for producer in inputs.all(op):
        entered = types[op] in _ENTER and frames[op] == frames[cond]
        if not entered and producer not in before:
          before.add(producer)
          stack.append(producer)
    found[cond] = before
  return found


def _signals(
    types: Sequence[str], deciders: Mapping[int, Set[int]], frames: Sequence[int]) -> np.ndarray:
  """Rows of (LoopCond, op) for all ops of a frame but those that decide whether it goes on."""
  members: Dict[int, List[int]] = {}
  for op, frame in enumerate(frames):
    members.setdefault(frame, []).append(op)
  rows = [
      (cond, op) for cond, before in deciders.items() for op in members[frames[cond]]
      if op not in before and types[op] not in _ENTER + _MERGE]
  return np.array(rows, dtype=np.int64).reshape(-1, 2)


def _stray_exit(node: NodeDef) -> GraphError:
  return GraphError(
      f"op {node.name!r} ({node.op}) leaves a loop that no Enter op opens; export the graph again")


def _frames(
    nodes: Sequence[NodeDef], types: Sequence[str], inputs: Inputs, order: np.ndarray
) -> Tuple[List[int], List[int], List[str]]:
  """[N] the frame each op belongs to (for Exit the one it leaves), [F] parents and names."""
  frames = [-1] * len(nodes)
  gives = [-1] * len(nodes)  # the frame of an op's outputs
  ids: Dict[Tuple[int, bytes], int] = {}
  parents: List[int] = []
  names: List[str] = []
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


def _trip_counts(
    types: Sequence[str], nodes: Sequence[NodeDef], inputs: Inputs, frames: Sequence[int],
    frame_names: Sequence[str], trip_count: Optional[int],
    feed_shapes: Mapping[str, Tuple[int, ...]],
) -> Tuple[List[float], Tuple[str, ...]]:
  """[F] trip counts, and notes."""
  if trip_count is not None:
    return [float(trip_count)] * len(frame_names), (
        f"every loop is taken to run {trip_count} times, as given",)
  conditions: Dict[int, List[Tensor]] = {}
  for op, op_type in enumerate(types):
    if op_type == "LoopCond":
      conditions.setdefault(frames[op], inputs.data(op))
  bounds = _Bounds(types, nodes, inputs, frames, conditions, feed_shapes)
  trips, notes = [], []
  for frame, name in enumerate(frame_names):
    found = bounds.trips(frame)
    trips.append(float(DEFAULT_TRIPS if found is None else found))
    notes.append(
        f"loop {name!r} is assumed to run {DEFAULT_TRIPS} times" if found is None
        else f"loop {name!r} runs {found} times, by the bound of its condition")
  return trips, tuple(notes)


class _Bounds:
  """Infers trip counts from conditions like `counter < bound`, both known before the run.

  A loop of gradients counts down from, or up to, the forward loop's count, which is the value of
  its Exit; inside other loops counts pass through stacks and lists.
  """

  def __init__(
      self, types: Sequence[str], nodes: Sequence[NodeDef], inputs: Inputs, frames: Sequence[int],
      conditions: Mapping[int, List[Tensor]], feed_shapes: Mapping[str, Tuple[int, ...]]):
    self._types = types
    self._inputs = inputs
    self._frames = frames
    self._conditions = conditions
    self._values = StaticValues(nodes, inputs, feed_shapes, self._exit_value)
    self._known: Dict[int, Optional[int]] = {}
    self._busy: Set[int] = set()

  def trips(self, frame: int) -> Optional[int]:
    """The trip count of a frame, or None."""
    if frame in self._known:
      return self._known[frame]
    if frame in self._busy or frame not in self._conditions:
      return None
    self._busy.add(frame)
    counts = [
        count for tensor in self._conditions[frame] for count in self._of_condition(tensor[0], 0)
        if count is not None and 0 <= count <= MAX_TRIPS]
    self._busy.discard(frame)
    self._known[frame] = min(counts) if counts else None
    return self._known[frame]

  def _of_condition(self, op: int, depth: int) -> List[Optional[int]]:
    op, _ = self._values.origin((op, 0), ("Identity",))
    data = self._inputs.data(op)
    if self._types[op] == "LogicalAnd" and depth < 8:
      return [count for side, _ in data for count in self._of_condition(side, depth + 1)]
    if len(data) != 2 or self._types[op] not in (*_BELOW, *_ABOVE):
      return []
    counter = data[0][0]
    start, step, bound = self._start(counter), self._step(counter), self._bound(data[1])
    if start is None or step is None or bound is None:
      return []
    if self._types[op] in _BELOW and step > 0:
      return [max(-(-(bound - start + _BELOW[self._types[op]]) // step), 0)]
    if self._types[op] in _ABOVE and step < 0:
      return [max(-(-(start - bound + _ABOVE[self._types[op]]) // -step), 0)]
    return []

  def _bound(self, tensor: Tensor) -> Optional[int]:
    """The bound of a counter; if not all of several are known, the least of the known ones
    (lengths that are fed end a loop before its longest sequence does)."""
    found = self._values.scalar(tensor)
    op, _ = self._values.origin(tensor)
    if found is None and self._types[op] == "Minimum":
      sides = [self._values.scalar(side) for side in self._inputs.data(op)]
      return min((side for side in sides if side is not None), default=None)
    return found

  def _start(self, op: int) -> Optional[int]:
    """The first value of a counter: Merge(Enter(start), NextIteration)."""
    if self._types[op] not in _MERGE:
      return None
    data = self._inputs.data(op)
    return self._values.scalar(data[0]) if data else None

  def _step(self, merge: int) -> Optional[int]:
    """The step of a counter: Merge(.., NextIteration(Add(counter, step)))."""
    behind = self._values.round_trip(merge)
    if behind is None or self._types[behind[0]] not in (*_ADD, "Sub"):
      return None
    data = self._inputs.data(behind[0])
    for i, side in enumerate(data):
      if self._values.origin(side)[0] == merge and len(data) == 2:
        step = self._values.scalar(data[1 - i])
        if step is not None and self._types[behind[0]] in _ADD:
          return step
        return -step if step is not None and i == 0 else None
    return None

  def _exit_value(self, op: int) -> Optional[int]:
    """The value of a counter when its loop ends."""
    merge, _ = self._values.origin((op, 0), _EXIT + PASSING)
    if self._types[merge] not in _MERGE:
      return None
    start, step = self._start(merge), self._step(merge)
    if start is None or step is None:
      return None
    count = self.trips(self._frames[op])
    return None if count is None else start + count * step
