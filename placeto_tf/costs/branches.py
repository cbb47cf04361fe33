"""Finds the side of each conditional that is assumed not to run.

Conditionals are those of v1 control flow, which `If` and `Case` are lowered to. An op that depends
on output 0 or 1 of a Switch is dead if the predicate selects the other output, and so are all ops
that depend on a dead op, up to the Merge of both sides. Without a run, the selected side is
unknown. The more expensive side is assumed to run, so that a step takes at most the estimated time.
"""

from __future__ import annotations

from typing import Dict, FrozenSet, Iterator, List, Mapping, Tuple

import numpy as np

from placeto_tf.graphs import traversal
from placeto_tf.graphs.computation_graph import CONTROL, ComputationGraph
from placeto_tf.graphs.loops import MERGE
from placeto_tf.graphs.tensor_names import Tensor, data_inputs, parse

_SWITCHES = ("Switch", "RefSwitch")

_Side = Tuple[Tensor, int]  # predicate, output of the Switch


def untaken(graph: ComputationGraph, nodes: Mapping, cost: np.ndarray) -> np.ndarray:
  """Finds the ops of the cheaper side of each conditional.

  Args:
    graph: the ops.
    nodes: op name -> NodeDef.
    cost: [N] of each op, in any unit.

  Returns:
    [N] bool. Conditionals on one predicate agree on the side; inner ones are decided first.
  """
  found = np.zeros(graph.num_ops, dtype=bool)
  predicates = _predicates(graph, nodes)
  if not predicates:
    return found
  conditions = _conditions(graph, predicates)
  members: Dict[_Side, List[int]] = {}
  for op, sides in enumerate(conditions):
    for side in sides:
      members.setdefault(side, []).append(op)
  depth: Dict[Tensor, int] = {}
  for switch, predicate in predicates.items():
    depth[predicate] = min(depth.get(predicate, graph.num_ops), len(conditions[switch]))
  # [N] cost of each op; the ops of a side that is not taken get 0.
  left = cost.astype(np.float64)
  for predicate in sorted(depth, key=lambda each: -depth[each]):  # stable: inner ones first
    first, second = (
        np.array(members.get((predicate, side), ()), dtype=np.int64) for side in (0, 1))
    # Ties go to side 0, the branch of a false predicate: it counts as untaken.
    cheaper = first if left[first].sum() <= left[second].sum() else second
    left[cheaper] = 0
    found[cheaper] = True
  return found


def inputs_in_order(graph: ComputationGraph) -> Iterator[Tuple[int, List[Tuple[int, int]]]]:
  """Yields each op in topological order, and the (producer, port) of each edge into it."""
  # Edges by consumer: those into op i are tensors[starts[i]:starts[i + 1]].
  order = np.argsort(graph.edge_consumers, kind="stable")
  starts = traversal.slices(graph.edge_consumers[order], graph.num_ops).tolist()
  tensors = list(zip(graph.edge_producers[order].tolist(), graph.edge_ports[order].tolist()))
  for op in graph.topological_order.tolist():
    yield op, tensors[starts[op]:starts[op + 1]]


def _predicates(graph: ComputationGraph, nodes: Mapping) -> Dict[int, Tensor]:
  """Returns Switch -> its predicate, before ops that pass it on; Switches of loops are left out."""
  found = {}
  for i, op_type in enumerate(graph.op_types):
    if op_type not in _SWITCHES:
      continue
    predicate = parse(data_inputs(nodes[graph.op_names[i]])[1])
    while predicate[0] in nodes and nodes[predicate[0]].op == "Identity":
      predicate = parse(nodes[predicate[0]].input[0])
    if predicate[0] in nodes and nodes[predicate[0]].op != "LoopCond":
      found[i] = predicate
  return found


def _conditions(
    graph: ComputationGraph, predicates: Mapping[int, Tensor]) -> List[FrozenSet[_Side]]:
  """Returns [N] the sides that have to be taken for each op to run."""
  always: FrozenSet[_Side] = frozenset()
  found = [always] * graph.num_ops
  for op, tensors in inputs_in_order(graph):
    behind = []
    for producer, port in tensors:
      sides = found[producer]
      if producer in predicates and port != CONTROL:
        # Behind a Switch the op also needs this side of its predicate.
        sides = sides | {(predicates[producer], port)}
      behind.append(sides)
    if behind:
      # A Merge runs when any of its inputs comes, any other op when all have come.
      found[op] = (frozenset.intersection(*behind) if graph.op_types[op] in MERGE
                   else frozenset.union(*behind))
  return found
