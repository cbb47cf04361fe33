"""Measures the error of predicted step times, for placements that calibration has not seen.

The graphs and the placements of each are fixed by a JSON file before anything is measured:

  {"graphs": ["zoo:...", ...], "placements": 40, "near_best": 12, "seed": 0, "workers": 2}

Each graph has a directory, so that a stopped study continues where it was:

  calibration/cluster.json, costs.pb   from calibration runs alone (see `calibrating`), which
  calibration/placement_NN.json        also run other placements
  placements/NN_KIND.json              random by op and by block, expert, single, near the best
  predicted.json                       the prediction for each
  measured.json                        a row for each placement that is measured so far
  repeats.json                         some placements measured again: the noise of measurements

`prediction_study_results.py` computes the results from these files alone.
"""

from __future__ import annotations

import dataclasses
import glob
import os
import re
from typing import Any, Callable, Dict, List, Sequence, Tuple

import numpy as np

from placeto_tf.clusters import Cluster, Device
from placeto_tf.costs import estimate_costs
from placeto_tf.errors import MeasurementError
from placeto_tf.files import outputs, user_files
from placeto_tf.graphs import ComputationGraph, load_graph
from placeto_tf.grouping import group_ops
from placeto_tf.placements import Placement
from placeto_tf.problem.budget import Budget
from placeto_tf.problem.host_options import offered_devices
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.runtime import calibrating, fitting
from placeto_tf.runtime.measuring import Measurer, MeasuringConfig
from placeto_tf.runtime.workers import LocalWorkers
from placeto_tf.search import PLACERS
from placeto_tf.simulation import Simulator

_BLOCKS = (4, 8, 16, 32)


@dataclasses.dataclass(frozen=True)
class StudyConfig:
  """The graphs and options of a study.

  Attributes:
    graphs: as `load_graph` takes them.
    placements: of each graph, all kinds together, besides the one on a single device, which
      calibration has seen.
    near_best: of them, near the best that search finds.
    seed: of the placements.
    workers: processes, one core each.
    max_runs, max_seconds: of each measurement.
    repeats: placements of each graph that are measured twice.
    search_seconds: of the search for placements near the best.
  """

  graphs: Tuple[str, ...]
  placements: int = 40
  near_best: int = 12
  seed: int = 0
  workers: int = 2
  max_runs: int = 30
  max_seconds: float = 30.0
  repeats: int = 10
  search_seconds: float = 30.0

  @classmethod
  def load(cls, path: str) -> StudyConfig:
    """Reads the JSON file. Raises: MeasurementError if the file is wrong."""
    remedy = ("expected a JSON object with \"graphs\" and numbers for "
              f"{', '.join(field.name for field in dataclasses.fields(cls)[1:])}")
    content = user_files.read_json_object(
        path, what="the study", remedy=remedy, error_type=MeasurementError)
    try:
      return cls(**{**content, "graphs": tuple(content["graphs"])})
    except (KeyError, TypeError) as error:
      raise MeasurementError(f"the study {path!r} has a wrong field ({error}); {remedy}") from None


def worker_cluster(num_workers: int) -> Cluster:
  """The cluster of local workers before it is calibrated; its speeds are guesses."""
  properties = {"type": "CPU", "frequency": 2500, "numCores": 32, "bandwidth": 16_000_000}
  devices = tuple(
      Device(f"/job:worker/task:{i}/device:CPU:0", "CPU", 8 * 2**30, properties=properties)
      for i in range(num_workers))
  shape = (num_workers, num_workers)
  return Cluster(devices, np.full(shape, 1000.0), np.full(shape, 100.0), 3.0)


def run_study(
    config: StudyConfig, out: str, *, progress: Callable[[str], None] = lambda text: None
) -> None:
  """Measures the placements that are not measured yet.

  Raises:
    PlacetoError: a graph cannot be read or measured, or another study goes on in the directory.
  """
  with outputs.alone(out):
    _run_study(config, out, progress)


def _run_study(config: StudyConfig, out: str, progress: Callable[[str], None]) -> None:
  for spec in config.graphs:
    directory = graph_directory(out, spec)
    if _complete(config, directory):
      continue
    os.makedirs(os.path.join(directory, "placements"), exist_ok=True)
    progress(f"{spec}: loading")
    graph = load_graph(spec)
    with LocalWorkers(config.workers) as workers:
      cluster, costs = _calibrated(config, graph, workers, directory, progress)
      paths = _placements(config, graph, cluster, costs, directory, progress)
      simulator = Simulator(graph, estimate_costs(graph, cluster, source=costs), cluster)
      _predict(graph, cluster, simulator, directory, paths)
      _measure(config, graph, cluster, workers, directory, paths, progress)


def _complete(config: StudyConfig, directory: str) -> bool:
  """Whether all of a graph was measured."""
  counts = [len(_rows(os.path.join(directory, name)))
            for name in ("measured.json", "repeats.json")]
  return counts[0] >= 1 + config.placements and counts[1] >= config.repeats


def _calibrated(
    config: StudyConfig, graph: ComputationGraph, workers: Any, directory: str,
    progress: Callable[[str], None]) -> Tuple[Cluster, str]:
  """The calibrated cluster and the path of the costs."""
  folder = os.path.join(directory, "calibration")
  path, costs = os.path.join(folder, "cluster.json"), os.path.join(folder, "costs.pb")
  if not (os.path.exists(path) and os.path.exists(costs)):
    os.makedirs(folder, exist_ok=True)
    found = calibrating.calibrate(
        worker_cluster(config.workers), workers, graph,
        progress=lambda stage: progress(f"calibrating: {stage}"))
    assert found.compute_us is not None  # a graph was given
    calibrating.write_costs(graph, found.cluster, found.compute_us, costs)
    for number, (indices, step_time_us) in enumerate(found.placements):
      Placement.from_indices(
          graph, found.cluster, indices, method="calibration", step_time_us=step_time_us,
      ).save(os.path.join(folder, f"placement_{number:02d}.json"))
    found.cluster.save(path)
  return Cluster.load(path), costs


def _placements(
    config: StudyConfig, graph: ComputationGraph, cluster: Cluster, costs: str, directory: str,
    progress: Callable[[str], None]) -> List[str]:
  """Paths of the placements, written before the first is measured."""
  folder = os.path.join(directory, "placements")
  done = os.path.join(folder, "complete")
  if not os.path.exists(done):
    progress("choosing placements")
    seen = [Placement.load(path).indices(graph, cluster) for path in glob.glob(
        os.path.join(directory, "calibration", "placement_*.json"))]
    chosen = choose_placements(
        config, graph, cluster, estimate_costs(graph, cluster, source=costs), seen)
    for number, (kind, indices) in enumerate(chosen):
      Placement.from_indices(graph, cluster, indices, method=kind).save(
          os.path.join(folder, f"{number:02d}_{kind}.json"))
    outputs.write(done, b"", error_type=MeasurementError)
  return sorted(os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".json"))


def choose_placements(
    config: StudyConfig, graph: ComputationGraph, cluster: Cluster, costs: Any,
    seen: Sequence[np.ndarray] = (),
) -> List[Tuple[str, np.ndarray]]:
  """(kind, [N] int32) of each placement of the study; none but the simple ones was seen before."""
  grouping = group_ops(graph, costs, offered_devices(graph, cluster, costs), max_groups=128)
  problem = PlacementProblem(graph, costs, cluster, grouping)
  rng = np.random.default_rng(config.seed)
  budget = Budget(max_seconds=config.search_seconds)
  chosen = [(name, PLACERS[name](problem, budget, config.seed))
            for name in ("single", "expert", "metis")]
  best = PLACERS["annealing"](problem, budget, config.seed)
  chosen.append(("best", best))
  movable = np.flatnonzero(problem.allowed.sum(axis=1) > 1)
  for k in range(max(0, config.near_best - 1)):  # the best with more and more groups moved
    near = best.copy()
    for group in rng.choice(movable, min(1 + k // 2, len(movable)), replace=False):
      near[grouping.group_of_op == group] = rng.choice(np.flatnonzero(problem.allowed[group]))
    if not any((near == other).all() for other in seen):
      chosen.append(("near", near))
  while len(chosen) < 1 + config.placements:
    k = len(chosen)
    sampled = rng.integers(0, cluster.num_devices, graph.num_ops).astype(np.int32)
    kind = ("op", "group", "block")[k % 3]
    if kind == "group":
      sampled = sampled[grouping.group_of_op]
    elif kind == "block":  # stretches of the topological order
      sampled = sampled[fitting.stretch_of_op(graph, _BLOCKS[k % len(_BLOCKS)])]
    else:
      # All ops at random would cross at every edge; most stay with the first device.
      sampled[rng.random(graph.num_ops) < rng.uniform(0.5, 0.98)] = 0
    sampled = sampled[graph.colocation]
    if not any((sampled == other).all() for other in seen):
      chosen.append((f"random_{kind}", sampled))
  return chosen[:1 + config.placements]


def _predict(
    graph: ComputationGraph, cluster: Cluster, simulator: Simulator, directory: str,
    paths: Sequence[str]) -> None:
  """Writes the prediction for each placement."""
  outputs.write_json(os.path.join(directory, "predicted.json"), {
      os.path.basename(path): float(simulator.simulate(
          Placement.load(path).indices(graph, cluster)).step_time_us) for path in paths})


def _measure(
    config: StudyConfig, graph: ComputationGraph, cluster: Cluster, workers: Any,
    directory: str, paths: Sequence[str], progress: Callable[[str], None]) -> None:
  """Measures what was not measured yet, in an order not the placements' own."""
  order = np.random.default_rng(config.seed + 1).permutation(len(paths))
  todo = [("measured.json", paths[i]) for i in order]
  todo += [("repeats.json", paths[i]) for i in order[:config.repeats]]
  predicted = predicted_us(directory)
  known = {(name, row["placement"]) for name in ("measured.json", "repeats.json")
           for row in _rows(os.path.join(directory, name))}
  measuring = MeasuringConfig(
      max_runs=config.max_runs, max_seconds=config.max_seconds, seed=config.seed)
  measurer = Measurer(graph, cluster, workers, measuring)
  for number, (name, path) in enumerate(todo):
    label = os.path.basename(path)
    if (name, label) in known:
      continue
    step = measurer.try_measure(Placement.load(path))
    row = {"placement": label, "measured_us": None if step.failure else step.step_time_us,
           "low_us": step.low_us, "high_us": step.high_us, "runs": step.runs,
           "failure": step.failure}
    path = os.path.join(directory, name)
    outputs.write_json(path, [*_rows(path), {
        key: None if value == float("inf") else value for key, value in row.items()}],
                       error_type=MeasurementError)
    progress(f"[{number + 1}/{len(todo)}] {label}: predicted {predicted[label] / 1e3:.1f} ms, "
             f"measured {step.step_time_us / 1e3:.1f} ms")


def predicted_us(directory: str) -> Dict[str, float]:
  """Placement -> what is expected of it, as an earlier stage of the study wrote it."""
  path = os.path.join(directory, "predicted.json")
  return user_files.read_json_object(
      path, what="the study's file", remedy="delete it and start the study again, which makes it "
      "again", error_type=MeasurementError)


def _rows(path: str) -> List[Dict[str, Any]]:
  """Returns the measurements in a file, of which there may be none yet."""
  if not os.path.exists(path):
    return []
  return user_files.read_json(
      path, what="the measurements", remedy="delete the file to measure again",
      error_type=MeasurementError)


def measured_rows(path: str) -> Dict[str, Dict[str, Any]]:
  """Returns placement -> its measurement; if there are several, the last one."""
  return {row["placement"]: row for row in _rows(path) if row["measured_us"]}


def graph_directory(out: str, spec: str) -> str:
  """The directory of one graph of the study."""
  return os.path.join(out, re.sub(r"[^\w=.-]+", "_", spec))
