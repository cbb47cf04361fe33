"""Makes the problem of a graph, and runs one method on the problem, from a start placement.

A method that improves a given placement (`Kind.takes_start`) starts from the first of these:

1. the start that the caller gives, which counts as one evaluation;
2. the best placement that the problem has evaluated;
3. the best of one device, the human-expert baseline, METIS and list schedules (`best_start`);
   `auto` makes more.

All other methods make their own placements, independent of earlier evaluations.

Searches that find better placements with several runs (`Method.repeats`) run as many independent
runs as the caller asks for. Methods that run networks refuse programs whose settings of TensorFlow
change the results of networks.

Dimensions: N ops.
"""

from __future__ import annotations

import functools
from typing import Any, Optional

import numpy as np

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.clusters.constraints import allowed_devices
from placeto_tf.clusters.pins import narrowed_by_pins
from placeto_tf.costs import OpCosts
from placeto_tf.errors import SetupError
from placeto_tf.graphs import ComputationGraph
from placeto_tf.on_use import tf
from placeto_tf.placing import registry
from placeto_tf.placing.config import PlacingConfig
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.candidates import on_one_device, relieved
from placeto_tf.problem.host_options import hosts_of, offered_devices
from placeto_tf.problem.method import Kind, Method
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.replication.replicated_graph import ReplicatedGraph
from placeto_tf.search.independent_runs import ONE_RUN, Runs, run_independently
from placeto_tf.search.starts import best_start, of_a_start

# All ops may use hosts if other devices together have less than so many times the memory of a step.
_SPARE = 1.08


def problem_of(
    graph: ComputationGraph, cluster: Cluster, config: PlacingConfig, costs: OpCosts,
    replicated: Optional[ReplicatedGraph] = None) -> PlacementProblem:
  """Makes the problem: the allowed devices of each op, and the groups that the search begins with.

  All ops may use hosts if the other devices together have little more memory than one step needs.

  Args:
    graph, cluster, config, costs: the graph, the devices, the options, and the costs.
    replicated: the replicas that the graph consists of, if any.

  Raises:
    PlacementError: a pin or a grouping is wrong.
  """
  # [N, D] devices with kernels, restricted by pins.
  able, said = narrowed_by_pins(
      graph, cluster, allowed_devices(graph, cluster), pins=config.pins,
      sets=config.allowed, keep_own_devices=config.existing_devices == "keep")
  offer = functools.partial(offered_devices, graph, cluster, costs, able=able, said=said)
  build = functools.partial(
      PlacementProblem.build, graph, cluster, costs=costs, grouping=config.grouping,
      max_groups=config.max_groups, replicated=replicated)
  problem, hosts = build(allowed_ops=offer()), hosts_of(cluster)
  # Prefer accelerators; hosts are the last resort.
  memory_bytes = cluster.memory_bytes[~hosts].sum()
  most_bytes = sum(
      each.sum() for each in (costs.persistent_bytes, costs.output_bytes, costs.temporary_bytes))
  # No simulation is needed if everything fits at once, or if hosts are allowed already.
  if most_bytes <= memory_bytes or (problem.allowed_ops == able).all():
    return problem
  placement = on_one_device(problem)
  for _ in range(2):  # first unchanged, then with ops moved to hosts where allowed
    peak_bytes = problem.simulator.simulate(placement).peak_memory_bytes
    placement = relieved(problem, placement)
  # The step still needs too much memory, or needs nearly all of it: all ops may use hosts.
  if peak_bytes[~hosts].sum() > memory_bytes / _SPARE:
    return build(allowed_ops=offer(all_hosts=True))
  return problem


def prepare(
    problem: PlacementProblem, method: Method, budget: Budget, seed: int = 0, *,
    start: Optional[np.ndarray] = None) -> None:
  """Evaluates the given start, or for a policy without a given start the usual starts.

  Args:
    problem: the problem, which counts evaluations.
    method: the method that will run.
    budget, seed: budget and seed of the run.
    start: [N] replaces the method's own start; methods without a start ignore it.
  """
  if start is not None and method.kind.takes_start:
    problem.evaluate_ops(start)
  elif method.kind is Kind.POLICY:
    best_start(problem, budget, seed)


def run_references(problem: PlacementProblem, budget: Budget, seed: int = 0) -> None:
  """Runs the methods that all others are compared with, so that no result is worse than theirs.

  Args:
    problem, seed: of the run.
    budget: of the whole search, of which each reference gets a small part.
  """
  for method in registry.references():
    run(problem, method, of_a_start(problem.search_log, budget), seed)


def run(
    problem: PlacementProblem,
    method: Method,
    budget: Budget,
    seed: int = 0,
    *,
    weights: Optional[str] = None,
    runs: Runs = ONE_RUN,
    **own: Any,
) -> np.ndarray:
  """Runs one method within the budget, and records it in the problem's search log.

  Args:
    problem, method, budget, seed: of the run.
    weights: directory of trained weights, for a method that takes weights.
    runs: the number of independent runs of a search, and their executor.
    **own: further arguments of this method.

  Returns:
    The best placement that the method finds, [N].
  """
  if method.weights is not None:
    own["weights"] = weights
  if method.kind is Kind.AUTO:  # records the methods that it runs
    return method.load()(problem, budget, seed, runs=runs, **own)

  def recorded() -> np.ndarray:
    """Makes the start of the method, and runs the method in the way of its kind."""
    prepare(problem, method, budget, seed)
    # The starts used the budget up.
    if method.kind is Kind.POLICY and problem.search_log.exhausted(budget):
      return problem.search_log.best_known
    if method.in_tensorflow:
      _check_settings(method.name)  # before its packages are imported
    placer = functools.partial(method.load(), **own)
    if not method.repeats:
      return placer(problem, budget, seed)
    if runs.count > 1 and problem.search_log.best_placement is None:
      best_start(problem, budget, seed)  # once, not in every run
    return run_independently(problem, placer, budget, seed, runs)

  return problem.search_log.run(method.name, recorded)


def _check_settings(method: str) -> None:
  """Raises SetupError if networks compute something else in this program, or here, or fail."""
  from tensorflow.python.eager import context
  from tensorflow.python.framework import ops

  keras = tf.keras
  policy = keras.mixed_precision.global_policy().name  # "_infer" with behaviour of TensorFlow 1
  found = [what for what, there in (
      ("eager execution is off", not tf.executing_eagerly()),
      ("a distribution strategy is in scope", tf.distribute.has_strategy()),
      ("ops are watched (check_numerics)", context.context().op_callbacks),
      ("NumPy's behaviour is on", ops.get_dtype_conversion_mode() is not ops.PromoMode.OFF),
      (f"Keras's floatx is {keras.backend.floatx()}", keras.backend.floatx() != "float32"),
      (f"Keras's dtype policy is {policy}", policy not in ("float32", "_infer")),
  ) if there]
  if found:
    raise SetupError(
        f"{method} runs a network, which needs TensorFlow's usual settings; here "
        f"{', '.join(found)}: call it before these settings and outside of their scopes, or run "
        f"placeto-place --method={method}")
