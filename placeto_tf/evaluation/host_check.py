"""Promised and measured steps of some graphs on this machine.

Each graph is calibrated on this host's devices, placed, and its steps are run in real sessions: on
one device, placed, and with one mirrored replica on each device, in turns. The replicas stand for
`tf.distribute.MirroredStrategy`, which takes a model's code and cannot run a graph. Where there are
no GPUs, worker processes with cores of their own stand for devices.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import textwrap
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.clusters.device import Device
from placeto_tf.clusters.device_names import short_name
from placeto_tf.errors import GraphError, PlacetoError, check_above_zero, check_at_least
from placeto_tf.files import outputs
from placeto_tf.graphs import ComputationGraph
from placeto_tf.placements import Placement
from placeto_tf.placing.result import PlacingResult
from placeto_tf.placing.run import place
from placeto_tf.replication import ReplicaSource
from placeto_tf.runtime import calibrating
from placeto_tf.runtime.core_speed import CoreSpeed
from placeto_tf.runtime.measuring import Measurer, MeasuringConfig
from placeto_tf.runtime.protocol import Runtime
from placeto_tf.runtime.workers import InProcess, LocalWorkers

GPU_GRAPHS = ("zoo:inception_v3:batch=16", "zoo:rnnlm:batch=16", "zoo:bert:batch=8")
CPU_GRAPHS = (  # steps of about a tenth of a second on one core
    "zoo:inception_v3:batch=2:image=139", "zoo:rnnlm:batch=16:steps=8:hidden=256:vocab=2000",
    "zoo:bert:batch=8:size=tiny:steps=128:vocab=2000")
ONE_DEVICE, MIRRORED, PLACED = "one device", "mirrored replicas", "placed"
_MIRRORED_NOTE = (
    f"\"{MIRRORED.capitalize()}\": one on each device with variables of its own, gradients summed, "
    "each batch divided, as by MirroredStrategy, but written into the graph by placeto_tf. "
    "tf.distribute itself does not run here: it takes a model's code, and these are graphs.")
_SHORT_SECONDS = 3.0  # of a placement: in less, transfers are not fitted to placements
_SHARE = {"calibrating": 0.4, "placing": 0.2, "measuring": 0.3}  # of each graph's time


@dataclasses.dataclass(frozen=True)
class HostCheckConfig:
  """The graphs of a check, and its time.

  Attributes:
    graphs: specs for `load_graph`; None for three of the zoo that suit the devices.
    first: graphs that are checked before these.
    max_minutes: for all of them together, roughly.
    rounds: turns in which each way to run is timed.
    cpu_workers: worker processes, where there are no two GPUs.
    options: of `load_graph`, for graphs that are no `zoo:` spec.
  """

  graphs: Optional[Tuple[str, ...]] = None
  first: Tuple[str, ...] = ()
  max_minutes: float = 15.0
  rounds: int = 2
  cpu_workers: int = 2
  options: Dict[str, Any] = dataclasses.field(default_factory=dict)

  def __post_init__(self) -> None:
    check_above_zero(self, "max_minutes")
    check_at_least(1, self, "rounds")
    check_at_least(2, self, "cpu_workers")


@dataclasses.dataclass(frozen=True)
class Step:
  """One way to run a graph: its step as promised and as measured; None where it could not run."""

  promised_us: float
  measured_us: Optional[float] = None
  failure: str = ""

  @property
  def error(self) -> Optional[float]:
    """Returns the error of the promise over the measured step."""
    return None if not self.measured_us else self.promised_us / self.measured_us - 1


@dataclasses.dataclass(frozen=True)
class GraphCheck:
  """The result of one graph: its ways to run, or why there are none."""

  graph: str
  steps: Dict[str, Step]
  failure: str = ""

  def speedup(self, way: str = PLACED) -> Optional[float]:
    """Returns the measured speed-up over one device."""
    one, other = (self.steps.get(name) for name in (ONE_DEVICE, way))
    if one is None or other is None or not one.measured_us or not other.measured_us:
      return None
    return one.measured_us / other.measured_us


def host(cpu_workers: int = 2) -> Tuple[Cluster, Runtime]:
  """Returns this host's cluster and runtime: two GPUs or more, else worker processes."""
  # GPUs of this process, if there are two to choose from.
  here = Cluster.parse("local")
  if sum(device.type == "GPU" for device in here.devices) > 1:
    return here, InProcess(1)
  return Cluster.parse(f"cpu:{cpu_workers}"), LocalWorkers(cpu_workers)


def check_host(
    config: HostCheckConfig, out: str, *, progress: Callable[[str], None] = lambda text: None
) -> List[GraphCheck]:
  """Calibrates, places and measures each graph, and writes check.md and check.png.

  Args:
    config: graphs and time of the check.
    out: a directory, which is made; files of calibrations stay there, too.
    progress: called with the name of the next part.

  Returns:
    The result of each graph, in their order; a failure of one graph is in its result.

  Raises:
    PlacetoError: the devices cannot be used.
  """
  os.makedirs(out, exist_ok=True)
  started, found = time.monotonic(), []
  cluster, runtime = host(config.cpu_workers)
  graphs = config.graphs
  if graphs is None:
    graphs = GPU_GRAPHS if isinstance(runtime, InProcess) else CPU_GRAPHS
  graphs = (*config.first, *graphs)
  with runtime, CoreSpeed.of(runtime) as speed:
    speed.learn()
    for number, name in enumerate(graphs):
      # The rest of the time is divided equally among the graphs that are left.
      left = config.max_minutes * 60 - (time.monotonic() - started)
      seconds = max(left, 1.0) / (len(graphs) - number)
      try:
        found.append(_check_graph(
            name, cluster, runtime, speed, config, seconds, out, progress))
      except PlacetoError as error:
        found.append(GraphCheck(name, {}, str(error)))
      _write(out, cluster, found)  # what is there is kept, whatever happens to the next
  return found


def _check_graph(
    name: str, cluster: Cluster, runtime: Runtime, speed: CoreSpeed, config: HostCheckConfig,
    seconds: float, out: str, progress: Callable[[str], None]) -> GraphCheck:
  progress(f"{name}: loading")
  # Specs of the zoo say themselves how they are read.
  options = {} if name.startswith(("zoo:", "family:")) else config.options
  replicas = sum(not device.host for device in cluster.devices)
  graph, part = _with_part(name, options, replicas)
  # Each device and each of four placements has an equal share of the calibration's time.
  each = seconds * _SHARE["calibrating"] / (cluster.num_devices + 4)
  calibration = calibrating.calibrate(
      cluster, runtime, graph, calibrating.CalibrationConfig(
          runs=10, graph_runs=6, max_seconds=each, placement_seconds=each,
          placements=4 if each > _SHORT_SECONDS else 0),
      part=part, speed=speed, progress=lambda what: progress(f"{name}: measuring {what}"))
  # A folder per graph, named by its letters and digits.
  known, folder = calibration.cluster, os.path.join(out, "".join(
      letter if letter.isalnum() else "_" for letter in name))
  os.makedirs(folder, exist_ok=True)
  known.save(os.path.join(folder, "cluster.json"))
  costs = os.path.join(folder, "costs.pb")
  assert calibration.compute_us is not None
  calibrating.write_costs(
      graph, known, calibration.compute_us, costs, calibration.part, replicas)
  progress(f"{name}: placing")
  result = place(
      graph, known, costs=costs, max_seconds=seconds * _SHARE["placing"], progress=False)
  result.placement.save(os.path.join(folder, "placement.json"))
  # (way, graph, placement, promised us) of each way to run.
  runs = [
      (ONE_DEVICE, graph, *_on_one_device(result, costs)),
      (PLACED, graph, result.placement, result.step_time_us)]
  mirrored = _mirrored(name, options, known, costs if part is not None else "grappler", replicas,
                       seconds * _SHARE["placing"] / 2)
  if mirrored is not None:
    runs.append((MIRRORED, mirrored.graph, mirrored.placement, mirrored.step_time_us))
  progress(f"{name}: measuring steps")
  return GraphCheck(name, _measure(
      runs, known, runtime, speed, config.rounds, seconds * _SHARE["measuring"]))


def _on_one_device(result: PlacingResult, costs: str) -> Tuple[Placement, float]:
  """Places all that may be on the first device, even if the search had no time for it."""
  row = result.baselines["single"]
  if row.placement is None or row.step_time_us is None:
    # The search ended before it evaluated one device.
    row = place(result.graph, result.cluster, "single", costs=costs, max_evaluations=9,
                progress=False).baselines["single"]
  if row.placement is None or row.step_time_us is None:
    raise PlacetoError("the graph does not run on one device; check a smaller one")
  return (Placement.from_indices(result.graph, result.cluster, row.placement), row.step_time_us)


def _with_part(
    name: str, options: Dict[str, Any], replicas: int
) -> Tuple[ComputationGraph, Optional[ComputationGraph]]:
  """Returns the graph and that of one replica, if there is one for a share of the batch."""
  source = ReplicaSource(name, options)
  try:
    part = source.part(replicas)
  except GraphError:
    return source.graph, None
  return source.graph, None if part is source.graph else part


def _mirrored(
    name: str, options: Dict[str, Any], cluster: Cluster, costs: str, replicas: int, seconds: float
) -> Optional[PlacingResult]:
  """Places one replica with its own variables on each device; None where that is not allowed.
  """
  try:
    return place(
        name, cluster, costs=costs, replicas=replicas, mirrored_variables=True,
        check_replicas=False, max_seconds=seconds, progress=False, **options)
  except PlacetoError:
    return None


def _measure(
    runs: Sequence[Tuple[str, ComputationGraph, Placement, float]], cluster: Cluster,
    runtime: Runtime, speed: CoreSpeed, rounds: int, seconds: float) -> Dict[str, Step]:
  """Times all ways to run in turns; of each the median of its rounds counts."""
  times: Dict[str, List[float]] = {way: [] for way, *_ in runs}
  failures: Dict[str, str] = {}
  config = MeasuringConfig(max_seconds=seconds / (rounds * len(runs)), max_runs=30)
  # In turns, so that a slow phase of the machine hits all ways alike.
  for _ in range(rounds):
    for way, graph, placement, _ in runs:
      # A way that failed once is not tried again.
      if way in failures:
        continue
      with Measurer(graph, cluster, runtime, config, reference=False, speed=speed) as measurer:
        step = measurer.try_measure(placement)
      if step.failure:
        failures[way] = step.failure
      else:
        times[way].append(step.step_time_us)
  return {way: Step(promised_us, float(np.median(times[way])) if times[way] else None,
                    failures.get(way, ""))
          for way, _, _, promised_us in runs}


def page(cluster: Cluster, found: Sequence[GraphCheck]) -> str:
  """Writes the results as a page of Markdown.

  Args:
    cluster: of the devices.
    found: result of each graph.

  Returns:
    The text of the page.
  """
  import tensorflow as tf

  import placeto_tf

  devices = ", ".join(
      f"{short_name(device.name)} ({_what(device)})" for device in cluster.devices)
  lines = [
      "# Does it hold on this machine?", "",
      f"placeto_tf {placeto_tf.__version__}, TensorFlow {tf.__version__}, Python "
      f"{platform.python_version()}, {platform.system()} {platform.machine()}, "
      f"{os.cpu_count()} cores.", "", f"Devices: {devices}.", "",
      "| graph | way to run | promised | measured | error | faster than one device |",
      "|---|---|---|---|---|---|"]
  for check in found:
    if check.failure:
      # A bar in an error would end the cell.
      lines.append(f"| {check.graph} | - | - | {check.failure.replace('|', '/')} | | |")
    for way, step in check.steps.items():
      gain, error = check.speedup(way), step.error
      measured = _ms(step.measured_us) if step.measured_us else step.failure.replace("|", "/")
      off, times = "" if error is None else f"{error:+.0%}", "" if gain is None else f"{gain:.2f}x"
      lines.append(
          f"| {check.graph} | {way} | {_ms(step.promised_us)} | {measured} | {off} | {times} |")
  picture = ["![promised and measured](check.png)", ""] if _measured(found) else []
  return "\n".join([*lines, "", *textwrap.wrap(_MIRRORED_NOTE, 100), "", *picture])


def _what(device: Device) -> str:
  """Returns a GPU's model; a worker's cores are as measured, not those of the preset."""
  if device.type == "CPU":
    return "a worker process"
  return device.properties.get("model", device.type)


def _measured(found: Sequence[GraphCheck]) -> List[Tuple[str, Step]]:
  """Returns (name, step) of all ways to run that were measured."""
  return [(f"{check.graph}\n{way}", step) for check in found for way, step in check.steps.items()
          if step.measured_us]


def _write(out: str, cluster: Cluster, found: Sequence[GraphCheck]) -> None:
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.figure import Figure

  outputs.write(os.path.join(out, "check.md"), page(cluster, found).encode("utf-8"))
  rows = _measured(found)
  if not rows:
    return
  figure = Figure(figsize=(9, 1.2 + 0.5 * len(rows)), dpi=120)
  FigureCanvasAgg(figure)
  axes = figure.subplots()
  # Two bars for each way: promised, measured.
  at = np.arange(len(rows))
  for shift, label, colour, values in (
      (-0.2, "promised", "0.7", [step.promised_us for _, step in rows]),
      (0.2, "measured", "C0", [step.measured_us for _, step in rows])):
    axes.barh(at + shift, np.array(values) / 1e3, 0.38, label=label, color=colour)
  axes.set_yticks(at, [name for name, _ in rows], fontsize=8)
  axes.invert_yaxis()
  axes.set_xlabel("ms a step")
  axes.legend(fontsize=8)
  figure.tight_layout()
  figure.savefig(os.path.join(out, "check.png"), format="png")


def _ms(us: float) -> str:
  return f"{us / 1e3:,.1f} ms"
