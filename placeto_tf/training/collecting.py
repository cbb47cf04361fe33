"""Experience for updates, collected in this process or by actors on Ray, from the same specs.

A spec says all that an episode depends on besides the weights: its problem, its seed, its start. So
where it is played, how often, and beside what others makes no difference to what it gives.
"""

from __future__ import annotations

import collections
import dataclasses
import time
from typing import Any, Callable, Dict, Optional, Sequence

from placeto_tf.problem.executors import Executor, Shared

# weights, spec -> experience
Collector = Callable[[Any, Any], Any]
# problems -> collector; it travels to actors
Maker = Callable[[Sequence[Any]], Collector]

# Other actors use the other cores.
_ENVIRONMENT = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}


@dataclasses.dataclass(frozen=True, eq=False)
class Collected:
  """The experience of one episode, and how it was collected.

  Attributes:
    experience: what the collector returned.
    version: number of the update after which its weights were taken.
    worker: number of the worker that collected it, from 0 on.
    seconds: that this took.
  """

  experience: Any
  version: int
  worker: int
  seconds: float


class _Worker:
  """A collector that takes its own time."""

  def __init__(self, number: int, make: Maker, problems: Sequence[Any]):
    self._number, self._collector = number, make(problems)

  def __call__(self, version: int, weights: Shared, spec: Any) -> Collected:
    began = time.monotonic()
    experience = self._collector(weights.get(), spec)
    return Collected(experience, version, self._number, time.monotonic() - began)


class Collecting:
  """Has episodes collected; problems travel once, weights once an update."""

  def __init__(self, executor: Executor, count: int, make: Maker, problems: Sequence[Any]):
    """Starts the workers, which receive the problems once.

    Args:
      executor: where the workers are.
      count: of workers.
      make: makes a worker's collector from the problems.
      problems: portable, as `make` takes them.
    """
    self._executor, self._version = executor, -1
    self._weights: Optional[Shared] = None
    self._workers = executor.actors(
        count, _Worker, make, executor.share_all(problems), environment=_ENVIRONMENT)

  def __enter__(self) -> Collecting:
    return self

  def __exit__(self, *exception: object) -> None:
    self._workers.__exit__(*exception)

  def submit(self, version: int, weights: Any, spec: Any) -> None:
    """Submits one more episode to be collected.

    Args:
      version: number of the update after which the weights were taken.
      weights: of the policy; they travel again only when `version` changes.
      spec: of the episode.
    """
    # Weights are shared once per update, however many episodes use them.
    if version != self._version:
      self._version, self._weights = version, self._executor.share(weights)
    self._workers.submit(version, self._weights, spec)

  def take(self) -> Collected:
    """Returns the earliest that was submitted and not taken yet."""
    found: Collected = self._workers.next()
    return found


class Speeds:
  """Counts the episodes and busy seconds of each worker since training began, for summaries."""

  def __init__(self) -> None:
    self._began = time.monotonic()
    self._steps: Dict[int, int] = collections.defaultdict(int)
    self._busy_s: Dict[int, float] = collections.defaultdict(float)

  def add(self, collected: Collected, steps: int) -> None:
    """Counts an episode.

    Args:
      collected: the episode.
      steps: amount of work in it, in the unit of the learner's `rate`.
    """
    self._steps[collected.worker] += steps
    self._busy_s[collected.worker] += collected.seconds

  def figures(self, rate: str, now: Optional[float] = None) -> Dict[str, float]:
    """Returns the speed of each worker since training began.

    Args:
      rate: name of the figure for steps per second.
      now: seconds of the monotonic clock; by default the present time.

    Returns:
      "actors", their number; and for each worker N "Actors/N/RATE", in steps per second, and
      "Actors/N/busy", its share of the time spent collecting, in [0, 1].
    """
    # 1e-9 s: no division by zero on the first call.
    seconds = max(1e-9, (time.monotonic() if now is None else now) - self._began)
    found = {"actors": float(len(self._steps))}
    for worker, steps in sorted(self._steps.items()):
      found[f"Actors/{worker}/{rate}"] = steps / seconds
      found[f"Actors/{worker}/busy"] = self._busy_s[worker] / seconds
    return found
