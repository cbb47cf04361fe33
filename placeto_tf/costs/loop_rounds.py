"""Finds the trip counts ("rounds") of the loops of a graph, if they are known before the run.

A loop continues while `counter < bound`. TensorFlow computes the first value of the counter, its
step and the bound, if they depend only on constants and known shapes. A gradient loop counts down
from, or up to, the forward loop's count, which is the value of an Exit: `exits` returns such
values, which are put into the graph before TensorFlow computes again.

Dimensions: N ops, E edges, F frames.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple

import numpy as np

from placeto_tf.graphs import loops, traversal
from placeto_tf.graphs.computation_graph import CONTROL
from placeto_tf.graphs.tensor_names import Tensor, op_of, parse

if TYPE_CHECKING:
  from tensorflow.core.framework.node_def_pb2 import NodeDef

Evaluate = Callable[[Tensor], Optional[int]]  # the number that a tensor holds, None if not known

_ADD = ("Add", "AddV2")
# Comparisons of a counter with a bound -> (sign of the counter's step, number to add to the bound
# for the first value at which they fail).
_COMPARISONS = {"Less": (1, 0), "LessEqual": (1, 1), "Greater": (-1, 0), "GreaterEqual": (-1, -1)}
_DEPTH = 8  # of conditions joined by LogicalAnd

_Tensor = Tuple[int, int]  # op, output port


class LoopRounds:
  """The loops of one graph, and their known trip counts.

  Attributes:
    names: [F] of the loops.
    trips: [F] trip counts, None if unknown.
    capped: frames for which `trips` is an upper limit, because another condition may end them.
    variables: Merge op of each loop variable -> the tensors of its entry and of its back edge.
    invariants: names of the Merge ops whose value is the same in every round.
  """

  def __init__(self, nodes: Sequence[NodeDef]):
    """Finds the frames of a graph with loops, given its [N] NodeDefs; no nodes have no frames."""
    self._nodes = nodes
    self._types = [node.op for node in nodes]
    self._index = {node.name: i for i, node in enumerate(nodes)}
    self._edges = self._read_edges()
    self._evaluate: Evaluate = lambda tensor: None
    order, _ = traversal.topological_order(len(nodes), self._edges[0], self._edges[2])
    self._frames: loops.Frames = loops.frames_of(nodes, *self._edges, order)
    self._inputs: loops.Inputs = self._frames.inputs
    self.names: List[str] = self._frames.names
    self.trips: List[Optional[int]] = [None] * len(self.names)
    self.capped: Set[int] = set()
    self._conditions: Dict[int, List[_Tensor]] = {}
    for op, op_type in enumerate(self._types):
      if op_type == "LoopCond":
        self._conditions.setdefault(self._frames.of_op[op], self._inputs.data(op))
    self.variables: Dict[str, Tuple[Tensor, Tensor]] = {}
    self.invariants: List[str] = []
    for op, node in enumerate(nodes):
      last = self._back_edge(op)
      if last is not None:
        self.variables[node.name] = parse(node.input[0]), parse(nodes[last].input[0])
        if self._round_trip(op) == (op, 0):
          self.invariants.append(node.name)

  def infer(self, evaluate: Evaluate) -> None:
    """Finds the rounds of loops whose rounds are not known yet, by evaluating their conditions."""
    self._evaluate = evaluate
    for frame, conditions in self._conditions.items():
      if self.trips[frame] is None:
        self.capped.discard(frame)
        # The first comparison that fails ends the loop: take the least of all counts.
        counts = [count for op, _ in conditions for count in self._of_condition(op, 0)]
        known = [count for count in counts if count is not None and count <= loops.MAX_TRIPS]
        self.trips[frame] = min(known, default=None)
        if len(known) < len(counts):
          self.capped.add(frame)

  def exits(self) -> Dict[Tensor, int]:
    """Returns the final values of counters of loops with known trip counts."""
    found = {}
    for op, op_type in enumerate(self._types):
      trips = self.trips[self._frames.of_op[op]] if op_type in loops.EXIT else None
      # The counter behind an Exit: Merge, Switch and Exit pass it on.
      merge = self._origin((op, 0), loops.EXIT + loops.PASSING)[0] if trips is not None else op
      if trips is not None and self._types[merge] in loops.MERGE:
        start, step = self._start(merge), self._step(merge)
        if start is not None and step is not None:
          found[self._nodes[op].name, 0] = start + trips * step
    return found

  def executions(self, trip_count: Optional[int] = None) -> Dict[str, float]:
    """Returns op name -> runs in a step; `trip_count` replaces the rounds of every loop."""
    assumed = [loops.DEFAULT_TRIPS if trips is None else trips for trips in self.trips]
    if trip_count is not None:
      assumed = [trip_count] * len(assumed)
    found = loops.loops_of(self._frames, [float(trips) for trips in assumed])
    return dict(zip(self._index, found.executions.tolist()))

  def _read_edges(self) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns [E] producers, ports and consumers, back edges left out."""
    rows = []
    for op, node in enumerate(self._nodes):
      for text in node.input:
        name, port = parse(text)
        producer = self._index[name]
        # NextIteration -> Merge closes a loop; without these edges the graph is acyclic.
        if not (node.op in loops.MERGE and self._types[producer] in loops.NEXT):
          rows.append((producer, CONTROL if text.startswith("^") else port, op))
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    return table[:, 0], table[:, 1], table[:, 2]

  def _of_condition(self, op: int, depth: int) -> List[Optional[int]]:
    """Returns the trip count by each comparison in a condition."""
    op, _ = self._origin((op, 0), ("Identity",))
    data = self._inputs.data(op)
    # Both sides of a LogicalAnd have to hold.
    if self._types[op] == "LogicalAnd" and depth < _DEPTH:
      return [count for side, _ in data for count in self._of_condition(side, depth + 1)]
    if len(data) != 2 or self._types[op] not in _COMPARISONS:
      return [None]
    sign, more = _COMPARISONS[self._types[op]]
    merge = self._origin(data[0], ("Identity",))[0]
    start, step, bound = self._start(merge), self._step(merge), self._bound(data[1])
    if start is None or step is None or bound is None or step * sign <= 0:
      return [None]
    # Rounds up to the first value at which the comparison fails: ceil((bound - start) / step).
    return [max(-(-(bound + more - start) // step), 0)]

  def _bound(self, tensor: _Tensor) -> Optional[int]:
    """Returns the bound of a counter; the least known bound if there are several."""
    found = self._scalar(tensor)
    op, _ = self._origin(tensor)
    if found is None and self._types[op] == "Minimum":
      # Lengths that are fed may end a loop earlier.
      self.capped.add(self._frames.of_op[tensor[0]])
      sides = [self._scalar(side) for side in self._inputs.data(op)]
      return min((side for side in sides if side is not None), default=None)
    return found

  def _start(self, op: int) -> Optional[int]:
    """Returns the first value of a counter: Merge(Enter(start), NextIteration)."""
    data = self._inputs.data(op) if self._types[op] in loops.MERGE else []
    return self._scalar(data[0]) if data else None

  def _step(self, merge: int) -> Optional[int]:
    """Returns the step of a counter: Merge(.., NextIteration(Add(counter, step)))."""
    behind = self._round_trip(merge)
    if behind is None or self._types[behind[0]] not in (*_ADD, "Sub"):
      return None
    data = self._inputs.data(behind[0])
    # counter + step and step + counter, but of subtractions counter - step alone.
    for i, side in enumerate(data):
      if self._origin(side)[0] == merge and len(data) == 2:
        step = self._scalar(data[1 - i])
        if step is not None and self._types[behind[0]] in _ADD:
          return step
        return -step if step is not None and i == 0 else None
    return None

  def _scalar(self, tensor: _Tensor) -> Optional[int]:
    op, port = self._origin(tensor)
    return self._evaluate((self._nodes[op].name, port))

  def _round_trip(self, merge: int) -> Optional[_Tensor]:
    """Returns the tensor of a Merge's back edge, before ops that only pass it on."""
    last = self._back_edge(merge)
    return None if last is None else self._origin((last, 0), loops.NEXT + loops.PASSING)

  def _back_edge(self, op: int) -> Optional[int]:
    """Returns the NextIteration that a Merge reads, or None for another op."""
    inputs = self._nodes[op].input
    if self._types[op] not in loops.MERGE or len(inputs) < 2:
      return None
    last = self._index[op_of(inputs[1])]
    return last if self._types[last] in loops.NEXT else None

  def _origin(self, tensor: _Tensor, passing: Sequence[str] = loops.PASSING) -> _Tensor:
    """Returns the tensor before all ops that only pass it on."""
    while self._types[tensor[0]] in passing:
      data = self._inputs.data(tensor[0])
      if not data:
        break
      tensor = data[0]
    return tensor


def notes_of(
    rounds: Mapping[str, Optional[int]], capped: Sequence[str], trip_count: Optional[int],
    seen: bool = False
) -> Tuple[str, ...]:
  """Returns sentences on the trip counts of loops.

  Args:
    rounds: loop -> trip count, None if unknown.
    capped: loops whose trip count is an upper limit.
    trip_count: the trip count that the user gave for all loops, if any.
    seen: whether the trip counts are from a run.

  Returns:
    One sentence for each loop, or one for all loops if the user gave the trip count.
  """
  if trip_count is not None:
    return (f"every loop is taken to run {trip_count} times, as given",) if rounds else ()
  return tuple(
      f"loop {name!r} runs as often as it did then" if seen and (trips is None or name in capped)
      else f"loop {name!r} is assumed to run {loops.DEFAULT_TRIPS} times" if trips is None
      else f"loop {name!r} runs {'at most ' if name in capped else ''}{trips} times, by the bound "
      "of its condition"
      for name, trips in rounds.items())
