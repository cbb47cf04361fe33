"""Finds the side of each conditional that is assumed not to run.

Conditionals are those of v1 control flow, which `If` and `Case` are lowered to. An op that depends
on output 0 or 1 of a Switch is dead if the predicate selects the other output, and so are all ops
that depend on a dead op, up to the Merge of both sides. Without a run, the selected side is
unknown. The more expensive side is assumed to run, so that a step takes at most the estimated time.
"""

from __future__ import annotations

from typing import Dict, FrozenSet, List, Mapping, Tuple

import numpy as np

from placeto_tf.graphs.computation_graph import CONTROL, ComputationGraph
from placeto_tf.graphs.loops import MERGE, SWITCH
from placeto_tf.graphs.tensor_names import Tensor, parse
from placeto_tf.on_use import NodeDef

_Side = Tuple[Tensor, int]  # predicate, output of the Switch


def untaken(
    graph: ComputationGraph, nodes: Mapping[str, NodeDef], cost: np.ndarray) -> np.ndarray:
  """Finds the ops of the cheaper side of each conditional.

  Args:
    graph: the ops.
    nodes: op name -> NodeDef.
    cost: [N] of each op, in any unit.

  Returns:
    [N] bool. Conditionals on one predicate agree on the side; inner ones are decided first.
  """
  found = np.zeros(graph.num_ops, dtype=bool)
  predicates = _predicates(nodes)
  if not predicates:
    return found
  conditions = _conditions(graph, nodes, predicates)
  members: Dict[_Side, List[int]] = {}
  for name, sides in conditions.items():
    for side in sides:
      members.setdefault(side, []).append(graph.op_index[name])
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


def _predicates(nodes: Mapping[str, NodeDef]) -> Dict[str, Tensor]:
  """Returns Switch -> its predicate, before ops that pass it on; Switches of loops are left out."""
  found = {}
  for name, node in nodes.items():
    if node.op in SWITCH:
      predicate = parse(node.input[1])
      while nodes[predicate[0]].op == "Identity":
        predicate = parse(nodes[predicate[0]].input[0])
      if nodes[predicate[0]].op != "LoopCond":
        found[name] = predicate
  return found


def _conditions(
    graph: ComputationGraph, nodes: Mapping[str, NodeDef], predicates: Mapping[str, Tensor]
) -> Dict[str, FrozenSet[_Side]]:
  """Returns op name -> the sides that have to be taken for the op to run, producers first."""
  found: Dict[str, FrozenSet[_Side]] = {}
  for op in graph.topological_order.tolist():
    name, behind = graph.op_names[op], []
    for producer, port in map(parse, nodes[name].input):
      # Back edges of loops are left out: their producers come later.
      if producer in found:
        sides = found[producer]
        # Behind a Switch the op also needs this side of its predicate.
        if producer in predicates and port != CONTROL:
          sides = sides | {(predicates[producer], port)}
        behind.append(sides)
    # A Merge runs when any of its inputs comes, any other op when all have come.
    combine = frozenset.intersection if graph.op_types[op] in MERGE else frozenset().union
    found[name] = combine(*behind) if behind else frozenset()
  return found
