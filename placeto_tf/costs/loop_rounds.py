"""Finds the trip counts ("rounds") of the loops of a graph, if they are known before the run.

A loop continues while `counter < bound`. TensorFlow computes the first value of the counter, its
step and the bound, if they depend only on constants and known shapes. A gradient loop counts down
from, or up to, the forward loop's count, which is the value of an Exit: `exits` returns such
values, which are put into the graph before TensorFlow computes again.

A loop is named by its LoopCond op here, and by its frame in sentences for users.
"""

from __future__ import annotations

from typing import Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from placeto_tf.graphs import loops
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.graphs.tensor_names import Tensor, data_inputs, op_of, parse
from placeto_tf.on_use import NodeDef

Evaluate = Callable[[Tensor], Optional[int]]  # the number that a tensor holds, None if not known

# Updates of a counter -> signs of the step if the counter is input 0, and input 1; 0: no counter.
_UPDATES = {"Add": (1, 1), "AddV2": (1, 1), "Sub": (-1, 0)}
# Comparisons of a counter with a bound -> (sign of the counter's step, number to add to the bound
# for the first value at which they fail).
_COMPARISONS = {"Less": (1, 0), "LessEqual": (1, 1), "Greater": (-1, 0), "GreaterEqual": (-1, -1)}


class LoopRounds:
  """The loops of one graph, and their known trip counts.

  Attributes:
    trips: loop -> trip count, None if unknown.
    capped: loops for which `trips` is an upper limit, because another condition may end them.
    variables: Merge op of each loop variable -> the tensors of its entry and of its back edge.
    invariants: names of the Merge ops whose value is the same in every round.
  """

  def __init__(self, nodes: Sequence[NodeDef]):
    """Finds the loops and their variables among the NodeDefs of a graph."""
    self._nodes = {node.name: node for node in nodes}
    self._evaluate: Evaluate = lambda tensor: None
    self.trips: Dict[str, Optional[int]] = {}
    self.capped: List[str] = []
    self.variables: Dict[str, Tuple[Tensor, Tensor]] = {}
    self._loops: Dict[str, str] = {}  # Merge -> the LoopCond that ends it
    for name, node in self._nodes.items():
      if node.op == "LoopCond":
        self.trips[name] = None
      elif node.op in loops.MERGE and len(data_inputs(node)) > 1:
        # Merge(entry, NextIteration(end of the round)).
        last = self._nodes[op_of(node.input[1])]
        if last.op in loops.NEXT:
          self.variables[name] = parse(node.input[0]), parse(last.input[0])
      elif node.op in loops.SWITCH:
        # Other Switches of the Merge may belong to conditionals.
        loop = self._origin(parse(node.input[1]), ("Identity",))[0]
        if self._nodes[loop].op == "LoopCond":
          self._loops[op_of(node.input[0])] = loop
    self.invariants = [merge for merge, (_, end) in self.variables.items()
                       if self._origin(end) == (merge, 0)]

  def infer(self, evaluate: Evaluate) -> None:
    """Finds the rounds of loops whose rounds are not known yet, by evaluating their conditions."""
    self._evaluate = evaluate
    for loop in [loop for loop, trips in self.trips.items() if trips is None]:
      # The first comparison that fails ends the loop: take the least of all counts.
      counts = [count for condition in self._conditions(loop) for count in self._counts(condition)]
      known = [count for count in counts if count is not None and count <= loops.MAX_TRIPS]
      self.trips[loop] = min(known, default=None)
      if known and len(known) < len(counts):
        self.capped.append(loop)

  def exits(self) -> Dict[Tensor, int]:
    """Returns the final values of counters of loops with known trip counts."""
    found = {}
    for name, node in self._nodes.items():
      if node.op in loops.EXIT:
        # The counter behind an Exit: Merge, Switch and Exit pass it on.
        merge = self._origin((name, 0), loops.EXIT + loops.PASSING)[0]
        trips, (start, step) = self.trips.get(self._loops.get(merge, "")), self._counter(merge)
        if trips is not None and start is not None and step is not None:
          found[name, 0] = start + trips * step
    return found

  def _conditions(self, loop: str) -> List[str]:
    """Returns the ops that all have to be true for a further round."""
    found: Dict[str, None] = {}
    waiting = [loop]
    while waiting:
      for text in data_inputs(self._nodes[waiting.pop()]):
        op = self._origin(parse(text), ("Identity",))[0]
        if op not in found:
          found[op] = None
          # Both sides of a LogicalAnd have to hold.
          waiting += [op] * (self._nodes[op].op == "LogicalAnd")
    return [op for op in found if self._nodes[op].op != "LogicalAnd"]

  def _counts(self, condition: str) -> List[Optional[int]]:
    """Returns the trip counts by a comparison, one for each of its bounds."""
    node = self._nodes[condition]
    if node.op not in _COMPARISONS:
      return [None]
    sign, more = _COMPARISONS[node.op]
    counter, bound = (parse(text) for text in data_inputs(node))
    start, step = self._counter(self._origin(counter, ("Identity",))[0])
    if start is None or step is None or step * sign <= 0:
      return [None]
    bounds = [self._scalar(bound)]
    least = self._nodes[self._origin(bound)[0]]
    if bounds == [None] and least.op == "Minimum":
      # Lengths that are fed may end a loop earlier: each side is a bound.
      bounds = [self._scalar(parse(text)) for text in data_inputs(least)]
    # Rounds up to the first value at which the comparison fails: ceil((bound - start) / step).
    return [None if bound is None else max(-(-(bound + more - start) // step), 0)
            for bound in bounds]

  def _counter(self, merge: str) -> Tuple[Optional[int], Optional[int]]:
    """Returns the first value and the step of Merge(Enter(first), NextIteration(Add(.., step)))."""
    if merge not in self.variables:
      return None, None
    entry, end = self.variables[merge]
    update = self._nodes[self._origin(end)[0]]
    sides = [parse(text) for text in data_inputs(update)]
    for i, sign in enumerate(_UPDATES.get(update.op, ())):
      if self._origin(sides[i])[0] == merge:
        step = self._scalar(sides[1 - i])
        return self._scalar(entry), None if step is None else sign * step
    return None, None

  def _scalar(self, tensor: Tensor) -> Optional[int]:
    return self._evaluate(self._origin(tensor))

  def _origin(self, tensor: Tensor, passing: Sequence[str] = loops.PASSING) -> Tensor:
    """Returns the tensor before all ops that only pass it on."""
    node = self._nodes[tensor[0]]
    while node.op in passing:
      tensor = parse(node.input[0])
      node = self._nodes[tensor[0]]
    return tensor


def executions_of(
    graph: ComputationGraph, nodes: Sequence[NodeDef], trips: Mapping[str, Optional[int]]
) -> Tuple[np.ndarray, Dict[str, str]]:
  """Finds the number of runs of each op.

  Args:
    graph: N ops.
    nodes: [N] NodeDefs.
    trips: loop -> trip count, None if unknown.

  Returns:
    [N] float64 runs in a step, and loop -> name of its frame.
  """
  if not trips:
    return graph.executions.copy(), {}
  frames = loops.frames_of(
      nodes, graph.edge_producers, graph.edge_consumers, graph.topological_order)
  of_loop = {loop: frames.of_op[graph.op_index[loop]] for loop in trips}
  assumed = np.full(len(frames.names), float(loops.DEFAULT_TRIPS))
  for loop, count in trips.items():
    if count is not None:
      assumed[of_loop[loop]] = count
  return (loops.loops_of(frames, assumed.tolist()).executions,
          {loop: frames.names[frame] for loop, frame in of_loop.items()})


def notes_of(
    loop_names: Mapping[str, str], trips: Mapping[str, Optional[int]], capped: Sequence[str],
    given: bool) -> Tuple[str, ...]:
  """Returns a sentence on the trip count of each loop.

  Args:
    loop_names: loop -> name for the user.
    trips: loop -> trip count, None if unknown.
    capped: loops whose trip count is an upper limit.
    given: whether the user gave the trip counts.
  """
  return tuple(
      f"loop {loop_names[loop]!r} is assumed to run {loops.DEFAULT_TRIPS} times" if count is None
      else f"loop {loop_names[loop]!r} runs {'at most ' * (loop in capped)}{count} times, "
      f"{'as given' if given else 'by the bound of its condition'}"
      for loop, count in trips.items())
