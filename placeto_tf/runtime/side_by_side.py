"""`SideBySide`: trains a graph and its replicas for some steps, and compares them after each.

If a difference is larger than a tolerance for rounding, both are trained again in double precision,
which decides. If an op has no kernel for double precision, the harmless size of differences is
measured (`rounding_noise.py`). Variables whose changes are small compared with rounding are also
compared in double precision, if there is time.

Numbers that overflow agree even if a step is wrong. If numbers overflow in the first step, both
begin again with smaller weights. If numbers overflow in the second step, both begin again, and all
steps are like the first one. A later step with overflow is not counted.
"""

from __future__ import annotations

import contextlib
import functools
import time
from typing import Optional, Sequence, Set, Tuple

from placeto_tf.errors import GraphError, ReplicaMismatchError, listed, one_line
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.replication.replicated_graph import ReplicatedGraph
from placeto_tf.runtime.compared_examples import ComparedExamples
from placeto_tf.runtime.rounding_noise import RoundingNoise
from placeto_tf.runtime.tensor_differences import (
  SeenDifference,
  difference,
  is_finite,
  tolerance,
)
from placeto_tf.runtime.trainable_graph import NotEnoughMemory, NotRunnable
from placeto_tf.runtime.trained_pair import TrainedPair


class SideBySide:
  """Trains a graph and its replicas and compares their variables and fetches.

  Attributes:
    in_replicas: whether an error is one of the replicas.
    overflow_step: the first in which numbers overflow; None if they do not.
    hurried: whether time was too short to look at small changes in double precision.
  """

  def __init__(
      self, graph: ComputationGraph, replicated: ReplicatedGraph, seed: int, norms: bool = False,
      double: bool = False, repeated: bool = False):
    """Keeps what is compared.

    Args:
      graph: at the global batch.
      replicated: its replicas.
      seed: of the examples.
      norms: whether batch normalizations of both are written out in plain ops.
      double: whether both are in double precision, with written out batch normalizations.
      repeated: whether all replicas have the same examples, so that their own statistics equal the
        global batch's (corrections for the number of examples are left out).
    """
    self._seed, self._norms, self._double, self._repeated = seed, norms, double, repeated
    self._graph, self._replicated = graph, replicated
    self._doubled: Optional[SideBySide] = None  # the same in double precision, once it was tried
    self._found = (0.0, 0)  # the result of a run that has ended
    self.in_replicas = False
    self.overflow_step: Optional[int] = None
    self.hurried = False
    self._lacking = ""  # the memory that double precision lacks
    self._blurred: Set[str] = set()  # variables that hold little but rounding, or overflow
    self._moved: Set[str] = set()  # variables that steps changed by more than rounding

  # Made when they are needed: both graphs are imported for a pair, which takes seconds.
  @functools.cached_property
  def pair(self) -> TrainedPair:
    """Returns the graph and its replicas, runnable."""
    return TrainedPair(
        self._graph, self._replicated, double=self._double, repeated=self._repeated)

  @functools.cached_property
  def _examples(self) -> ComparedExamples:
    """Returns the examples that feed the pair."""
    return ComparedExamples(self.pair, self._seed, self._repeated)

  @functools.cached_property
  def _noise(self) -> RoundingNoise:
    """Returns the noise of the pair, which is measured where a difference needs it."""
    return RoundingNoise(self.pair, self._examples, self._seed)

  @property
  def untold(self) -> Set[str]:
    """Returns the variables that cannot be compared: rounding only, overflow, or no change."""
    return self._blurred | (self.pair.updated - self._moved)

  def run(self, steps: int, started: float, deadline: float) -> Tuple[float, int]:
    """Trains and compares; begins again where numbers overflow early. See `compare_training`.

    Args:
      steps: how many steps, at most.
      started: when the time began, of the monotonic clock.
      deadline: when it ends.

    Returns:
      (largest difference, steps compared).

    Raises:
      ReplicaMismatchError: a variable or fetch differs by more than rounding.
    """
    import tensorflow as tf

    if self._norms and not self._double:
      # Normalizations in plain ops nearly always round so much that errors do not show in single
      # precision.
      try:
        found = self._in_double(steps, started, deadline)
      except ReplicaMismatchError:
        # Shares such as 1/3 were rounded to single precision, which may agree all the same.
        self._doubled, found = None, (0.0, 0)
      if found[1] and self._doubled is not None:
        self.pair = self._doubled.pair
        return found
    found = self._run(steps, started, deadline)
    # Overflow in the first step: again, with smaller weights.
    if self.overflow_step == 0:
      self.pair.small = True
      found = self._run(steps, started, deadline)
    # Overflow in the second, the first of the other kind: again, with all steps like the first.
    if self.overflow_step == 1 and time.monotonic() < (started + deadline) / 2:
      self._examples.alternates = False
      with contextlib.suppress(tf.errors.DeadlineExceededError):
        found = self._run(steps, started, deadline)
    return found

  def run_own(
      self, graph: ComputationGraph, replicated: ReplicatedGraph, started: float, deadline: float
  ) -> bool:
    """Runs replicas with statistics of their own, if there is time; returns whether there was.

    One step of any examples shows that these replicas run. One more step, in which all replicas
    have the same examples, is compared: their statistics are those of the whole batch.

    Args:
      graph: whose batch normalizations are not written out.
      replicated: its replicas.
      started: when the time began, of the monotonic clock.
      deadline: when it ends.

    Returns:
      False where the time was over before.
    """
    import tensorflow as tf

    try:
      self._run_alone(replicated, deadline)
    except tf.errors.DeadlineExceededError:
      self.in_replicas = False
      return False
    with contextlib.suppress(NotRunnable, MemoryError, tf.errors.OpError):
      try:
        SideBySide(graph, replicated, self._seed, repeated=True).run(
            1, started, deadline)
      except ReplicaMismatchError:
        raise
      except GraphError:
        pass
    return True

  def _run_alone(self, replicated: ReplicatedGraph, deadline: float) -> None:
    """Runs a step of replicas with statistics of their own, of any examples."""
    self.in_replicas = True
    alone = TrainedPair(self._graph, replicated)
    examples = ComparedExamples(alone, self._seed)
    try:
      alone.begin(self._seed)
      alone.parts.step(replicated.feed(examples.feed(0)), deadline)
    finally:
      alone.close()
    self.in_replicas = False

  def _run(self, steps: int, started: float, deadline: float) -> Tuple[float, int]:
    """Runs steps from the present values; ends early if numbers overflow or time is over."""
    import tensorflow as tf

    self.overflow_step = None
    self._noise.restart()
    largest, done = 0.0, 0
    try:
      self.pair.begin(self._seed)
      for step in range(steps):
        found = self._step(step, steps, started, deadline)
        if found is None:
          break
        largest = max(largest, found)
        done += 1
        if time.monotonic() > (started + deadline) / 2:
          break
    except tf.errors.DeadlineExceededError:
      # The steps before were compared in time.
      if not done:
        raise
      self.in_replicas = False
    finally:
      self.pair.close()
      self._noise.close()
    return largest, done

  def _step(
      self, step: int, steps: int, started: float, deadline: float) -> Optional[float]:
    """Runs one step and compares; returns the largest difference, None where it does not count."""
    import tensorflow as tf

    pair, examples = self.pair, self._examples
    feed, is_other = examples.feed(step), examples.is_other(step)
    try:
      # The graph first: an error here is not the replicas'.
      expected = pair.whole.step(feed, deadline, is_other)
    except tf.errors.InvalidArgumentError:
      if not is_other:
        raise
      self.overflow_step = step  # of which an op of the graph makes an error
      return None
    self.in_replicas = True
    found = pair.parts.step(pair.replicated.feed(feed), deadline, is_other)
    self.in_replicas = False
    # Fetches of this step.
    seen = [SeenDifference(name, difference(one, part), tolerance(one), is_finite(one))
            for name, one, part in zip(pair.tensors, expected, found)]
    # Variables after this step.
    for names in pair.chunks:
      seen += pair.compared(names)
    if not all(each.is_finite for each in seen):
      self.overflow_step = step if self.overflow_step is None else self.overflow_step
      if step or not pair.small:
        return None
    if any(each.is_wrong for each in seen):
      # Double precision decides: steps that agree there differ here by rounding.
      largest_in_double, agreeing = self._in_double(steps, started, deadline)
      if 0 < agreeing <= step:
        return None  # there was time for fewer steps in double precision
      if agreeing:
        seen = [each._replace(difference=largest_in_double) if each.is_wrong else each
                for each in seen]
    if any(each.is_wrong for each in seen):
      # No double precision: the noise of this graph is measured.
      seen = self._noise.allowed(seen, (expected, found), step, deadline)
    wrong = [each for each in seen if each.is_wrong]
    if wrong and self._lacking and not any(each.is_large for each in wrong):
      raise NotRunnable(
          f"{wrong[0].name!r} differs by {wrong[0].difference:.0e}, which may be rounding, and in "
          f"double precision {self._lacking}")
    if wrong:
      raise self._mismatch(wrong, step)
    # Variables whose tolerance is too wide to show an error, or that overflow.
    self._blurred.update(
        each.name for each in seen if each.name in pair.copies and not each.tells)
    self._moved.update(each.name for each in seen if each.moves)
    # Updates that are small beside roundings, such as a tiny learning rate's.
    if step == 0 and pair.updated - self._moved - self._blurred:
      self._look_closer(steps, started, (started + deadline) / 2)
    return max([0.0, *(each.difference for each in seen if each.tells)])

  def _in_double(self, steps: int, started: float, deadline: float) -> Tuple[float, int]:
    """Runs steps in double precision, once; no steps where that cannot be run.

    Raises:
      ReplicaMismatchError: the replicas train something else there, too.
    """
    import tensorflow as tf

    if self._double:
      return 0.0, 0
    if self._doubled is None:
      # Tried once; no steps unless the run below succeeds.
      self._doubled = again = SideBySide(
          self._graph, self._replicated, self._seed, norms=self._norms, double=True,
          repeated=self._repeated)
      try:
        again._found = again.run(steps, started, deadline)
        self._blurred |= again._blurred
        self._moved |= again._moved
      except (NotEnoughMemory, MemoryError, tf.errors.ResourceExhaustedError) as problem:
        self._lacking = one_line(problem) or "the memory is used up"
      except (NotRunnable, tf.errors.UnimplementedError, tf.errors.InvalidArgumentError):
        pass  # no kernels of double precision
    return self._doubled._found

  def _look_closer(self, steps: int, started: float, deadline: float) -> None:
    """Tries double precision, where small changes show, if there is time."""
    import tensorflow as tf

    self.hurried = True
    if time.monotonic() > deadline:
      return
    try:
      self._in_double(steps, started, deadline)
      self.hurried = False
    except tf.errors.DeadlineExceededError:
      self._doubled = None

  def _mismatch(self, wrong: Sequence[SeenDifference], step: int) -> ReplicaMismatchError:
    """Returns the error that names the differences."""
    shown = listed([f"{each.name!r} by {each.difference:.0e}" for each in wrong])
    return ReplicaMismatchError(
        f"{self.pair.replicated.strategy} replicas train something else than the graph: after step "
        f"{step + 1} {shown} (relative to its largest element); train with one replica, or take "
        "what computes it out of the training step")
