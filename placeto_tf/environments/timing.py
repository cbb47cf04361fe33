"""Clocks: step times of placements that are no simulated ones, each placement timed once.

A clock is for `PlacementProblem.clock`. Features of option edges are of the simulation in any case,
and so is memory.

Dimensions: B placements side by side, N ops.
"""

from __future__ import annotations

import dataclasses
import weakref
from typing import Callable, Dict, Mapping, Optional, Sequence, Union

import numpy as np

from placeto_tf.errors import MeasurementError, PlacementError
from placeto_tf.placements import Placement
from placeto_tf.problem.placement_problem import PlacementProblem
from placeto_tf.problem.search_log import SearchLog
from placeto_tf.runtime.measuring import Measurer
from placeto_tf.runtime.workers import make_runtime

SIMULATED, SESSION, OWN = "simulated", "session", "own"
# "simulated", "session", or a function from a placement to its step time in us
Timing = Union[str, Callable[[Placement], float]]


class Clock:
  """Times placements of one problem, each once.

  Attributes:
    times_us: placement as bytes -> its step time in us; infinite where the run failed.
  """

  def __init__(self, problem: PlacementProblem, time: Callable[[Placement], float]):
    """Times nothing yet."""
    self._graph, self._cluster, self._time = problem.graph, problem.cluster, time
    self.times_us: Dict[bytes, float] = {}

  def __call__(self, placements: np.ndarray) -> np.ndarray:
    """Returns [B] float64 us of placements [B, N].

    Raises:
      PlacementError: a time is no number above 0.
    """
    for row in placements:
      if row.tobytes() not in self.times_us:
        time_us = float(self._time(Placement.from_indices(self._graph, self._cluster, row)))
        if not time_us > 0:
          raise PlacementError(f"a placement was timed as {time_us} us; expected more than 0")
        self.times_us[row.tobytes()] = time_us
    return np.array([self.times_us[row.tobytes()] for row in placements])


def timed(
    problem: PlacementProblem, timing: Timing, *, workers: Sequence[str] = (),
    device_map: Optional[Mapping[str, str]] = None, seed: int = 0) -> PlacementProblem:
  """Returns a problem whose step times are of a clock.

  Args:
    problem: without evaluations.
    timing: "simulated"; "session", which times real steps as `measure` does; or a function from a
      `Placement` to microseconds.
    workers: addresses of workers for sessions, as for `make_runtime`; the workers end with the
      problem.
    device_map: device of the cluster -> device of the workers, where the names differ.
    seed: of random feeds.

  Returns:
    The problem; its search log names the clock.

  Raises:
    PlacementError: the timing is of another kind.
    MeasurementError: the graph cannot be run, or the workers do not answer.
  """
  if timing == SIMULATED:
    return problem
  if callable(timing):
    return dataclasses.replace(
        problem, clock=Clock(problem, timing), search_log=SearchLog(clock=OWN))
  if timing != SESSION:
    raise PlacementError(
        f"timing is {timing!r}; expected {SIMULATED!r}, {SESSION!r}, or a function from a "
        "placement to microseconds")
  runtime = make_runtime(problem.cluster, workers)
  runtime.start()
  measurer = Measurer.at_one_speed(
      problem.graph, problem.cluster, runtime, seed=seed, device_map=device_map)

  def time(placement: Placement) -> float:
    """Returns the step time in us, infinite where the run failed; one of the first must not."""
    step = measurer.try_measure(placement)
    if step.failure and not any(map(np.isfinite, clock.times_us.values())):
      raise MeasurementError(f"the first placement could not be run: {step.failure}")
    return step.step_time_us

  clock = Clock(problem, time)
  weakref.finalize(clock, runtime.close)  # also at the end of the program
  return dataclasses.replace(problem, clock=clock, search_log=SearchLog(clock=SESSION))
