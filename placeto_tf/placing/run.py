"""`place()` and `simulate()`, the entry points for placing.

A graph is placed by `place_graph`, with all placers and policies. The result is never worse than a
reference placement: the graph's own devices, one device, the human-expert baseline and METIS are
always evaluated first, and a placement of the method is chosen only if it is better. With
replicas, `replica_search` places several replicated graphs in the same way.

Dimensions: N ops, D devices.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from typing import Any, Callable, Mapping, Optional, Union

import numpy as np

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.costs import assumed_shapes, estimate_costs
from placeto_tf.costs.look import looking
from placeto_tf.graphs import ComputationGraph, load_graph
from placeto_tf.graphs.loading import LOAD_OPTIONS
from placeto_tf.placements import Placement
from placeto_tf.placing import measured_search, registry, replica_search, running
from placeto_tf.placing.compiling_ahead import compile_ahead
from placeto_tf.placing.config import Devices, PlacingConfig, as_cluster, check_names
from placeto_tf.placing.observing import SILENT, Observer, Progress, observer_of
from placeto_tf.placing.result import BUDGET_USED, INTERRUPTED, Baseline, PlacingResult, check_fits
from placeto_tf.placing.summaries import Events
from placeto_tf.problem.executors import executor_at
from placeto_tf.problem.host_options import own_host_note
from placeto_tf.problem.method import Kind
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.replication.batches import ReplicaSource, is_spec, split_spec
from placeto_tf.runtime.workers import make_runtime
from placeto_tf.search.independent_runs import Runs
from placeto_tf.search.lower_bounds import lower_bound_us
from placeto_tf.simulation import SimulationResult, Simulator

Loaded = Union[ComputationGraph, ReplicaSource]


def place(
    graph: Any,
    cluster: Devices = None,
    method: str = "auto",
    *,
    root_dir: Optional[str] = None,
    progress: Union[bool, Progress, Observer, None] = None,
    **options: Any,
) -> PlacingResult:
  """Chooses the device of each op of a graph.

  Args:
    graph: a `ComputationGraph`, or anything `load_graph` takes; for several replicas also a
      `ReplicaSource`. Unknown shapes of its feeds are assumed, and stated in the first line.
    cluster: a `Cluster`, or text for `Cluster.parse`.
    method: see `PlacingConfig`.
    root_dir: directory for TensorBoard events of the search; None writes none.
    progress: None or True shows the stages and their times on stderr, and of a search a bar (on a
      terminal or in a notebook) or a line each ten seconds; False shows nothing. A callable is
      called from time to time instead.
    **options: the other fields of `PlacingConfig` (max_seconds, max_evaluations, seed, ...), and
      options of `load_graph` (batch_size, fetches, ...) if the graph is still to be loaded.

  Returns:
    The placement, its simulated step, and the baselines that it is compared with.

  Raises:
    PlacetoError: the graph, cluster or an option is wrong, or no placement fits in memory.
  """
  check_names(options, LOAD_OPTIONS)
  loading = {name: value for name, value in options.items() if name in LOAD_OPTIONS}
  if loading and isinstance(graph, ComputationGraph):
    raise TypeError(
        f"place() got {sorted(loading)[0]!r} for a graph that has been read; give it to "
        "load_graph")
  config = PlacingConfig(method=method, **{
      name: value for name, value in options.items() if name not in LOAD_OPTIONS})
  cluster = as_cluster(cluster)
  observer, known = observer_of(progress), isinstance(graph, (ComputationGraph, ReplicaSource))
  with contextlib.nullcontext() if known else observer.stage("Loading the graph"):
    loaded = load(graph, config, loading)
  result = place_with(loaded, cluster, config, root_dir=root_dir, observer=observer)
  observer.say_times()
  return result


def load(graph: Any, config: PlacingConfig, loading: Mapping[str, Any]) -> Loaded:
  """Loads a graph, or the source of its replicas, for `place_with`; assumes unknown shapes.

  Args:
    graph: see `place`.
    config: the options, which tell whether replicas are wanted; if not, a spec of the zoo may
      ("zoo:rnnlm:replicas=4").
    loading: options of `load_graph`.

  Returns:
    A `ComputationGraph`, or a `ReplicaSource` if several replicas are wanted.

  Raises:
    PlacetoError: the graph cannot be read.
  """
  named = split_spec(graph)[1] if is_spec(graph) else None
  if not is_spec(graph) and not isinstance(graph, (ComputationGraph, ReplicaSource)):
    graph = assumed_shapes.load(graph, **loading)
  if config.makes_replicas or named not in (None, 1):
    return graph if isinstance(graph, ReplicaSource) else ReplicaSource(
        graph, loading, batch_norm=config.batch_norm)
  return graph if isinstance(graph, ComputationGraph) else load_graph(graph, **loading)


def place_with(
    loaded: Loaded,
    cluster: Cluster,
    config: PlacingConfig,
    *,
    root_dir: Optional[str] = None,
    observer: Observer = SILENT,
) -> PlacingResult:
  """Places like `place()`, with the options in a `PlacingConfig`.

  Args:
    loaded: the result of `load`.
    cluster, config: the devices, and the options.
    root_dir: directory for TensorBoard events of the search; None writes none.
    observer: receives the progress.

  Raises:
    PlacetoError: an option is wrong for this graph and cluster, or no placement fits in memory.
  """
  search: Callable[..., PlacingResult] = (
      place_graph if isinstance(loaded, ComputationGraph) else replica_search.place_replicas)
  with looking(config.look, observer.add):
    if root_dir is None:
      return search(loaded, cluster, config, observer=observer)
    with Events(root_dir) as events:
      result = search(loaded, cluster, config, observer=dataclasses.replace(
          observer, listeners=(events.record, *observer.listeners)))
      with observer.stage("Writing TensorBoard's events"):
        events.finish(result)
  return result


def place_graph(
    graph: ComputationGraph,
    cluster: Cluster,
    config: PlacingConfig,
    *,
    observer: Observer = SILENT,
) -> PlacingResult:
  """Places one graph; the result also has the placements of all other methods that ran.

  Args:
    graph, cluster, config: the graph to place, the devices, and the options.
    observer: receives the progress.

  Returns:
    The best placement, simulated, and a row for each method that ran.

  Raises:
    PlacetoError: an option is wrong for this graph and cluster, or no placement fits in memory.
  """
  method = registry.find(config.method)
  registry.read_weights(method, config.policy_weights)
  # Fail before the search if the workers are wrong.
  runtime = make_runtime(cluster, config.workers) if config.timing == "session" else None
  with observer.stage("Estimating costs"):
    costs = estimate_costs(graph, cluster, source=config.cost_model)
  with observer.stage("Grouping"):
    problem = running.problem_of(graph, cluster, config, costs)
  with executor_at(config.ray) as executor:
    if config.ray is not None and config.independent_runs is None and (
        config.max_evaluations is None):
      # The report has the number of runs that Ray can start.
      config = dataclasses.replace(config, independent_runs=max(1, executor.cores))
    runs = Runs(config.num_runs, executor)
    compile_ahead(problem, method, observer.stage)
    bound_us = lower_bound_us(problem)
    with observer.search(config.budget) as progress:
      problem = problem.renewed()  # the clock begins now, after all preparations
      ended = _search(problem, config, bound_us, runs, progress)
    log, seconds = problem.search_log, problem.search_log.seconds  # measuring is no part of them
    check_fits(problem)
    # Simulate the placements of all methods once more, for their rows of the table.
    rows = {each.name: Baseline.of(problem, each) for each in log.method_runs}
    best, proven, measured = log.best_known, log.proven, None
    notes = tuple(filter(None, [own_host_note(graph, cluster, costs, best)]))
    if runtime is not None:
      # The best placement is measured even if no method's own placement fits in memory.
      found = {name: row.placement for name, row in rows.items()
               if row.placement is not None and row.fits}
      try:
        measured = measured_search.search_on_workers(
            problem, {**found, "best": best}, runtime, config, observer)
        best, proven = measured.placement, False  # proofs hold for simulated steps
        notes += (str(measured), *filter(None, [runtime.note]))
      # Keep the result of the search even if workers, sessions or sockets fail, or after Ctrl-C.
      except (Exception, KeyboardInterrupt) as error:
        ended = INTERRUPTED if isinstance(error, KeyboardInterrupt) else ended
        notes += (f"simulated steps decided, because measuring failed ({error!r})",)
  return PlacingResult.of(
      problem, best, rows, config, bound_us=bound_us, proven=proven, notes=notes, ended=ended,
      measured=measured, seconds=seconds)


def _search(
    problem: PlacementProblem, config: PlacingConfig, bound_us: float, runs: Runs,
    progress: Progress) -> str:
  """Runs the references and the method; Ctrl-C ends it and keeps the best placement.

  Returns:
    A text with the reason why the search ended.
  """
  method, log, budget = registry.find(config.method), problem.search_log, config.budget
  if budget.stop_within and bound_us > 0:
    budget = dataclasses.replace(budget, target_us=bound_us * (1 + budget.stop_within))
  is_auto = method.kind is Kind.AUTO
  log.observer = functools.partial(progress, problem)
  try:
    if not is_auto:  # which runs the references itself
      running.run_references(problem, budget, config.seed)
    if not method.kind.reference:
      running.run(
          problem, method, budget, config.seed, weights=config.policy_weights, runs=runs,
          **({"bound_us": bound_us} if is_auto else {}))
  except KeyboardInterrupt:
    # If Ctrl-C came before the first placement, there is nothing to return.
    if log.best_placement is None:
      raise
    return INTERRUPTED
  # Test the strongest reason first.
  if log.proven:
    return "the best is proven"
  if budget.target_us is not None and log.best_fits and (
      log.best_objective_us <= budget.target_us):
    return f"the bound is met within {budget.stop_within:.1%}"
  if log.saturated:
    return f"doubling the search time gained less than {budget.stop_within:.1%}"
  # `auto` ends with the budget, or leaves a rest that is too short for another search.
  used = is_auto or log.exhausted(budget)
  return BUDGET_USED if used else "the method has come to its end"


def simulate(
    graph: Any, cluster: Union[Cluster, str], placement: Union[Placement, str, np.ndarray],
    *, cost_model: str = "grappler", any_graph: bool = False,
) -> SimulationResult:
  """Simulates one step of a placement.

  Args:
    graph: a `ComputationGraph`, or anything `load_graph` takes.
    cluster: a `Cluster`, or text for `Cluster.parse`.
    placement: a `Placement`, the path of a placement.json, or [N] device indices.
    cost_model: "grappler" or the path of a file of measured costs.
    any_graph: whether the `Placement` may be of another graph with the same ops.

  Raises:
    PlacetoError: the graph, cluster, cost model or placement is wrong.
  """
  cluster = as_cluster(cluster)
  graph = graph if isinstance(graph, ComputationGraph) else load_graph(graph)
  placement = Placement.load(placement) if isinstance(placement, str) else placement
  # Op names -> [N] indices in the order of the graph's ops.
  if isinstance(placement, Placement):
    placement = placement.indices(graph, cluster, any_graph=any_graph)
  simulator = Simulator(graph, estimate_costs(graph, cluster, source=cost_model), cluster)
  return simulator.simulate(np.asarray(placement, dtype=np.int32))
