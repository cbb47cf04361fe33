"""`PlacingConfig`: the options of `place()` in one frozen record."""

from __future__ import annotations

import dataclasses
from typing import Iterable, Mapping, Optional, Sequence, Tuple, Union

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.costs.estimate import Source
from placeto_tf.costs.look import MODES
from placeto_tf.errors import ClusterError, PlacementError, check_at_least, check_one_of, option
from placeto_tf.placements import Placement
from placeto_tf.placing import registry
from placeto_tf.problem.budget import Budget
from placeto_tf.replication.replicated_graph import pipeline_strategy
from placeto_tf.search.independent_runs import check_runs
from placeto_tf.simulation.simulator import num_cores

DEFAULT_MAX_SECONDS = 60.0
DEFAULT_STOP_WITHIN = 0.01
MOST_DEFAULT_RUNS = 8  # more runs gain little, because of the interpreter's lock
AUTO = "auto"
Devices = Union[Cluster, str, None]  # a cluster, or text for `Cluster.parse`
_CHOICES: Mapping[str, Sequence[object]] = {
    "batch_norm": ("replica", "synchronized"), "existing_devices": ("keep", "start", "ignore"),
    "look": MODES, "mirrored_variables": (True, False, None), "timing": ("simulated", "session")}


@dataclasses.dataclass(frozen=True)
class PlacingConfig:
  """Options of placing; see the flags of `scripts/place.py`.

  Attributes:
    method: "auto" (all placers and the policies, each from the best so far), "auto_unlearned" (the
      same without policies), or one method of `placeto_tf.placing.registry`.
    max_seconds: search time, without loading, costing and measuring. 60 if no limit is given.
    max_evaluations: the most placements to evaluate, including baselines. If it is the only limit,
      the result depends on the seed alone.
    stop_within: the search ends early if the step time is within this share of a lower bound.
      `auto` also ends if doubling the search time gained less than this share. 0 turns both off.
      By default 0.01 with a limit on time alone, and 0 with `max_evaluations`, so that this limit
      alone determines the number of evaluations.
    seed: of everything random.
    grouping, max_groups: grouping of the ops, see `placeto_tf.grouping`.
    cost_model: "grappler", the path of a file of measured costs, or a function of the graph and the
      cluster that returns `OpCosts`.
    existing_devices: treatment of the graph's own devices: "keep" them, "start" the search from
      them, or "ignore" them.
    pins: (regex, device) pairs; an op whose whole name matches is on this device.
    allowed: regex -> devices; an op whose whole name matches may use only these devices.
    timing: "simulated", or "session": real sessions choose among the placements that placers found
      and similar placements that the simulator expects to be good.
    max_measurements: the most placements that timing="session" measures, after the search.
    workers: addresses of workers, as for `placeto_tf.runtime.workers.make_runtime`.
    device_map: (device of the cluster, device of the workers) pairs, for names that differ.
    independent_runs: number of parallel independent runs of each search, see
      `placeto_tf.search.independent_runs`. By default one for each core, at most 8; with
      `max_evaluations` 1 on every machine, so that the result does not depend on the machine. With
      a limit on time, there are at most as many runs as cores.
    ray: executor of independent runs instead of threads, see `executors.executor_at`. The default
      number of runs is then the number of Ray's cores, or 1 with `max_evaluations`.
    replicas: the number of replicas that train together; or groups and micro-batches of a pipeline
      ("2 x 8", "1 x 8"); or "auto" for the replication strategy with most examples a second.
    mirrored_variables: whether each replica has variables and an optimizer of its own, which are
      kept equal, instead of sharing the graph's variables; None for the faster choice. Replicas of
      a function that no `compile_placed` trains can only share variables.
    slices: the most slices of columns that a table may be split into, with the slots of its
      optimizer; 1 splits none, and "auto" as many as there are devices, if replicas are searched.
      Only tables that take too much of the step or of a device's memory are split.
    check_replicas: whether the graph and the chosen replicas are first trained side by side for
      some steps on this machine, see `compare_training`.
    batch_norm: of replicas: "replica": each normalizes by the statistics of its own batch;
      "synchronized": all normalize by the statistics of the global batch.
    look: whether the step runs once on this machine's CPU, in a process of its own, to find shapes
      and trip counts that inference cannot find: "auto" for small steps without side effects, "yes"
      or "no"; see `placeto_tf.costs.look`.
    policy_weights: directory of a run of `scripts/train.py` with the method's policy, or of its
      weights.
  """

  method: str = "auto"
  max_seconds: Optional[float] = None
  max_evaluations: Optional[int] = None
  stop_within: Optional[float] = None
  seed: int = 0
  grouping: str = "heavy_edge"
  max_groups: int = 128
  cost_model: Source = "grappler"
  existing_devices: str = "start"
  pins: Tuple[Tuple[str, str], ...] = ()
  allowed: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
  timing: str = "simulated"
  max_measurements: int = 50
  workers: Tuple[str, ...] = ()
  device_map: Tuple[Tuple[str, str], ...] = ()
  policy_weights: Optional[str] = None
  independent_runs: Optional[int] = None
  ray: Optional[str] = None
  replicas: Union[int, str] = 1
  mirrored_variables: Optional[bool] = None
  slices: Union[int, str] = AUTO
  check_replicas: bool = True
  batch_norm: str = "replica"
  look: str = "auto"

  def __post_init__(self) -> None:
    if not isinstance(self.allowed, Mapping) or not all(
        isinstance(devices, (tuple, list)) and devices
        and all(isinstance(each, str) for each in (regex, *devices))
        for regex, devices in self.allowed.items()):
      raise PlacementError(
          f"allowed is {self.allowed!r:.100}; expected expressions with a list of devices each, as "
          "in {'embedding/.*': ['/CPU:0']}")
    _check_replicas(self.replicas)
    if self.slices != AUTO and (isinstance(self.slices, bool) or not isinstance(
        self.slices, int) or self.slices < 1):
      raise PlacementError(f"slices is {self.slices!r}; expected auto, or the most slices of a "
                           "table, at least 1")
    for name, choices in _CHOICES.items():
      check_one_of(choices, self, name)
    if self.makes_replicas and (
        self.method != "auto" or self.timing != "simulated" or self.ray is not None):
      raise PlacementError(
          f"replicas is {self.replicas!r}, slices {self.slices!r} with method {self.method!r}, "
          f"timing {self.timing!r} and ray {self.ray!r}; replicas are searched with "
          "method auto and simulated steps, on one machine only")
    check_at_least(1, self, "max_measurements")
    # Also refuses an unknown method.
    registry.check_weights(registry.find(self.method), self.policy_weights)
    check_runs(self.independent_runs)
    _ = self.budget  # raises where a limit is not positive

  @property
  def makes_replicas(self) -> bool:
    """Returns whether several replicas, or slices of tables, are searched."""
    return self.replicas != 1 or self.slices not in (1, AUTO)

  @property
  def budget(self) -> Budget:
    """Returns the limits, with the default where none is given."""
    seconds, within = self.max_seconds, self.stop_within
    # Without any limit, the search time is `DEFAULT_MAX_SECONDS`.
    if seconds is None and self.max_evaluations is None:
      seconds = DEFAULT_MAX_SECONDS
    if within is None:
      within = DEFAULT_STOP_WITHIN if self.max_evaluations is None else 0.0
    return Budget(
        max_evaluations=self.max_evaluations, max_seconds=seconds, stop_within=within or None)

  @property
  def num_runs(self) -> int:
    """Returns `independent_runs`, with the default where none is given."""
    # With a limit on evaluations the result must not depend on the number of cores.
    default = 1 if self.max_evaluations is not None else min(num_cores(), MOST_DEFAULT_RUNS)
    return self.independent_runs or default


def check_names(names: Iterable[str], others: Iterable[str] = (), hint: str = "") -> None:
  """Checks names of options.

  Args:
    names: names that are given.
    others: known names that are no fields of `PlacingConfig`.
    hint: text for the end of the error, with {name} for the unknown name.

  Raises:
    TypeError: a name is not known.
  """
  known = {field.name for field in dataclasses.fields(PlacingConfig)} | set(others)
  for name in sorted(set(names) - known):
    raise TypeError(f"there is no option {name!r}; expected one of {', '.join(sorted(known))}"
                    + hint.format(name=name))


def as_cluster(cluster: Devices, placement: Optional[Placement] = None) -> Cluster:
  """Returns the given cluster, or the cluster of an earlier placement.

  Args:
    cluster: a `Cluster`, text for `Cluster.parse`, or None.
    placement: the earlier placement, or None.

  Raises:
    ClusterError: neither is given, or the text is wrong.
  """
  if cluster is not None:
    return cluster if isinstance(cluster, Cluster) else Cluster.parse(cluster)
  if placement is None or placement.cluster is None:
    raise ClusterError(
        "no cluster is given; name this process's devices with \"local\", or others, such as "
        "\"v100:4\"")
  return Cluster.from_json(placement.cluster)


def _check_replicas(replicas: Union[int, str]) -> None:
  """Raises PlacementError unless a number of replicas is "auto", a pipeline or at least 1."""
  if replicas == AUTO or pipeline_strategy(replicas):
    return
  if isinstance(replicas, bool) or not isinstance(replicas, int) or replicas < 1:
    # Of a name in tables, such as "2 mirrored".
    hint = {"mirrored": option("mirrored_variables", "yes", "mirrored_variables=True"),
            "sliced": option("slices")}.get(str(replicas).rpartition(" ")[2])
    raise PlacementError(
        f"replicas is {replicas!r}; expected auto, a whole number of at least 1, or groups x "
        "micro-batches such as '2 x 8'" + (f", here the number with {hint}" if hint else ""))
