"""`ReplicatedGraph`: the replicas of a training graph, and the names of replication strategies.

Dimensions: N needed ops of the replicated graph, R replicas, M micro-batches of a group.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import Any, FrozenSet, Mapping, Optional, Tuple

import numpy as np

from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.graphs.variable_parts import Part

SHARED = -1


def strategy_name(
    replicas: int, mirrored: bool, micro_batches: int = 1, sliced: bool = False) -> str:
  """Returns the name of a replication strategy in tables and reports.

  Args:
    replicas: R.
    mirrored: whether each replica has variables of its own.
    micro_batches: M.
    sliced: whether tables are in slices.

  Returns:
    "4", "4 mirrored", "2 x 8" or "4 sliced".
  """
  name = f"{replicas // micro_batches} x {micro_batches}" if micro_batches > 1 else str(replicas)
  return name + " mirrored" * mirrored + " sliced" * sliced


def pipeline_strategy(text: object) -> Optional[Tuple[int, int]]:
  """Returns (groups, micro-batches) of a text such as "2 x 8"; None for any other text."""
  # At most four digits each; one micro-batch would be no pipeline.
  found = re.fullmatch(r" *([0-9]{1,4}) *x *([0-9]{1,4}) *", text if isinstance(text, str) else "")
  if found is None or int(found[1]) < 1 or int(found[2]) < 2:
    return None
  return int(found[1]), int(found[2])


@dataclasses.dataclass(frozen=True, eq=False)
class ReplicatedGraph:
  """R replicas of a training graph that share its variables, or have variables of their own.

  Attributes:
    graph: the graph to place; its fetches are those of the original.
    original: the graph of one replica, before replication; its tables may be in slices.
    replicas: R.
    replica_of_op: [N] int32, the replica an op belongs to, or `SHARED`.
    original_of_op: [N] int32, index of the op of `original` that each op copies; -1 for ops that
      the rewriting added, such as all-reduces.
    global_batch: examples of a step over all replicas.
    mirrored: whether each replica has variables and an optimizer of its own.
    own_reductions: names of ops whose mean no replica needs to train: means of statistics for
      moving averages, and of fetched losses.
    notes: sentences for the user.
    own_statistics: names of ops that normalize by each replica's own statistics.
    single: names of variables that replicas share though others are mirrored.
    micro_batches: M; M consecutive replicas are the micro-batches of a group, and have equal
      placements. With M = 1, each replica is a group.
    order: control edges that fix the order of micro-batches, as names (op, op that waits for it).
    written: the nodes before they were loaded, for `replicating.with_order`.
    whole: the `Dataflow` of the graph at the global batch; None for one replica.
    whole_of_op: [N] int32, index of the op of `whole` whose values an op has; -1 for ops on values
      of a replica, and for ops that the rewriting added.
    slices: variable of `original` that is a slice of a table -> its part; empty without slices.
    decisions: (op of the original, the roles, fixes and collectives that it was given), in order.
  """

  graph: ComputationGraph
  original: ComputationGraph
  replicas: int
  replica_of_op: np.ndarray  # [N]
  original_of_op: np.ndarray  # [N]
  global_batch: int
  mirrored: bool = False
  own_reductions: FrozenSet[str] = frozenset()
  notes: Tuple[str, ...] = ()
  own_statistics: Tuple[str, ...] = ()
  single: FrozenSet[str] = frozenset()
  micro_batches: int = 1
  order: Tuple[Tuple[str, str], ...] = dataclasses.field(default=(), repr=False)
  written: Any = dataclasses.field(default=None, repr=False)
  whole: Any = dataclasses.field(default=None, repr=False)
  whole_of_op: np.ndarray = dataclasses.field(
      default_factory=lambda: np.zeros(0, np.int32), repr=False)  # [N]
  slices: Mapping[str, Part] = dataclasses.field(default_factory=dict)
  decisions: Tuple[Tuple[str, Any], ...] = dataclasses.field(default=(), repr=False)

  @property
  def strategy(self) -> str:
    """Returns the name of the replication strategy; see `strategy_name`."""
    return strategy_name(
        self.replicas, self.mirrored, self.micro_batches, bool(self.slices))

  @property
  def groups(self) -> int:
    """Returns the number of groups."""
    return self.replicas // self.micro_batches

  @property
  def micro_batch_of_op(self) -> np.ndarray:
    """Returns the micro-batch of an op within its group, [N]; -1 for ops that exist once."""
    return np.where(self.replica_of_op == SHARED, -1, self.replica_of_op % self.micro_batches)

  def is_written_as(self, other: ReplicatedGraph) -> bool:
    """Returns whether each op was rewritten in the same way, such as at another batch."""
    own, others = dict(self.decisions), dict(other.decisions)
    # Constants of one batch may be other ops at another one. A model that is built again may have
    # other names for the same ops, in the same order.
    common = own.keys() & others.keys()
    return all(own[name] == others[name] for name in common) if common else (
        list(own.values()) == list(others.values()))

  @functools.cached_property
  def nearest_original(self) -> np.ndarray:
    """Returns the original of each op, [N]; ops that the rewriting added take a producer's.

    Constants that the rewriting added take the original of their reader.
    """
    graph, found = self.graph, self.original_of_op.astype(np.int64)
    # Inputs of ops that the rewriting added, in topological order of these ops.
    edges = np.flatnonzero(found[graph.edge_consumers] < 0)
    edges = edges[np.argsort(graph.topological_rank[graph.edge_consumers[edges]], kind="stable")]
    pairs = list(zip(graph.edge_producers[edges].tolist(), graph.edge_consumers[edges].tolist()))
    # Forwards: take the original of the first producer that has one. Constants have no inputs:
    # afterwards they take the original of their reader.
    for this, other in (*((consumer, producer) for producer, consumer in pairs), *pairs):
      if found[this] < 0:
        found[this] = found[other]
    return np.maximum(found, 0)

  def describe(self) -> Mapping[str, Any]:
    """Returns the description of the replicas for a report, as JSON values."""
    return {
        "strategy": self.strategy, "replicas": self.replicas, "groups": self.groups,
        "micro_batches": self.micro_batches, "mirrored_variables": self.mirrored,
        "global_batch": self.global_batch,
        "slices": {each.variable: each.count for each in self.slices.values()},
        "feeds": "each takes the whole batch, which the graph divides", "notes": list(self.notes)}
