"""Compares predicted with measured steps of some graphs on this machine.

Each graph is calibrated on this host's devices and placed. Then its steps are run in real sessions,
in turns: on one device, placed, and with one mirrored replica on each device. The replicas replace
`tf.distribute.MirroredStrategy`, which needs a model's code and cannot run a graph. Without GPUs,
worker processes with cores of their own are the devices.
"""

from __future__ import annotations

import os
import platform
import textwrap
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import pandas as pd

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.clusters.device_names import short_name
from placeto_tf.errors import GraphError, PlacetoError
from placeto_tf.evaluation.tables import markdown
from placeto_tf.files import outputs
from placeto_tf.graphs import ComputationGraph
from placeto_tf.on_use import tf
from placeto_tf.placements import Placement
from placeto_tf.placing.run import place
from placeto_tf.replication import ReplicaSource
from placeto_tf.runtime import calibrating
from placeto_tf.runtime.measuring import Measurer, MeasuringConfig
from placeto_tf.runtime.workers import InProcess, LocalWorkers, Runtime

GPU_GRAPHS = ("zoo:inception_v3:batch=16", "zoo:rnnlm:batch=16", "zoo:bert:batch=8")
CPU_GRAPHS = (  # steps of about a tenth of a second on one core
    "zoo:inception_v3:batch=2:image=139", "zoo:rnnlm:batch=16:steps=8:hidden=256:vocab=2000",
    "zoo:bert:batch=8:size=tiny:steps=128:vocab=2000")
ONE_DEVICE, MIRRORED, PLACED = "one device", "mirrored replicas", "placed"
_MIRRORED_NOTE = (
    f"\"{MIRRORED.capitalize()}\": one on each device with variables of its own, gradients summed, "
    "each batch divided, as by MirroredStrategy, but written into the graph by placeto_tf. "
    "tf.distribute itself does not run here: it takes a model's code, and these are graphs.")
_WORKERS = 2
_SHORT_SECONDS = 3.0  # of a placement; in less time, transfers are not fitted to placements
_SHARE = {"calibrating": 0.4, "placing": 0.2, "measuring": 0.3}  # of each graph's time
_ROUNDS = 2  # number of turns in which each way to run is timed

# (way to run, graph, placement, predicted us).
_Way = Tuple[str, ComputationGraph, Placement, float]


def check_host(
    first: Sequence[str], models: Optional[Sequence[str]], out: str, *, max_minutes: float = 15.0,
    options: Optional[Mapping[str, Any]] = None,
    progress: Callable[[str], None] = lambda text: None) -> pd.DataFrame:
  """Calibrates, places and measures each graph, and writes check.md.

  Args:
    first: specs for `load_graph`.
    models: specs of further graphs; None for three graphs of the zoo that suit the devices.
    out: a directory, which is made; it also gets the files of calibrations.
    max_minutes: approximate time for all graphs together.
    options: of `load_graph`, for graphs without a `zoo:` spec.
    progress: called with the name of the next part.

  Returns:
    A row for each way to run a graph: "graph", "way", "predicted_us", "measured_us", and "failure",
    the reason why it was not measured; a graph that fails as a whole has one row.

  Raises:
    PlacetoError: the devices cannot be used.
  """
  os.makedirs(out, exist_ok=True)
  started, rows = time.monotonic(), []
  cluster = Cluster.parse("local")
  on_gpus = sum(device.type == "GPU" for device in cluster.devices) > 1
  cluster = cluster if on_gpus else Cluster.parse(f"cpu:{_WORKERS}")
  runtime: Runtime = InProcess() if on_gpus else LocalWorkers(_WORKERS)
  if models is None:
    models = GPU_GRAPHS if on_gpus else CPU_GRAPHS
  graphs = (*first, *models)
  with runtime:
    for number, name in enumerate(graphs):
      # The remaining time is divided equally among the remaining graphs.
      seconds = max(max_minutes * 60 - (time.monotonic() - started), 1.0) / (len(graphs) - number)
      # Specs of the zoo need no options.
      given = {} if name.startswith(("zoo:", "family:")) else dict(options or {})
      try:
        known, ways = _ways(name, cluster, runtime, given, seconds, out, progress)
        progress(f"{name}: measuring steps")
        rows += [{"graph": name, **row} for row in _measured(
            ways, known, runtime, seconds * _SHARE["measuring"])]
      except PlacetoError as error:
        rows.append({"graph": name, "way": "-", "failure": str(error)})
      found = pd.DataFrame(
          rows, columns=["graph", "way", "predicted_us", "measured_us", "failure"])
      # Results so far are kept if the next graph fails.
      outputs.write(os.path.join(out, "check.md"), page(cluster, found).encode("utf-8"))
  return found


def _ways(
    name: str, cluster: Cluster, runtime: Runtime, options: Mapping[str, Any], seconds: float,
    out: str, progress: Callable[[str], None]) -> Tuple[Cluster, List[_Way]]:
  """Returns the calibrated cluster, and the ways to run a graph."""
  progress(f"{name}: loading")
  replicas = sum(not device.host for device in cluster.devices)
  source = ReplicaSource(name, options)
  try:
    part: Optional[ComputationGraph] = source.part(replicas)
  except GraphError:
    part = None
  part = None if part is source.graph else part
  # Each of four placements has its share of the calibration's time.
  each = seconds * _SHARE["calibrating"] / (cluster.num_devices + 4)
  found = calibrating.calibrate(
      cluster, runtime, source.graph, calibrating.CalibrationConfig(
          runs=10, graph_runs=6, placement_seconds=each,
          placements=4 if each > _SHORT_SECONDS else 0),
      part=part, progress=lambda what: progress(f"{name}: measuring {what}"))
  # A folder per graph, named by its letters and digits.
  folder = os.path.join(out, "".join(each if each.isalnum() else "_" for each in name))
  os.makedirs(folder, exist_ok=True)
  found.cluster.save(os.path.join(folder, "cluster.json"))
  costs = os.path.join(folder, "costs.pb")
  assert found.compute_us is not None  # a graph was given
  calibrating.write_costs(
      source.graph, found.cluster, found.compute_us, costs, found.part, replicas)
  progress(f"{name}: placing")
  placing: Dict[str, Any] = dict(
      cost_model=costs, max_seconds=seconds * _SHARE["placing"], progress=False)
  results = {
      ONE_DEVICE: place(source.graph, found.cluster, "single", **placing),
      PLACED: place(source.graph, found.cluster, **placing)}
  results[PLACED].placement.save(os.path.join(folder, "placement.json"))
  try:
    results[MIRRORED] = place(name, found.cluster, replicas=replicas, mirrored_variables=True, **{
        **placing, **options, "check_replicas": False,
        "cost_model": costs if part is not None else "grappler"})
  except PlacetoError:  # the graph does not allow replicas
    pass
  return found.cluster, [(way, result.graph, result.placement, result.step_time_us)
                         for way, result in results.items()]


def _measured(
    ways: Sequence[_Way], cluster: Cluster, runtime: Runtime, seconds: float
) -> List[Dict[str, Any]]:
  """Times all ways to run in turns; the result of each is the median over rounds."""
  config = MeasuringConfig(max_seconds=seconds / (_ROUNDS * len(ways)), max_runs=30)
  measurers = [(Measurer(graph, cluster, runtime, config), placement)
               for _, graph, placement, _ in ways]
  # In turns, so that a slow phase of the machine hits all ways alike: [_ROUNDS, ways].
  steps = [[measurer.try_measure(placement) for measurer, placement in measurers]
           for _ in range(_ROUNDS)]
  rows = []
  for (way, _, _, predicted_us), *of_way in zip(ways, *steps):
    failure = next((step.failure for step in of_way if step.failure), "")
    rows.append({
        "way": way, "predicted_us": predicted_us, "failure": failure,
        "measured_us": float("nan") if failure else float(np.median(
            [step.step_time_us for step in of_way]))})
  return rows


def page(cluster: Cluster, found: pd.DataFrame) -> str:
  """Writes the results as a page of Markdown.

  Args:
    cluster: of the devices.
    found: rows of `check_host`.

  Returns:
    The text of the page.
  """
  import placeto_tf

  # A worker's cores are as measured, not those of the preset.
  devices = ", ".join(
      f"{short_name(device.name)} ("
      f"{device.properties.get('model', 'GPU') if device.type == 'GPU' else 'a worker process'})"
      for device in cluster.devices)
  one_us = found[found["way"] == ONE_DEVICE].drop_duplicates("graph").set_index("graph")[
      "measured_us"]
  predicted_us, measured_us = (
      found[name].astype(float) for name in ("predicted_us", "measured_us"))

  def shown(values: pd.Series, template: str) -> pd.Series:
    """Formats numbers; unknown numbers are empty texts."""
    return values.map(template.format).where(values.notna(), "")

  table = pd.DataFrame({
      "graph": found["graph"], "way to run": found["way"],
      "predicted": shown(predicted_us / 1e3, "{:,.1f} ms"),
      # A vertical bar in an error message would end the cell.
      "measured": shown(measured_us / 1e3, "{:,.1f} ms") + found["failure"].str.replace(
          "|", "/", regex=False),
      "error of the prediction": shown(predicted_us / measured_us - 1, "{:+.0%}"),
      "times as fast as one device": shown(found["graph"].map(one_us) / measured_us, "{:.2f}")})
  return "\n".join([
      "# Predicted and measured steps on this machine", "",
      f"placeto_tf {placeto_tf.__version__}, TensorFlow {tf.__version__}, Python "
      f"{platform.python_version()}, {platform.system()} {platform.machine()}, "
      f"{os.cpu_count()} cores.", "", f"Devices: {devices}.", "", markdown(table), "",
      *textwrap.wrap(_MIRRORED_NOTE, 100), ""])
