"""`ReplicatedGraph`: the replicas of a training graph, and how a batch is cut for them.

Legend: N needed ops of the replicated graph, R replicas.
"""

from __future__ import annotations

import dataclasses
from typing import Any, FrozenSet, Mapping, Tuple

import numpy as np

from placeto_tf.graphs.computation_graph import ComputationGraph

SHARED = -1


@dataclasses.dataclass(frozen=True, eq=False)
class ReplicatedGraph:
  """R replicas of a training graph that share its variables.

  Attributes:
    graph: the graph to place; its fetches are those of the original.
    original: the graph that was replicated: one replica.
    replicas: R.
    replica_of_op: [N] int32, the replica an op belongs to, or `SHARED`.
    original_of_op: [N] int32, index of the op of `original` that it copies, -1 for ops that join
      replicas.
    global_batch: examples of a step, all replicas together.
    own_joins: names of ops that take a mean which each replica could do without: of statistics for
      moving averages, of losses that are fetched.
    feeds: original feed -> the tensors fed in its place: one for each replica, which take equal
      parts of the global batch in this order, or a single one, which takes all of it.
    notes: sentences for the user to read.
  """

  graph: ComputationGraph
  original: ComputationGraph
  replicas: int
  replica_of_op: np.ndarray  # [N]
  original_of_op: np.ndarray  # [N]
  global_batch: int
  feeds: Mapping[str, Tuple[str, ...]]
  own_joins: FrozenSet[str] = frozenset()
  notes: Tuple[str, ...] = ()

  def cut_batch(self, feed: Mapping[str, Any]) -> Mapping[str, np.ndarray]:
    """Arrays of the global batch by the original's feeds -> arrays by the feeds of this graph."""
    parts = {}
    for name, array in feed.items():
      tensors = self.feeds[name if name in self.feeds else f"{name}:0"]
      for tensor, part in zip(tensors, np.split(np.asarray(array), len(tensors))):
        parts[tensor] = part
    return parts

  def describe(self) -> Mapping[str, Any]:
    """The entry in a report, in plain values."""
    return {
        "replicas": self.replicas, "global_batch": self.global_batch,
        "feeds": {name: list(tensors) for name, tensors in self.feeds.items()},
        "cutting": ("each feed takes the whole batch" if all(
            len(tensors) == 1 for tensors in self.feeds.values()) else
                    "the batch is cut along its first dimension into equal parts, in the order "
                    "of the feeds"),
        "notes": list(self.notes)}
