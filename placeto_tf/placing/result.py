"""The result of `place()`: the placement, and a row of the comparison table for each placer.

Dimensions: N ops, D devices, R replicas.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Dict, List, Mapping, Optional, Tuple

import numpy as np

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.clusters.presets import accuracy
from placeto_tf.costs import OpCosts
from placeto_tf.errors import PlacementError, counted, listed, option
from placeto_tf.graphs import ComputationGraph
from placeto_tf.placements import Placement
from placeto_tf.placing import placed_targets, tables
from placeto_tf.placing.config import PlacingConfig
from placeto_tf.placing.explaining import Explanation, WhatIf, explain, ms_text, small_step, what_if
from placeto_tf.placing.measured_search import MeasuredSearch
from placeto_tf.problem.candidates import bytes_at_peaks, on_one_device
from placeto_tf.problem.host_options import hosts_of
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.problem.search_log import MethodRun
from placeto_tf.replication import ReplicatedGraph
from placeto_tf.runtime.comparing import TrainingComparison
from placeto_tf.search.lower_bounds import lower_bound_us
from placeto_tf.simulation import SimulationResult, Simulator, memory_report, timeline_png

# A step is expected to fit in so many times the memory that it takes on one device.
_SPARE = 1.2
INTERRUPTED, BUDGET_USED = "Ctrl-C", "the budget is used"  # reasons why a search ended


def check_fits(problem: PlacementProblem, hint: str = "") -> None:
  """Checks that the best placement of a search fits in memory.

  Args:
    problem: the problem, after the search.
    hint: text for the error on the graph that was searched.

  Raises:
    PlacementError: not even the best placement fits; the message says what it needs.
  """
  if problem.search_log.best_fits:
    return
  simulated = problem.simulator.simulate(problem.search_log.best_known)
  hosts = hosts_of(problem.cluster)
  offered = hosts & problem.allowed_ops.all(axis=0)
  held = float(problem.costs.persistent_bytes.sum())
  step = float(bytes_at_peaks(problem, on_one_device(problem))[0].sum())
  memory = float(problem.cluster.memory_bytes[~hosts | offered].sum())
  remedies = ["add devices or memory"]
  # In this order: a longer search, the host, a smaller batch; activations grow with the batch.
  if held < memory:
    share = (memory / _SPARE - held) / max(step - held, 1.0)
    remedies.append("lower the batch size" + (f" to {share:.0%} of it" if 0 < share < 1 else ""))
  if (hosts & ~offered).any():
    hint_of_host = option("allowed", in_python='allowed={".*": [all devices]}')
    remedies.insert(0, f"let all ops use the host ({hint_of_host})")
  if step <= memory:
    remedies.insert(0, f"search longer than {problem.search_log.evaluations:,} evaluations")
  raise PlacementError(
      f"no placement was found that fits{hint}: the best is "
      f"{'; '.join(memory_report(problem.graph, problem.costs, simulated))} (a step takes "
      f"{step / 2**30:.2f} GiB at once, {held / 2**30:.2f} GiB of it variables and constants, and "
      f"the devices that all ops may use have {memory / 2**30:.2f} GiB); "
      f"{', '.join(remedies[:-1])}{', or ' * (len(remedies) > 1)}{remedies[-1]}")


@dataclasses.dataclass(frozen=True, eq=False)
class Baseline(MethodRun):
  """The result of one placer: a row of the comparison table, its record with a simulation.

  Attributes:
    step_time_us: simulated step time, or None if the placer evaluated no placement.
    fits: whether every device's peak memory is within its limit.
    peak_memory_bytes: [D]; NaN without a placement.
  """

  step_time_us: Optional[float] = None
  fits: bool = False
  peak_memory_bytes: np.ndarray = None  # type: ignore[assignment]  # [D]

  @classmethod
  def of(cls, problem: PlacementProblem, entry: MethodRun) -> Baseline:
    """Returns the row of one placer of a run, with a simulation of its placement.

    Args:
      problem: the problem, which simulates.
      entry: the placer's entry in the search log.

    Returns:
      The row; its step time is None if there is no placement.
    """
    # The row of a method that did not run.
    if entry.placement is None:
      return cls(**vars(entry), peak_memory_bytes=np.full(problem.num_devices, np.nan))
    result = problem.simulator.simulate(entry.placement)
    return cls(**vars(entry), step_time_us=result.step_time_us, fits=bool(result.fits),
               peak_memory_bytes=result.peak_memory_bytes)


@dataclasses.dataclass(frozen=True, eq=False)
class ReplicaRow:
  """The result of one replication strategy: a row of the table of replicas.

  Attributes:
    global_batch: examples of a step; None if unknown.
    step_time_us: step time of the best placement found.
    peak_memory_bytes: [D].
    fits: whether every device has memory for its peak.
    evaluations: number of placements evaluated.
    dropped: the reason why the search was ended, or "".
    check: comparison with the graph's training, see `TrainingComparison`, or the reason why the
      comparison failed.
  """

  global_batch: Optional[int]
  step_time_us: float
  peak_memory_bytes: np.ndarray
  fits: bool
  evaluations: int
  dropped: str = ""
  check: str = ""

  @property
  def examples_per_second(self) -> Optional[float]:
    """Returns examples per second with the best placement; None without a batch."""
    return None if self.global_batch is None else self.global_batch / self.step_time_us * 1e6


@dataclasses.dataclass(frozen=True, eq=False)
class Replication:
  """The part of the result on replicas, from `place(replicas=...)`.

  Attributes:
    chosen: the placed replicas.
    rows: name of a replication strategy ("R", "R mirrored") -> its row.
    data_parallel: the row of the baseline with mirrored variables and a ring all-reduce; None if
      the graph does not allow it.
    refused: the reason why the graph has no or not more replicas, or "".
    check: check of the placed replicas; None if not requested, or if there is one replica.
    not_made: name of a replication strategy -> the reason why it was not tried.
    whole: the given graph, which takes the global batch; None if unknown.
    process_parallel: as `data_parallel`, with a process for each GPU instead of one for all, whose
      GPUs wait for each other's launches (`Cluster.launch_us`), and NCCL's bandwidth
      (`presets.all_reduce_bandwidth`); None if there is no such wait.
  """

  chosen: Optional[ReplicatedGraph]
  rows: Dict[str, ReplicaRow]
  data_parallel: Optional[ReplicaRow]
  refused: str = ""
  check: Optional[TrainingComparison] = None
  not_made: Mapping[str, str] = dataclasses.field(default_factory=dict)
  whole: Optional[ComputationGraph] = None
  process_parallel: Optional[ReplicaRow] = None

  @property
  def grown(self) -> Optional[Tuple[int, int]]:
    """Returns the examples in a step of the replicas and of the graph, if the batch grew."""
    # A batch that is part of the graph's shapes grows with the number of replicas.
    batch = None if self.chosen is None else self.chosen.global_batch
    own = self.rows["1"].global_batch if "1" in self.rows else None
    return (batch, own) if batch and own and batch > own else None


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class PlacingResult:
  """The result of `place()`.

  Attributes:
    placement: op name -> device name, for every op of the file.
    step_time_us, peak_memory_bytes, fits: simulated, for the placement; peaks are [D].
    baselines: placer -> Baseline, in the order of running, "current" first: the baselines, then
      the method, or for "auto" and "auto_unlearned" every placer that ran.
    lower_bound_us: a lower bound of the step time of all placements on this cluster.
    evaluations: the number of all evaluated placements.
    seconds: the time of the search.
    history: (evaluations, seconds, objective_us) at each improvement.
    indices: [N] int32 device of each needed op.
    simulated: the simulated step, for timelines.
    graph, costs, cluster, config: the inputs and options of the run.
    proven: whether the placement is known to be optimal.
    notes: assumptions, for the user.
    ended: a text with the reason why the search ended.
    measured: the measurements of real sessions, with timing="session"; else None.
    replication: results of all tried replication strategies; None if one replica was requested.
  """

  placement: Placement
  step_time_us: float
  peak_memory_bytes: np.ndarray
  fits: bool
  baselines: Dict[str, Baseline]
  lower_bound_us: float
  evaluations: int
  seconds: float
  history: List[Tuple[int, float, float]]
  indices: np.ndarray
  simulated: SimulationResult
  graph: ComputationGraph
  costs: OpCosts
  cluster: Cluster
  config: PlacingConfig
  proven: bool
  notes: Tuple[str, ...]
  ended: str = ""
  measured: Optional[MeasuredSearch] = None
  replication: Optional[Replication] = None

  @property
  def interrupted(self) -> bool:
    """Returns whether Ctrl-C ended the search before its budget did."""
    return self.ended == INTERRUPTED

  @functools.cached_property
  def explanation(self) -> Explanation:
    """Explains the step time by the critical path of the simulation."""
    return explain(self.graph, self.simulated)

  @functools.cached_property
  def picture(self) -> bytes:
    """Draws the placed step below the unplaced step, on the same time axis, as a PNG."""
    current, before = self.baselines["current"].placement, None
    # With replicas the original graph has other ops than the placed one.
    if current is not None and len(current) == self.graph.num_ops:
      before = Simulator(self.graph, self.costs, self.cluster).simulate(current)
    return timeline_png(self.graph, self.costs, self.simulated, before=before,
                        title=f"placed: {ms_text(self.step_time_us)}")

  @property
  def accuracy(self) -> str:
    """Returns a sentence on the errors of estimated times, or "" for costs of another source."""
    own = self.graph.source is not None and self.graph.source.format == "cost_graph_def"
    estimated = self.config.cost_model == "grappler" and not own
    return accuracy(self.cluster.devices) if estimated else ""

  @property
  def replicated(self) -> Optional[ReplicatedGraph]:
    """Returns the placed replicas; None if there is only one, with whole tables."""
    chosen = None if self.replication is None else self.replication.chosen
    return None if chosen is None or chosen.strategy == "1" else chosen

  def what_if(self, changes: Mapping[str, str]) -> WhatIf:
    """Simulates the placement with some ops on other devices; see `placeto_tf.placing.explaining`.

    Args:
      changes: regex -> device, as in {"embedding/.*": "/CPU:0"}.

    Returns:
      Both step times, with an explanation of each.
    """
    return what_if(self, changes)

  @property
  def small_step(self) -> str:
    """Returns a remark if the step is too small for several devices, with a remedy, or ""."""
    return small_step(self.explanation, self.cluster)

  @classmethod
  def of(
      cls, problem: PlacementProblem, indices: np.ndarray, baselines: Dict[str, Baseline],
      config: PlacingConfig, *, bound_us: Optional[float] = None, notes: Tuple[str, ...] = (),
      **more: Any) -> PlacingResult:
    """Makes the result of a search from its placement, and simulates the placement.

    Args:
      problem: the problem that was searched.
      indices: [N] int32 device of each op.
      baselines: placer -> row.
      config: of the run.
      bound_us: lower bound of the step time; by default it is computed.
      notes: besides those of the graph and its costs.
      **more: further fields of the result; by default, the search log has their values.
    """
    graph, cluster, log = problem.graph, problem.cluster, problem.search_log
    # Simulate once more, for the start and end of each op.
    simulated = problem.simulator.simulate(indices)
    bound_us = lower_bound_us(problem) if bound_us is None else bound_us
    placement = Placement.from_indices(
        graph, cluster, indices, method=config.method, seed=config.seed,
        evaluations=log.evaluations, step_time_us=simulated.step_time_us,
        lower_bound_us=bound_us,
        replicas=None if problem.replicated is None else problem.replicated.replicas,
        peak_memory_bytes=dict(zip(cluster.device_names, simulated.peak_memory_bytes.tolist())),
        baselines={name: {"step_time_us": row.step_time_us, "fits": row.fits}
                   for name, row in baselines.items()},
        options={"existing_devices": config.existing_devices, "pins": dict(config.pins)})
    return cls(
        placement, simulated.step_time_us, simulated.peak_memory_bytes, bool(simulated.fits),
        baselines, bound_us, history=log.history, indices=indices, simulated=simulated, graph=graph,
        costs=problem.costs, cluster=cluster, config=config,
        notes=graph.notes + problem.costs.notes + notes,
        **{"evaluations": log.evaluations, "seconds": log.seconds, "proven": log.proven, **more})

  def __repr__(self) -> str:
    """Returns the result in one line; it begins with unknowns, a grown batch and the step time."""
    said = " ".join([*tables.caveats(self), tables.verdict(self)])
    return (f"PlacingResult({said} Method {self.config.method!r}, "
            f"{counted(self.graph.num_ops, 'op')} on {listed(self.cluster.device_names, most=4)})")

  def __str__(self) -> str:
    """Returns a few lines, of which the first have the step time, unknowns and a grown batch."""
    return "\n".join(tables.caveats(self) + tables.last_lines(self))

  def _repr_html_(self) -> str:
    """Returns the table and the timeline as HTML, for a notebook."""
    return tables.html(self)

  def apply(self, target: Any, *, out_dir: Optional[str] = None, **options: Any) -> Any:
    """Applies the placement to a user's graph: sets the device of every op, and adds replicas.

    Args:
      target: the graph that was given to `place()`, or another copy of it: a GraphDef,
        MetaGraphDef, CostGraphDef, `tf.Graph`, ConcreteFunction, `tf.function`, Keras model, or the
        path or spec of a graph.
      out_dir: for a path, the directory to write the placed graph to.
      **options: options of `Placement.apply`, for protos and live graphs.

    Returns:
      - for a proto, a placed copy; for a path or spec, a placed copy of its content;
      - for a `tf.Graph`, the same graph, changed in place; with several replicas, a **new** graph
        with the same collections, because a live graph cannot be rewritten;
      - for a ConcreteFunction, a `tf.function` or a Keras model (its inference), an
        `PlacedFunction`, which takes the same arguments, with the global batch;
      - with `out_dir`, the path that was written.

    Raises:
      PlacementError: as `Placement.apply`; or the target is not the graph that was placed, or a
        SavedModel without `out_dir`.
    """
    return placed_targets.apply_result(self, target, out_dir, **options)
