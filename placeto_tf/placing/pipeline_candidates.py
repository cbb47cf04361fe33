"""Pipelines in the search over replicas: which are tried, and a last order for the best.

A pipeline is tried where its estimate is below what has been reached without it, and where the
batch divides; see `placeto_tf.search.pipelines`.

Dimensions: N ops, M micro-batches of each of G groups.
"""

from __future__ import annotations

from typing import Callable, Iterator, Optional, Tuple

import numpy as np

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.errors import GraphError
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.replication import ReplicaSource, ReplicatedGraph
from placeto_tf.replication.replicated_graph import SHARED
from placeto_tf.search.pipelines import Pipeline, pipeline, promising, reordered

# Replicas in all; kernels of smaller micro-batches would not fill a GPU, which costs do not say.
_REPLICAS = (8, 4)

MakeProblem = Callable[[ReplicatedGraph], PlacementProblem]
Made = Tuple[ReplicatedGraph, PlacementProblem]


def is_live(source: ReplicaSource) -> bool:
  """Returns whether the graph is a live function, whose plans name replicas and no order."""
  return source.graph.origin.format == "concrete_function"


def worth_trying(
    source: ReplicaSource, replicated: Optional[ReplicatedGraph], cluster: Cluster,
    best_example_us: float) -> Iterator[Tuple[int, int]]:
  """Yields the pipelines whose estimate is below the step time that is reached.

  Args:
    source: of the graph.
    replicated: any replicas of it, which tell the ops that each replica has of its own; None for
      none.
    cluster: to place on.
    best_example_us: the step time per example; infinite where nothing fits.

  Yields:
    (G, M).
  """
  if replicated is None or is_live(source) or not source.free_batch:
    return
  original = replicated.original
  # Ops that each replica has of its own; the others are shared.
  own = {original.op_names[op] for op in replicated.original_of_op[
      (replicated.replica_of_op != SHARED) & (replicated.original_of_op >= 0)].tolist()}
  for count in _REPLICAS:
    try:
      part = source.part(count)
    except GraphError:
      continue  # the batch does not divide so
    repeated = np.array([name in own for name in part.op_names])
    # The largest number of replicas that divides the batch, as one or two groups.
    for groups in (1, 2):
      if promising(part, repeated, cluster, groups, count // groups,
                   best_example_us * replicated.global_batch):
        yield groups, count // groups
    return


def make(
    source: ReplicaSource, groups: int, micro_batches: int, cluster: Cluster,
    make_problem: MakeProblem) -> Made:
  """Makes a pipeline and its problem, whose best placement so far is its stages.

  Args:
    source: of the graph.
    groups, micro_batches: G and M.
    cluster: to place on.
    make_problem: makes the problem of replicas.

  Returns:
    The replicas in the pipeline's order, and their problem.

  Raises:
    GraphError: the batch does not divide so, or the order cannot be written.
  """
  if is_live(source):
    raise GraphError("micro-batches are made of graphs, not of a live function; give the number "
                     "of replicas alone, or the graph")
  replicated = source.replicas(groups * micro_batches, micro_batches=micro_batches)
  problem = make_problem(replicated)
  return _begun(
      pipeline(replicated, problem.costs, cluster, problem.allowed_ops), make_problem)


def in_a_better_order(
    source: ReplicaSource, problem: PlacementProblem, cluster: Cluster, make_problem: MakeProblem
) -> Optional[Made]:
  """Makes the pipeline in an order for the best placement.

  Args:
    source: of the graph.
    problem: of the pipeline, with its best placement.
    cluster: to place on.
    make_problem: makes the problem of replicas.

  Returns:
    The replicas in the new order, and their problem; None if the order is no faster.
  """
  ordered = problem.replicated
  assert ordered is not None
  # In no order yet, so that another one can be written.
  replicated = source.replicas(ordered.replicas, micro_batches=ordered.micro_batches)
  index = ordered.graph.op_index
  found = reordered(
      replicated, make_problem(replicated).costs, cluster,
      # The best placement, in the order of the new graph's ops.
      problem.search_log.best_known[[index[name] for name in replicated.graph.op_names]],
      problem.search_log.best_objective_us)
  if found is None:
    return None
  better = _begun(found, make_problem)
  was, now = problem.search_log, better[1].search_log
  if not was.is_better(now.best_excess_bytes, now.best_objective_us):
    return None
  # Evaluations and methods of the earlier search count on in the new search log.
  now.book(was.evaluations)
  now.method_runs = was.method_runs
  return better


def _begun(found: Pipeline, make_problem: MakeProblem) -> Made:
  """Returns a pipeline and its problem, which has evaluated the pipeline's own placement."""
  problem = make_problem(found.replicated)
  problem.evaluate_ops(found.placement)
  return found.replicated, problem
