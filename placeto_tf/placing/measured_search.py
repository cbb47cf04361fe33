"""A search that minimizes measured step times: the simulator proposes placements, real runs decide.

`search_measured` improves on the placements of a simulated search. First it measures the placements
of all placers. Then it measures neighbours of the best measured placement, in the order of their
simulated step times.

Placements are compared by their step time at the cores' full speed. If this speed is unknown, they
are compared by the ratio of their step time to the step time of a reference that ran at the same
time, so that a machine that slows down does not make later placements look worse.

Dimensions: N ops, G groups, D devices, B placements side by side.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

import numpy as np

from placeto_tf.errors import MeasurementError
from placeto_tf.placements import Placement
from placeto_tf.placing.config import PlacingConfig
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.runtime.measuring import MeasuredStep, Measurer, MeasuringConfig
from placeto_tf.runtime.workers import InProcess, make_runtime, one_process_note

_NEIGHBOURS = 64  # neighbours simulated for each measured placement
_KEPT_BETTER = 0.5  # share of neighbourhoods around the best measured placement
_ROUNDS = 4  # rounds of simulated descent in a neighbourhood


@dataclasses.dataclass(eq=False)
class MeasuredSearch:
  """The state of a measured search.

  Attributes:
    steps: bytes of a placement -> ([N] int32 placement, its measurement), in the order of
      measuring, including failed runs.
    by_placer: placer -> measurement of its placement, if it was measured.
    history: (number of measurements, step time at the reference's usual speed) at improvements.
    stopped: the reason why measuring ended early, or ""; earlier measurements are kept.
    caution: a note on the devices of the measurements, or "".
  """

  steps: Dict[bytes, Tuple[np.ndarray, MeasuredStep]] = dataclasses.field(default_factory=dict)
  by_placer: Dict[str, MeasuredStep] = dataclasses.field(default_factory=dict)
  history: List[Tuple[int, float]] = dataclasses.field(default_factory=list)
  stopped: str = ""
  caution: str = ""

  @property
  def measurements(self) -> int:
    """Returns the number of placements that were measured."""
    return len(self.steps)

  @property
  def failures(self) -> int:
    """Returns the number of measured placements whose runs failed."""
    return self.measurements - len(self.ranked)

  @property
  def ranked(self) -> List[Tuple[np.ndarray, MeasuredStep]]:
    """Returns the placements whose runs succeeded, with their measurements, fastest first."""
    return sorted((each for each in self.steps.values() if not each[1].failure),
                  key=lambda each: self.score(each[1]))

  @property
  def placement(self) -> np.ndarray:
    """Returns the fastest placement, [N] int32."""
    return self.ranked[0][0]

  @property
  def step(self) -> MeasuredStep:
    """Returns the measurement of the fastest placement."""
    return self.ranked[0][1]

  def score(self, step: MeasuredStep) -> float:
    """Returns the score that placements are compared by: us at the reference's usual speed."""
    usual_us = [other.reference_us for _, other in self.steps.values() if other.reference_us]
    if step.failure:
      return float("inf")
    # The ratio to the reference's step, measured at the same time, cancels the machine's speed.
    return step.step_time_us if not usual_us or step.relative is None else (
        step.relative * float(np.median(usual_us)))


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
    problem: simulates placements and counts evaluations.
    measurer: runs placements.
    found: placer -> [N] int32. "single" and "expert", if present, are measured first, so that the
      result is never slower than either.
    max_measurements: the most placements to measure.
    seed: of the neighbourhoods.
    progress: called after every measurement.

  Returns:
    The search, with the fastest measured placement and the measurements of the placers' placements.

  Raises:
    MeasurementError: no placement could be run.
  """
  if max_measurements < 1:
    raise MeasurementError(f"max_measurements is {max_measurements}; expected at least 1")
  search, rng = MeasuredSearch(), np.random.default_rng(seed)

  def measure(placement: np.ndarray) -> Optional[MeasuredStep]:
    """Returns the measurement of a placement [N] int32, cached; None beyond the limit."""
    key = placement.tobytes()
    if key not in search.steps:
      if search.measurements == max_measurements:
        return None
      search.steps[key] = placement.copy(), measurer.try_measure(
          Placement.from_indices(problem.graph, problem.cluster, placement))
      progress(search.measurements)
      score = search.score(search.steps[key][1])
      if score < (search.history[-1][1] if search.history else np.inf):
        search.history.append((search.measurements, score))
    return search.steps[key][1]

  try:
    # The two baselines first, then by simulated step time.
    for name in sorted(found, key=lambda name: (
        name not in ("single", "expert"), problem.simulator.simulate(found[name]).step_time_us)):
      step = measure(np.ascontiguousarray(found[name], dtype=np.int32))
      if step is not None:
        search.by_placer[name] = step
    fruitless = 0
    # After 20 rounds without an unmeasured candidate, the neighbourhoods are exhausted.
    while search.measurements < max_measurements and fruitless < 20:
      candidate = _candidate(problem, search, rng)
      fruitless = fruitless + 1 if candidate is None else 0
      if candidate is not None:
        measure(candidate)
  except (MeasurementError, KeyboardInterrupt) as error:  # workers failed, or Ctrl-C
    if not search.ranked:
      raise
    search.stopped = str(error) or "interrupted"
  if not search.ranked:
    last = list(search.steps.values())[-1][1].failure if search.steps else "nothing was given"
    raise MeasurementError(f"no placement could be run; the last failed with: {last}")
  return search


def search_on_workers(
    problem: PlacementProblem, found: Mapping[str, np.ndarray], config: PlacingConfig,
    progress: Callable[[PlacementProblem, str], None]) -> MeasuredSearch:
  """Runs `search_measured` on the workers of a configuration, which it starts or connects to.

  Args:
    problem, found: as for `search_measured`.
    config: with workers, their devices and the most measurements.
    progress: called with the problem and "measuring" after every measurement.

  Returns:
    The result of `search_measured`, with a caution if devices share a process.

  Raises:
    MeasurementError: the workers do not answer, or no placement could be run.
  """
  runtime = make_runtime(problem.cluster, config.workers)
  problem.search_log.running = "measuring"
  progress(problem, "measuring")
  with runtime, Measurer(
      problem.graph, problem.cluster, runtime,
      MeasuringConfig(max_runs=30, max_seconds=20.0, seed=config.seed),
      device_map=dict(config.device_map) or None) as measurer:
    result = search_measured(
        problem, measurer, found, max_measurements=config.max_measurements, seed=config.seed,
        progress=lambda _: progress(problem, "measuring"))
  if isinstance(runtime, InProcess) and runtime.num_cpus > 1:
    result.caution = one_process_note(runtime.num_cpus)
  return result


def _candidate(
    problem: PlacementProblem, measured: MeasuredSearch, rng: np.random.Generator
) -> Optional[np.ndarray]:
  """Returns the unmeasured neighbour of a good measured placement with the best simulation, [N]."""
  good = [placement for placement, _ in measured.ranked]
  if not good:
    return None
  # Start from the best measured placement, or from one of the best four.
  start = good[0] if rng.random() < _KEPT_BETTER else good[
      int(rng.integers(0, min(len(good), 4)))]
  # Groups with a choice of devices.
  movable = np.flatnonzero(problem.allowed.sum(axis=1) > 1)
  if not len(movable):
    return None
  best: Optional[np.ndarray] = None
  best_us = np.inf
  for _ in range(_ROUNDS):
    # [B, N] neighbours, each with up to a sixteenth of the movable groups, or two, moved.
    batch = np.repeat(start[None], _NEIGHBOURS, axis=0)
    for row in batch:
      count = int(rng.integers(1, max(2, len(movable) // 16) + 1))
      for group in rng.choice(movable, min(count, len(movable)), replace=False):
        device = rng.choice(np.flatnonzero(problem.allowed[group]))
        row[problem.grouping.group_of_op == group] = device
    evaluation = problem.evaluate_ops(batch)
    # Descend to the best unmeasured neighbour that fits, if it is better.
    for b in np.argsort(evaluation.objective_us, kind="stable"):
      if evaluation.fits[b] and batch[b].tobytes() not in measured.steps:
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
      # With a reference, show ratios, because the machine's speed may have changed meanwhile.
      ratio = (other.relative / step.relative if other.relative and step.relative else
               other.step_time_us / step.step_time_us)
      text += f", {ratio:.2f}x as fast as {name}"
  text += f"; {found.failures} could not be run" if found.failures else ""
  text += f"; measuring ended early: {found.stopped}" if found.stopped else ""
  return text + (f"; {found.caution}" if found.caution else "")
