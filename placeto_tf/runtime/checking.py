"""`check_replicas`: trains placed replicas and their graph side by side, with few examples.

Memory and time of the check grow with the number of replicas. A fault of the analysis (a sum
instead of a mean, a forgotten mask) shows with two replicas as well as with eight. So two replicas
of the same strategy are checked first, and all replicas if that is cheap.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Tuple

from placeto_tf.errors import GraphError
from placeto_tf.replication.batches import ReplicaSource
from placeto_tf.replication.replicated_graph import ReplicatedGraph
from placeto_tf.replication.replicating import with_order
from placeto_tf.runtime.comparing import TrainingComparison, compare_training

_FEW_OPS = 4_000  # of the replicated graph: all replicas are checked at once


def check_replicas(
    source: ReplicaSource, replicated: ReplicatedGraph, limit_s: float) -> TrainingComparison:
  """Trains a graph and its replicas side by side; see `compare_training`.

  Args:
    source: the source of the replicas.
    replicated: more than one replica, with the order of micro-batches.
    limit_s: time limit of the check in seconds.

  Returns:
    The comparison with all replicas, or with `TrainingComparison.replicas` of them.

  Raises:
    ReplicaMismatchError: the training of the replicas differs from the graph's.
  """
  started = time.monotonic()
  # (replicas, micro-batches) of the smallest graph of the same strategy: two groups, and two
  # micro-batches for each, are enough to show a fault; at least 2 replicas.
  batches = min(2, replicated.micro_batches)
  few = min(replicated.replicas, max(2, min(2, replicated.groups) * batches)), batches
  found = TrainingComparison(False)
  if few[0] < replicated.replicas and replicated.graph.num_ops > _FEW_OPS:
    found = _compare(source, replicated, few, limit_s, started)
    # All replicas take at least as many times as long as there are times as many.
    all_s = found.seconds * replicated.replicas / few[0]
    if not found.checked or time.monotonic() + all_s > started + limit_s / 2:
      return found
  # All replicas, with the micro-batches that were placed.
  every = _compare(source, replicated, (replicated.replicas, replicated.micro_batches), limit_s,
                   started)
  return every if every.checked or not found.checked else found


def _compare(
    source: ReplicaSource, replicated: ReplicatedGraph, strategy: Tuple[int, int], limit_s: float,
    started: float) -> TrainingComparison:
  """Compares (replicas, micro-batches) of the same strategy, with a few examples for each.

  Few examples may be too few for a step, such as for the best three of a batch, or be rewritten in
  another way than the whole batch. Then more examples are tried.
  """
  count, micro_batches = strategy
  slices = source.slices_of(replicated)
  found = TrainingComparison(False, "the batch grew, so that there is no graph to compare with")
  for whole, part in source.small(count, replicated.replicas):
    try:
      small = source.replicas_of(
          part, count, whole, slices, mirrored=replicated.mirrored, single=replicated.single,
          micro_batches=micro_batches)
    except GraphError as problem:
      found = TrainingComparison(False, f"with a few examples: {problem}", runs=False)
      continue
    # What is compared must be rewritten as what was placed.
    if not small.is_written_as(replicated):
      found = TrainingComparison(
          False, "replicas that a few examples are enough for are written in another way")
      continue
    # The order of micro-batches is known for their number alone.
    if count == replicated.replicas:
      small = with_order(small, replicated.order)
    found = compare_training(whole, small, time_limit_s=limit_s, started=started)
    if found.runs or time.monotonic() > started + limit_s / 2:
      break
  return dataclasses.replace(found, replicas=count, of=replicated.replicas)
