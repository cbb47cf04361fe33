"""`place()`: runs the placers and the policies on one graph.

The answer is never worse than a known placement: the graph's own devices, one device, an expert
split and METIS are always evaluated first, and a placement of the method is taken only if it is
better.

Legend: N ops, D devices.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from typing import Any, Callable, ContextManager, Dict, Iterator, Mapping, Optional, Tuple, Union

import numpy as np

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.clusters.constraints import allowed_devices
from placeto_tf.clusters.pins import narrowed_by_pins
from placeto_tf.costs import estimate_costs
from placeto_tf.distributed import session
from placeto_tf.distributed.islands import run_on_ray
from placeto_tf.errors import PlacementError, PlacetoError
from placeto_tf.graphs import ComputationGraph, load_graph
from placeto_tf.graphs.loading import LOAD_OPTIONS
from placeto_tf.placements import Placement
from placeto_tf.placements.fixed_cost import fixed_cost_note
from placeto_tf.placing import (
  learned_groups,
  measured_search,
  progress_bar,
  registry,
  replica_search,
  running,
)
from placeto_tf.placing.compiling_ahead import compile_ahead
from placeto_tf.placing.config import PlacingConfig, Progress
from placeto_tf.placing.result import Baseline, PlacingResult
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.ledger import Ledger
from placeto_tf.problem.method import Kind
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.replication.batches import ReplicaSource
from placeto_tf.runtime.workers import make_runtime
from placeto_tf.search.lower_bounds import lower_bound_us
from placeto_tf.simulation import SimulationResult, Simulator, memory_report


def place(
    graph: Any,
    cluster: Union[Cluster, str],
    method: str = "auto",
    *,
    root_dir: Optional[str] = None,
    progress: Union[bool, Progress, None] = None,
    **options: Any,
) -> PlacingResult:
  """Decides on which device each op of a graph runs.

  Args:
    graph: a `ComputationGraph`, or anything `load_graph` takes; for several replicas also a
      `ReplicaSource`.
    cluster: a `Cluster`, or text for `Cluster.parse`.
    method: see `PlacingConfig`.
    root_dir: where the policy writes its TensorBoard summaries; None writes none.
    progress: True shows a progress bar on stderr or in a notebook, False nothing; None shows it
      on a terminal or in a notebook. A callable is called from time to time instead.
    **options: the other fields of `PlacingConfig` (max_seconds, max_evaluations, seed, ...), and
      those of `load_graph` (batch_size, fetches, ...) where the graph has still to be read.
      Several signatures of a SavedModel would be one step: see `place_signatures`.

  Raises:
    PlacetoError: the graph, cluster or an option is wrong, or no placement fits in memory.
  """
  config, loading = options_of("place()", method, options, graph)
  cluster = Cluster.parse(cluster) if isinstance(cluster, str) else cluster

  def source_of_replicas() -> ReplicaSource:
    return graph if isinstance(graph, ReplicaSource) else ReplicaSource(
        graph, loading, batch_norm=config.batch_norm)

  def run(
      report: Optional[Progress], stage: Callable[[str], ContextManager] = contextlib.nullcontext
  ) -> PlacingResult:
    if config.replicas != 1:
      return replica_search.place_replicas(
          source_of_replicas(), cluster, config, progress=report, stage=stage)
    read = graph if isinstance(graph, ComputationGraph) else load_graph(graph, **loading)
    return place_with(read, cluster, config, root_dir=root_dir, progress=report, stage=stage)

  if callable(progress):
    return run(progress)
  if not (progress_bar.is_watched() if progress is None else progress):
    return run(None)
  with progress_bar.ProgressBar(config.budget) as bar:
    return run(bar, progress_bar.stage)


def options_of(
    caller: str, method: str, options: Mapping[str, Any], graph: Any
) -> Tuple[PlacingConfig, Dict[str, Any]]:
  """The options of placing, and those of `load_graph`, from what a function was given.

  Args:
    caller: named in errors.
    method: see `PlacingConfig`.
    options: by name.
    graph: what is placed.

  Raises:
    TypeError: an option that there is not, or that comes too late for a graph that has been read.
    PlacetoError: the value of one is wrong.
  """
  loading = {name: value for name, value in options.items() if name in LOAD_OPTIONS}
  placing = {name: value for name, value in options.items() if name not in LOAD_OPTIONS}
  known = {field.name for field in dataclasses.fields(PlacingConfig)}
  unknown = sorted(set(placing) - known)
  if unknown:
    raise TypeError(
        f"{caller} got unknown option {unknown[0]!r}; expected one of "
        f"{sorted(known | set(LOAD_OPTIONS))}")
  if loading and isinstance(graph, ComputationGraph):
    raise TypeError(
        f"{caller} got {sorted(loading)[0]!r} for a graph that has been read; give it to "
        "load_graph")
  config = PlacingConfig(method=method, **placing)
  return replica_search.with_replicas_of_spec(config, graph), loading


def place_with(
    graph: ComputationGraph,
    cluster: Cluster,
    config: PlacingConfig,
    *,
    root_dir: Optional[str] = None,
    progress: Optional[Progress] = None,
    stage: Callable[[str], ContextManager] = contextlib.nullcontext,
) -> PlacingResult:
  """`place()` with its options in a `PlacingConfig`.

  `stage` is a context manager of a name, entered around long work before the search.
  """
  registry.read_weights(registry.find(config.method), config.policy_weights)
  if config.cost == "measured":
    make_runtime(cluster, config.workers)  # what is wrong with them is known before the search
  with stage("Estimating costs"):
    costs = estimate_costs(graph, cluster, source=config.costs)
  allowed = narrowed_by_pins(
      graph, cluster, allowed_devices(graph, cluster), pins=config.pins,
      keep_own_devices=config.existing_devices == "keep")
  with stage("Grouping"):
    problem = PlacementProblem.build(
        graph, cluster, costs=costs, grouping=learned_groups.first_grouping(config.grouping),
        max_groups=config.max_groups, allowed_ops=allowed)
  progress = progress or (lambda problem, stage: None)
  with _islands(problem, config) as config:
    compile_ahead(problem, registry.find(config.method), stage)
    bound_us = lower_bound_us(problem)
    problem = problem.renewed()  # the clock begins once all is there
    started = time.monotonic()
    ledger = Ledger(problem)
    ledger.bound_us = bound_us
    budget = _with_target(config.budget, bound_us)
    interrupted = _search(problem, ledger, config, budget, root_dir, progress)
    ended = "Ctrl-C" if interrupted else _ended(
        problem, ledger, budget, auto=registry.find(config.method).kind is Kind.AUTO)
  rows = {entry.name: Baseline.of(problem, entry) for entry in ledger.entries}

  best = problem.best_known
  simulated = problem.simulator.simulate(best)
  if not simulated.fits:
    raise PlacementError(_nothing_fits(problem, simulated))
  measured, proven, notes = None, ledger.proven, graph.notes + costs.notes
  if config.cost == "measured":
    try:
      measured = _measure(problem, rows, config, progress)
    # What the search found must not be lost, whatever happens to workers, sessions and sockets.
    except KeyboardInterrupt:
      interrupted = True
      notes += ("simulated steps decided, because measuring was interrupted",)
    except Exception as error:
      kind = "" if isinstance(error, PlacetoError) else f"{type(error).__name__}: "
      notes += (f"simulated steps decided, because nothing could be measured: {kind}{error}",)
    else:
      best, proven = measured.placement, False  # proofs hold for simulated steps
      simulated = problem.simulator.simulate(best)
      notes += (measured_search.describe(measured),)
  fixed = fixed_cost_note(problem.simulator, best)
  notes += (fixed,) if fixed else ()
  placement = Placement.from_indices(
      graph, cluster, best, method=config.method, seed=config.seed,
      evaluations=problem.evaluations, step_time_us=simulated.step_time_us,
      lower_bound_us=bound_us,
      peak_memory_bytes=dict(zip(cluster.device_names, simulated.peak_memory_bytes.tolist())),
      baselines={name: {"step_time_us": row.step_time_us, "fits": row.fits}
                 for name, row in rows.items()})
  return PlacingResult(
      placement=placement, step_time_us=simulated.step_time_us,
      peak_memory_bytes=simulated.peak_memory_bytes, fits=True, baselines=rows,
      lower_bound_us=bound_us, evaluations=problem.evaluations,
      seconds=time.monotonic() - started, history=list(problem.history), indices=best,
      simulated=simulated, proven=proven, notes=notes, interrupted=interrupted, graph=graph,
      costs=costs, cluster=cluster, config=config, measured=measured, ended=ended)


def _with_target(budget: Budget, bound_us: float) -> Budget:
  """The budget that also ends where its `stop_within` says, given a lower bound."""
  if not budget.stop_within or not bound_us > 0:
    return budget
  return dataclasses.replace(budget, target_us=bound_us * (1 + budget.stop_within))


def _ended(problem: PlacementProblem, ledger: Ledger, budget: Budget, *, auto: bool) -> str:
  """What ended a search that was not interrupted, in words."""
  if ledger.proven:
    return "the best is proven"
  if budget.target_us is not None and problem.best_fits and (
      problem.best_objective_us <= budget.target_us):
    return f"the bound is met within {budget.stop_within:.1%}"
  if ledger.no_more:
    return f"twice the time gained less than {budget.stop_within:.1%}"
  # `auto` has no end of its own, but leaves a rest that is too short for another search.
  used = auto or problem.exhausted(dataclasses.replace(budget, target_us=None))
  return "the budget is used" if used else "the method has come to its end"


@contextlib.contextmanager
def _islands(problem: PlacementProblem, config: PlacingConfig) -> Iterator[PlacingConfig]:
  """Has searches run on as many islands, and where, as the configuration says.

  Yields:
    The configuration with the number of islands that there are.
  """
  with contextlib.ExitStack() as stack:
    if config.ray is not None:
      ray = stack.enter_context(session.connected(config.ray))
      problem.run_islands = run_on_ray
      if config.islands is None and config.max_evaluations is None:
        cores = int(ray.cluster_resources().get("CPU", 1))
        config = dataclasses.replace(config, islands=max(1, cores))
    problem.islands = config.num_islands
    yield config


def _measure(
    problem: PlacementProblem, rows: Dict[str, Baseline], config: PlacingConfig,
    progress: Progress) -> measured_search.MeasuredSearch:
  """Measures the placers' placements, and searches on from them, in real sessions."""
  found = {name: row.placement for name, row in rows.items()
           if row.placement is not None and row.fits}
  found["best"] = problem.best_known
  progress(problem, "measuring")
  return measured_search.search_on_workers(
      problem, found, workers=config.workers, device_map=dict(config.device_map) or None,
      max_measurements=config.max_measurements, seed=config.seed,
      progress=lambda _: progress(problem, "measuring"))


def _search(
    problem: PlacementProblem, ledger: Ledger, config: PlacingConfig, budget: Budget,
    root_dir: Optional[str], progress: Progress) -> bool:
  """Runs the references and the method; Ctrl-C ends it and keeps the best placement.

  Returns:
    Whether Ctrl-C was pressed.
  """
  method, stage = registry.find(config.method), [""]

  def announce(name: str) -> None:
    stage[0] = name
    progress(problem, name)

  ledger.announce = announce
  problem.observe(lambda: progress(problem, stage[0]))
  try:
    if method.kind is Kind.AUTO:  # has the references among its own parts
      run_auto: Callable[..., np.ndarray] = method.load()
      run_auto(problem, budget, config.seed, root_dir=root_dir, ledger=ledger)
      return False
    for reference in registry.references():
      ledger.run(reference.name, reference.load(), budget, config.seed)
    if not method.kind.reference:
      run = functools.partial(
          running.run, weights=config.policy_weights, root_dir=root_dir,
          progress=lambda *_: announce(method.name))
      ledger.run(
          method.name, lambda problem, budget, seed: run(problem, method, budget, seed), budget,
          config.seed, _grouped(problem, ledger, config))
  except KeyboardInterrupt:
    if problem.best_placement is None:
      raise
    return True
  finally:
    problem.observe(None)
  return False


def _grouped(
    problem: PlacementProblem, ledger: Ledger, config: PlacingConfig) -> PlacementProblem:
  """The problem in the groups that the method works on; if learned, with an entry in the ledger."""
  if config.grouping != learned_groups.LEARNED:
    return problem
  learned = []

  def learn(problem: PlacementProblem, budget: Budget, seed: int) -> np.ndarray:
    learned.append(learned_groups.with_learned_groups(problem, budget, seed))
    return problem.best_known

  ledger.run(learned_groups.METHOD, learn, config.budget, config.seed)
  return learned[0]


def _nothing_fits(problem: PlacementProblem, simulated: SimulationResult) -> str:
  reports = memory_report(problem.graph, problem.costs, simulated)
  held = float(problem.costs.persistent_bytes.sum())
  room = float(problem.cluster.memory_bytes.sum())
  return (
      f"no placement was found that fits: the best is {'; '.join(reports)} (variables and "
      f"constants alone take {held / 2**30:.2f} GB of the cluster's {room / 2**30:.2f} GB); add "
      "devices or memory, or lower the batch size")


def simulate(
    graph: Any, cluster: Union[Cluster, str], placement: Union[Placement, str, np.ndarray],
    *, costs: str = "grappler", any_graph: bool = False,
) -> SimulationResult:
  """Simulates one step of a placement.

  Args:
    graph: a `ComputationGraph`, or anything `load_graph` takes.
    cluster: a `Cluster`, or text for `Cluster.parse`.
    placement: a `Placement`, the path of a placement.json, or [N] device indices.
    costs: "grappler" or the path of a file of measured costs.
    any_graph: whether the `Placement` may be of another graph with the same ops.

  Returns:
    A `placeto_tf.simulation.SimulationResult`.

  Raises:
    PlacetoError: the graph, cluster, costs or placement is wrong.
  """
  cluster = Cluster.parse(cluster) if isinstance(cluster, str) else cluster
  graph = graph if isinstance(graph, ComputationGraph) else load_graph(graph)
  if isinstance(placement, str):
    placement = Placement.load(placement)
  if isinstance(placement, Placement):
    placement = placement.indices(graph, cluster, any_graph=any_graph)
  simulator = Simulator(graph, estimate_costs(graph, cluster, source=costs), cluster)
  return simulator.simulate(np.asarray(placement, dtype=np.int32))
