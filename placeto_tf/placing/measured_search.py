"""A search that minimises real step times: the simulator ranks placements, real runs decide.

`search_measured` improves on what a simulated search found. It measures the placements of all
placers first, then those that the simulator expects to be best around the best one measured.

Placements are compared by steps at the cores' full speed, or, where that is not known, by their
step over the steps of a reference that ran beside it, so that a machine that slows down does not
make a later placement look worse.

Dimensions: N ops, G groups, D devices, B placements side by side.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from placeto_tf.errors import MeasurementError
from placeto_tf.placements import Placement
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.runtime.core_speed import CoreSpeed
from placeto_tf.runtime.measuring import MeasuredStep, Measurer, MeasuringConfig
from placeto_tf.runtime.workers import InProcess, make_runtime, one_process_note

_NEIGHBOURS = 64  # simulated for each placement that is measured
_KEPT_BETTER = 0.5  # of the neighbourhoods are around the best measured, the rest around others
_ROUNDS = 4  # of simulated descent in a neighbourhood


class MeasuredPlacements:
  """Measures placements of a problem's ops, each once, until a limit is reached.

  Attributes:
    steps: the measurements in order: ([N] int32 placement, MeasuredStep).
  """

  def __init__(self, problem: PlacementProblem, measurer: Measurer, max_measurements: int):
    if max_measurements < 1:
      raise MeasurementError(f"max_measurements is {max_measurements}; expected at least 1")
    self.problem, self.max_measurements = problem, max_measurements
    self._measurer = measurer
    self._cache: Dict[bytes, MeasuredStep] = {}
    self.steps: List[Tuple[np.ndarray, MeasuredStep]] = []

  @property
  def exhausted(self) -> bool:
    """Returns whether the limit is reached."""
    return len(self.steps) >= self.max_measurements

  def known(self, placement: np.ndarray) -> Optional[MeasuredStep]:
    """Returns the measurement of a placement [N], or None."""
    return self._cache.get(placement.tobytes())

  def measure(self, placement: np.ndarray) -> Optional[MeasuredStep]:
    """Measures a placement [N] int32 unless that was done before; returns None past the limit.

    A run that fails counts as well, and is returned as a failed step.
    """
    found = self.known(placement)
    if found is None and not self.exhausted:
      graph, cluster = self.problem.graph, self.problem.cluster
      found = self._measurer.try_measure(Placement.from_indices(graph, cluster, placement))
      self._cache[placement.tobytes()] = found
      self.steps.append((placement.copy(), found))
    return found

  def score(self, step: MeasuredStep) -> float:
    """Returns the figure that placements are compared by: us at the reference's usual speed."""
    if step.failure:
      return float("inf")
    usual = self.reference_us
    if usual is None or step.relative is None:
      return step.step_time_us
    # Scaled by the reference's step beside it: the machine's present speed cancels.
    return step.relative * usual

  @property
  def reference_us(self) -> Optional[float]:
    """Returns the reference's usual step time in us; None without a reference."""
    found = [step.reference_us for _, step in self.steps if step.reference_us]
    return float(np.median(found)) if found else None

  def best(self) -> Tuple[np.ndarray, MeasuredStep]:
    """Returns the fastest placement.

    Raises:
      MeasurementError: no placement could be run.
    """
    if not self.steps:
      raise MeasurementError("no placement was measured; allow at least one measurement")
    placement, step = min(self.steps, key=lambda entry: self.score(entry[1]))
    if step.failure:
      raise MeasurementError(f"no placement could be run; the last failed with: {step.failure}")
    return placement, step


@dataclasses.dataclass(frozen=True, eq=False)
class MeasuredSearch:
  """The result of a measured search.

  Attributes:
    placement: [N] int32 the fastest.
    step: its measurement.
    by_placer: placer -> measurement of its placement, where that was measured.
    measurements: how many placements were measured.
    failures: how many of them failed.
    history: (measurements, step time at the reference's usual speed) at each improvement.
    stopped: the reason why measuring ended early, or ""; placements measured by then count.
    caution: a note on the devices of the measurements, or "".
  """

  placement: np.ndarray
  step: MeasuredStep
  by_placer: Mapping[str, MeasuredStep]
  measurements: int
  failures: int
  history: Tuple[Tuple[int, float], ...]
  stopped: str = ""
  caution: str = ""


def search_measured(
    problem: PlacementProblem,
    measurer: Measurer,
    found: Mapping[str, np.ndarray],
    *,
    max_measurements: int = 50,
    seed: int = 0,
    progress: Callable[[int], None] = lambda measurements: None,
) -> MeasuredSearch:
  """Measures the placements that placers found, then searches around the fastest.

  Args:
    problem: simulates placements and counts its evaluations.
    measurer: runs placements.
    found: placer -> [N] int32. "single" and "expert", if present, are measured first, so that the
      result is never slower than either.
    max_measurements: placements measured at most.
    seed: of the neighbourhoods.
    progress: called after every measurement.

  Returns:
    The fastest placement measured, and the measurements of each placer's.

  Raises:
    MeasurementError: no placement could be run.
  """
  measured = MeasuredPlacements(problem, measurer, max_measurements)
  # The two baselines first, then by simulated step time.
  order = sorted(found, key=lambda name: (
      name not in ("single", "expert"), _simulated_us(problem, found[name])))
  by_placer: Dict[str, MeasuredStep] = {}
  history: List[Tuple[int, float]] = []
  best = float("inf")

  def take(placement: np.ndarray) -> Optional[MeasuredStep]:
    nonlocal best
    before = len(measured.steps)
    step = measured.measure(placement)
    if step is not None and len(measured.steps) > before:
      progress(len(measured.steps))
      if measured.score(step) < best:
        best = measured.score(step)
        history.append((len(measured.steps), best))
    return step

  stopped = ""
  try:
    for name in order:
      step = take(np.ascontiguousarray(found[name], dtype=np.int32))
      if step is not None:
        by_placer[name] = step
    rng = np.random.default_rng(seed)
    fruitless = 0
    # 20 rounds without an unmeasured candidate: the neighbourhoods are used up.
    while not measured.exhausted and fruitless < 20:
      candidate = _candidate(problem, measured, rng)
      if candidate is None:
        fruitless += 1
        continue
      fruitless = 0
      take(candidate)
  except (MeasurementError, KeyboardInterrupt) as error:  # the workers did not come back, or Ctrl-C
    if not any(step.failure is None for _, step in measured.steps):
      raise
    stopped = str(error) or "interrupted"
  placement, step = measured.best()
  failures = sum(step.failure is not None for _, step in measured.steps)
  return MeasuredSearch(
      placement, step, by_placer, len(measured.steps), failures, tuple(history), stopped)


def search_on_workers(
    problem: PlacementProblem,
    found: Mapping[str, np.ndarray],
    *,
    workers: Sequence[str] = (),
    device_map: Optional[Mapping[str, str]] = None,
    max_measurements: int = 50,
    seed: int = 0,
    progress: Callable[[int], None] = lambda measurements: None,
) -> MeasuredSearch:
  """Runs `search_measured` on workers that it starts or connects to.

  Args:
    problem, found, max_measurements, seed, progress: as for `search_measured`.
    workers: where they are, as for `placeto_tf.runtime.workers.make_runtime`.
    device_map: device of the cluster -> device of the workers, where names differ.

  Returns:
    The result of `search_measured`, with a caution where devices share a process.

  Raises:
    MeasurementError: the workers do not answer, or no placement could be run.
  """
  runtime = make_runtime(problem.cluster, workers)
  with runtime, CoreSpeed.of(runtime, problem.cluster.core_probe_us) as speed:
    with Measurer(
        problem.graph, problem.cluster, runtime,
        MeasuringConfig(max_runs=30, max_seconds=20.0, seed=seed), device_map=device_map,
        speed=speed) as measurer:
      result = search_measured(
          problem, measurer, found, max_measurements=max_measurements, seed=seed,
          progress=progress)
  if isinstance(runtime, InProcess) and runtime.num_cpus > 1:
    return dataclasses.replace(result, caution=one_process_note(runtime.num_cpus))
  return result


def _simulated_us(problem: PlacementProblem, placement: np.ndarray) -> float:
  """Returns the simulated step time of a placement [N]."""
  return float(problem.simulator.simulate(placement).step_time_us)


def _candidate(
    problem: PlacementProblem, measured: MeasuredPlacements, rng: np.random.Generator
) -> Optional[np.ndarray]:
  """Returns the best unmeasured placement, by simulation, near a good measured one, [N]."""
  ranked = sorted(measured.steps, key=lambda entry: measured.score(entry[1]))
  good = [placement for placement, step in ranked if step.failure is None]
  if not good:
    return None
  # Around the best measured, or around one of the best four.
  start = good[0] if rng.random() < _KEPT_BETTER else good[
      int(rng.integers(0, min(len(good), 4)))]
  # Groups with a choice of devices.
  movable = np.flatnonzero(problem.allowed.sum(axis=1) > 1)
  if not len(movable):
    return None
  best: Optional[np.ndarray] = None
  best_us = np.inf
  for _ in range(_ROUNDS):
    # [B, N] neighbours: in each up to a sixteenth of the movable groups, or two, are elsewhere.
    batch = np.repeat(start[None], _NEIGHBOURS, axis=0)
    for row in batch:
      count = int(rng.integers(1, max(2, len(movable) // 16) + 1))
      for group in rng.choice(movable, min(count, len(movable)), replace=False):
        device = rng.choice(np.flatnonzero(problem.allowed[group]))
        row[problem.grouping.group_of_op == group] = device
    evaluation = problem.evaluate_ops(batch)
    # The best neighbour that fits and was not measured; descent goes on from it if it is better.
    for b in np.argsort(evaluation.objective_us, kind="stable"):
      if evaluation.fits[b] and measured.known(batch[b]) is None:
        if evaluation.objective_us[b] < best_us:
          best, best_us = batch[b].copy(), float(evaluation.objective_us[b])
          start = batch[b]
        break
  return best


def describe(found: MeasuredSearch) -> str:
  """Returns the result as a sentence for the user."""
  step = found.step
  text = (f"measured {found.measurements} placements in real sessions: the fastest takes "
          f"{step.step_time_us / 1e3:.1f} ms a step ({step.low_us / 1e3:.1f} to "
          f"{step.high_us / 1e3:.1f} ms, {step.runs} runs)")
  for name in ("single", "expert"):
    other: Any = found.by_placer.get(name)
    if other is not None and not other.failure:
      # Where steps have a reference beside them, the machine may have changed its speed in between.
      ratio = (other.relative / step.relative if other.relative and step.relative else
               other.step_time_us / step.step_time_us)
      text += f", {ratio:.2f}x as fast as {name}"
  text += f"; {found.failures} could not be run" if found.failures else ""
  text += f"; measuring ended early: {found.stopped}" if found.stopped else ""
  return text + (f"; {found.caution}" if found.caution else "")
