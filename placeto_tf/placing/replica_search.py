"""`place(replicas=...)`: placement and the number of replicas in one search.

Dimensions: N ops, D devices, R replicas.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any, Dict, List, Optional, Set, Tuple, Union

import numpy as np

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.clusters.presets import all_reduce_bandwidth
from placeto_tf.costs import estimate_costs
from placeto_tf.errors import GraphError, PlacementError, ReplicaMismatchError, one_line, option
from placeto_tf.placing import registry, running
from placeto_tf.placing.compiling_ahead import compile_ahead
from placeto_tf.placing.config import AUTO, DEFAULT_MAX_SECONDS, PlacingConfig
from placeto_tf.placing.observing import SILENT, Observer
from placeto_tf.placing.registry import DATA_PARALLEL
from placeto_tf.placing.replica_candidates import Candidate, is_live, search_replicas, worth_trying
from placeto_tf.placing.result import Baseline, PlacingResult, ReplicaRow, Replication, check_fits
from placeto_tf.problem.candidates import compute_devices, fallback_devices
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.replication import ReplicaSource, ReplicatedGraph, data_parallel, replicated_costs
from placeto_tf.replication.replicated_graph import pipeline_strategy, strategy_name
from placeto_tf.runtime.checking import check_replicas
from placeto_tf.runtime.comparing import TrainingComparison
from placeto_tf.search.independent_runs import Runs
from placeto_tf.search.pipelines import pipeline
from placeto_tf.search.table_slices import choose_slices

# (number of replicas, whether each has variables of its own, micro-batches of a pipeline or 1,
# whether tables are in slices)
Strategy = Tuple[int, bool, int, bool]

_LEAST_CHECK_S = 30.0


def place_replicas(
    source: ReplicaSource,
    cluster: Cluster,
    config: PlacingConfig,
    *,
    observer: Observer = SILENT,
) -> PlacingResult:
  """Places a graph with the best number of replicas, or with `config.replicas`.

  Args:
    source: of the replicas.
    cluster: devices and links.
    config: as for `place_with`; its method is `auto`.
    observer: receives the progress.

  Returns:
    The best placement of the best replication strategy, and a row for each strategy.

  Raises:
    PlacetoError: the number of replicas does not fit graph or cluster, or nothing fits in memory.
  """
  if config.replicas == 1:  # a spec of the zoo names their number
    config = dataclasses.replace(config, replicas=source.wanted or 1)
  return _ReplicaSearch(source, cluster, config, observer).result()


@dataclasses.dataclass
class _ReplicaSearch:
  """Makes candidates of a graph, searches them, and checks the best.

  Attributes:
    source, cluster, config, observer: see `place_replicas`.
    candidates: the candidates, fewest replicas first; pipelines last.
    not_made: replication strategy -> the reason why it cannot be made.
    asked: the requested replicas and micro-batches; None if all numbers are tried.
    slices: table -> number of its slices, of the strategies with slices.
  """

  source: ReplicaSource
  cluster: Cluster
  config: PlacingConfig
  observer: Observer
  candidates: List[Candidate] = dataclasses.field(default_factory=list)
  not_made: Dict[Strategy, str] = dataclasses.field(default_factory=dict)
  asked: Optional[Tuple[int, int]] = None
  slices: Dict[str, int] = dataclasses.field(default_factory=dict)

  def result(self) -> PlacingResult:
    """Makes, searches and checks the candidates; see `place_replicas`."""
    config = self.config
    counts, parallel = replica_counts(self.cluster, config.replicas)
    self.asked = None if config.replicas == AUTO else counts[-1]
    kinds = (False, True) if config.mirrored_variables is None else (config.mirrored_variables,)
    # Neither a single replica nor a pipeline can have mirrored variables.
    strategies: Set[Strategy] = {
        (count, mirrored and count > 1 and batches == 1, batches, False)
        for count, batches in counts for mirrored in kinds}
    made = {each: candidate for each in sorted({*strategies, (parallel, False, 1, False)})
            if (candidate := self.make(each)) is not None}
    # Use only as many devices as there can be replicas: a batch of 4 keeps 4 of 8 devices busy.
    widest = made[max(each for each in made if not each[1] and each[2] == 1)]
    # Tables in slices, where a table is in the way.
    self.slices = self._slices(made[1, False, 1, False].problem)
    for each in sorted(strategies) if self.slices else ():
      if not each[1] and each[2] == 1 and (
          candidate := self.make((*each[:3], True))) is not None:
        made[(*each[:3], True)] = candidate
        strategies.add((*each[:3], True))
    self.candidates = [made[strategy] for strategy in sorted(made) if strategy in strategies]

    def pipelines(example_us: float) -> List[Candidate]:
      """Makes the pipelines that are worth trying beside a step time per example."""
      if config.replicas != AUTO or config.mirrored_variables:
        return []
      # Replicas of any number show which ops are copied.
      known = widest.replicated if widest.replicas > 1 else None
      tried = worth_trying(self.source, known, self.cluster, example_us)
      more = [self.make((groups * batches, False, batches, False)) for groups, batches in tried]
      self.candidates += filter(None, more)
      return [each for each in more if each is not None]

    compile_ahead(self.candidates[-1].problem, registry.find("auto"), self.observer.stage)
    # The time of the search, without the check.
    started = time.monotonic()
    with self.observer.search(config.budget) as progress:
      best, ended = search_replicas(
          self.candidates, config.budget, config.seed, Runs(config.num_runs), progress, pipelines)
    seconds = time.monotonic() - started
    # The reason why the largest number of replicas with shared variables could not be made.
    refused = next((why for (_, mirrored, batches, split), why in reversed(list(
        self.not_made.items())) if not mirrored and batches == 1 and not split), "")
    try:
      check = self._check(best)
    except ReplicaMismatchError as error:
      if self.asked is not None:
        raise
      best, check, refused = made[1, False, 1, False], None, str(error)
    rows = {each.strategy: _row(each, str(check or "") if each is best else "")
            for each in self.candidates}
    shared = self.cluster.launch_us > 0  # by the GPUs of a process
    replication = Replication(
        best.replicated, rows, _data_parallel(widest), refused, check,
        {strategy_name(*each): why for each, why in self.not_made.items()
         if each[0] > 1 or each[3]},
        self.source.graph, _data_parallel(widest, by_process=True) if shared else None)
    return _result(
        self.candidates, best, replication, config, seconds=seconds, ended=ended)

  def _slices(self, problem: PlacementProblem) -> Dict[str, int]:
    """Returns the tables to split, with their numbers of slices."""
    most = self.config.slices
    if most == 1 or self.config.mirrored_variables:
      return {}
    return choose_slices(
        self.source.graph, problem.costs, self.cluster, None if most == AUTO else int(most))

  def make(self, strategy: Strategy) -> Optional[Candidate]:
    """Makes the candidate of a strategy; returns None if an unrequested one cannot be made."""
    count, mirrored, batches, split = strategy
    named, config = strategy_name(*strategy), self.config
    reference = self.asked not in (None, (count, batches))
    try:
      with self.observer.stage(f"Making {named} replica{'s' if count > 1 else ''}"):
        if batches > 1 and is_live(self.source):
          raise GraphError("micro-batches are made of graphs, not of a live function; give the "
                           "number of replicas alone, or the graph")
        replicated = self.source.replicas(
            count, mirrored, self.cluster, batches, self.slices if split else None)
        problem = self.problem(replicated)
        if batches > 1:
          # The search begins with the placement of the pipeline's stages, in their order.
          found = pipeline(replicated, problem.costs, self.cluster, problem.allowed_ops)
          replicated, problem = found.replicated, self.problem(found.replicated)
          problem.evaluate_ops(found.placement)
    except Exception as error:  # pylint: disable=broad-except  of whatever builds the user's graph
      # Not every graph can have mirrored variables or micro-batches. Unless the user asked for
      # them, try the other strategies.
      requested = count > 1 and self.asked == (count, batches) and not split and not (
          mirrored and config.mirrored_variables is None)
      if requested or batches > 1 and not isinstance(error, GraphError):
        raise
      self.not_made[strategy] = one_line(error, 500)
      if count > 1 or split:
        return None
      # The given graph, of which not even a single replica can be made.
      return Candidate(1, None, self.problem(None), reference=reference)
    return Candidate(
        count, replicated.global_batch, problem, mirrored, batches, reference,
        replicated=replicated)

  def problem(self, replicated: Optional[ReplicatedGraph]) -> PlacementProblem:
    """Makes the problem of replicas, or of the graph, with costs of the config's source."""
    graph = self.source.graph if replicated is None else replicated.graph
    source = self.config.cost_model  # a function knows what the ops of replicas cost
    # Costs of a replica's ops follow from the costs of the original ops.
    costs = (replicated_costs(replicated, self.cluster, str(source)) if (
        replicated is not None and not callable(source)) else
             estimate_costs(graph, self.cluster, source=source))
    return running.problem_of(
        graph, self.cluster, self.config, costs,
        replicated=replicated if replicated is not None and replicated.strategy != "1" else None)

  def _check(self, best: Candidate) -> Optional[TrainingComparison]:
    """Trains replicas beside the graph, and compares.

    A check takes at most as long as the search may, but always has half a minute.

    Returns:
      The comparison, also if it failed; None for one replica, or if it is not requested.

    Raises:
      ReplicaMismatchError: the training of the replicas differs from the graph's, or cannot be
        compared because the graph cannot be run here.
    """
    if not self.config.check_replicas or best.strategy == "1":
      return None
    assert best.replicated is not None
    limit_s = max(_LEAST_CHECK_S, self.config.budget.max_seconds or DEFAULT_MAX_SECONDS)
    try:
      with self.observer.stage(f"Checking {best.strategy} replicas, trained beside the graph"):
        found = check_replicas(self.source, best.replicated, limit_s)
    except ReplicaMismatchError:
      raise
    except Exception as error:  # pylint: disable=broad-except  of whatever builds graphs
      found = TrainingComparison(False, f"with a few examples: {one_line(error)}", runs=False)
    if not found.runs:
      raise ReplicaMismatchError(
          f"{best.strategy} replicas are {found}; {option('check_replicas', False)} "
          f"places them unchecked, {option('replicas', 1)} places the graph")
    return found


def replica_counts(
    cluster: Cluster, wanted: Union[int, str]) -> Tuple[List[Tuple[int, int]], int]:
  """Returns the numbers of replicas to try.

  Returns:
    ((number, its micro-batches or 1) in ascending order, 1 first; the number of replicas of the
    data-parallel baseline).

  Raises:
    PlacementError: the cluster has fewer devices than wanted replicas.
  """
  devices = sum(not device.host for device in cluster.devices) or cluster.num_devices
  found = pipeline_strategy(wanted)
  if found is not None:
    return [(1, 1), (found[0] * found[1], found[1])], devices
  if wanted == AUTO:
    # Divisors of the number of devices.
    return [(count, 1) for count in range(1, devices + 1) if devices % count == 0], devices
  assert isinstance(wanted, int)
  if wanted > devices:
    raise PlacementError(
        f"{wanted} replicas are more than the cluster's {devices} devices; choose at most "
        f"{devices}")
  # One replica is always searched, to compare with.
  return sorted({(1, 1), (wanted, 1)}), devices


def _row(candidate: Candidate, check: str) -> ReplicaRow:
  """Returns the row of the table of replicas, with the text of the check."""
  problem = candidate.problem
  found = problem.simulator.simulate(problem.search_log.best_known)
  return ReplicaRow(
      candidate.global_batch, float(found.step_time_us), found.peak_memory_bytes, bool(found.fits),
      problem.search_log.evaluations, candidate.dropped, check)


def _data_parallel(candidate: Candidate, by_process: bool = False) -> Optional[ReplicaRow]:
  """Returns the baseline with a candidate's replicas; None if it computes other results."""
  if candidate.replicas == 1:
    return None
  problem, replicated, cluster = candidate.problem, candidate.replicated, candidate.problem.cluster
  if by_process:  # no launch waits for another GPU's; gradients are summed by NCCL
    cluster = dataclasses.replace(
        cluster, launch_us=0.0, bandwidth_bytes_per_us=all_reduce_bandwidth(
            cluster.devices, cluster.bandwidth_bytes_per_us))
  assert replicated is not None
  devices = compute_devices(problem)[:candidate.replicas]
  # [N] -1: the replica's own device; else the device of an op that has no kernel there.
  allowed = problem.allowed_ops
  hosts = np.where(
      allowed[:, devices[0]], -1, fallback_devices(problem.cluster, allowed)).astype(np.int64)
  try:
    found = data_parallel(replicated, problem.costs, cluster, devices, hosts)
  except GraphError:  # MirroredStrategy only averages gradients
    return None
  return ReplicaRow(
      candidate.global_batch, found.step_time_us, found.peak_memory_bytes, found.fits, 1,
      check="mirrored variables, ring all-reduce"
      + (", a process for each GPU" if by_process else ""))


def _result(
    candidates: List[Candidate], best: Candidate, replication: Replication, config: PlacingConfig,
    **more: Any) -> PlacingResult:
  """Returns the result of the best candidate, with its replicas, or raises if nothing fits."""
  problem = best.problem
  check_fits(problem, f", of any number of replicas ({best.strategy} come closest)")
  baselines = _baselines(candidates, best, replication)
  notes = () if replication.chosen is None else replication.chosen.notes
  if replication.refused:
    notes += (f"no more replicas: {replication.refused}",)
  return PlacingResult.of(
      problem, problem.search_log.best_known, baselines, config,
      evaluations=sum(each.problem.search_log.evaluations for each in candidates),
      proven=False, notes=notes, replication=replication, **more)


def _baselines(
    candidates: List[Candidate], best: Candidate, replication: Replication) -> Dict[str, Baseline]:
  """Returns rows of the table: references of one replica, data parallelism, the best's methods.

  All step times are scaled to the number of examples in a step of the best candidate.
  """
  def scaled(row: Baseline, batch: Optional[int]) -> Baseline:
    """Scales a row from the examples of its step, if known, to those of the best's step."""
    if row.step_time_us is None or not batch or not best.global_batch:
      return row
    return dataclasses.replace(row, step_time_us=row.step_time_us * (best.global_batch / batch))

  def rows_of(candidate: Candidate) -> Dict[str, Baseline]:
    """Returns the rows of the methods that a candidate ran."""
    return {record.name: scaled(Baseline.of(candidate.problem, record), candidate.global_batch)
            for record in candidate.problem.search_log.method_runs}

  # The candidate of one replica comes first; its rows are the references.
  rows, baseline = rows_of(candidates[0]), replication.data_parallel
  if baseline is not None:
    rows[DATA_PARALLEL] = scaled(
        Baseline(DATA_PARALLEL, None, 1, step_time_us=baseline.step_time_us, fits=baseline.fits,
                 peak_memory_bytes=baseline.peak_memory_bytes),
        baseline.global_batch)
  rows.update(rows_of(best))
  return rows
