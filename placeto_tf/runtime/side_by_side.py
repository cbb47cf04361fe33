"""`train_side_by_side`: trains a graph and its replicas for some steps, and compares them.

Both are trained in double precision, in which errors are much larger than roundings. If an op has
no kernel for it, single precision decides. Where a difference is larger than a tolerance for
rounding, the harmless size of differences is measured: the graph is also trained with variables
that are changed by some roundings. (Sums in another order and kernels for other batches round
differently, and a model may enlarge these differences.)

Numbers that overflow agree even if a step is wrong, so variables that overflow in the first step
tell nothing. If numbers overflow in the second step, both begin again, and all steps are like the
first one. A later step with overflow is not counted.
"""

from __future__ import annotations

import contextlib
import time
from typing import Dict, Iterator, List, Optional, Set

import numpy as np

from placeto_tf.errors import GraphError, ReplicaMismatchError, listed, one_line
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.on_use import tf
from placeto_tf.replication.replicated_graph import ReplicatedGraph
from placeto_tf.runtime.compared_examples import ComparedExamples
from placeto_tf.runtime.tensor_differences import SeenDifference, difference, rounding
from placeto_tf.runtime.trainable_graph import NotCompared, NotEnoughMemory, NotRunnable
from placeto_tf.runtime.trained_pair import TrainedPair

_NOISE_FACTOR = 20.0  # largest harmless difference, relative to the measured effect of roundings


@contextlib.contextmanager
def fault_of_replicas() -> Iterator[None]:
  """Raises TensorFlow's errors as faults of the replicas, whose graph has done the same step."""
  try:
    yield
  except tf.errors.DeadlineExceededError:
    raise
  except (tf.errors.OpError, MemoryError) as problem:
    raise ReplicaMismatchError(
        f"the graph trains but its replicas do not ({one_line(problem)}); train with one replica"
    ) from None


class SideBySide:
  """Trains a graph and its replicas in one precision, and compares variables and fetches.

  Attributes:
    pair: the graph and its replicas, runnable.
    largest, steps: the largest difference, and the number of compared steps.
    wrong: differences that are more than rounding, of the step after the compared ones.
    overflow_step: the first in which numbers overflow; None if they do not.
    ignored: examples that change nothing, however they change; of groups, the first example.
    untried: how many examples may be such, for lack of time.
    blind: whether no example changes anything.
  """

  def __init__(
      self, graph: ComputationGraph, replicated: ReplicatedGraph, seed: int, double: bool = False,
      repeated: bool = False):
    """Makes both runnable.

    Args:
      graph: at the global batch.
      replicated: its replicas.
      seed: of the examples.
      double: whether both are in double precision, with written out batch normalizations.
      repeated: whether all replicas have the same examples, so that their own statistics equal the
        global batch's (corrections for the number of examples are left out).
    """
    self.pair = TrainedPair(graph, replicated, double=double, repeated=repeated)
    self._examples = ComparedExamples(self.pair, seed, repeated)
    self._seed = seed
    self.largest, self.steps = 0.0, 0
    self.wrong: List[SeenDifference] = []
    self.overflow_step: Optional[int] = None
    self.ignored: List[int] = []
    self.untried = 0
    self.blind = False
    self._noise: Optional[Dict[str, float]] = None  # effect of roundings by name, once measured
    self._blurred: Set[str] = set()  # variables that hold little but rounding, or overflow
    self._moved: Set[str] = set()  # variables that steps changed by more than rounding

  @property
  def untold(self) -> Set[str]:
    """Returns the variables that cannot be compared: rounding only, overflow, or no change."""
    return self._blurred | self.pair.updated - self._moved

  @property
  def unmoved(self) -> Set[str]:
    """Returns the variables that steps should change, and changed by no more than rounding."""
    return self.pair.updated - self._moved - self._blurred

  def run(self, steps: int, started: float, deadline: float, measures: bool = True) -> None:
    """Trains and compares; begins again, with one thing changed, where that tells more.

    Args:
      steps: how many steps, at most.
      started: when the time began, of the monotonic clock.
      deadline: when it ends.
      measures: whether the effect of roundings is measured where a difference is larger than them.
    """
    while True:
      try:
        self._run(steps, started, deadline)
      except tf.errors.DeadlineExceededError:
        # Steps of an earlier beginning were compared in time, unless they were wrong.
        if not self.steps or self._noise is not None:
          raise
        return
      if self.wrong and measures and self._noise is None:
        self._noise = {}
      # The second step is the first of the other kind; see `ComparedExamples`.
      elif self.overflow_step == 1 and self._examples.alternates and (
          time.monotonic() < (started + deadline) / 2):
        self._examples.alternates = False
      # Weights of one sign may saturate all units, so that no example matters.
      elif self.blind and not self.pair.signed and time.monotonic() < (started + deadline) / 2:
        self.pair.signed = True
      else:
        return

  def mismatch(self) -> ReplicaMismatchError:
    """Returns the error that names the differences."""
    shown = listed([f"{each.name!r} by {each.difference:.0e}" for each in self.wrong])
    return ReplicaMismatchError(
        f"{self.pair.replicated.strategy} replicas train something else than the graph: after step "
        f"{self.steps + 1} {shown} (relative to its largest element); train with one replica, or "
        "take what computes it out of the training step")

  def _run(self, steps: int, started: float, deadline: float) -> None:
    """Runs steps from the first values; ends early if numbers overflow or time is over."""
    self.overflow_step, self.wrong, self.blind = None, [], False
    self.untried = sum(map(len, self._examples.groups))
    largest, done = 0.0, 0
    try:
      self.pair.begin(self._seed, rounds=self._noise is not None)
      while done < steps:
        seen = self._step(done, deadline)
        self.wrong = [each for each in seen or () if each.is_wrong]
        if seen is None or self.wrong:
          break
        # Variables whose tolerance is too wide to show an error, or that overflow.
        self._blurred.update(
            each.name for each in seen if each.name in self.pair.copies and not each.tells)
        self._moved.update(each.name for each in seen if each.moves)
        largest = max([largest, *(each.difference for each in seen if each.tells)])
        done += 1
        if time.monotonic() > (started + deadline) / 2:
          break
      if not self.wrong and done:
        self._find_ignored(done, started, deadline)
    except tf.errors.DeadlineExceededError:
      # The steps before were compared in time.
      if not done:
        raise
    finally:
      self.pair.close()
    self.largest, self.steps = largest, done

  def _find_ignored(self, steps: int, started: float, deadline: float) -> None:
    """Changes one example after another, and notes those that change no fetch and no variable.

    An example that a step does not use, such as one that a mask hides, is tried in two more steps.

    Args:
      steps: that were compared.
      started: when the time began, of the monotonic clock.
      deadline: when it ends.
    """
    left = self._examples.groups
    for step in range(min(3, steps)):
      base, tried = self._outcome(step, self._examples.feed(step), deadline), left
      for group in tried:
        if time.monotonic() > (started + deadline) / 2:
          return
        found = self._outcome(step, self._examples.changed(step, group), deadline)
        if any(difference(one, other) > rounding(one) for one, other in zip(base, found)):
          left = [each for each in left if each is not group]
          self.untried -= len(group)
      if not left:
        break
    self.ignored, self.untried = [int(group[0]) for group in left], 0
    self.blind = len(left) == len(self._examples.groups) > 0

  def _outcome(
      self, step: int, feed: Dict[str, np.ndarray], deadline: float) -> List[np.ndarray]:
    """Returns the fetches and changed variables after one step of the graph from the beginning."""
    whole = self.pair.whole
    self.pair.restart()
    fetched = whole.step(feed, deadline, self._examples.is_other(step))
    return [*fetched, *whole.read(sorted(self.pair.updated))]

  def _step(self, step: int, deadline: float) -> Optional[List[SeenDifference]]:
    """Runs one step and returns the differences; None for a step that does not count."""
    pair, is_other = self.pair, self._examples.is_other(step)
    feed = self._examples.feed(step)
    try:
      # The graph first: an error here is not the replicas'.
      expected = pair.whole.step(feed, deadline, is_other)
    except tf.errors.InvalidArgumentError:
      if not is_other:
        raise
      self.overflow_step = step  # of which an op of the graph makes an error
      return None
    with contextlib.nullcontext() if pair.double else fault_of_replicas():
      found = pair.parts.step(feed, deadline, is_other)
    # Fetches of this step.
    seen = [SeenDifference.of(*each) for each in zip(pair.tensors, expected, found)]
    seen += pair.compared()  # variables after this step
    if not all(each.is_finite for each in seen):
      self.overflow_step = step if self.overflow_step is None else self.overflow_step
      if step:
        return None
    if pair.rounded is None or self._noise is None:
      return seen
    others = pair.rounded.step(feed, deadline, is_other)
    for name, value, other in (*zip(pair.tensors, expected, others), *pair.beside(pair.rounded)):
      self._noise[name] = max(self._noise.get(name, 0.0), difference(value, other))
    return [each._replace(tolerance=max(each.tolerance, _NOISE_FACTOR * self._noise[each.name]))
            if each.is_wrong else each for each in seen]


def train_side_by_side(
    graph: ComputationGraph, replicated: ReplicatedGraph, seed: int, steps: int, started: float,
    deadline: float, *, norms: bool = False, repeated: bool = False) -> SideBySide:
  """Trains a graph and its replicas in the precision that decides.

  Args:
    graph: at the global batch.
    replicated: its replicas.
    seed: of the examples.
    steps: how many steps, at most.
    started: when the time began, of the monotonic clock.
    deadline: when it ends.
    norms: whether both have batch normalizations, whose roundings hide small changes in single
      precision.
    repeated: whether all replicas have the same examples.

  Raises:
    ReplicaMismatchError: a variable or fetch differs by more than rounding.
    NotRunnable: the graph cannot be trained here.
  """
  double, lacking = None, ""
  try:
    double = SideBySide(graph, replicated, seed, True, repeated)
    double.run(steps, started, (started + deadline) / 2)
    if double.steps and not double.wrong:
      return double
  except (NotEnoughMemory, MemoryError, tf.errors.ResourceExhaustedError) as problem:
    lacking = one_line(problem) or "the memory is used up"
  except (NotRunnable, GraphError, tf.errors.OpError):
    pass  # it does not run in double precision, or too slowly
  wrong = double is not None and bool(double.wrong)
  single = SideBySide(graph, replicated, seed, False, repeated)
  # Where double precision found a difference, no measured roundings excuse it.
  single.run(steps, started, deadline, measures=not wrong)
  if wrong and double is not None:
    # Shares such as 1/3 are rounded to single precision, in which the numbers may agree.
    if single.wrong or single.overflow_step == 0 or single.unmoved and not norms:
      raise double.mismatch()
    return single
  if single.wrong and lacking and not any(each.is_large for each in single.wrong):
    raise NotCompared(
        f"{single.wrong[0].name!r} differs by {single.wrong[0].difference:.0e}, which may be "
        f"rounding, and in double precision {lacking}")
  if single.wrong:
    raise single.mismatch()
  return single
