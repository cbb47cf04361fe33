"""`place(replicas=...)`: placement and the number of replicas in one search.

Legend: N ops, D devices, R replicas.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from typing import Any, Callable, ContextManager, Dict, List, Optional, Set, Tuple, Union

import numpy as np

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.clusters.constraints import allowed_devices
from placeto_tf.clusters.pins import narrowed_by_pins
from placeto_tf.errors import GraphError, PlacementError, ReplicaMismatchError
from placeto_tf.placements import Placement
from placeto_tf.placing.config import AUTO, DEFAULT_MAX_SECONDS, PlacingConfig
from placeto_tf.placing.replica_candidates import Candidate, search_replicas
from placeto_tf.placing.result import Baseline, PlacingResult, ReplicaRow, Replication
from placeto_tf.problem.candidates import compute_devices, fallback_devices
from placeto_tf.problem.ledger import Ledger
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.replication import (
  DataParallel,
  ReplicaSource,
  ReplicatedGraph,
  data_parallel,
  replicated_costs,
)
from placeto_tf.replication.batches import is_spec, split_spec
from placeto_tf.replication.mirroring import host_variables
from placeto_tf.replication.replicated_graph import form_name
from placeto_tf.replication.replicating import replicate
from placeto_tf.runtime.comparing import TrainingComparison, compare_training
from placeto_tf.search.lower_bounds import lower_bound_us

# (number of replicas, whether each has variables of its own)
Form = Tuple[int, bool]

DATA_PARALLEL = "data_parallel"
_LEAST_CHECK_S = 30.0


def with_replicas_of_spec(config: PlacingConfig, graph: Any) -> PlacingConfig:
  """The config with the replicas that a spec of the zoo names, such as "zoo:rnnlm:replicas=4".

  Args:
    config: returned as it is if it asks for more than one replica.
    graph: the spec; for anything else, too, the config is returned as it is.
  """
  if config.replicas != 1 or not is_spec(graph):
    return config
  return dataclasses.replace(config, replicas=split_spec(graph)[1] or 1)


def place_replicas(
    source: Union[ReplicaSource, Any],
    cluster: Cluster,
    config: PlacingConfig,
    *,
    progress: Optional[Callable[[PlacementProblem, str], None]] = None,
    stage: Callable[[str], ContextManager] = contextlib.nullcontext,
) -> PlacingResult:
  """Places a graph with the best number of replicas, or with `config.replicas`.

  Args:
    source: a `ReplicaSource`, or anything that makes one.
    cluster: devices and links.
    config: as for `place_with`; its method is `auto`.
    progress: called from time to time.
    stage: a context manager of a name, entered around long work before the search.

  Raises:
    PlacetoError: the number of replicas does not fit graph or cluster, or nothing fits in memory.
  """
  source = source if isinstance(source, ReplicaSource) else ReplicaSource(source)
  counts, parallel = _counts(cluster, config.replicas)
  kinds = (False, True) if config.mirrored_variables is None else (config.mirrored_variables,)
  forms = {(count, mirrored and count > 1) for count in counts for mirrored in kinds}
  made, refused = _replicate(source, forms, (parallel, False), cluster, config, stage)
  # As many devices as there can be replicas: a batch of 4 keeps 4 of 8 devices busy.
  parallel = max((count for (count, mirrored), each in made.items()
                  if each is not None and not mirrored), default=1)
  candidates: List[Candidate] = []
  baseline = baseline_batch = None
  for (count, mirrored), replicated in made.items():
    graph = source.graph if replicated is None else replicated.graph
    with stage(f"Estimating costs of {form_name(count, mirrored)} replicas"):
      problem = _problem(graph, replicated, cluster, config)
    if count == parallel > 1 and replicated is not None and not mirrored:
      devices = compute_devices(problem)[:count]
      hosts = np.where(
          problem.allowed_ops[:, devices[0]], -1, fallback_devices(problem)).astype(np.int64)
      try:
        baseline = data_parallel(replicated, problem.costs, cluster, devices, hosts)
        baseline_batch = replicated.global_batch
      except GraphError:  # a strategy that only averages gradients does not do what the graph does
        pass
    if (count, mirrored) in forms:
      batch = replicated.global_batch if replicated is not None else None
      candidates.append(Candidate(
          count, batch, problem, Ledger(problem), mirrored,
          reference=config.replicas not in (AUTO, count)))
  if all(each.reference for each in candidates):
    candidates = [dataclasses.replace(each, reference=False) for each in candidates]
  started = time.monotonic()
  best = search_replicas(
      candidates, config.budget, config.seed, progress or (lambda problem, name: None))
  seconds = time.monotonic() - started
  checks: Dict[str, TrainingComparison] = {}
  if config.check_replicas:
    best, failed = _checked(source, candidates, best, cluster, config, stage, checks)
    refused = failed or refused
  return _result(source, made, candidates, best, baseline, baseline_batch, refused, checks, cluster,
                 config, seconds)


def _checked(
    source: ReplicaSource, candidates: List[Candidate], best: Candidate, cluster: Cluster,
    config: PlacingConfig, stage: Callable[[str], ContextManager],
    checks: Dict[str, TrainingComparison],
) -> Tuple[Candidate, str]:
  """The best candidate that trains what the graph trains, and why a better one was put aside.

  Args:
    source, candidates, best, cluster, config, stage: see `place_replicas`. A check takes at most as
      long as the search may, but always has half a minute.
    checks: receives what each check gave, by form.

  Raises:
    ReplicaMismatchError: none does.
  """
  problems: List[GraphError] = []
  limit_s = max(_LEAST_CHECK_S, config.budget.max_seconds or DEFAULT_MAX_SECONDS)
  while best.replicas > 1:
    try:
      with stage(f"Training {best.form} replicas beside the graph, to compare"):
        checks[best.form] = _check(source, best.replicas, best.mirrored, cluster, limit_s)
      break
    except ReplicaMismatchError as problem:
      problems.append(problem)
      checks[best.form] = TrainingComparison(False, str(problem))
      left = [each for each in candidates if each.form not in checks and not each.reference]
      if not left:
        raise problems[0] from None
      best = min(left, key=lambda each: (each.rank, each.replicas, each.mirrored))
  return best, str(problems[0]) if problems else ""


def _check(
    source: ReplicaSource, count: int, mirrored: bool, cluster: Cluster, limit_s: float
) -> TrainingComparison:
  """Trains the graph and `count` replicas side by side; see `compare_training`."""
  started = time.monotonic()
  whole, part = source.small(count)
  if part is None:
    return TrainingComparison(
        False, "the batch grew, so that there is no graph to compare with")
  small = replicate(
      part, count, whole=whole, mirrored=mirrored,
      single=host_variables(part, cluster) if mirrored else frozenset(),
      batch_norm=source.batch_norm)
  return compare_training(whole, small, time_limit_s=limit_s, started=started)


def _counts(cluster: Cluster, wanted: Union[int, str]) -> Tuple[List[int], int]:
  """Numbers of replicas to try, 1 first, and that of the baseline of data parallelism."""
  devices = sum(not device.host for device in cluster.devices) or cluster.num_devices
  if wanted == AUTO:
    return [count for count in range(1, devices + 1) if devices % count == 0], devices
  assert isinstance(wanted, int)
  if wanted > devices:
    raise PlacementError(
        f"{wanted} replicas are more than the cluster's {devices} devices; choose at most "
        f"{devices}")
  return sorted({1, wanted}), devices


def _replicate(
    source: ReplicaSource, forms: Set[Form], parallel: Form, cluster: Cluster,
    config: PlacingConfig, stage: Callable[[str], ContextManager],
) -> Tuple[Dict[Form, Optional[ReplicatedGraph]], str]:
  """Replicas by their form, and why there are fewer than asked for; one is always there."""
  made: Dict[Form, Optional[ReplicatedGraph]] = {}
  refused = ""
  for count, mirrored in sorted({*forms, parallel}):
    named = form_name(count, mirrored)
    try:
      with stage(f"Making {named} replicas") if count > 1 else contextlib.nullcontext():
        made[count, mirrored] = source.replicas(count, mirrored, cluster)
    except GraphError as error:
      if mirrored and config.mirrored_variables is None:
        continue  # not every graph can have them; sharing stays
      if count == config.replicas != 1 and (count, mirrored) in forms:
        raise
      refused = str(error)
      if count == 1:
        made[count, mirrored] = None
  return made, refused


def _problem(
    graph: Any, replicated: Optional[ReplicatedGraph], cluster: Cluster, config: PlacingConfig
) -> PlacementProblem:
  from placeto_tf.costs import estimate_costs

  costs = (estimate_costs(graph, cluster, source=config.costs) if replicated is None else
           replicated_costs(replicated, cluster, config.costs))
  allowed = narrowed_by_pins(
      graph, cluster, allowed_devices(graph, cluster), pins=config.pins,
      keep_own_devices=config.existing_devices == "keep")
  problem = PlacementProblem.build(
      graph, cluster, costs=costs, grouping=config.grouping, max_groups=config.max_groups,
      allowed_ops=allowed)
  problem.islands = config.num_islands
  if replicated is not None and replicated.replicas > 1:
    problem.replicated = replicated
  return problem


def _result(
    source: ReplicaSource, made: Dict[Form, Optional[ReplicatedGraph]],
    candidates: List[Candidate], best: Candidate, baseline: Optional[DataParallel],
    baseline_batch: Optional[int], refused: str, checks: Dict[str, TrainingComparison],
    cluster: Cluster, config: PlacingConfig, seconds: float) -> PlacingResult:
  problem = best.problem
  simulated = problem.simulator.simulate(problem.best_known)
  if not simulated.fits:
    raise PlacementError(
        f"no placement was found that fits, of any number of replicas ({best.form} come "
        "closest); add devices or memory, or lower the batch size")
  rows = {}
  for each in candidates:
    found = each.problem.simulator.simulate(each.problem.best_known)
    rows[each.form] = ReplicaRow(
        each.replicas, each.mirrored, each.global_batch, float(found.step_time_us),
        found.peak_memory_bytes, bool(found.fits), each.problem.evaluations, each.dropped,
        str(checks.get(each.form, "")))
  baselines = _baselines(candidates, best, baseline, baseline_batch, cluster)
  bound_us = lower_bound_us(problem)
  graph = problem.graph
  placement = Placement.from_indices(
      graph, cluster, problem.best_known, method=config.method, seed=config.seed,
      evaluations=problem.evaluations, step_time_us=simulated.step_time_us,
      lower_bound_us=bound_us,
      peak_memory_bytes=dict(zip(cluster.device_names, simulated.peak_memory_bytes.tolist())),
      baselines={name: {"step_time_us": row.step_time_us, "fits": row.fits}
                 for name, row in baselines.items()})
  chosen = made[best.replicas, best.mirrored]
  notes = graph.notes + problem.costs.notes + (chosen.notes if chosen is not None else ())
  if refused:
    notes += (f"no more replicas: {refused}",)
  return PlacingResult(
      placement=placement, step_time_us=simulated.step_time_us,
      peak_memory_bytes=simulated.peak_memory_bytes, fits=True, baselines=baselines,
      lower_bound_us=bound_us,
      evaluations=sum(each.problem.evaluations for each in candidates), seconds=seconds,
      history=list(problem.history), indices=problem.best_known, simulated=simulated,
      proven=False, notes=notes, interrupted=False, graph=graph, costs=problem.costs,
      cluster=cluster, config=config,
      replication=Replication(
          chosen, rows, baseline, baseline_batch, refused, checks.get(best.form)))


def _baselines(
    candidates: List[Candidate], best: Candidate, baseline: Optional[DataParallel],
    baseline_batch: Optional[int], cluster: Cluster) -> Dict[str, Baseline]:
  """The rows of the table: one replica's references, data parallelism, the best one's placers.

  All step times are for as many examples as a step of the best has.
  """
  def scaled(row: Baseline, batch: Optional[int]) -> Baseline:
    if row.step_time_us is None or not batch or not best.global_batch or (
        batch == best.global_batch):
      return row
    return dataclasses.replace(row, step_time_us=row.step_time_us * best.global_batch / batch)

  rows: Dict[str, Baseline] = {}
  first = candidates[0]
  for entry in first.ledger.entries:
    rows[entry.name] = scaled(Baseline.of(first.problem, entry), first.global_batch)
  if baseline is not None:
    rows[DATA_PARALLEL] = scaled(Baseline(
        baseline.step_time_us, baseline.fits, baseline.peak_memory_bytes, None, 1), baseline_batch)
  if best is not first:
    for entry in best.ledger.entries:
      rows[entry.name] = Baseline.of(best.problem, entry)
  return rows
