"""Measures the parameters of the simulator: links, overheads, and the costs of a graph's ops.

The parameters are fitted to small graphs (`microbenchmarks`), to the graph on one device at a time,
and to a few placements that are made only for calibration (`fitting`), never to placements that
predictions are evaluated on.

The order in which ops run matters as much as their costs, because a worker with one thread runs one
op at a time. When an op ends, TensorFlow's executor (core/common_runtime/executor.cc,
ScheduleReady) puts the ops that become ready either into the queue of the thread that ran it, or
into the thread pool. The pool's only thread first takes its own entries, last in, first out, and
then the entries of others, first in, first out. Ops go into the thread's own queue if their kernels
are marked as not expensive (`OpRule.inline`); the last of the other ops does so if that queue is
empty. (A kernel is also marked as not expensive if its estimated time is below 8,000 cycles; but
the estimate starts at 10^8 cycles and falls by a tenth per step, which takes about ninety steps.)
Sending is a kernel like others, in this order. Receiving is done by the threads of gRPC, which take
the core from the running op. `Cluster.ready_order = "executor"` simulates this behaviour.

Dimensions: N ops, D devices.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import tempfile
from typing import Any, Callable, Dict, Mapping, Optional, Tuple

import numpy as np

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.clusters.constraints import allowed_devices
from placeto_tf.costs import estimate_costs
from placeto_tf.errors import MeasurementError
from placeto_tf.files import outputs
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.graphs.feeds import Feeds
from placeto_tf.ops import types_with
from placeto_tf.placements import Placement
from placeto_tf.runtime import fitting, microbenchmarks
from placeto_tf.runtime.core_speed import CoreSpeed
from placeto_tf.runtime.device_maps import match_devices
from placeto_tf.runtime.measuring import Measurer, MeasuringConfig
from placeto_tf.runtime.microbenchmarks import LARGE_BYTES, SMALL_BYTES
from placeto_tf.runtime.placed_runs import PlacedRun, feed_values
from placeto_tf.runtime.supervision import named_failures
from placeto_tf.runtime.workers import Runtime

_SLOWEST_BYTES_PER_US, _FASTEST_BYTES_PER_US = 1.0, 1e6


@dataclasses.dataclass(frozen=True)
class CalibrationConfig:
  """The options of a calibration.

  Attributes:
    runs: timed steps of each small graph.
    graph_runs: timed and traced steps of the graph on each device.
    warmup_runs: of the graph, dropped.
    placements: of the graph that transfers are fitted to; 0 leaves them as measured between idle
      devices.
    placement_seconds: of each.
    timeout_seconds: of one step.
    seed: of random feeds, and of the placements.
  """

  runs: int = 20
  graph_runs: int = 12
  warmup_runs: int = 3
  placements: int = 10
  placement_seconds: float = 8.0
  timeout_seconds: float = 120.0
  seed: int = 0


@dataclasses.dataclass(frozen=True, eq=False)
class Calibration:
  """The result of a calibration.

  Attributes:
    cluster: with links, overheads and the executor's order.
    links: (source, target) device indices -> `link_times`.
    compute_us: [N, D] cost of each op on each device, NaN on devices it may not use; None where no
      graph was given.
    step_time_us: [D] of the graph on one device; NaN where it cannot run there alone.
    placements: the placements that transfers were fitted to: [N] devices, and step time in us.
    part: the graph of one of several replicas and its `compute_us`, if given.
  """

  cluster: Cluster
  links: Mapping[Tuple[int, int], np.ndarray]
  compute_us: Optional[np.ndarray] = None
  step_time_us: Optional[np.ndarray] = None
  placements: Tuple[Tuple[np.ndarray, float], ...] = ()
  part: Optional[Tuple[ComputationGraph, np.ndarray]] = None


def calibrate(
    cluster: Cluster,
    runtime: Runtime,
    graph: Optional[ComputationGraph] = None,
    config: Optional[CalibrationConfig] = None,
    *,
    part: Optional[ComputationGraph] = None,
    feeds: Feeds = "random",
    device_map: Optional[Mapping[str, str]] = None,
    progress: Callable[[str], None] = lambda stage: None,
) -> Calibration:
  """Measures links by pair and overheads on a runtime, and the costs of a graph's ops.

  Args:
    cluster: devices to measure; its other fields are replaced.
    runtime: started, see `workers`.
    graph: the graph whose ops are timed on each device; None measures only links and overheads.
    config: the options.
    part: the graph of one of several replicas, whose ops are timed as well, with random feeds:
      kernels are less efficient on fewer examples.
    feeds, device_map: see `measure`.
    progress: called with the name of the next part, which of how many it is included.

  Returns:
    The cluster with its measured fields, and the costs of the graph's ops.

  Raises:
    MeasurementError: a worker was lost or hangs, or times make no sense.
    PlacementError: a device has no counterpart in the runtime.
  """
  config, begun = config or CalibrationConfig(), itertools.count(1)
  # The speed of the cores, the overhead of an op, links, and graphs on each device.
  count = 2 + cluster.num_devices * (
      cluster.num_devices - 1 + (graph is not None) + (part is not None))
  if graph is not None and cluster.num_devices > 1 and config.placements:
    count += config.placements + int(allowed_devices(graph, cluster).all(axis=0).sum())
  with named_failures(runtime):
    calibrator = _Calibrator(
        cluster, runtime, config, device_map,
        lambda stage: progress(f"{stage} ({next(begun)} of {count})"))
    fit = fitting.Fit(calibrator.measure_cluster())
    if graph is None:
      return Calibration(fit.cluster, calibrator.links)
    compute_us, step_time_us = calibrator.costs(graph, feeds)
    measured = None if part is None else (part, calibrator.costs(part, "random")[0])
    # Without links, on one device, there are no transfers to fit.
    if calibrator.links and calibrator.config.placements:
      fit = calibrator.fit(graph, fit.cluster, compute_us, feeds)
  return Calibration(
      fit.cluster, calibrator.links, compute_us * fit.compute_scale, step_time_us, fit.seen,
      measured and (measured[0], measured[1] * fit.compute_scale))


class _Calibrator:
  """Measures a cluster on a runtime, and graphs on its devices.

  Attributes:
    links: (source, target) -> `link_times`, once the cluster was measured.
  """

  def __init__(
      self, cluster: Cluster, runtime: Runtime, config: CalibrationConfig,
      device_map: Optional[Mapping[str, str]], progress: Callable[[str], None]):
    """Measures the full speed of the cores. The arguments are those of `calibrate`."""
    self.runtime, self.config, self.progress = runtime, config, progress
    self.device_map = device_map
    self.links: Dict[Tuple[int, int], np.ndarray] = {}
    self.speed = CoreSpeed(runtime)
    progress("how fast the cores are")
    self.speed.learn()
    # From here on a measurer brings its times to this speed.
    self.cluster = dataclasses.replace(cluster, core_probe_us=self.speed.full_speed_us)
    self.devices = match_devices(cluster.device_names, runtime.devices, device_map)
    self.overhead_us = 0.0

  def measure_cluster(self) -> Cluster:
    """Measures links and the overhead of an op; returns the cluster with both."""
    bench = microbenchmarks.Bench(
        self.runtime, self.config.runs, self.config.timeout_seconds, self.speed)
    names = [self.devices[name] for name in self.cluster.device_names]
    for i, j in itertools.permutations(range(len(names)), 2):
      self.progress(f"link {self.cluster.device_names[i]} to {self.cluster.device_names[j]}")
      self.links[i, j] = microbenchmarks.link_times(bench, names[i], names[j])
    self.progress("overhead of an op")
    # One overhead for all devices: the simulator has one.
    self.overhead_us = float(np.mean([
        microbenchmarks.op_overhead_us(bench, name) for name in names]))
    return _calibrated(self.cluster, self.links, self.overhead_us)

  def fit(
      self, graph: ComputationGraph, cluster: Cluster, compute_us: np.ndarray, feeds: Feeds
  ) -> fitting.Fit:
    """Fits transfers to steps of the graph; see `fitting`.

    Args:
      graph: N ops.
      cluster: with measured links and overheads.
      compute_us: [N, D] measured times of the graph's ops.
      feeds: of the graph.

    Returns:
      The cluster with its transfers fitted.
    """
    config = self.config
    with tempfile.TemporaryDirectory() as folder:
      # Write and read a file, so that the costs are equal to the costs of later placements.
      path = os.path.join(folder, "costs.pb")
      write_costs(graph, cluster, compute_us, path)
      costs = estimate_costs(graph, cluster, source=path)
    measuring = MeasuringConfig(
        max_runs=max(config.runs, MeasuringConfig.min_runs), max_seconds=config.placement_seconds,
        timeout_seconds=config.timeout_seconds, seed=config.seed)
    measurer = Measurer(
        graph, cluster, self.runtime, measuring, feeds=feeds, device_map=self.device_map)

    def measure(placement: np.ndarray) -> float:
      self.progress("a placement that transfers are fitted to")
      return measurer.try_measure(Placement.from_indices(graph, cluster, placement)).step_time_us

    return fitting.fit_transfers(graph, cluster, costs, measure, config.placements, config.seed)

  def costs(self, graph: ComputationGraph, feeds: Feeds) -> Tuple[np.ndarray, np.ndarray]:
    """Times the ops of a graph by runs on one device at a time.

    Args:
      graph: N ops.
      feeds: of the graph.

    Returns:
      compute_us [N, D] and step_time_us [D].
    """
    values = feed_values(graph, feeds, self.config.seed)
    # [N, D].
    allowed = allowed_devices(graph, self.cluster)
    compute_us = np.full(allowed.shape, np.nan)
    step_time_us = np.full(self.cluster.num_devices, np.nan)
    launched = np.zeros(self.cluster.num_devices)  # kernels in a step on one device
    between_us = np.zeros(graph.num_ops)  # launches between the runs of an op in a loop
    for d, name in enumerate(self.cluster.device_names):
      # Ops that cannot run on this device are on another one. Then it is no step on one device.
      indices = np.where(allowed[:, d], d, allowed.argmax(axis=1)).astype(np.int32)
      self.progress(f"the graph on {name}")
      kernel_us, runs, step_us = self._time_ops(
          graph, Placement.from_indices(graph, self.cluster, indices), values)
      here = indices == d
      compute_us[here, d] = kernel_us[here]
      # An op that runs k times in a loop is launched k - 1 times more than the one in the overhead.
      between_us = np.maximum(between_us, self.overhead_us * np.maximum(runs - 1, 0))
      # Only a step with all ops on this device is a step of one device.
      if here.all():
        step_time_us[d] = step_us
        launched[d] = np.maximum(runs, 1).sum()
    # The time of a step without its kernels is the overhead. If a traced step takes longer than an
    # untraced one, tracing slowed the kernels, so their times are scaled down.
    for d in np.flatnonzero(~np.isnan(step_time_us)).tolist():
      kernels_us = np.nansum(compute_us[:, d])
      # Time of the step that is left for kernels.
      left_us = step_time_us[d] - self.overhead_us * launched[d]
      if left_us > 0 and kernels_us > 0:
        compute_us[:, d] *= left_us / kernels_us
    return compute_us + np.where(compute_us > 0, between_us[:, None], 0.0), step_time_us

  def _time_ops(
      self, graph: ComputationGraph, placement: Placement, values: Mapping[str, np.ndarray]
  ) -> Tuple[np.ndarray, np.ndarray, float]:
    """Times the kernels of a placement's ops in traced steps, and steps without a trace.

    Returns:
      [N] float64 median us of each op's kernel in a step, NaN where it did not run; [N] float64
      number of its runs in a step; and the median us of untraced steps.
    """
    with contextlib.closing(PlacedRun(
        graph, placement, self.devices, self.runtime, values,
        timeout_seconds=self.config.timeout_seconds)) as run:

      # Traced and untraced steps take turns, so that the machine's speed affects both equally.
      def turn() -> Tuple[float, Tuple[np.ndarray, np.ndarray]]:
        return run.step() * 1e6, kernel_times_us(graph, run.traced_step())

      for _ in range(self.config.warmup_runs):
        run.step()
      turns = [self.speed.time(turn) for _ in range(self.config.graph_runs)]
    # Divided by the factor: at full speed of the cores.
    steps = [step_us / factor for (step_us, _), factor in turns]
    # [runs, N]; NaN where an op was not traced.
    table = np.stack([kernels_us / factor for (_, (kernels_us, _)), factor in turns])
    ran = ~np.isnan(table).all(axis=0)
    compute_us = np.full(graph.num_ops, np.nan)
    compute_us[ran] = np.nanmedian(table[:, ran], axis=0)
    return compute_us, turns[-1][0][1][1], float(np.median(steps))


def _calibrated(
    cluster: Cluster, links: Mapping[Tuple[int, int], np.ndarray], overhead_us: float) -> Cluster:
  """Returns the cluster with the measurements in its fields."""
  cluster = dataclasses.replace(
      cluster, op_overhead_us=overhead_us, overlapped_launches=False, ready_order="executor",
      inline_op_types=tuple(sorted(types_with(inline=True))))
  if not links:
    return cluster
  bandwidth, latency_us = np.array(cluster.bandwidth_bytes_per_us), np.array(cluster.latency_us)
  parts = {pair: split_hop(times) for pair, times in links.items()}
  for (i, j), (_, _, (wire_us, wire_us_per_byte)) in parts.items():
    latency_us[i, j] = wire_us
    # A slope of 0, as noise may give, would be an infinite bandwidth.
    per_byte = max(wire_us_per_byte, 1 / _FASTEST_BYTES_PER_US)
    bandwidth[i, j] = max(1 / per_byte, _SLOWEST_BYTES_PER_US)
  # Packing and unpacking, us per transfer and us per byte: means over all links.
  pack, unpack, _ = np.mean(list(parts.values()), axis=0).tolist()
  return dataclasses.replace(
      cluster, bandwidth_bytes_per_us=bandwidth, latency_us=latency_us, bus_gap_us=0.0,
      transfer_per_destination=True, sender_us_per_transfer=pack[0], sender_us_per_byte=pack[1],
      receiver_us_per_transfer=unpack[0], receiver_us_per_byte=unpack[1])


def split_hop(times: np.ndarray) -> np.ndarray:
  """Returns us per transfer and us per byte, [3, 2], of packing, unpacking and the wire.

  The parts are not negative and add up to the hop. In disturbed runs packing and unpacking together
  may seem to take longer than the whole hop; then they share the hop.
  """
  # [2 sizes, 2] packing and unpacking; pack + unpack + wire = hop, none of them negative.
  ends_us, hop_us = times[:, 1:], times[:, 0]
  both_us = ends_us.sum(axis=1)
  shrink = np.minimum(1.0, hop_us / np.maximum(both_us, 1e-12))
  parts_us = np.column_stack([ends_us * shrink[:, None], hop_us - both_us * shrink])
  # A line through the two sizes: t = per_transfer + per_byte * bytes.
  per_byte = np.maximum(0.0, (parts_us[1] - parts_us[0]) / (LARGE_BYTES - SMALL_BYTES))
  return np.stack([np.maximum(0.0, parts_us[0] - per_byte * SMALL_BYTES), per_byte], axis=1)


def kernel_times_us(graph: ComputationGraph, metadata: Any) -> Tuple[np.ndarray, np.ndarray]:
  """Sums the runs of each op's kernel in a traced step.

  Returns:
    [N] float64 us of all runs, NaN for ops that are not in the trace, and [N] float64 their number.
  """
  found, runs = np.full(graph.num_ops, np.nan), np.zeros(graph.num_ops)
  kernels = found.copy()  # on the streams of GPUs
  index = graph.op_index
  for stats in metadata.step_stats.dev_stats:
    # Each kernel is listed under its own stream and under "all", as "op:OpType".
    streams = "/stream:" in stats.device
    if streams and not stats.device.endswith("/stream:all"):
      continue
    for node in stats.node_stats:
      op = index.get(node.node_name.rpartition(":")[0] if streams else node.node_name)
      if op is not None:
        times = kernels if streams else found
        spent = max(0, node.op_end_rel_nanos - node.op_start_rel_nanos) * 1e-3
        times[op] = spent + (0.0 if np.isnan(times[op]) else times[op])
        runs[op] += not streams
  # A GPU's own entry has the times of launching, which those of the kernels replace.
  return np.where(np.isnan(kernels), found, kernels), runs


def write_costs(
    graph: ComputationGraph, cluster: Cluster, compute_us: np.ndarray, path: str,
    part: Optional[Tuple[ComputationGraph, np.ndarray]] = None, replicas: int = 1,
) -> None:
  """Writes an OpPerformanceList with the costs of ops on each type of device.

  An op's cost is its mean time on the devices of a type, of all its runs in a step and the launches
  between them. Ops that are not in the traces (feeds, constants that newer TensorFlow copies) take
  no time. They are written too, because estimates would fill in ops that are left out.

  Args:
    graph: N ops.
    cluster: D devices.
    compute_us: [N, D] float64 us; NaN on devices that an op may not use.
    path: of the file.
    part: the graph of one replica and its `compute_us`, written with the graph's; see
      `placeto_tf.costs.measured_costs`.
    replicas: R; `part` is the graph of one of them.

  Raises:
    MeasurementError: the file cannot be written.
  """
  from tensorflow.core.grappler.costs import op_performance_data_pb2

  performances = op_performance_data_pb2.OpPerformanceList()
  types = [device.type for device in cluster.devices]
  measured = [(graph, compute_us, 1)] + ([(*part, replicas)] if part is not None else [])
  for of, times_us, count in measured:
    # One entry per op and type of device, the mean over its devices.
    for kind in sorted(set(types)):
      columns = [d for d, its in enumerate(types) if its == kind]
      for i, (name, op_type) in enumerate(zip(of.op_names, of.op_types)):
        seen = times_us[i, columns][~np.isnan(times_us[i, columns])]
        entry = performances.op_performance.add()
        entry.node, entry.op.op, entry.op.device.type = name, op_type, kind
        # us -> ns.
        entry.compute_cost = round(float(seen.mean()) * 1e3) if len(seen) else 0
        if count > 1:
          entry.op.attr["replicas"].i = count
  outputs.write(
      path, performances.SerializeToString(), what="the cost file ", error_type=MeasurementError)
