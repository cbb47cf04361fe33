"""Experience for updates, collected in this process or by actors on Ray, from the same specs.

A spec says all that an episode depends on besides the weights: its problem, its seed, its start. So
where it is played, how often, and beside what others makes no difference to what it gives.
"""

from __future__ import annotations

import collections
import dataclasses
import time
from typing import Any, Callable, Deque, Dict, Optional, Protocol, Sequence, Tuple

from placeto_tf.distributed import actors, tasks

# weights, spec -> experience
Collector = Callable[[Any, Any], Any]
# problems -> collector; it travels to actors
Maker = Callable[[Sequence[Any]], Collector]

# Other actors use the other cores.
_ENVIRONMENT = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}


@dataclasses.dataclass(frozen=True, eq=False)
class Collected:
  """What an episode gave.

  Attributes:
    experience: what the collector returned.
    version: number of the update after which its weights were taken.
    worker: number of who collected it, from 0 on.
    seconds: that this took.
  """

  experience: Any
  version: int
  worker: int
  seconds: float


class Collecting(Protocol):
  """Has episodes collected."""

  def submit(self, name: str, version: int, weights: Any, spec: Any) -> None:
    """Has one more collected; `version` is the weights', `name` is for those who watch."""

  def take(self) -> Collected:
    """The earliest that was submitted and not taken yet."""


class _Worker:
  """A collector that takes its own time."""

  def __init__(self, number: int, make: Maker, problems: Sequence[Any]):
    self._number, self._collector = number, make(problems)

  def __call__(self, version: int, weights: bytes, spec: Any) -> Collected:
    return self.collect(version, tasks.unshare(weights), spec)

  def collect(self, version: int, weights: Any, spec: Any) -> Collected:
    began = time.monotonic()
    experience = self._collector(weights, spec)
    return Collected(experience, version, self._number, time.monotonic() - began)


class CollectHere:
  """Collects in this process, when experience is asked for."""

  def __init__(self, make: Maker, problems: Sequence[Any]):
    self._worker = _Worker(0, make, problems)
    self._submitted: Deque[Tuple[int, Any, Any]] = collections.deque()

  def submit(self, name: str, version: int, weights: Any, spec: Any) -> None:
    """See `Collecting`."""
    del name
    self._submitted.append((version, weights, spec))

  def take(self) -> Collected:
    """See `Collecting`."""
    return self._worker.collect(*self._submitted.popleft())


class CollectOnRay:
  """Has actors collect; problems go through the object store once, weights once an update."""

  def __init__(
      self, ray: Any, name: str, count: int, make: Maker, problems: Sequence[Any]):
    """Args: count: of actors; name: of the run, for Ray's dashboard."""
    self._ray, self._version, self._weights = ray, -1, None
    self._actors = actors.Actors(
        ray, f"collects for {name},", count, _Worker, make, tasks.Shared(ray, problems),
        environment=_ENVIRONMENT)

  def __enter__(self) -> CollectOnRay:
    return self

  def __exit__(self, *exception: object) -> None:
    self._actors.__exit__(*exception)

  def submit(self, name: str, version: int, weights: Any, spec: Any) -> None:
    """See `Collecting`."""
    if version != self._version:
      self._version, self._weights = version, tasks.share(self._ray, weights)
    self._actors.submit(name, version, self._weights, spec)

  def take(self) -> Collected:
    """See `Collecting`."""
    found: Collected = self._actors.next()
    return found


class Speeds:
  """How much each worker collected since training began, for summaries."""

  def __init__(self) -> None:
    self._began = time.monotonic()
    self._steps: Dict[int, int] = collections.defaultdict(int)
    self._busy_s: Dict[int, float] = collections.defaultdict(float)

  def add(self, collected: Collected, steps: int) -> None:
    """Counts an episode of so many steps."""
    self._steps[collected.worker] += steps
    self._busy_s[collected.worker] += collected.seconds

  def figures(self, rate: str, now: Optional[float] = None) -> Dict[str, float]:
    """Actors/N/RATE, Actors/N/busy, the share of the time in which it collected, and how many."""
    seconds = (time.monotonic() if now is None else now) - self._began
    found = {"actors": float(len(self._steps))}
    for worker, steps in sorted(self._steps.items()):
      found[f"Actors/{worker}/{rate}"] = steps / seconds
      found[f"Actors/{worker}/busy"] = self._busy_s[worker] / seconds
    return found
