"""Experience for updates, collected in this process or by actors on Ray, from the same specs.

Besides the weights, a spec holds everything that determines an episode: its problem, its seed and
its start. So a spec gives the same experience in any process, however often it is played.
"""

from __future__ import annotations

from typing import Any, Callable, List, Sequence

from placeto_tf.problem.executors import Executor, Shared

# weights, spec -> experience
Collector = Callable[[Any, Any], Any]
# problems -> collector; it travels to actors
Maker = Callable[[Sequence[Any]], Collector]

# Other actors use the other cores.
_ENVIRONMENT = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}


class Collecting:
  """Lets workers collect episodes; they receive problems once, and weights once per update."""

  def __init__(self, executor: Executor, count: int, make: Maker, problems: Sequence[Any]):
    """Starts the workers, which receive the problems once.

    Args:
      executor: where the workers are.
      count: number of workers.
      make: makes a worker's collector from the problems.
      problems: the portable problems for `make`.
    """
    self._executor = executor
    self._workers = executor.actors(
        count, _worker, make, executor.share_all(problems), environment=_ENVIRONMENT)

  def __enter__(self) -> Collecting:
    return self

  def __exit__(self, *exception: object) -> None:
    self._workers.__exit__(*exception)

  def collect(self, weights: Any, specs: Sequence[Any]) -> List[Any]:
    """Collects the experience of an update.

    Args:
      weights: of the policy.
      specs: of the episodes.

    Returns:
      The experience of each spec, in their order.
    """
    # Weights are shared once per update, however many episodes use them.
    shared = self._executor.share(weights)
    for spec in specs:
      self._workers.submit(shared, spec)
    return [self._workers.next() for _ in specs]


def _worker(number: int, make: Maker, problems: Sequence[Any]) -> Callable[[Shared, Any], Any]:
  """Returns a collector of shared weights."""
  del number  # of the worker: its experience does not depend on the number
  collector = make(problems)
  return lambda weights, spec: collector(weights.get(), spec)
