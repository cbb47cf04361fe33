"""`RoundingNoise`: measures the differences between graph and replicas that rounding alone causes.

Sums in another order and kernels for other batches round differently, and a model may enlarge these
differences. To measure the harmless size of differences, graph and replicas are trained a second
time with variables that are changed by some roundings.
"""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence, Set

import numpy as np

from placeto_tf.runtime.compared_examples import ComparedExamples
from placeto_tf.runtime.tensor_differences import SeenDifference, difference
from placeto_tf.runtime.trained_pair import TrainedPair

_NOISE_FACTOR = 20.0


class RoundingNoise:
  """Measures the noise by a second training of the pair, with values changed by roundings."""

  def __init__(self, pair: TrainedPair, examples: ComparedExamples, seed: int):
    """Prepares; the second training begins when noise is first asked for.

    Args:
      pair: whose noise is measured.
      examples: that it is fed.
      seed: of its first values.
    """
    self._pair, self._examples, self._seed = pair, examples, seed
    self._other: Optional[TrainedPair] = None  # made when needed
    self._done = [0, 0]  # steps of the other graph and of the other replicas
    self._fetches: List[List[np.ndarray]] = [[], []]  # of their last steps
    self._noise: Dict[str, float] = {}  # the largest so far of each fetch and variable

  def restart(self) -> None:
    """Forgets the second training; to be called before the pair begins again."""
    self._other, self._done = None, [0, 0]

  def close(self) -> None:
    """Ends the sessions."""
    if self._other is not None:
      self._other.close()

  def allowed(
      self, seen: Sequence[SeenDifference], fetched: Sequence[Sequence[np.ndarray]], step: int,
      deadline: float) -> List[SeenDifference]:
    """Returns the differences; tolerances of wrong differences are raised to the rounding noise.

    Args:
      seen: differences after a step.
      fetched: values of the fetches in this step: of the graph, and of its replicas.
      step: the number of the step.
      deadline: the time by which the measurement of noise has to end.

    Returns:
      The differences in the same order.
    """
    # The graph's noise first: mostly it is enough, and the replicas' takes another step.
    for of_replicas in (False, True):
      wrong = {each.name for each in seen if each.is_wrong}
      if wrong:
        self._measure(of_replicas, wrong, fetched[of_replicas], step, deadline)
        seen = [each._replace(tolerance=max(
            each.tolerance, _NOISE_FACTOR * self._noise.get(each.name, 0.0))) for each in seen]
    return list(seen)

  def _measure(
      self, of_replicas: bool, wanted: Set[str], fetched: Sequence[np.ndarray], step: int,
      deadline: float) -> None:
    """Measures some fetches and variables of the graph or of its replicas in the steps so far."""
    pair, examples = self._pair, self._examples
    if self._other is None:
      self._other = pair.again()
      self._other.begin_rounded(self._seed)
    one, again = ((each.parts if of_replicas else each.whole) for each in (pair, self._other))
    # The second training catches up, with the same examples.
    for each in range(self._done[of_replicas], step + 1):
      feed = examples.feed(each)
      self._fetches[of_replicas] = again.step(
          pair.replicated.feed(feed) if of_replicas else feed, deadline, examples.is_other(each))
      self._done[of_replicas] += 1
    # (name, value, value of the second training), of the fetches that are wanted.
    found = [each for each in zip(pair.tensors, fetched, self._fetches[of_replicas])
             if each[0] in wanted]
    # The same of variables, or of their copies among the replicas.
    for chunk in pair.chunks:
      names = [(name, copy) for name in chunk if name in wanted
               for copy in (pair.copies[name] if of_replicas else [name])]
      if names:
        found += zip((name for name, _ in names), *(
            each.read([copy for _, copy in names]) for each in (one, again)))
    for name, value, other in found:
      self._noise[name] = max(self._noise.get(name, 0.0), difference(value, other))
