"""Experience for updates, collected here or by processes of Ray (actors), from the same specs.

Besides the weights, a spec holds everything that determines an episode: its problem, its seed and
its start. So a spec gives the same experience in any process, however often it is played.
"""

from __future__ import annotations

import concurrent.futures
import functools
from typing import Any, Callable, List, Sequence

from placeto_tf.problem.executors import Executor, Shared, result_of

# weights, spec -> experience
Collector = Callable[[Any, Any], Any]
# problems -> collector; it travels to other processes
Maker = Callable[[Sequence[Any]], Collector]


class Collecting:
  """Collects episodes; processes receive problems once, and weights once per update."""

  def __init__(self, executor: Executor, count: int, make: Maker, problems: Sequence[Any]):
    """Shares the problems; nothing is collected yet.

    Args:
      executor: where episodes are collected.
      count: the most episodes that are collected at the same time.
      make: makes a collector from the problems, once in each process.
      problems: the portable problems for `make`.
    """
    self._executor, self._count = executor.one_thread(), count
    self._made_of = executor.share((make, problems))

  def __enter__(self) -> Collecting:
    return self

  def __exit__(self, *exception: object) -> None:
    _collector.cache_clear()
    self._executor.shutdown()  # episodes of an update that failed

  def collect(self, weights: Any, specs: Sequence[Any]) -> List[Any]:
    """Runs the episodes of an update and returns their experience.

    Args:
      weights: the weights of the policy.
      specs: the specs of the episodes.

    Returns:
      The experience of each episode, in the order of the specs.
    """
    # Weights are shared once per update, however many episodes use them.
    shared = self._executor.share(weights)
    futures: List[concurrent.futures.Future] = []
    for spec in specs:
      if len(futures) >= self._count:
        result_of(futures[-self._count])
      futures.append(self._executor.submit(_collect, self._made_of, shared, spec))
    return [result_of(future) for future in futures]


def _collect(made_of: Shared, weights: Shared, spec: Any) -> Any:
  return _collector(made_of)(weights.get(), spec)


@functools.lru_cache(maxsize=1)
def _collector(made_of: Shared) -> Collector:
  """Makes the collector of this process."""
  make, problems = made_of.get()
  return make(problems)
