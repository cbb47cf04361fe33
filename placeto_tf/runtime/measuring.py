"""`measure()`: the step time of a placement in real TensorFlow sessions.

A step is timed at the client, from passing the feeds to receiving the fetches. Warm-up runs are
dropped; timed runs are repeated until the median has the wanted precision, or up to a limit. If the
cluster was calibrated on this machine's workers, a probe between steps converts times to the speed
of the calibration (`core_speed`). Otherwise, times are those of the clock.

The graph is run exactly as placed: no optimizer changes it, soft placement is off, and a traced run
is compared with the placement, op by op. On two workers of one core each, on a machine with two
cores, the client's own work (Python, feeding, waiting) shares the workers' cores.

TensorFlow's executor treats each op as expensive for about ninety steps (see `calibrating`); the
few steps that are timed here are the first steps of such a session.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
import warnings
from typing import Any, Callable, List, Mapping, Optional, Sequence, Union

import numpy as np

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.errors import MeasurementError, PlacementError, PlacetoError, check_at_least
from placeto_tf.graphs import load_graph
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.graphs.feeds import Feeds
from placeto_tf.placements import Placement, check
from placeto_tf.runtime import statistics
from placeto_tf.runtime.core_speed import CoreSpeed
from placeto_tf.runtime.device_maps import match_devices
from placeto_tf.runtime.placed_runs import PlacedRun, feed_values
from placeto_tf.runtime.supervision import named_failures
from placeto_tf.runtime.workers import Runtime, make_runtime

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
    for least, names in ((1, ("warmup_runs", "min_runs")), (self.min_runs, ("max_runs",)),
                         (1e-3, ("max_seconds", "timeout_seconds"))):
      check_at_least(least, self, *names, error_type=MeasurementError)


@dataclasses.dataclass(frozen=True, eq=False)
class MeasuredStep:
  """The timed steps of one placement.

  Attributes:
    step_time_us: median; inf where the placement failed.
    low_us, high_us: 95 % confidence interval of the median.
    runs: timed steps.
    times_us: [runs] float64.
    failure: a sentence, if it could not be timed.
  """

  step_time_us: float
  low_us: float
  high_us: float
  runs: int
  times_us: np.ndarray
  failure: Optional[str] = None

  @classmethod
  def failed(cls, reason: str) -> MeasuredStep:
    """Returns the result for a placement that could not be timed."""
    inf = float("inf")
    return cls(inf, inf, inf, 0, np.zeros(0), failure=reason)


class Measurer:
  """Times placements of one graph, one after the other, on one runtime.

  Example:
    with LocalWorkers() as workers:
      Measurer(graph, cluster, workers).measure(placement).step_time_us
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
      clock: Callable[[PlacedRun], float] = PlacedRun.step,
  ):
    """Matches the devices and makes the values of feeds; runs nothing yet.

    Raises:
      PlacementError: a device of the cluster has no counterpart in the runtime.
      MeasurementError: the graph cannot be run, or the feeds are damaged or not for this graph.
    """
    self.graph, self.cluster, self.runtime = graph, cluster, runtime
    self.config = config or MeasuringConfig()
    self._values, self._clock = feed_values(graph, feeds, self.config.seed), clock
    # Times are converted to the speed of the calibration, if there was one.
    self._speed = CoreSpeed(runtime, cluster.core_probe_us)
    self.devices = match_devices(cluster.device_names, runtime.devices, device_map)

  @classmethod
  def at_one_speed(
      cls, graph: ComputationGraph, cluster: Cluster, runtime: Runtime, *, seed: int = 0,
      device_map: Optional[Mapping[str, str]] = None) -> Measurer:
    """Makes a measurer of many placements, whose times compare however long a search takes.

    Args:
      graph, cluster, device_map: as for `measure`.
      runtime: started; its cores are probed, unless the cluster was calibrated on it.
      seed: of random feeds.
    """
    speed = CoreSpeed(runtime, cluster.core_probe_us)
    if not speed.full_speed_us:
      speed.learn()
    cluster = dataclasses.replace(cluster, core_probe_us=speed.full_speed_us)
    config = MeasuringConfig(max_runs=30, max_seconds=20.0, seed=seed)
    return cls(graph, cluster, runtime, config, device_map=device_map)

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
    with named_failures(self.runtime), contextlib.closing(PlacedRun(
        self.graph, placement, self.devices, self.runtime, self._values,
        timeout_seconds=self.config.timeout_seconds)) as run:
      for _ in range(self.config.warmup_runs - 1):
        run.step()
      run.check(run.traced_step())  # the last warm-up
      times = self._repeat(run)
    return MeasuredStep(float(np.median(times)), *statistics.median_interval(times), len(times),
                        np.array(times))

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

  def _repeat(self, run: PlacedRun) -> List[float]:
    """Returns the times of repeated steps in us, at the speed of the calibration."""
    config, started = self.config, time.monotonic()
    times: List[float] = []
    while True:
      seconds, factor = self._speed.time(functools.partial(self._clock, run))
      times.append(seconds * 1e6 / factor)
      # Ends late, with as many steps as are wanted, or with a median that is known well.
      if len(times) >= config.min_runs and (
          time.monotonic() - started > config.max_seconds or len(times) >= config.max_runs
          or statistics.relative_width(times) <= _PRECISION):
        return times


def measure(
    graph: Any,
    placement: Union[Placement, str],
    cluster: Union[Cluster, str],
    *,
    workers: Union[str, Sequence[str]] = (),
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
    workers: as for `make_runtime`; without any, sessions of this process, with as many CPU devices
      as the cluster has.
    runtime: `LocalWorkers`, `RemoteWorkers` or `InProcess`, started, instead of `workers`.
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
  config = MeasuringConfig(**options)
  with contextlib.ExitStack() as stack:
    if runtime is None:
      runtime = stack.enter_context(make_runtime(cluster, workers))
      if runtime.note:
        warnings.warn(runtime.note, stacklevel=2)
    return Measurer(
        graph, cluster, runtime, config, feeds=feeds, device_map=device_map).measure(placement)
