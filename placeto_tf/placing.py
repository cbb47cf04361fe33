"""`place()`: the placers and the policy put to work on one graph.

The answer starts from the best known placement and only improves on it: the devices the graph
came with, one device, an expert split and METIS are always evaluated first, and what the method
finds counts only where it is better.

Legend: N ops, D devices.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
import time
from typing import Any, Callable, ContextManager, Dict, List, Optional, Tuple, Union

import numpy as np

from placeto_tf import search
from placeto_tf.clusters.cluster import Cluster
from placeto_tf.clusters.constraints import allowed_devices
from placeto_tf.clusters.device_names import find_device
from placeto_tf.costs import OpCosts, estimate_costs
from placeto_tf.errors import PlacementError
from placeto_tf.graphs import ComputationGraph, load_graph
from placeto_tf.grouping import group_ops
from placeto_tf.methods import auto
from placeto_tf.methods.measured_search import MeasuredSearch, search_measured
from placeto_tf.methods.measured_search import describe as describe_measured
from placeto_tf.placements import Placement
from placeto_tf.problem.placement_problem import Budget, PlacementProblem
from placeto_tf.runtime.core_speed import CoreSpeed
from placeto_tf.runtime.measuring import Measurer, MeasuringConfig
from placeto_tf.runtime.workers import make_runtime
from placeto_tf.search.annealing import share_of
from placeto_tf.simulation import SimulationResult, Simulator, memory_report

BASELINES = tuple(name for name, _ in auto.BASELINES)
# The policies, and what they are called where they are trained; "random_policy" draws uniformly in
# the same process, to show what learning adds; "device_pointer" comes trained.
LEARNED = {"placeto": "placeto", "random_policy": "random", "device_pointer": "device_pointer"}
# What needs the weights of a run of Placeto on other graphs -> what is done with them, see
# `training.trained`. "placeto" with such weights is "placeto_fine_tune".
TRAINED = {
    "placeto_zero_shot": "zero_shot", "placeto_greedy": "greedy",
    "placeto_fine_tune": "fine_tune", "placeto_from_scratch": "from_scratch",
    "placeto_untrained": "untrained", "placeto_random": "random"}
LEARNED.update({name: name for name in TRAINED})
# Policies that draw whole placements: what others have found is no start for them. See
# `training.rivals` and `training.gdp_methods`.
_GDP_TRAINED = ("gdp_zero_shot", "gdp_fine_tune")
_GDP = ("gdp", *_GDP_TRAINED)
ONE_SHOT = ("rnn", "hierarchical", *_GDP)
# Methods that need policy_weights -> the policy that has to be trained before.
NEED_WEIGHTS = {**{name: "placeto" for name in TRAINED}, **{name: "gdp" for name in _GDP_TRAINED}}
# All placers in turn; the second one has those that learn, or have learned, stand aside.
AUTO = ("auto", "auto_unlearned")
# Those that take part in "auto", in this order: share of what is left, seconds before one does
# anything, and such seconds for each op. What Placeto learns on the graph at hand comes before the
# trained policy, which finds more and would leave it nothing to improve.
_IN_AUTO = {"placeto": (0.17, 7.0, 1e-4), "device_pointer": (0.7, 0.0, 0.0)}
# A grouping that the hierarchical policy learns on the graph itself, with this share of the budget.
LEARNED_GROUPING, _GROUPING_SHARE = "learned", 0.5
DEFAULT_MAX_SECONDS = 60.0

# A callback that long work calls every now and then, with the problem and the stage it is in.
Progress = Callable[[PlacementProblem, str], None]


@dataclasses.dataclass(frozen=True)
class PlacingConfig:
  """How to place; see the flags of `scripts/place.py`.

  Attributes:
    method: "auto" (all placers and the policies, each from the best so far), "auto_unlearned" (the
      same without policies), or one method.
    max_seconds: search time; loading and costing are not counted. 60 where no limit is given.
    max_evaluations: placements evaluated, baselines included. Alone, it makes the result a
      function of the seed.
    seed: of everything random.
    grouping, max_groups: how ops are grouped, see `placeto_tf.grouping`; "learned" has the
      hierarchical policy learn it with half of the budget, for one method other than auto.
    costs: "grappler" or the path of a file of measured costs.
    existing_devices: devices the graph came with: "keep", "start" from them, or "ignore".
    pins: (regex, device) pairs; ops whose whole name matches stay on that device.
    cost: "simulated", or "measured": real sessions decide between what the search found and what
      the simulator expects around it.
    max_measurements: placements measured at most, with cost="measured".
    workers: where they are, as for `placeto_tf.runtime.workers.make_runtime`.
    device_map: (device of the cluster, device of the workers) pairs, where names differ.
    policy_weights: directory of a run of `scripts/train.py` with --policy=placeto or gdp, or of
      its weights.
  """

  method: str = "auto"
  max_seconds: Optional[float] = None
  max_evaluations: Optional[int] = None
  seed: int = 0
  grouping: str = "heavy_edge"
  max_groups: int = 128
  costs: str = "grappler"
  existing_devices: str = "start"
  pins: Tuple[Tuple[str, str], ...] = ()
  cost: str = "simulated"
  max_measurements: int = 50
  workers: Tuple[str, ...] = ()
  device_map: Tuple[Tuple[str, str], ...] = ()
  policy_weights: Optional[str] = None

  def __post_init__(self):
    if self.cost not in ("simulated", "measured"):
      raise PlacementError(f"cost is {self.cost!r}; expected simulated or measured")
    if not self.max_measurements >= 1:
      raise PlacementError(f"max_measurements is {self.max_measurements}; expected at least 1")
    if self.method not in methods():
      raise PlacementError(
          f"method {self.method!r} is not known; expected one of {', '.join(methods())}")
    check_weights(self.method, self.policy_weights)
    if self.existing_devices not in ("keep", "start", "ignore"):
      raise PlacementError(
          f"existing_devices is {self.existing_devices!r}; expected keep, start or ignore")
    check_grouping(self.grouping, self.method)
    _ = self.budget  # raises where a limit is not positive

  @property
  def budget(self) -> Budget:
    """The limits, with the default where none is given."""
    seconds = self.max_seconds
    if seconds is None and self.max_evaluations is None:
      seconds = DEFAULT_MAX_SECONDS
    return Budget(max_evaluations=self.max_evaluations, max_seconds=seconds)


def check_grouping(grouping: str, method: str) -> None:
  """Raises: PlacementError where a grouping that is learned is asked for auto."""
  if grouping == LEARNED_GROUPING and method in AUTO:
    raise PlacementError(
        "grouping 'learned' is for one method, not for auto, whose placers share the budget; "
        "choose a method such as placeto, or another grouping")


@dataclasses.dataclass(frozen=True, eq=False)
class Baseline:
  """What one placer gives: a row of the comparison table.

  Attributes:
    step_time_us: simulated, or None where the placer evaluated no placement.
    fits: whether every device's peak memory is within its limit.
    peak_memory_bytes: [D]; NaN where there is no placement.
    placement: [N] int32 device of each op, or None. Searches go on from the best before them.
    evaluations: placements it evaluated.
    seconds: it took.
    gain_us: by how much it lowered the best objective (step time, and what does not fit) so far.
    skipped: why it evaluated none, or "".
  """

  step_time_us: Optional[float]
  fits: bool
  peak_memory_bytes: np.ndarray
  placement: Optional[np.ndarray]
  evaluations: int
  seconds: float = 0.0
  gain_us: float = 0.0
  skipped: str = ""


@dataclasses.dataclass(frozen=True, eq=False)
class PlacingResult:
  """What `place()` found.

  Attributes:
    placement: op name -> device name, for every op of the file.
    step_time_us, peak_memory_bytes, fits: of the placement, simulated; peaks are [D].
    baselines: placer -> Baseline, "current" first, in the order in which they ran: the baselines,
      then the method, or for "auto" and "auto_unlearned" every placer that took part.
    lower_bound_us: no placement on this cluster is faster.
    evaluations: placements evaluated in all.
    seconds: spent searching.
    history: (evaluations, seconds, objective_us) at each improvement.
    indices: [N] int32 device of each needed op.
    simulated: the step as simulated, for timelines.
    proven: whether the placement is known to be optimal.
    notes: what had to be assumed, for the user to read.
    interrupted: whether Ctrl-C ended the search before its budget did.
    graph, costs, cluster, config: what was placed, and how.
    measured: what real sessions said, with cost="measured"; else None.
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
  proven: bool
  notes: Tuple[str, ...]
  interrupted: bool
  graph: ComputationGraph
  costs: OpCosts
  cluster: Cluster
  config: PlacingConfig
  measured: Optional[MeasuredSearch] = None


def methods() -> Tuple[str, ...]:
  """The names that `place(method=...)` takes."""
  return AUTO + tuple(search.METHODS) + tuple(LEARNED) + ONE_SHOT


def check_weights(method: str, policy_weights: Optional[str]) -> None:
  """Raises PlacementError where a method needs weights and has none, or the other way round."""
  if method in NEED_WEIGHTS and policy_weights is None:
    raise PlacementError(
        f"method {method!r} needs policy_weights, the directory of a run of scripts/train.py "
        f"--policy={NEED_WEIGHTS[method]}")
  takers = ("placeto", "gdp", *NEED_WEIGHTS)
  if policy_weights is not None and method not in takers:
    raise PlacementError(
        f"method {method!r} takes no policy_weights; expected one of {', '.join(takers)}")


def place(
    graph: Any,
    cluster: Union[Cluster, str],
    method: str = "auto",
    *,
    root_dir: Optional[str] = None,
    progress: Optional[Progress] = None,
    **options: Any,
) -> PlacingResult:
  """Decides on which device each op of a graph runs.

  Args:
    graph: a `ComputationGraph`, or anything `load_graph` takes.
    cluster: a `Cluster`, or text for `Cluster.parse`.
    method: see `methods()`.
    root_dir: where the policy writes its TensorBoard summaries; None writes none.
    progress: called every now and then.
    **options: the other fields of `PlacingConfig` (max_seconds, max_evaluations, seed, ...).

  Raises:
    PlacetoError: the graph, cluster or an option is wrong, or no placement fits in memory.
  """
  known = {field.name for field in dataclasses.fields(PlacingConfig)}
  unknown = sorted(set(options) - known)
  if unknown:
    raise TypeError(f"place() got unknown option {unknown[0]!r}; expected one of {sorted(known)}")
  config = PlacingConfig(method=method, **options)
  cluster = Cluster.parse(cluster) if isinstance(cluster, str) else cluster
  graph = graph if isinstance(graph, ComputationGraph) else load_graph(graph)
  return place_with(graph, cluster, config, root_dir=root_dir, progress=progress)


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

  `stage` is entered, with what it is called, around what takes long before the search.
  """
  with stage("Estimating costs"):
    costs = estimate_costs(graph, cluster, source=config.costs)
  allowed = _pinned(graph, cluster, config, allowed_devices(graph, cluster))
  with stage("Grouping"):
    grouping = group_ops(graph, costs, allowed, max_groups=config.max_groups,
                         method=first_grouping(config.grouping))
    problem = PlacementProblem(graph, costs, cluster, grouping, allowed_ops=allowed)
  progress = progress or (lambda problem, stage: None)
  started = time.monotonic()
  rows, proven, interrupted = _search(problem, config, root_dir, progress)

  best = problem.best_placement
  simulated = problem.simulator.simulate(best)
  if not simulated.fits:
    raise PlacementError(_nothing_fits(problem, simulated))
  measured, notes = None, graph.notes + costs.notes
  if config.cost == "measured":
    measured = _measure(problem, rows, config, progress)
    best, proven = measured.placement, False  # what is proven is proven of simulated steps
    simulated = problem.simulator.simulate(best)
    notes += (describe_measured(measured),)
  lower_bound_us = search.lower_bound_us(problem)
  placement = Placement.from_indices(
      graph, cluster, best, method=config.method, seed=config.seed,
      evaluations=problem.evaluations, step_time_us=simulated.step_time_us,
      lower_bound_us=lower_bound_us,
      peak_memory_bytes=dict(zip(cluster.device_names, simulated.peak_memory_bytes.tolist())),
      baselines={name: {"step_time_us": row.step_time_us, "fits": row.fits}
                 for name, row in rows.items()})
  return PlacingResult(
      placement=placement, step_time_us=simulated.step_time_us,
      peak_memory_bytes=simulated.peak_memory_bytes, fits=True, baselines=rows,
      lower_bound_us=lower_bound_us, evaluations=problem.evaluations,
      seconds=time.monotonic() - started, history=list(problem.history), indices=best,
      simulated=simulated, proven=proven, notes=notes, interrupted=interrupted, graph=graph,
      costs=costs, cluster=cluster, config=config, measured=measured)


def _measure(
    problem: PlacementProblem, rows: Dict[str, Baseline], config: PlacingConfig,
    progress: Progress) -> MeasuredSearch:
  """Runs what the placers found, and goes on from there, in real sessions."""
  runtime = make_runtime(problem.cluster, config.workers)
  found = {name: row.placement for name, row in rows.items()
           if row.placement is not None and row.fits}
  found["best"] = problem.best_placement
  progress(problem, "measuring")
  with runtime, CoreSpeed.of(runtime) as speed:
    speed.learn()
    with Measurer(
        problem.graph, problem.cluster, runtime,
        MeasuringConfig(max_runs=30, max_seconds=20.0, seed=config.seed),
        device_map=dict(config.device_map) or None, speed=speed) as measurer:
      return search_measured(
          problem, measurer, found, max_measurements=config.max_measurements, seed=config.seed,
          progress=lambda _: progress(problem, "measuring"))


def _search(
    problem: PlacementProblem, config: PlacingConfig, root_dir: Optional[str], progress: Progress
) -> Tuple[Dict[str, Baseline], bool, bool]:
  """Runs the method, or the baselines and then it; Ctrl-C keeps what was found.

  Returns:
    A row a placer, whether the best placement is proven to be optimal, whether Ctrl-C was pressed.
  """
  budget, stage = config.budget, [BASELINES[0]]

  def announce(name: str) -> None:
    stage[0] = name
    progress(problem, name)

  learn = _learned_placers(root_dir, announce, config.policy_weights)
  run = auto.Auto(
      problem, budget, config.seed, learned=_auto_policies(config.method, learn),
      announce=announce)
  ledger, interrupted = run.ledger, False
  problem.observe(lambda: progress(problem, stage[0]))
  try:
    if config.method in AUTO:
      run.run()
    else:
      for name, placer in auto.BASELINES:
        ledger.run(name, placer, budget, config.seed)
      if config.method not in BASELINES:
        placer = {**search.METHODS, **learn}[config.method]
        grouped = problem
        if config.grouping == LEARNED_GROUPING:
          grouped = _learn_grouping(problem, ledger, budget, config.seed)
        ledger.run(config.method, placer, budget, config.seed, grouped)
  except KeyboardInterrupt:
    if problem.best_placement is None:
      raise
    interrupted = True
  finally:
    problem.observe(None)
  rows = {each.name: _baseline(problem, each) for each in ledger.contributions}
  return rows, run.proven, interrupted


def first_grouping(grouping: str) -> str:
  """What is learned is learned within the budget; until then the default has to do."""
  return "heavy_edge" if grouping == LEARNED_GROUPING else grouping


def with_learned_groups(
    problem: PlacementProblem, budget: Budget, seed: int = 0) -> PlacementProblem:
  """The problem in groups that the hierarchical policy learns with half of what is left."""
  with contextlib.redirect_stderr(io.StringIO()):  # as in `run_method`
    from placeto_tf.training import one_graph_policies as rivals
  part = share_of(problem, budget, _GROUPING_SHARE)
  return problem.regrouped(rivals.learn_grouping(problem, part, seed))


def _learn_grouping(
    problem: PlacementProblem, ledger: search.Ledger, budget: Budget, seed: int
) -> PlacementProblem:
  """`with_learned_groups`, for which the ledger has a row."""
  learned = []

  def learn(problem: PlacementProblem, budget: Budget, seed: int) -> np.ndarray:
    learned.append(with_learned_groups(problem, budget, seed))
    return problem.best_placement

  ledger.run("learned_grouping", learn, budget, seed)
  return learned[0]


def _learned_placers(
    root_dir: Optional[str], announce: Callable[[str], None],
    policy_weights: Optional[str] = None) -> Dict[str, search.Placer]:
  """The policies as placers that start from the problem's best placement."""

  def placer(name: str) -> search.Placer:
    def improve(problem: PlacementProblem, budget: Budget, seed: int) -> np.ndarray:
      return run_method(
          problem, name, budget, seed, root_dir=root_dir, progress=lambda *_: announce(name),
          policy_weights=policy_weights)
    return improve

  return {name: placer(name) for name in (*LEARNED, *ONE_SHOT)}


def _auto_policies(
    method: str, learn: Dict[str, search.Placer]) -> Dict[str, auto.Learned]:
  """What `auto` is handed: it anneals itself, so that the trained policy need not."""
  if method == "auto_unlearned":
    return {}

  def sweep(problem: PlacementProblem, budget: Budget, seed: int) -> np.ndarray:
    return _sweep(problem, budget, seed, anneal=False)

  placers = {**learn, "device_pointer": sweep}
  return {name: auto.Learned(placers[name], *shares) for name, shares in _IN_AUTO.items()}


def _sweep(
    problem: PlacementProblem, budget: Budget, seed: int, *, anneal: bool = True) -> np.ndarray:
  """[N] what the trained policy makes of the best placement so far."""
  from placeto_tf.policies.device_pointer import scorer, sweeps  # few need it

  return sweeps.improve(
      problem, problem.best_placement, scorer.pretrained(), budget, seed,
      config=sweeps.SweepConfig(anneal=anneal))


def run_method(
    problem: PlacementProblem,
    name: str,
    budget: Budget,
    seed: int,
    *,
    root_dir: Optional[str] = None,
    progress: Optional[Progress] = None,
    policy_weights: Optional[str] = None,
) -> np.ndarray:
  """[N] the best placement that one method finds within the budget.

  A policy starts from the best placement the problem has seen; where it has seen none, from the
  best of one device, the expert split and METIS. Those of `ONE_SHOT` start from nothing.
  """
  if name in search.METHODS:
    return search.METHODS[name](problem, budget, seed)
  if name in AUTO:
    learned = _auto_policies(name, _learned_placers(root_dir, lambda _: None))
    return auto.Auto(problem, budget, seed, learned=learned).run()
  report = progress or (lambda problem, stage: None)
  options = dict(root_dir=root_dir, progress=lambda *_: report(problem, name))
  if name in _GDP:
    with contextlib.redirect_stderr(io.StringIO()):  # as below
      from placeto_tf.methods.gdp.search import search_gdp
    return search_gdp(problem, name, budget, seed, weights=policy_weights, **options)
  if name in ONE_SHOT:
    with contextlib.redirect_stderr(io.StringIO()):
      from placeto_tf.training import one_graph_policies as rivals
    return rivals.METHODS[name](problem, budget, seed, **options)
  if problem.best_placement is None:
    for simple in BASELINES[1:]:
      search.METHODS[simple](problem, budget, seed)
  if problem.exhausted(budget):
    return problem.best_placement
  if name == "device_pointer":
    return _sweep(problem, budget, seed)
  # tf-agents and TF-GNN take seconds to import: only those who train wait for them. Gym, which
  # tf-agents brings, advertises its successor on stderr.
  with contextlib.redirect_stderr(io.StringIO()):
    from placeto_tf.methods.placeto.improve import improve
    from placeto_tf.methods.placeto.with_weights import improve_with

  start = problem.best_placement
  if policy_weights is not None and (name in TRAINED or name == "placeto"):
    way = TRAINED.get(name, "fine_tune")
    improve_with(policy_weights, way, problem, start, budget, seed, **options)
    return problem.best_placement
  return improve(
      problem, start, budget, seed, policy=LEARNED[name], **options).op_placement


def _baseline(problem: PlacementProblem, found: search.Contribution) -> Baseline:
  if found.placement is None:
    unknown = np.full(problem.num_devices, np.nan)
    return Baseline(None, False, unknown, None, 0, found.seconds, 0.0, found.skipped)
  result = problem.simulator.simulate(found.placement)
  return Baseline(
      result.step_time_us, bool(result.fits), result.peak_memory_bytes, found.placement,
      found.evaluations, found.seconds, found.gain_us)


def _pinned(
    graph: ComputationGraph, cluster: Cluster, config: PlacingConfig, allowed: np.ndarray
) -> np.ndarray:
  """[N, D] `allowed`, narrowed by pins and, with existing_devices="keep", the graph's devices.

  A pin holds for all ops that are colocated with the one it names.
  """
  fixed: Dict[int, Tuple[str, str]] = {}
  if config.existing_devices == "keep":
    own = {text: _device_name(cluster, text) for text in set(graph.assigned_devices) - {""}}
    fixed.update((op, (own[text], "the graph's own device"))
                 for op, text in enumerate(graph.assigned_devices) if text)
  for regex, device in config.pins:
    try:
      pattern = re.compile(regex)
    except re.error as error:
      raise PlacementError(f"pin {regex!r} is not a regular expression: {error}") from None
    name = _device_name(cluster, device)
    matching = [i for i, op in enumerate(graph.op_names) if pattern.fullmatch(op)]
    if not matching:
      raise PlacementError(
          f"pin {regex!r} matches none of the {graph.num_ops} ops; it must match a whole name, "
          "such as 'embedding/.*'")
    fixed.update((op, (name, f"pin {regex!r}")) for op in matching)
  if not fixed:
    return allowed
  narrowed = allowed.copy()
  column = {name: j for j, name in enumerate(cluster.device_names)}
  wanted: Dict[int, Tuple[str, str]] = {}
  for op, (device, reason) in fixed.items():
    label = int(graph.colocation[op])
    if wanted.setdefault(label, (device, reason))[0] != device:
      raise PlacementError(
          f"op {graph.op_names[op]!r} is put on {device} by {reason}, but an op it is colocated "
          f"with on {wanted[label][0]} by {wanted[label][1]}; pin them to one device")
    if not allowed[op, column[device]]:
      raise PlacementError(
          f"op {graph.op_names[op]!r} is put on {device} by {reason}, but it (or an op it is "
          "colocated with) may not run there; pin it elsewhere")
  rows = np.array([int(label) in wanted for label in graph.colocation])
  narrowed[rows] = False
  devices = [column[wanted[int(label)][0]] for label in graph.colocation[rows]]
  narrowed[np.flatnonzero(rows), devices] = True
  return narrowed


def _device_name(cluster: Cluster, text: str) -> str:
  index = find_device(cluster.device_names, text)
  if index is None:
    raise PlacementError(
        f"device {text!r} is not in the cluster; expected one of {', '.join(cluster.device_names)}")
  return cluster.device_names[index]


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
    *, costs: str = "grappler",
):
  """Simulates one step of a placement.

  Args:
    graph: a `ComputationGraph`, or anything `load_graph` takes.
    cluster: a `Cluster`, or text for `Cluster.parse`.
    placement: a `Placement`, the path of a placement.json, or [N] device indices.
    costs: "grappler" or the path of a file of measured costs.

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
    placement = placement.indices(graph, cluster)
  simulator = Simulator(graph, estimate_costs(graph, cluster, source=costs), cluster)
  return simulator.simulate(np.asarray(placement, dtype=np.int32))
