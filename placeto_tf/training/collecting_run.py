"""`CollectingRun`: a training run whose experience is collected episode by episode.

The learner is this process. It draws what is to be played, hands weights out after each update, and
learns from what comes back, in the order in which it was drawn. So the result depends neither on
who collects nor on how many do. With a lag, the experience of the next updates is collected while
it learns, but never across a checkpoint.
"""

from __future__ import annotations

import collections
from typing import Any, Deque, Dict, List, Optional, Sequence

import numpy as np

from placeto_tf.errors import PlacetoError
from placeto_tf.graphs import result_directory
from placeto_tf.problem.executor import Executor
from placeto_tf.problem.ray_executor import MOST_WORKERS_A_CORE, executor_at
from placeto_tf.training import runs
from placeto_tf.training.collecting import Collected, Collecting, Maker, Speeds
from placeto_tf.training.run_config import CollectedRunConfig


class CollectingRun(runs.TrainingRun):
  """A run of a policy that defines how it is collected for, besides what `TrainingRun` asks for."""

  policy: str  # its name
  config: CollectedRunConfig

  @property
  def _maker(self) -> Maker:
    """Makes the collector, here or in an actor."""
    raise NotImplementedError

  def _to_collect_on(self, num_threads: Optional[int] = None) -> Sequence[Any]:
    """The problems that it is made from; simulated on so many threads, by default as here."""
    raise NotImplementedError

  @property
  def _handed_out(self) -> Any:
    """The weights that it is given."""
    raise NotImplementedError

  @property
  def _at_once(self) -> int:
    """The number of specs of an update."""
    raise NotImplementedError

  def _draw(self, iteration: int) -> Sequence[Any]:
    """The specs of an update's experience; `iteration` counts from 1."""
    raise NotImplementedError

  def _name_of(self, spec: Any) -> str:
    """What the spec is of, for those who watch."""
    raise NotImplementedError

  def _join(self, experiences: List[Any]) -> Any:
    """The experience of an update, from those of its specs; what `_learn` takes."""
    raise NotImplementedError

  def _steps_of(self, experience: Any) -> int:
    """The amount of work in the experience of a spec, for `rate`."""
    raise NotImplementedError

  def _graph_of(self, problem: int, num_problems: int) -> str:
    """The spec of the graph of a training problem; each graph has one for each cluster."""
    graphs = self.config.graphs
    return graphs[min(problem // max(1, num_problems // len(graphs)), len(graphs) - 1)]

  def run(
      self, *, until: Optional[int] = None, progress: runs.Progress = lambda *_: None,
      collecting: Optional[Collecting] = None) -> Dict:
    """See `TrainingRun.run`. Args: collecting: by default in this process."""
    self._collecting = collecting or Collecting(
        Executor(), self.policy, 1, self._maker, self._to_collect_on())
    self._asked_for = self.iteration
    self._under_way: Deque[int] = collections.deque()  # specs of each update that was asked for
    self._speeds_of = None if collecting is None else Speeds()
    return super().run(until=until, progress=progress)

  def run_on(
      self, executor: Executor, actors: Optional[int], progress: runs.Progress
  ) -> Dict[str, float]:
    """Trains to the end with actors.

    Args:
      executor: where they are.
      actors: how many; by default one for each core of Ray's, or as many as can work at a time.
      progress: as for `run`.

    Raises:
      PlacetoError: Ray has too few cores for them; and as `run` does.
    """
    cores = executor.cores
    count = actors or min(cores, self._at_once * (1 + self.config.lag))
    if not 0 < count <= cores * MOST_WORKERS_A_CORE:
      raise PlacetoError(
          f"Ray has {cores} cores, which take {cores * MOST_WORKERS_A_CORE} actors at most, not "
          f"{count}; give fewer actors, or start Ray on more nodes")
    with Collecting(
        executor, f"{self.policy} seed {self.config.seed}", count, self._maker,
        self._to_collect_on(num_threads=1)) as collecting:
      return self.run(progress=progress, collecting=collecting)

  def _collect(self) -> Any:
    while self._asked_for < self._reach():
      self._asked_for += 1
      specs, weights = self._draw(self._asked_for), self._handed_out
      for spec in specs:
        self._collecting.submit(
            f"{self._name_of(spec)} {self.policy} seed {self.config.seed}", self.iteration, weights,
            spec)
      self._under_way.append(len(specs))
    found: List[Collected] = [self._collecting.take() for _ in range(self._under_way.popleft())]
    self._lag = float(np.mean([self.iteration - each.version for each in found]))
    if self._speeds_of is not None:
      for each in found:
        self._speeds_of.add(each, self._steps_of(each.experience))
    return self._join([each.experience for each in found])

  def _reach(self) -> int:
    """The last update whose experience may be asked for now."""
    here, every = self.iteration, self.config.checkpoint_every
    checkpoint = (here // every + 1) * every
    if here < runs.FIRST_CHECKPOINT:
      checkpoint = min(checkpoint, runs.FIRST_CHECKPOINT)
    return min(here + 1 + self.config.lag, checkpoint, self.config.iterations)

  def _speeds(self, steps_a_second: float) -> Dict[str, float]:
    found = super()._speeds(steps_a_second)
    if self.config.lag:
      found["lag"] = self._lag
    if self._speeds_of is not None:
      found.update(self._speeds_of.figures(self.rate))
    return found


def train(
    trainer_type: Any, config: CollectedRunConfig, root_dir: str, *,
    warm_start: Optional[str] = None, progress: runs.Progress = lambda *_: None,
    ray: Optional[str] = None, actors: Optional[int] = None) -> Dict[str, float]:
  """`runs.train`, whose experience may be collected on Ray.

  Args:
    trainer_type, config, root_dir, warm_start, progress: see `runs.train`.
    ray: where actors collect, see `ray_executor.connected`; None is in this process.
    actors: how many; by default one for each core of Ray's.

  Raises:
    PlacetoError: as `runs.train`, or Ray cannot be had, or lost the actors too often.
  """
  if ray is None:
    return runs.train(trainer_type, config, root_dir, warm_start=warm_start, progress=progress)
  with result_directory.alone(root_dir):
    figures = runs.finished(root_dir, config.to_json())
    if figures is not None:
      return figures
    with executor_at(ray) as executor:  # before problems are made, which may take minutes
      trainer: CollectingRun = trainer_type(config, root_dir, warm_start=warm_start)
      return trainer.run_on(executor, actors, progress)
