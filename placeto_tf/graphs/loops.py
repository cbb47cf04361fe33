"""Finds the loops of v1 control flow: the frame of each op, and its number of runs.

A loop is a frame: its values enter by Enter, return by the back edge NextIteration -> Merge, and
leave by Exit. Frames nest. The number of runs of an op is the product of the trip counts of the
frames around it. The ops of a loop's condition run once more, to end the loop.

Dimensions: N ops, F frames; frame -1 is outside all loops.
"""

from __future__ import annotations

import dataclasses
from typing import Dict, List, Mapping, Sequence, Set, Tuple

import numpy as np

from placeto_tf.errors import GraphError
from placeto_tf.graphs.traversal import reachable
from placeto_tf.on_use import NodeDef
from placeto_tf.ops import types_with

DEFAULT_TRIPS = 10
MAX_TRIPS = 1e12

ENTER, EXIT, MERGE, NEXT, SWITCH = (
    tuple(sorted(types_with(flow=part))) for part in ("enter", "exit", "merge", "next", "switch"))
PASSING = ("Identity", *SWITCH, *ENTER)  # pass a value on unchanged


@dataclasses.dataclass(frozen=True)
class Loops:
  """Loops of one graph.

  Attributes:
    outermost: [N] int64, the outermost frame an op belongs to, Enter and Exit included, or -1.
    executions: [N] float64, the number of runs of the op in one step.
    signals: rows of (LoopCond, op). If the op is on another device than the LoopCond, it receives a
      signal in each iteration whether the loop continues.
    ends: rows of (NextIteration, Exit) of one frame. Values leave a loop after its last iteration;
      only back edges express this order, and back edges are left out.
  """

  outermost: np.ndarray  # [N]
  executions: np.ndarray  # [N]
  signals: np.ndarray
  ends: np.ndarray


@dataclasses.dataclass(frozen=True)
class Frames:
  """The frames of a graph's loops.

  Attributes:
    types: [N] of the ops.
    of_op: [N] the frame of each op (for an Exit, the frame that it leaves), -1 for none.
    parents: [F] the enclosing frame of each frame, which has a smaller index; -1 for none.
    names: [F].
    inputs: [N] the producers of each op's inputs, back edges left out.
    late: ops of a loop that depend on its own results: a value that enters a loop may be computed
      from one that left it, such as the start of the count of rounds for gradients.
  """

  types: List[str]
  of_op: List[int]
  parents: List[int]
  names: List[str]
  inputs: List[List[int]]
  late: Set[int]


def back_edges(
    types: Sequence[str], producers: np.ndarray, consumers: np.ndarray
) -> np.ndarray:
  """Finds the edges NextIteration -> Merge.

  Args:
    types: [N] op types.
    producers, consumers: [E] op indices.

  Returns:
    [E] bool.
  """
  of_op = np.array(types)
  return np.isin(of_op[producers], NEXT) & np.isin(of_op[consumers], MERGE)


def loops_of(frames: Frames, trips: Sequence[float]) -> Loops:
  """Returns the numbers of runs of ops, and the edges that loops need.

  Args:
    frames: of N ops, F frames.
    trips: [F] trip counts.
  """
  types, parents = frames.types, frames.parents
  executions_of: List[float] = []
  outermost_of: List[int] = []
  # Trip counts multiply from the outermost frame inwards, up to a bound.
  for frame, parent in enumerate(parents):  # a parent comes before its children
    above = 1.0 if parent < 0 else executions_of[parent]
    executions_of.append(min(above * trips[frame], MAX_TRIPS))
    outermost_of.append(frame if parent < 0 else outermost_of[parent])
  executions, outermost = np.ones(len(types)), np.full(len(types), -1)
  # The condition of a loop runs once more than its body.
  deciders = _deciders(types, frames.inputs, frames.of_op)
  deciding = set().union(*deciders.values())
  for op, frame in enumerate(frames.of_op):
    if frame >= 0:
      outermost[op] = outermost_of[frame]
      # Enter and Exit run once for each run of the loop.
      outside = types[op] in ENTER or types[op] in EXIT
      around = parents[frame] if outside else frame
      executions[op] = 1.0 if around < 0 else executions_of[around]
      if op in deciding and not outside:
        executions[op] += 1.0 if parents[frame] < 0 else executions_of[parents[frame]]
  return Loops(outermost, executions, _signals(types, deciders, frames.of_op),
               _ends(frames))


def _ends(frames: Frames) -> np.ndarray:
  """Returns the rows of (NextIteration, Exit) of each frame."""
  rounds: Dict[int, List[int]] = {}
  for op, (op_type, frame) in enumerate(zip(frames.types, frames.of_op)):
    if op_type in NEXT and op not in frames.late:
      rounds.setdefault(frame, []).append(op)
  # Each Exit of a frame waits for each NextIteration of the frame that does not wait for the Exit.
  rows = [(last, op) for op, op_type in enumerate(frames.types) if op_type in EXIT
          for last in rounds.get(frames.of_op[op], ())]
  return np.array(rows, dtype=np.int64).reshape(-1, 2)


def _deciders(
    types: Sequence[str], inputs: Sequence[Sequence[int]], frames: Sequence[int]
) -> Dict[int, Set[int]]:
  """Returns LoopCond -> the ops of the same loop that it depends on, the loop's condition."""

  def condition(cond: int) -> Set[int]:
    # Backwards from LoopCond, up to the Enter ops of its own frame.
    return reachable([cond], lambda op: () if (
        types[op] in ENTER and frames[op] == frames[cond]) else inputs[op])

  return {op: condition(op) for op, op_type in enumerate(types)
          if op_type == "LoopCond" and frames[op] >= 0}


def _signals(
    types: Sequence[str], deciders: Mapping[int, Set[int]], frames: Sequence[int]) -> np.ndarray:
  """Returns rows of (LoopCond, op) for the ops of a frame, except those of its condition."""
  members: Dict[int, List[int]] = {}
  for op, frame in enumerate(frames):
    members.setdefault(frame, []).append(op)
  # Enter and Merge run without a signal; all other ops need one on another device.
  rows = [
      (cond, op) for cond, before in deciders.items() for op in members[frames[cond]]
      if op not in before and types[op] not in ENTER + MERGE]
  return np.array(rows, dtype=np.int64).reshape(-1, 2)


def frames_of(
    nodes: Sequence[NodeDef], producers: np.ndarray, consumers: np.ndarray, order: np.ndarray
) -> Frames:
  """Finds the frame of each op.

  Args:
    nodes: [N] NodeDefs.
    producers, consumers: [E] op indices of edges, back edges left out.
    order: [N] op indices, producers first.

  Raises:
    GraphError: an op has inputs from two frames, or an Exit is outside a loop.
  """
  types = [node.op for node in nodes]
  inputs: List[List[int]] = [[] for _ in nodes]
  frames = [-1] * len(nodes)
  gives = [-1] * len(nodes)  # the frame of an op's outputs
  # Frames as bits: those whose Exit ops come before an op, and each frame with those around it.
  after, around = [0] * len(nodes), [0]
  late: Set[int] = set()
  ids: Dict[Tuple[int, bytes], int] = {}
  parents: List[int] = []
  names: List[str] = []
  if not any(op_type in ENTER + EXIT for op_type in types):
    return Frames(types, frames, parents, names, inputs, late)
  for producer, consumer in zip(producers.tolist(), consumers.tolist()):
    inputs[consumer].append(producer)
  for op in order.tolist():
    # All inputs of an op are values of one frame.
    frame, source = -1, None
    for producer in inputs[op]:
      after[op] |= after[producer]
      if source is None:
        frame, source = gives[producer], producer
      elif gives[producer] != frame:
        raise GraphError(
            f"op {nodes[op].name!r} ({types[op]}) mixes values of different loops, from "
            f"{nodes[source].name!r} and {nodes[producer].name!r}; export the graph again")
    if types[op] in ENTER:
      # A frame is identified by its enclosing frame and its name, because names may repeat.
      key = (frame, nodes[op].attr["frame_name"].s)
      if key not in ids:
        ids[key] = len(parents)
        around.insert(-1, around[frame] | 1 << len(parents))  # around[-1] is outside
        parents.append(frame)
        names.append(key[1].decode("utf-8", "replace"))
      frames[op] = gives[op] = ids[key]
    elif types[op] in EXIT:
      if frame < 0:
        raise GraphError(
            f"op {nodes[op].name!r} ({types[op]}) leaves a loop that no Enter op opens; export the "
            "graph again")
      # The outputs of an Exit belong to the enclosing frame.
      frames[op], gives[op] = frame, parents[frame]
    else:
      frames[op] = gives[op] = frame
    if after[op] & around[frames[op]]:
      late.add(op)
    if types[op] in EXIT:
      after[op] |= 1 << frame
  return Frames(types, frames, parents, names, inputs, late)
