"""`measure()`: the step time of a placement in real TensorFlow sessions.

A step is timed at the client, from handing over the feeds to having the fetches. Warm-up runs are
dropped; the rest repeat until the median is known to the wanted precision, or a limit. Where the
workers' cores are known, a probe between steps says which steps count and brings them to full speed
(`core_speed`). Elsewhere steps of a reference placement are run in between, so that a machine that
slows down or speeds up shows: what counts when placements are compared is then `relative`, the step
over the reference's steps beside it.

What is timed is what was asked for: no optimiser touches the graph, soft placement is off, and a
traced run is compared with the placement, op by op. On two workers of one core each, on a machine
with two cores, the client's own work (Python, feeding, waiting) shares the workers' cores.

TensorFlow's executor takes each op for expensive until about ninety steps have shown otherwise
(see `calibrating`): the few steps timed here are such a session's first.
"""

from __future__ import annotations

import dataclasses
import functools
import time
import warnings
from typing import Any, Callable, List, Mapping, Optional, Sequence, Tuple, Union

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
from placeto_tf.runtime.placed_runs import Execution, PlacedRun, open_with_beat
from placeto_tf.runtime.protocol import Runtime
from placeto_tf.runtime.supervision import supervise

_REFERENCE_EVERY = 3  # a step of the reference after so many steps
# Half the width of the median's 95 % interval over the median, at which it is known well enough.
_PRECISION = 0.01


@dataclasses.dataclass(frozen=True)
class MeasuringConfig:
  """How a step is timed.

  Attributes:
    warmup_runs: dropped. The first one also sets up the workers.
    min_runs, max_runs: that count.
    max_seconds: after which a placement gets no more runs than `min_runs`.
    timeout_seconds: of one step, setting up included; then the placement has failed.
    optimizations: time the graph as TensorFlow would run it.
    seed: of random feeds.
  """

  warmup_runs: int = 3
  min_runs: int = 8
  max_runs: int = 60
  max_seconds: float = 60.0
  timeout_seconds: float = 120.0
  optimizations: bool = False
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
    runs: steps that count.
    times_us: [runs] float64.
    reference_us: median of the reference's steps in between; None without a reference.
    folded_ops, moved_ops: how many ops the optimisers removed or moved; 0 without optimisers.
    failure: a sentence, if it could not be timed.
    steady: True if times are those at the cores' full speed, as measured by a `CoreSpeed`; False if
      too few steps counted in time, so that all steps are used unchanged.
  """

  step_time_us: float
  low_us: float
  high_us: float
  runs: int
  times_us: np.ndarray
  reference_us: Optional[float] = None
  folded_ops: int = 0
  moved_ops: int = 0
  failure: Optional[str] = None
  steady: bool = True

  @property
  def relative(self) -> Optional[float]:
    """Returns the step's time over that of the reference's steps."""
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
      speed: Optional[CoreSpeed] = None,
  ):
    """Matches the devices, reads the feeds and chooses the reference placement; runs nothing yet.

    Args:
      graph, cluster, runtime, config, feeds, device_map: as for `measure`.
      reference: whether steps with each op on the first device it may use are timed in between,
        where no `speed` says how fast the machine is.
      clock: runs a step and returns its seconds.
      speed: counts only steps whose time at full speed is known, if there are enough of them.

    Raises:
      PlacementError: a device of the cluster has no counterpart in the runtime.
      MeasurementError: a file of feeds is damaged, or not for this graph.
    """
    self.graph, self.cluster, self.runtime = graph, cluster, runtime
    self.config = config or MeasuringConfig()
    self._feeds, self._clock, self._speed = read_feeds(graph, feeds), clock or PlacedRun.step, speed
    self.devices = match_devices(cluster.device_names, runtime.devices, device_map)
    self._reference: Optional[Placement] = None
    if reference and not (speed is not None and speed.watches):
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
    return self._supervised(lambda beat: self._measure(placement, beat))

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

  def _supervised(self, work: Callable[[Callable[[], None]], Any]) -> Any:
    if self.runtime.closed:  # after an earlier failure
      self.runtime.restart()
    try:
      return supervise(self.runtime, work, self.config.timeout_seconds)
    except BaseException:
      if self._reference_run is not None:  # on workers that may be gone
        self._reference_run.abandon()
        self._reference_run = None
      raise

  def _open(self, placement: Placement, beat: Callable[[], None]) -> PlacedRun:
    return open_with_beat(
        beat, self.graph, placement, self.devices, self.runtime, feeds=self._feeds,
        optimizations=self.config.optimizations, timeout_seconds=self.config.timeout_seconds,
        seed=self.config.seed)

  def _measure(self, placement: Placement, beat: Callable[[], None]) -> MeasuredStep:
    config = self.config
    if self._reference is not None and self._reference_run is None:
      self._reference_run = self._open(self._reference, beat)
      self._warm_up(self._reference_run, beat)
    run = self._open(placement, beat)
    try:
      execution = self._warm_up(run, beat)
      # Optimisers may move and remove ops; without them each op has to be on its device.
      if not config.optimizations:
        run.check(execution)
      times, reference, steady = self._repeat(run, beat)
    finally:
      run.close()
    low, high = statistics.median_interval(times)
    return MeasuredStep(
        step_time_us=float(np.median(times)), low_us=low, high_us=high, runs=len(times),
        times_us=np.array(times), reference_us=float(np.median(reference)) if reference else None,
        folded_ops=len(execution.folded), moved_ops=len(execution.moved),
        steady=steady)

  def _warm_up(self, run: PlacedRun, beat: Callable[[], None]) -> Execution:
    """Runs warm-up steps, the last of them traced, and returns where their ops ran."""
    for _ in range(self.config.warmup_runs - 1):
      run.step()
      beat()
    execution = run.execution(run.traced_step())
    beat()
    return execution

  def _repeat(
      self, run: PlacedRun, beat: Callable[[], None]) -> Tuple[List[float], List[float], bool]:
    """Returns steps of the placement and of the reference, in us, and whether at full speed."""
    config, started = self.config, time.monotonic()
    reference_run = self._reference_run
    steps = _Steps(self._speed, started + config.max_seconds, beat)
    reference = _Steps(self._speed, started + config.max_seconds, beat)
    while True:
      steps.add(functools.partial(self._step_us, run))
      # Ends late with `min_runs` in all, or with enough runs that count and a median known well.
      late = time.monotonic() - started > config.max_seconds
      if reference_run is not None and (
          steps.runs % _REFERENCE_EVERY == 0 or late and not reference.runs):
        reference.add(functools.partial(self._step_us, reference_run))
      times = steps.counting
      if late and steps.runs >= config.min_runs or len(times) >= config.min_runs and (
          len(times) >= config.max_runs
          or statistics.relative_width(times) <= _PRECISION):
        break
    # At least one step of the reference, for `relative`.
    if reference_run is not None and not reference.runs:
      reference.add(functools.partial(self._step_us, reference_run))
    # Too few steps count: all are used, unchanged.
    steady = len(times) >= config.min_runs
    return (times if steady else steps.all, reference.counting or reference.all,
            steady)

  def _step_us(self, run: PlacedRun) -> float:
    return self._clock(run) * 1e6


class _Steps:
  """Timed steps: those that count, scaled to full speed, and all."""

  def __init__(self, speed: Optional[CoreSpeed], until: float, beat: Callable[[], None]):
    self._speed, self._until, self._beat = speed or CoreSpeed(()), until, beat
    self.counting: List[float] = []
    self.all: List[float] = []

  @property
  def runs(self) -> int:
    return len(self.all)

  def add(self, step: Callable[[], float]) -> None:
    time_us, factor = self._speed.time(step, self._until, self._beat)
    self.all.append(time_us)
    if factor is not None:
      self.counting.append(time_us / factor)


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
  return measure_many(graph, [placement], cluster, runtime=runtime, feeds=feeds,
                      device_map=device_map, **options)[0]


def measure_many(
    graph: ComputationGraph,
    placements: Sequence[Placement],
    cluster: Cluster,
    *,
    runtime: Optional[Runtime] = None,
    feeds: Feeds = "random",
    device_map: Optional[Mapping[str, str]] = None,
    **options: Any,
) -> List[MeasuredStep]:
  """Times placements one after the other.

  Args:
    graph: of a format that TensorFlow can run.
    placements: of its ops.
    cluster, runtime, feeds, device_map, **options: as for `measure`.

  Returns:
    The timed steps of each placement.

  Raises:
    PlacetoError: see `Measurer.measure`.
  """
  from placeto_tf.runtime.workers import InProcess, one_process_note

  config = MeasuringConfig(**options)
  if runtime is None:
    runtime = InProcess(sum(device.type == "CPU" for device in cluster.devices) or 1)
    runtime.start()
    if runtime.num_cpus > 1:
      warnings.warn(one_process_note(runtime.num_cpus), stacklevel=3)
  with Measurer(graph, cluster, runtime, config, feeds=feeds, device_map=device_map) as measurer:
    return [measurer.measure(placement) for placement in placements]
