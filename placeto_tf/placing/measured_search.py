"""A search by steps of real sessions: the simulator proposes placements, measured steps decide.

First the placements of all placers are measured, then neighbours of the fastest ones, in the order
of their simulated step times.

Dimensions: N ops, G groups, D devices, B placements side by side.
"""

from __future__ import annotations

import dataclasses
from typing import AbstractSet, Callable, Dict, List, Mapping, Optional, Tuple

import numpy as np

from placeto_tf.errors import MeasurementError, counted
from placeto_tf.placements import Placement
from placeto_tf.placing.config import PlacingConfig
from placeto_tf.placing.explaining import ms_text
from placeto_tf.placing.observing import Observer
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.runtime.measuring import MeasuredStep, Measurer
from placeto_tf.runtime.workers import Runtime

_NEIGHBOURS = 64  # neighbours simulated in each round of a descent
_ROUNDS = 4  # rounds of a simulated descent
_FRUITLESS = 20  # so many descents without a new placement end the search


@dataclasses.dataclass(frozen=True, eq=False)
class MeasuredSearch:
  """The measured steps of the placements that a search found.

  Attributes:
    placement: [N] int32, the fastest placement.
    step: its measurement.
    by_placer: placer -> measurement of its placement, if it was measured.
    measurements: number of measured placements, with those whose runs failed.
    failures: number of placements whose runs failed.
    stopped: the reason why measuring ended early, or ""; earlier measurements count.
  """

  placement: np.ndarray
  step: MeasuredStep
  by_placer: Dict[str, MeasuredStep]
  measurements: int
  failures: int = 0
  stopped: str = ""

  def __str__(self) -> str:
    step = self.step
    text = (f"measured {counted(self.measurements, 'placement')} in real sessions: the fastest "
            f"takes {ms_text(step.step_time_us)} a step ({ms_text(step.low_us)} to "
            f"{ms_text(step.high_us)}, {step.runs} runs)")
    for name in ("single", "expert"):
      other = self.by_placer.get(name)
      if other is not None and not other.failure:
        text += f", {other.step_time_us / step.step_time_us:.2f}x as fast as {name}"
    text += f"; {self.failures} could not be run" if self.failures else ""
    return text + (f"; measuring ended early: {self.stopped}" if self.stopped else "")


def search_measured(
    problem: PlacementProblem, measurer: Measurer, found: Mapping[str, np.ndarray], *,
    max_measurements: int = 50, seed: int = 0, progress: Callable[[int], None] = lambda _: None,
) -> MeasuredSearch:
  """Measures the placements that placers found, then searches around the fastest ones.

  Args:
    problem: simulates placements.
    measurer: runs placements.
    found: placer -> [N] int32. "single" and "expert" are measured first, so that the result is
      never slower than either.
    max_measurements: the most placements to measure.
    seed: of the neighbours.
    progress: called with the number of measurements, after every one.

  Raises:
    MeasurementError: no placement could be run, or the workers are lost before any was.
  """
  steps: Dict[bytes, Tuple[np.ndarray, MeasuredStep]] = {}

  def measure(given: np.ndarray) -> Optional[MeasuredStep]:
    """Measures a placement [N], once; returns None beyond the limit."""
    placement = np.array(given, np.int32)
    key = placement.tobytes()
    if key not in steps:
      if len(steps) == max_measurements:
        return None
      steps[key] = placement, measurer.try_measure(
          Placement.from_indices(problem.graph, problem.cluster, placement))
      progress(len(steps))
    return steps[key][1]

  def ranked() -> List[Tuple[np.ndarray, MeasuredStep]]:
    """Returns the measured placements that run, fastest first."""
    return sorted((each for each in steps.values() if not each[1].failure),
                  key=lambda each: each[1].step_time_us)

  rng, by_placer, stopped, fruitless = np.random.default_rng(seed), {}, "", 0
  try:
    # The two baselines, then by simulated step time.
    for name in sorted(found, key=lambda name: (
        name not in ("single", "expert"), problem.simulator.simulate(found[name]).step_time_us)):
      if (step := measure(found[name])) is not None:
        by_placer[name] = step
    while ranked() and len(steps) < max_measurements and fruitless < _FRUITLESS:
      # From the fastest placement, or from one of the four fastest.
      good = [placement for placement, _ in ranked()[:1 if rng.random() < 0.5 else 4]]
      candidate = _descend(problem, good[rng.integers(len(good))], steps.keys(), rng)
      fruitless = 0 if candidate is not None and measure(candidate) else fruitless + 1
  except (MeasurementError, KeyboardInterrupt) as error:  # workers failed, or Ctrl-C
    if not ranked():
      raise
    stopped = str(error) or "interrupted"
  if not ranked():
    said = f"; one failed with: {next(iter(steps.values()))[1].failure}" if steps else ""
    raise MeasurementError(f"no placement could be run{said}")
  return MeasuredSearch(
      *ranked()[0], by_placer, len(steps), len(steps) - len(ranked()), stopped)


def _descend(
    problem: PlacementProblem, start: np.ndarray, known: AbstractSet[bytes],
    rng: np.random.Generator) -> Optional[np.ndarray]:
  """Returns a new placement near a measured one: the end of a short simulated descent.

  Args:
    problem: simulates placements.
    start: [N] int32.
    known: the placements that are measured.
    rng: samples the neighbours.

  Returns:
    [N] int32, or None if no neighbour is new and fits.
  """
  movable = np.flatnonzero(problem.allowed.sum(axis=1) > 1)  # groups with a choice of devices
  best, best_us = None, np.inf
  for _ in range(_ROUNDS if len(movable) else 0):
    # [B, N] neighbours: up to a sixteenth of the movable groups, or two, have other devices.
    batch = np.repeat(start[None], _NEIGHBOURS, axis=0)
    for row in batch:
      count = int(rng.integers(1, max(2, len(movable) // 16) + 1))
      for group in rng.choice(movable, min(count, len(movable)), replace=False):
        row[problem.grouping.group_of_op == group] = rng.choice(
            np.flatnonzero(problem.allowed[group]))
    found = problem.evaluate_ops(batch)
    # On from the best new neighbour that fits, if it is better.
    new = [b for b in range(_NEIGHBOURS) if found.fits[b] and batch[b].tobytes() not in known]
    if new:
      b = min(new, key=lambda b: found.objective_us[b])
      if found.objective_us[b] < best_us:
        best, best_us, start = batch[b].copy(), float(found.objective_us[b]), batch[b]
  return best


def search_on_workers(
    problem: PlacementProblem, found: Mapping[str, np.ndarray], runtime: Runtime,
    config: PlacingConfig, observer: Observer) -> MeasuredSearch:
  """Runs `search_measured` on workers, which it starts or connects to, and ends.

  Args:
    problem, found: as for `search_measured`.
    runtime: the workers, not yet started.
    config: with their devices and the most measurements.
    observer: receives the progress.

  Raises:
    MeasurementError: the workers do not answer, or no placement could be run.
  """

  def tell(count: int) -> None:
    for listener in observer.listeners:
      listener(problem, f"measuring, {count} of {config.max_measurements}")
    if count % 5 == 0:
      observer.add(f"{count} of {config.max_measurements}")

  with observer.stage("Measuring placements"), runtime:
    measurer = Measurer.at_one_speed(
        problem.graph, problem.cluster, runtime, seed=config.seed,
        device_map=dict(config.device_map) or None)
    return search_measured(
        problem.renewed(),  # its evaluations are no part of the search
        measurer, found, max_measurements=config.max_measurements, seed=config.seed, progress=tell)
