"""`PlacingConfig`: the options of `place()` in one frozen record."""

from __future__ import annotations

import dataclasses
from typing import Mapping, Optional, Sequence, Tuple, Union

from placeto_tf.costs.estimate import Source
from placeto_tf.costs.look import MODES
from placeto_tf.errors import PlacementError
from placeto_tf.placing import registry
from placeto_tf.problem.budget import Budget
from placeto_tf.replication.replicated_graph import pipeline_strategy
from placeto_tf.search.independent_runs import check_runs
from placeto_tf.simulation.simulator import num_cores

DEFAULT_MAX_SECONDS = 60.0
DEFAULT_STOP_WITHIN = 0.01
MOST_DEFAULT_RUNS = 8  # the interpreter's lock leaves more of them little to gain
AUTO = "auto"
_CHOICES: Mapping[str, Sequence[str]] = {
    "batch_norm": ("replica", "synchronized"), "cost": ("simulated", "measured"),
    "existing_devices": ("keep", "start", "ignore"), "look": MODES}


@dataclasses.dataclass(frozen=True)
class PlacingConfig:
  """How to place; see the flags of `scripts/place.py`.

  Attributes:
    method: "auto" (all placers and the policies, each from the best so far), "auto_unlearned" (the
      same without policies), or one method of `placeto_tf.placing.registry`.
    max_seconds: search time; loading and costing are not counted. 60 if no limit is given.
    max_evaluations: placements evaluated, baselines included. Alone, it makes the result a
      function of the seed.
    stop_within: the search ends early within this share of a lower bound of the step time, and
      `auto` once twice the time gained less than it; 0: neither. By default 0.01 where time is the
      limit, and 0 with `max_evaluations`, so that it alone says how many placements are evaluated.
    seed: of everything random.
    grouping, max_groups: how ops are grouped, see `placeto_tf.grouping`.
    costs: "grappler", the path of a file of measured costs, or a function of the graph and the
      cluster that returns `OpCosts`.
    existing_devices: what to do with the graph's own devices: "keep", "start" from them, or
      "ignore".
    pins: (regex, device) pairs; ops whose whole name matches stay on that device.
    allowed: regex -> devices; ops whose whole name matches use these devices only.
    cost: "simulated", or "measured": real sessions decide between what the search found and what
      the simulator expects around it.
    max_measurements: the most placements that are measured, with cost="measured".
    workers: where they are, as for `placeto_tf.runtime.workers.make_runtime`.
    device_map: (device of the cluster, device of the workers) pairs, where names differ.
    independent_runs: number of independent runs of each search side by side, see
      `placeto_tf.search.independent_runs`. By default one for each core, 8 at most; with
      `max_evaluations` 1, on any machine, so that the result does not depend on it. Where time is
      the limit, no more run than there are cores.
    ray: where they run other than on threads here, see `executors.executor_at`; then
      there are by default as many as Ray has cores, or 1 with `max_evaluations`.
    replicas: how many replicas of the graph train together: a number, groups and micro-batches of
      a pipeline ("2 x 8", "1 x 8"), or "auto" for the form that trains most examples a second.
    mirrored_variables: whether each replica has variables and an optimizer of its own, which stay
      equal, instead of sharing those of the graph; None for what is faster. A Keras model or
      ConcreteFunction can only share.
    check_replicas: whether the graph and the replicas that are placed are trained side by side for
      some steps on this machine before they are handed over, see `compare_training`.
    batch_norm: of replicas: "replica", each normalizes by its own statistics, or "synchronized",
      all by those of the whole batch.
    look: whether the step is run once on this machine's CPU, in a process of its own, to see shapes
      and rounds of loops that inference does not know: "auto" for small steps without effects
      outside of them, "yes" or "no"; see `placeto_tf.costs.look`.
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
  costs: Source = "grappler"
  existing_devices: str = "start"
  pins: Tuple[Tuple[str, str], ...] = ()
  allowed: Union[Mapping[str, Sequence[str]], Tuple[Tuple[str, Tuple[str, ...]], ...]] = ()
  cost: str = "simulated"
  max_measurements: int = 50
  workers: Tuple[str, ...] = ()
  device_map: Tuple[Tuple[str, str], ...] = ()
  policy_weights: Optional[str] = None
  independent_runs: Optional[int] = None
  ray: Optional[str] = None
  replicas: Union[int, str] = 1
  mirrored_variables: Optional[bool] = None
  check_replicas: bool = True
  batch_norm: str = "replica"
  look: str = "auto"

  def __post_init__(self) -> None:
    # The record is frozen; a mapping becomes pairs, which can be hashed and compared.
    object.__setattr__(self, "allowed", _sets(self.allowed))
    _check_replicas(self.replicas)
    if self.mirrored_variables not in (None, True, False):
      raise PlacementError(
          f"mirrored_variables is {self.mirrored_variables!r}; expected True, False, or None for "
          "what is faster")
    for name, choices in _CHOICES.items():
      if getattr(self, name) not in choices:
        raise PlacementError(
            f"{name} is {getattr(self, name)!r}; expected {', '.join(choices[:-1])} or "
            f"{choices[-1]}")
    if self.replicas != 1 and (self.method != "auto" or self.cost != "simulated"):
      raise PlacementError(
          f"replicas is {self.replicas!r} with method {self.method!r} and cost {self.cost!r}; "
          "replicas are searched with method auto and simulated steps only")
    if self.replicas != 1 and self.ray is not None:
      raise PlacementError(
          f"replicas is {self.replicas!r} with ray {self.ray!r}; replicas are searched on one "
          "machine only")
    if not self.max_measurements >= 1:
      raise PlacementError(f"max_measurements is {self.max_measurements}; expected at least 1")
    # Also refuses an unknown method.
    registry.check_weights(registry.find(self.method), self.policy_weights)
    check_runs(self.independent_runs)
    _ = self.budget  # raises where a limit is not positive

  @property
  def budget(self) -> Budget:
    """Returns the limits, with the default where none is given."""
    seconds, within = self.max_seconds, self.stop_within
    # Without any limit the search has `DEFAULT_MAX_SECONDS`.
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


def _check_replicas(replicas: Union[int, str]) -> None:
  """Raises PlacementError where a number of replicas is neither auto nor at least 1."""
  if replicas == AUTO or pipeline_strategy(replicas):
    return
  if isinstance(replicas, bool) or not isinstance(replicas, int) or replicas < 1:
    raise PlacementError(
        f"replicas is {replicas!r}; expected auto, a whole number of at least 1, or groups x "
        "micro-batches such as '2 x 8'")


def _sets(allowed: object) -> Tuple[Tuple[str, Tuple[str, ...]], ...]:
  """Returns the (regex, devices) pairs of a mapping, or of such pairs.

  Raises:
    PlacementError: it is neither.
  """
  pairs = tuple(allowed.items() if isinstance(allowed, Mapping) else allowed)  # type: ignore
  for pair in pairs:
    regex, devices = pair if isinstance(pair, (tuple, list)) and len(pair) == 2 else (pair, "")
    if not isinstance(regex, str) or not isinstance(devices, (tuple, list)) or not devices or (
        not all(isinstance(device, str) for device in devices)):
      raise PlacementError(
          f"allowed has {pair!r:.100}; expected expressions with a list of devices each, as in "
          "{'embedding/.*': ['/CPU:0']}")
  return tuple((regex, tuple(devices)) for regex, devices in pairs)
