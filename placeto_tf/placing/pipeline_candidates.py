"""Chooses the pipelines that the search over replicas tries.

A pipeline is tried if its estimated step time is below the best step time so far, and if its number
of micro-batches divides the batch; see `placeto_tf.search.pipelines`.

Dimensions: N ops, M micro-batches of each of G groups.
"""

from __future__ import annotations

from typing import Iterator, Optional, Tuple

import numpy as np

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.errors import GraphError
from placeto_tf.replication import ReplicaSource, ReplicatedGraph
from placeto_tf.replication.replicated_graph import SHARED
from placeto_tf.search.pipelines import promising

# Most replicas in all. Kernels of smaller micro-batches would not fill a GPU, which the cost models
# do not know.
_REPLICAS = (8, 4)


def is_live(source: ReplicaSource) -> bool:
  """Returns whether the graph is a live function; its plans store replicas but no order of ops."""
  return source.graph.origin.format == "concrete_function"


def worth_trying(
    source: ReplicaSource, replicated: Optional[ReplicatedGraph], cluster: Cluster,
    best_example_us: float) -> Iterator[Tuple[int, int]]:
  """Yields the pipelines whose estimated step time is below the best step time so far.

  Args:
    source: source of the graph's replicas.
    replicated: any replicas of the graph, which show the ops that are copied; None if there are
      none.
    cluster: devices and links.
    best_example_us: the best step time per example; infinite if nothing fits in memory.

  Yields:
    (G, M).
  """
  if replicated is None or is_live(source) or not source.free_batch:
    return
  original = replicated.original
  # Ops that each replica copies; the others are shared.
  own = {original.op_names[op] for op in replicated.original_of_op[
      (replicated.replica_of_op != SHARED) & (replicated.original_of_op >= 0)].tolist()}
  for count in _REPLICAS:
    try:
      part = source.part(count)
    except GraphError:
      continue  # these replicas do not divide the batch
    repeated = np.array([name in own for name in part.op_names])
    # The largest number of replicas that divides the batch, as one or two groups.
    for groups in (1, 2):
      if promising(part, repeated, cluster, groups, count // groups,
                   best_example_us * replicated.global_batch):
        yield groups, count // groups
    return
