"""Groups that keep parallel branches apart.

Merging two ops that could run at one time makes the step longer if they are on the longest path,
whatever the placement. With devices without number and transfers without cost every op runs in
its slot, from the end of its last producer on. Chains first: consumers follow the producers they
share a slot boundary with. Then the heaviest edges as in `heavy_edge`, but never two sets whose
slots overlap by more than a small part of the lighter one; that part grows when nothing more can
be merged, together with the cap.
"""

from __future__ import annotations

from typing import Dict, Tuple

import numpy as np

from placeto_tf.costs.op_costs import OpCosts
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.grouping.contraction import contract
from placeto_tf.grouping.heavy_edge import merge_stages
from placeto_tf.grouping.merging import Merger

OVERLAP = 0.05  # of the lighter set's time


def critical_path(
    graph: ComputationGraph, costs: OpCosts, allowed_ops: np.ndarray, max_groups: int
) -> np.ndarray:
  """[N] labels of groups that hold ops of different branches only where they must."""
  contraction = contract(graph, costs, allowed_ops, graph.colocation)
  merger = Merger(contraction)
  merger.keep_apart(*earliest_slots(graph, costs), contraction.node_of_op, OVERLAP)
  merger.merge_single_device()
  mean_us = float(contraction.weight_us.sum()) / max_groups
  producers, consumers = chains(graph, costs)
  merger.join(contraction.node_of_op[producers], contraction.node_of_op[consumers], mean_us)
  return merge_stages(merger, contraction, max_groups)


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


def chains(graph: ComputationGraph, costs: OpCosts) -> Tuple[np.ndarray, np.ndarray]:
  """Producers and their consumers in the order of consumers; an op has each role at most once.

  The producer is one that ends when the consumer can start; of several the one with fewest
  consumers, for which this one may be the only way on.
  """
  start, end = earliest_slots(graph, costs)
  tight = end[graph.edge_producers] == start[graph.edge_consumers]
  producers, consumers = graph.edge_producers[tight], graph.edge_consumers[tight]
  fan_out = np.bincount(graph.edge_producers, minlength=graph.num_ops)[producers]
  order = np.lexsort((producers, fan_out, consumers, graph.depths[consumers]))
  followed: Dict[int, int] = {}  # producer -> consumer
  following = set()
  for u, v in zip(producers[order].tolist(), consumers[order].tolist()):
    if u not in followed and v not in following:
      followed[u] = v
      following.add(v)
  return (np.array(list(followed), dtype=np.int64),
          np.array(list(followed.values()), dtype=np.int64))
