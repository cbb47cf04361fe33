"""Runs of methods, one after the other here or each as a task on Ray.

Legend: N ops.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import Any, Deque, Iterator, List, Optional, Protocol, Tuple

import numpy as np

from placeto_tf.distributed import tasks
from placeto_tf.evaluation.evaluation_config import EvaluationConfig
from placeto_tf.placing import learned_groups, registry, running
from placeto_tf.problem.placement_problem import PlacementProblem

Key = Tuple[str, str, str, int]  # graph, cluster, method, seed


@dataclasses.dataclass(frozen=True, eq=False)
class Found:
  """What one run found.

  Attributes:
    placement: [N] int32.
    start_us: step time of where it started, where that was there before it began.
    evaluations, seconds: it used.
    history: of the problem.
  """

  placement: np.ndarray
  start_us: Optional[float]
  evaluations: int
  seconds: float
  history: List[Tuple[int, float, float]]


def run(
    problem: PlacementProblem, key: Key, config: EvaluationConfig, start: Optional[np.ndarray]
) -> Found:
  """One run; it writes nothing, for it may be made on another machine, and more than once."""
  _, _, name, seed = key
  method, budget = registry.find(name), config.budget
  running.prepare(problem, method, budget, seed, start=start)
  start_us = None
  if problem.best_placement is not None:
    start_us = float(problem.simulator.simulate(problem.best_placement).step_time_us)
  if config.grouping == learned_groups.LEARNED and method.kind.takes_start:
    problem = learned_groups.with_learned_groups(problem, budget, seed)
  running.run(problem, method, budget, seed, weights=config.weights_of(method))
  return Found(
      problem.best_known, start_us, problem.evaluations, problem.seconds, problem.history)


class Runs(Protocol):
  """What makes runs."""

  def __enter__(self) -> Runs:
    """Begins."""

  def __exit__(self, *exception: object) -> None:
    """Ends what still runs."""

  def add(self, problem: PlacementProblem, keys: List[Key], start: Optional[np.ndarray]) -> None:
    """Has runs made; `start` is [N] where they all start, if they do."""

  def done(self, *, wait: bool) -> Iterator[Tuple[Key, Found]]:
    """Those that were not given out yet: all of them, or those that are done by now."""


class RunHere:
  """Makes runs here, when they are asked for."""

  def __init__(self, config: EvaluationConfig):
    self._config = config
    self._added: Deque[Tuple[PlacementProblem, Key, Optional[np.ndarray]]] = collections.deque()

  def __enter__(self) -> RunHere:
    return self

  def __exit__(self, *exception: object) -> None:
    """Nothing runs once nobody asks."""

  def add(self, problem: PlacementProblem, keys: List[Key], start: Optional[np.ndarray]) -> None:
    """See `Runs`."""
    self._added.extend((problem, key, start) for key in keys)

  def done(self, *, wait: bool) -> Iterator[Tuple[Key, Found]]:
    """See `Runs`; each is made when it is asked for, whether or not to wait."""
    del wait
    while self._added:
      problem, key, start = self._added.popleft()
      yield key, run(problem.renewed(), key, self._config, start)


class RunOnRay:
  """Makes each run as a task; costs and groups go through the object store once a problem."""

  def __init__(self, ray: Any, config: EvaluationConfig):
    self._ray, self._config = ray, config
    self._tasks: tasks.Tasks[Key] = tasks.Tasks(ray, _run_task, cpus=config.islands)

  def __enter__(self) -> RunOnRay:
    return self

  def __exit__(self, *exception: object) -> None:
    self._tasks.__exit__(*exception)

  def add(self, problem: PlacementProblem, keys: List[Key], start: Optional[np.ndarray]) -> None:
    """See `Runs`."""
    shared = tasks.share(self._ray, (problem.portable(with_shapes=True), start))
    for key in keys:
      self._tasks.submit(key, " ".join(map(str, key)), shared, key, self._config)

  def done(self, *, wait: bool) -> Iterator[Tuple[Key, Found]]:
    """See `Runs`."""
    return self._tasks.done(wait=wait)


def _run_task(shared: bytes, key: Key, config: EvaluationConfig) -> Found:
  problem, start = tasks.unshare(shared)
  problem.simulator.num_threads = config.islands  # the other cores are other tasks'
  return run(problem.renewed(), key, config, start)
