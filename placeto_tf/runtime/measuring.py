"""`measure()`: the step time of a placement in real TensorFlow sessions.

A step is timed at the client, from passing the feeds to receiving the fetches. Warm-up runs are
dropped; timed runs are repeated until the median has the wanted precision, or up to a limit. If the
cluster was calibrated on this machine's workers, a probe between steps converts times to the speed
of the calibration (`core_speed`). Otherwise, steps of a reference placement run in between, to
notice changes of the machine's speed. Placements are then compared by `relative`, the ratio of the
step time to the time of the reference's steps.

The graph is run exactly as placed: no optimizer changes it, soft placement is off, and a traced run
is compared with the placement, op by op. On two workers of one core each, on a machine with two
cores, the client's own work (Python, feeding, waiting) shares the workers' cores.

TensorFlow's executor treats each op as expensive for about ninety steps (see `calibrating`); the
few steps that are timed here are the first steps of such a session.
"""

from __future__ import annotations

import dataclasses
import functools
import time
import warnings
from typing import Any, Callable, List, Mapping, Optional, Tuple, Union

import numpy as np

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.clusters.constraints import allowed_devices
from placeto_tf.errors import MeasurementError, PlacementError, PlacetoError
from placeto_tf.graphs import load_graph
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.graphs.feeds import Feeds, read_feeds
from placeto_tf.placements import Placement, check
from placeto_tf.runtime import statistics
from placeto_tf.runtime.core_speed import CoreSpeed
from placeto_tf.runtime.device_maps import match_devices
from placeto_tf.runtime.placed_runs import PlacedRun
from placeto_tf.runtime.supervision import named_failures
from placeto_tf.runtime.workers import InProcess, Runtime

_REFERENCE_EVERY = 3  # a step of the reference after so many steps
# Half the width of the median's 95 % interval over the median, at which it is known well enough.
_PRECISION = 0.01


@dataclasses.dataclass(frozen=True)
class MeasuringConfig:
  """Options of timing steps.

  Attributes:
    warmup_runs: number of dropped runs. The first run also sets up the workers.
    min_runs, max_runs: limits of the number of timed runs.
    max_seconds: time after which a placement gets only `min_runs` runs.
    timeout_seconds: of one step, including set-up; a placement that takes longer has failed.
    seed: of random feeds.
  """

  warmup_runs: int = 3
  min_runs: int = 8
  max_runs: int = 60
  max_seconds: float = 60.0
  timeout_seconds: float = 120.0
  seed: int = 0

  def __post_init__(self) -> None:
    for name, least in (("warmup_runs", 1), ("min_runs", 1), ("max_runs", self.min_runs)):
      if getattr(self, name) < least:
        raise MeasurementError(f"{name} is {getattr(self, name)}; expected at least {least}")
    for name in ("max_seconds", "timeout_seconds"):
      if not getattr(self, name) > 0:
        raise MeasurementError(f"{name} is {getattr(self, name)}; expected more than 0")


@dataclasses.dataclass(frozen=True, eq=False)
class MeasuredStep:
  """The timed steps of one placement.

  Attributes:
    step_time_us: median; inf where the placement failed.
    low_us, high_us: 95 % confidence interval of the median.
    runs: timed steps.
    times_us: [runs] float64.
    reference_us: median of the reference's steps in between; None without a reference.
    failure: a sentence, if it could not be timed.
  """

  step_time_us: float
  low_us: float
  high_us: float
  runs: int
  times_us: np.ndarray
  reference_us: Optional[float] = None
  failure: Optional[str] = None

  @property
  def relative(self) -> Optional[float]:
    """Returns the ratio of the step time to the reference's step time (lower is better)."""
    return self.step_time_us / self.reference_us if self.reference_us else None

  @classmethod
  def failed(cls, reason: str) -> MeasuredStep:
    """Returns the result for a placement that could not be timed."""
    inf = float("inf")
    return cls(inf, inf, inf, 0, np.zeros(0), failure=reason)


class Measurer:
  """Times placements of one graph, one after the other, on one runtime.

  Example:
    with LocalWorkers() as workers, Measurer(graph, cluster, workers) as measurer:
      measurer.measure(placement).step_time_us
  """

  def __init__(
      self,
      graph: ComputationGraph,
      cluster: Cluster,
      runtime: Runtime,
      config: Optional[MeasuringConfig] = None,
      *,
      feeds: Feeds = "random",
      device_map: Optional[Mapping[str, str]] = None,
      reference: bool = True,
      clock: Optional[Callable[[PlacedRun], float]] = None,
  ):
    """Matches the devices, reads the feeds and chooses the reference placement; runs nothing yet.

    Args:
      graph, cluster, runtime, config, feeds, device_map: as for `measure`.
      reference: whether steps of a reference placement, with each op on the first device it may
        use, are timed in between if there is no probe of the cores.
      clock: runs a step and returns its seconds.

    Raises:
      PlacementError: a device of the cluster has no counterpart in the runtime.
      MeasurementError: a file of feeds is damaged, or not for this graph.
    """
    self.graph, self.cluster, self.runtime = graph, cluster, runtime
    self.config = config or MeasuringConfig()
    self._feeds, self._clock = read_feeds(graph, feeds), clock or PlacedRun.step
    # Times are converted to the speed of the calibration, if there was one.
    self._speed = CoreSpeed(
        runtime if cluster.core_probe_us else Runtime(), cluster.core_probe_us)
    self.devices = match_devices(cluster.device_names, runtime.devices, device_map)
    self._reference: Optional[Placement] = None
    if reference and not self._speed.watches:
      # [N]: the first device that each op may use.
      first = allowed_devices(graph, cluster).argmax(axis=1).astype(np.int32)
      self._reference = Placement.from_indices(graph, cluster, first)
    self._reference_run: Optional[PlacedRun] = None

  def __enter__(self) -> Measurer:
    return self

  def __exit__(self, *_: object) -> None:
    self.close()

  def close(self) -> None:
    """Closes the reference's session; the runtime goes on."""
    if self._reference_run is not None:
      self._reference_run.close()
      self._reference_run = None

  def measure(self, placement: Placement) -> MeasuredStep:
    """Times a placement.

    Raises:
      PlacementError: it does not fit the graph or cluster, or an op ran elsewhere.
      MeasurementError: a worker was lost or hangs, or TensorFlow failed.
    """
    problems = check(self.graph, placement, self.cluster)
    if problems:
      raise PlacementError(f"the placement cannot be run: {problems[0]}")
    if self.runtime.closed:  # after an earlier failure
      self.runtime.restart()
    try:
      with named_failures(self.runtime):
        return self._measure(placement)
    except BaseException:
      if self._reference_run is not None:  # on workers that may be gone
        self._reference_run.abandon()
        self._reference_run = None
      raise

  def try_measure(self, placement: Placement) -> MeasuredStep:
    """Times a placement; a failure is marked in the result, and lost workers are started again.

    Raises:
      MeasurementError: the workers do not come back.
    """
    try:
      return self.measure(placement)
    except PlacetoError as error:
      # The next placement needs all workers.
      if self.runtime.closed or self.runtime.lost() is not None:
        self.runtime.restart()
      return MeasuredStep.failed(str(error))

  def _open(self, placement: Placement) -> PlacedRun:
    return PlacedRun(
        self.graph, placement, self.devices, self.runtime, feeds=self._feeds,
        timeout_seconds=self.config.timeout_seconds, seed=self.config.seed)

  def _measure(self, placement: Placement) -> MeasuredStep:
    if self._reference is not None and self._reference_run is None:
      self._reference_run = self._open(self._reference)
      for _ in range(self.config.warmup_runs):
        self._reference_run.step()
    run = self._open(placement)
    try:
      for _ in range(self.config.warmup_runs - 1):
        run.step()
      run.check(run.traced_step())  # the last warm-up
      times, reference = self._repeat(run)
    finally:
      run.close()
    low, high = statistics.median_interval(times)
    return MeasuredStep(
        step_time_us=float(np.median(times)), low_us=low, high_us=high, runs=len(times),
        times_us=np.array(times), reference_us=float(np.median(reference)) if reference else None)

  def _repeat(self, run: PlacedRun) -> Tuple[List[float], List[float]]:
    """Returns steps of the placement and, in between, of the reference, in us."""
    config, started = self.config, time.monotonic()
    times: List[float] = []
    reference: List[float] = []
    while True:
      if self._reference_run is not None and len(times) % _REFERENCE_EVERY == 0:
        reference.append(self._step_us(self._reference_run))
      times.append(self._step_us(run))
      # Ends late, with as many steps as are wanted, or with a median that is known well.
      if len(times) >= config.min_runs and (
          time.monotonic() - started > config.max_seconds or len(times) >= config.max_runs
          or statistics.relative_width(times) <= _PRECISION):
        return times, reference

  def _step_us(self, run: PlacedRun) -> float:
    """Runs a step; returns its time at the speed of the calibration."""
    seconds, factor = self._speed.time(functools.partial(self._clock, run))
    return seconds * 1e6 / factor


def measure(
    graph: Any,
    placement: Union[Placement, str],
    cluster: Union[Cluster, str],
    *,
    runtime: Optional[Runtime] = None,
    feeds: Feeds = "random",
    device_map: Optional[Mapping[str, str]] = None,
    **options: Any,
) -> MeasuredStep:
  """Times one placement in real sessions.

  Args:
    graph: a `ComputationGraph` of a format that TensorFlow can run, or anything `load_graph` takes.
    placement: of its ops, or the path of a placement.json.
    cluster: whose devices the placement names, or text for `Cluster.parse`.
    runtime: `LocalWorkers`, `RemoteWorkers` or `InProcess`, started; by default sessions of this
      process, with as many CPU devices as the cluster has.
    feeds: "random", the path of an .npz, a mapping, or a callable that returns one.
    device_map: device of the cluster -> device of the runtime, where the names differ.
    **options: the fields of `MeasuringConfig`.

  Returns:
    The median step in us, its confidence interval, and the steps.

  Raises:
    PlacetoError: see `Measurer.measure`.
  """
  cluster = Cluster.parse(cluster) if isinstance(cluster, str) else cluster
  graph = graph if isinstance(graph, ComputationGraph) else load_graph(graph)
  placement = Placement.load(placement) if isinstance(placement, str) else placement
  if runtime is None:
    runtime = InProcess(sum(device.type == "CPU" for device in cluster.devices) or 1)
    runtime.start()
    if runtime.note:
      warnings.warn(runtime.note, stacklevel=2)
  with Measurer(graph, cluster, runtime, MeasuringConfig(**options), feeds=feeds,
                device_map=device_map) as measurer:
    return measurer.measure(placement)
