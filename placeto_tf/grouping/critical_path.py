"""Groups that keep parallel branches apart.

Merging two ops that could run at one time makes the step longer if they are on the longest path,
whatever the placement. With devices without number and transfers without cost every op runs in
its slot, from the end of its last producer on. Chains first: consumers follow the producers they
share a slot boundary with. Then the heaviest edges as in `heavy_edge`, but never two sets whose
slots overlap by more than a small part of the lighter one; that part grows when nothing more can
be merged, together with the cap.
"""

from __future__ import annotations

from typing import List, Tuple

import numpy as np

from placeto_tf.costs.op_costs import OpCosts
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.grouping.contraction import Contraction, contract
from placeto_tf.grouping.heavy_edge import merge_stages
from placeto_tf.grouping.merging import Merger

OVERLAP = 0.05  # of the lighter set's time
_MAX_SLOTS = 64  # more are joined into one: what overlaps it then is overstated


def critical_path(
    graph: ComputationGraph, costs: OpCosts, allowed_ops: np.ndarray, max_groups: int
) -> np.ndarray:
  """[N] labels of groups that hold ops of different branches only where they must."""
  contraction = contract(graph, costs, allowed_ops, graph.colocation)
  merger = _SlotMerger(contraction, graph, costs)
  merger.merge_single_device()
  mean_us = float(contraction.weight_us.sum()) / max_groups
  for u, v in _chains(graph, costs):
    a, b = merger.find(contraction.node_of_op[u]), merger.find(contraction.node_of_op[v])
    if a != b and merger.may_merge(a, b, mean_us):
      merger.merge(a, b)
  return merge_stages(merger, contraction, max_groups)


class _SlotMerger(Merger):
  """A merger that knows when each set would run: `slots` [M] hold disjoint, sorted intervals."""

  def __init__(self, contraction: Contraction, graph: ComputationGraph, costs: OpCosts):
    super().__init__(contraction)
    self._overlap = OVERLAP
    start, end = earliest_slots(graph, costs)
    self.slots: List[List[Tuple[float, float]]] = [[] for _ in range(contraction.num_nodes)]
    for op in np.argsort(start, kind="stable").tolist():
      if end[op] > start[op]:
        slots = self.slots[contraction.node_of_op[op]]
        slots[:] = _union(slots, [(float(start[op]), float(end[op]))])

  def may_merge(self, u: int, v: int, cap_us: float) -> bool:
    if not super().may_merge(u, v, cap_us):
      return False
    lighter = min(self.weight_us[u], self.weight_us[v])
    return _common_us(self.slots[u], self.slots[v]) <= self._overlap * lighter

  def merge(self, u: int, v: int) -> int:
    root = super().merge(u, v)
    self.slots[root] = _union(self.slots[u], self.slots[v])
    return root

  def relax(self) -> None:
    self._overlap *= 2


def earliest_slots(graph: ComputationGraph, costs: OpCosts) -> Tuple[np.ndarray, np.ndarray]:
  """Start and end [N] of every op with unlimited devices and free transfers."""
  compute_us = costs.compute_us.min(axis=1)
  start = np.zeros(graph.num_ops)
  level = graph.depths[graph.edge_consumers]
  order = np.argsort(level, kind="stable")
  producers, consumers = graph.edge_producers[order], graph.edge_consumers[order]
  bounds = np.searchsorted(level[order], np.arange(1, int(graph.depths.max()) + 2))
  for first, last in zip(bounds[:-1], bounds[1:]):
    u, v = producers[first:last], consumers[first:last]
    np.maximum.at(start, v, start[u] + compute_us[u])
  return start, start + compute_us


def _chains(graph: ComputationGraph, costs: OpCosts) -> List[Tuple[int, int]]:
  """Pairs (producer, consumer) in the order of consumers; an op has each role at most once.

  The producer is one that ends when the consumer can start; of several the one with fewest
  consumers, for which this one may be the only way on.
  """
  start, end = earliest_slots(graph, costs)
  tight = end[graph.edge_producers] == start[graph.edge_consumers]
  producers, consumers = graph.edge_producers[tight], graph.edge_consumers[tight]
  fan_out = np.bincount(graph.edge_producers, minlength=graph.num_ops)[producers]
  order = np.lexsort((producers, fan_out, consumers, graph.depths[consumers]))
  followed, following, chains = set(), set(), []
  for u, v in zip(producers[order].tolist(), consumers[order].tolist()):
    if u not in followed and v not in following:
      followed.add(u)
      following.add(v)
      chains.append((u, v))
  return chains


def _union(
    first: List[Tuple[float, float]], second: List[Tuple[float, float]]
) -> List[Tuple[float, float]]:
  """The union of two rows of disjoint intervals, as a row of disjoint intervals."""
  joined: List[Tuple[float, float]] = []
  for start, end in sorted(first + second):
    if joined and start <= joined[-1][1]:
      joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
    else:
      joined.append((start, end))
  while len(joined) > _MAX_SLOTS:
    gaps = [(joined[i + 1][0] - joined[i][1], i) for i in range(len(joined) - 1)]
    i = min(gaps)[1]
    joined[i:i + 2] = [(joined[i][0], joined[i + 1][1])]
  return joined


def _common_us(first: List[Tuple[float, float]], second: List[Tuple[float, float]]) -> float:
  """How long two rows of disjoint intervals overlap."""
  i = j = 0
  common = 0.0
  while i < len(first) and j < len(second):
    common += max(0.0, min(first[i][1], second[j][1]) - max(first[i][0], second[j][0]))
    if first[i][1] <= second[j][1]:
      i += 1
    else:
      j += 1
  return common
