"""Chooses the fastest of the placements that a simulated search found, by steps of real sessions.

Dimensions: N ops.
"""

from __future__ import annotations

import dataclasses
from typing import Callable, Dict, Mapping, Tuple

import numpy as np

from placeto_tf.errors import MeasurementError
from placeto_tf.placements import Placement
from placeto_tf.placing.config import PlacingConfig
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.runtime.measuring import MeasuredStep, Measurer, MeasuringConfig
from placeto_tf.runtime.workers import InProcess, make_runtime, one_process_note


@dataclasses.dataclass(frozen=True, eq=False)
class MeasuredSearch:
  """The measured steps of the placements that a search found.

  Attributes:
    placement: [N] int32, the fastest placement.
    step: its measurement.
    by_placer: placer -> measurement of its placement.
    caution: a note on the devices of the measurements, or "".
  """

  placement: np.ndarray
  step: MeasuredStep
  by_placer: Dict[str, MeasuredStep]
  caution: str = ""

  def __str__(self) -> str:
    step, failed = self.step, sum(bool(each.failure) for each in self.by_placer.values())
    text = (f"the fastest placement in real sessions takes {step.step_time_us / 1e3:.1f} ms a step "
            f"({step.low_us / 1e3:.1f} to {step.high_us / 1e3:.1f} ms, {step.runs} runs)")
    for name in ("single", "expert"):
      other = self.by_placer.get(name)
      if other is not None and not other.failure:
        text += f", {_score(other) / _score(step):.2f}x as fast as {name}"
    text += f"; placements of {failed} placers could not be run" if failed else ""
    return text + (f"; {self.caution}" if self.caution else "")


def _score(step: MeasuredStep) -> float:
  """Returns the time that steps are compared by; infinite for a step that failed.

  The ratio to a reference that ran at the same time cancels changes of the machine's speed.
  """
  return step.step_time_us if step.relative is None or step.failure else step.relative


def search_measured(
    problem: PlacementProblem, measurer: Measurer, found: Mapping[str, np.ndarray],
    progress: Callable[[], None] = lambda: None) -> MeasuredSearch:
  """Measures the placements that placers found, each different one once.

  Args:
    problem: of the placements.
    measurer: runs placements.
    found: placer -> [N] int32.
    progress: called after every measurement.

  Returns:
    The measurements, and the fastest placement.

  Raises:
    MeasurementError: no placement could be run, or the workers are lost.
  """
  steps: Dict[bytes, Tuple[np.ndarray, MeasuredStep]] = {}
  by_placer: Dict[str, MeasuredStep] = {}
  for name, given in found.items():
    placement = np.ascontiguousarray(given, dtype=np.int32)
    key = placement.tobytes()
    if key not in steps:
      steps[key] = placement, measurer.try_measure(
          Placement.from_indices(problem.graph, problem.cluster, placement))
      progress()
    by_placer[name] = steps[key][1]
  placement, step = min(steps.values(), key=lambda each: _score(each[1]))
  if step.failure:
    raise MeasurementError(f"no placement could be run; one failed with: {step.failure}")
  return MeasuredSearch(placement, step, by_placer)


def search_on_workers(
    problem: PlacementProblem, found: Mapping[str, np.ndarray], config: PlacingConfig,
    progress: Callable[[PlacementProblem, str], None]) -> MeasuredSearch:
  """Runs `search_measured` on the workers of a configuration, which it starts or connects to.

  Args:
    problem, found: as for `search_measured`.
    config: with workers and their devices.
    progress: called with the problem and "measuring" after every measurement.

  Returns:
    The result of `search_measured`, with a caution if devices share a process.

  Raises:
    MeasurementError: the workers do not answer, or no placement could be run.
  """
  runtime = make_runtime(problem.cluster, config.workers)
  progress(problem, "measuring")
  with runtime, Measurer(
      problem.graph, problem.cluster, runtime,
      MeasuringConfig(max_runs=30, max_seconds=20.0, seed=config.seed),
      device_map=dict(config.device_map) or None) as measurer:
    result = search_measured(
        problem, measurer, found, progress=lambda: progress(problem, "measuring"))
  if isinstance(runtime, InProcess) and runtime.num_cpus > 1:
    return dataclasses.replace(result, caution=one_process_note(runtime.num_cpus))
  return result
