"""`compare_training`: trains a graph and its replicas side by side, and compares their variables.

The analysis of `replication` claims that replicas compute the step of the global batch. This module
runs both graphs to check the claim. Both begin with the same values of all variables and are fed
the same examples. Random ops give fixed numbers in both graphs, because otherwise each replica
would have random numbers of its own. If replicas normalize by their own statistics, replicas with
synchronized statistics are run instead, and one step in which all replicas have the same examples,
so that their own statistics are equal to those of the global batch. `side_by_side.py` distinguishes
rounding from errors.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from typing import Optional, Tuple

from placeto_tf.errors import GraphError, ReplicaMismatchError, counted, listed, one_line
from placeto_tf.graphs import load_graph
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.on_use import tf
from placeto_tf.replication.batch_norm import with_plain_batch_norm
from placeto_tf.replication.replicated_graph import ReplicatedGraph
from placeto_tf.replication.replicating import SYNCHRONIZED, replicate, with_order
from placeto_tf.runtime.compared_examples import ComparedExamples
from placeto_tf.runtime.side_by_side import fault_of_replicas, train_side_by_side
from placeto_tf.runtime.trainable_graph import NotCompared, NotRunnable
from placeto_tf.runtime.trained_pair import TrainedPair


@dataclasses.dataclass(frozen=True)
class TrainingComparison:
  """The result of a comparison.

  Attributes:
    checked: whether both graphs were run.
    reason: the reason why they were not run, or "".
    runs: whether they may well run; False if the graph cannot be run here.
    steps: number of training steps.
    variables: number of variables compared after each step.
    fetches: number of fetched tensors compared in each step.
    largest_difference: largest difference of elements, relative to the largest element of their
      tensor.
    untold: number of variables whose comparison shows nothing: because they hold little but
      rounding, such as a bias before a normalization, whose gradient is zero; because they
      overflow; or because no step changes them by more than rounding though an op updates them.
    seconds: duration of the check.
    replicas, of: number of compared replicas, and number of all replicas; 0 if all were compared.
    own_statistics: whether replicas that have statistics of their own were also run with them; the
      comparison itself uses synchronized statistics.
    ignored: examples that change nothing, however they change; of groups, the first example.
    untried: number of examples of which it was not tried, for lack of time, whether they change
      anything: a fault in their part may not have shown.
  """

  checked: bool
  reason: str = ""
  runs: bool = True
  steps: int = 0
  variables: int = 0
  fetches: int = 0
  largest_difference: float = 0.0
  untold: int = 0
  seconds: float = 0.0
  replicas: int = 0
  of: int = 0
  own_statistics: bool = True
  ignored: Tuple[int, ...] = ()
  untried: int = 0

  def __str__(self) -> str:
    if not self.checked:
      return f"not checked: {self.reason}"
    untold = f" ({self.untold} of them tell{'s' * (self.untold == 1)} nothing)" * (self.untold > 0)
    some = f" with {self.replicas} of {self.of} replicas" if self.replicas < self.of else ""
    unused = f", unused examples: {listed([str(each + 1) for each in self.ignored])}" if (
        self.ignored) else ""
    return (f"checked{some}: {counted(self.steps, 'step')}, "
            f"{counted(self.variables, 'variable')}{untold}, largest difference "
            f"{self.largest_difference:.0e}{unused}{self.left_out and ', '}{self.left_out}, "
            f"{self.seconds:.0f} s")

  @property
  def left_out(self) -> str:
    """Returns what there was no time to check, or ""."""
    return listed([
        *(["replicas' own statistics not run"] if not self.own_statistics else []),
        *([f"not tried whether each of {counted(self.untried, 'example')} changes anything"] if (
            self.untried) else [])])


def compare_training(
    graph: object, replicated: ReplicatedGraph, steps: int = 5, *, time_limit_s: float = 120.0,
    seed: int = 0, started: Optional[float] = None) -> TrainingComparison:
  """Trains a graph and its replicas on this machine and compares every variable and fetch.

  Args:
    graph: at the global batch: a `ComputationGraph`, or anything that `load_graph` takes.
    replicated: its replicas. If they have statistics of their own, the same replicas with
      synchronized statistics are compared, and `replicated` is run after them.
    steps: of training.
    time_limit_s: time limit. No step begins after half of it. One step is enough to show errors,
      because all variables, including optimizer slots, begin with nonzero numbers.
    seed: of the examples.
    started: start of the time limit, by the monotonic clock; by default now.

  Returns:
    The comparison. `checked` is False, with the reason, if the graph cannot be run here.

  Raises:
    ReplicaMismatchError: a variable or a fetch differs by more than rounding.
  """
  started = time.monotonic() if started is None else started
  graph = graph if isinstance(graph, ComputationGraph) else load_graph(graph)
  try:
    if replicated.replicas == 1 and not replicated.slices:
      raise NotCompared("one replica is the unchanged graph")
    found = _compare(graph, replicated, steps, started, time_limit_s, seed)
  except NotRunnable as problem:
    found = TrainingComparison(False, str(problem), isinstance(problem, NotCompared))
  return dataclasses.replace(found, seconds=time.monotonic() - started)


def _compare(
    graph: ComputationGraph, replicated: ReplicatedGraph, steps: int, started: float,
    time_limit_s: float, seed: int) -> TrainingComparison:
  """Compares as `compare_training`; raises NotRunnable where that cannot be run."""
  # Own statistics differ from the whole batch's, so the synchronized form is compared.
  own = bool(replicated.own_statistics)
  try:
    compared = replicated if not own else dataclasses.replace(with_order(replicate(
        replicated.original, replicated.replicas,
        whole=replicated.whole.graph if replicated.slices else graph,
        mirrored=replicated.mirrored, single=replicated.single, batch_norm=SYNCHRONIZED,
        micro_batches=replicated.micro_batches), replicated.order), slices=replicated.slices)
  except GraphError as problem:
    raise NotCompared(f"with synchronized statistics: {problem}") from None
  deadline = started + time_limit_s
  try:
    found = train_side_by_side(
        with_plain_batch_norm(graph) if own else graph, compared, seed, steps, started, deadline,
        norms=own)
    own_run = not own or _run_own(graph, replicated, seed, started, deadline)
  except tf.errors.DeadlineExceededError:
    raise NotCompared(f"it takes more than {time_limit_s:g} s on this machine") from None
  except ReplicaMismatchError:
    raise
  except GraphError as problem:
    raise NotRunnable(str(problem)) from None
  except (tf.errors.ResourceExhaustedError, MemoryError) as problem:
    raise NotCompared(f"it takes too much memory ({one_line(problem)})") from None
  except tf.errors.OpError as problem:
    raise NotRunnable(f"the graph does not run on this machine ({one_line(problem)})") from None
  pair = found.pair
  # If no variable's comparison shows anything, nothing was checked.
  if pair.variables and found.untold.issuperset(pair.updated or pair.variables):
    raise NotCompared(
        "all variables overflow in the first step" if found.overflow_step == 0 else
        "no step changes a variable by more than other roundings alone would")
  if found.blind:
    raise NotCompared("no example changes anything that the step computes")
  return TrainingComparison(
      True, "", True, found.steps, len(pair.variables), len(pair.tensors), found.largest,
      len(found.untold), own_statistics=own_run, ignored=tuple(found.ignored),
      untried=found.untried)


def _run_own(
    graph: ComputationGraph, replicated: ReplicatedGraph, seed: int, started: float,
    deadline: float) -> bool:
  """Runs replicas with statistics of their own, if there is time; returns whether there was.

  One step of any examples shows that these replicas run. One more step, in which all replicas have
  the same examples, is compared: their statistics are those of the whole batch.
  """
  try:
    with fault_of_replicas(), contextlib.closing(TrainedPair(graph, replicated)) as alone:
      alone.begin(seed)
      alone.parts.step(ComparedExamples(alone, seed).feed(0), deadline)
  except tf.errors.DeadlineExceededError:
    return False
  try:
    train_side_by_side(graph, replicated, seed, 1, started, deadline, repeated=True)
  except ReplicaMismatchError:
    raise
  except (NotRunnable, GraphError, MemoryError, tf.errors.OpError):
    pass  # the replicas with synchronized statistics were compared
  return True
