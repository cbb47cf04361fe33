"""`compare_training`: a graph and its replicas trained side by side, variables compared.

The analysis of `replication` says that replicas do the step of the whole batch; this runs both.
Both begin with the same values of all variables and are fed the same examples. What random ops draw
is replaced by fixed numbers, in both graphs, because replicas draw numbers of their own.
Where replicas normalize by their own statistics, their form with synchronized ones is run instead,
and a step in which all have the same examples, whose statistics are those of the whole batch.

Sums in another order and kernels for other batches round differently, and a model may enlarge that.
Where a difference is larger than a tolerance for roundings alone, both are trained once more in
double precision, which decides. Where an op has no kernel for that, how much is harmless is
measured: both are trained a second time with variables that differ from the others by some
roundings, and where batch normalizations are joined, the graph has these written out in plain ops.
(The examples stay in their order: a loss may weigh them by their position.)

Every other step has examples with negative numbers, which masks leave out, and draws other numbers.
Numbers that overflow agree whatever was computed. If they do in the first step, both begin again
with smaller weights; if they do in the second, with all steps like the first; a later step in which
they do is not counted.

A variable that steps change by little may differ by little: tolerances are relative to its change.
Changes that are small beside roundings are looked at in double precision, if there is time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from typing import (
  Any,
  Dict,
  Iterator,
  List,
  Mapping,
  NamedTuple,
  Optional,
  Sequence,
  Set,
  Tuple,
)

import numpy as np

from placeto_tf.clusters import Cluster
from placeto_tf.costs import estimate_costs
from placeto_tf.errors import GraphError, ReplicaMismatchError, listed
from placeto_tf.graphs import load_graph
from placeto_tf.graphs.captures import resource_captures
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.graphs.static_values import PASSING
from placeto_tf.replication import op_roles
from placeto_tf.replication.batch_norm import with_plain_batch_norm
from placeto_tf.replication.dataflow import analyse_dataflow, known_dims
from placeto_tf.replication.free_batch import has_free_batch
from placeto_tf.replication.replicated_graph import ReplicatedGraph
from placeto_tf.replication.replicating import SYNCHRONIZED, replicate, with_order
from placeto_tf.runtime.feeds import make_feeds, with_masks
from placeto_tf.runtime.tensor_differences import (
  difference,
  is_finite,
  rounded,
  tolerance,
  varied,
)
from placeto_tf.runtime.trainable_graph import NotRunnable, TrainableGraph
from placeto_tf.runtime.variables import initializers
from placeto_tf.simulation import Simulator

_VARIABLES = ("VarHandleOp", "VariableV2", "Variable")
_LISTED = 3
_NOISE_FACTOR = 20.0
_UNTOLD = 0.05  # a tolerance beyond which a variable tells nothing
_EXAMPLES_PER_REPLICA = 4
_PARALLEL_OPS = 2.0  # ops that run at the same time hold more than one after the other
# Of variables that are read or written at a time: each run of a session with other ends costs a
# pass over the graph, so that one for each variable would take longer than training.
_CHUNK_BYTES = 256e6


@dataclasses.dataclass(frozen=True)
class TrainingComparison:
  """What a comparison found.

  Attributes:
    checked: whether both were run.
    reason: why not; "" if they were.
    steps: how many training steps.
    variables: how many variables were compared after each.
    fetches: how many fetched tensors were compared in each.
    largest_difference: between elements, relative to the largest one of their tensor.
    untold: how many of the variables tell nothing, because they hold little but rounding, such as
      a bias before a normalization, whose gradient is zero, because they overflow, or because no
      step changes them by more than rounding though an op of the step updates them.
    seconds: that the check took.
  """

  checked: bool
  reason: str = ""
  steps: int = 0
  variables: int = 0
  fetches: int = 0
  largest_difference: float = 0.0
  untold: int = 0
  seconds: float = 0.0

  def __str__(self) -> str:
    if not self.checked:
      return f"not checked: {self.reason}"
    untold = f" ({self.untold} of them tell nothing)" if self.untold else ""
    steps = "1 step" if self.steps == 1 else f"{self.steps} steps"
    return (f"checked: {steps}, {self.variables} variables{untold}, largest difference "
            f"{self.largest_difference:.0e}, {self.seconds:.0f} s")


def compare_training(
    graph: Any, replicated: ReplicatedGraph, steps: int = 5, *, time_limit_s: float = 120.0,
    seed: int = 0, started: Optional[float] = None) -> TrainingComparison:
  """Trains a graph and its replicas on this machine and compares every variable and fetch.

  Args:
    graph: at the global batch: a `ComputationGraph`, or anything that `load_graph` takes.
    replicated: its replicas.
    steps: of training.
    time_limit_s: within which it ends. After half of it no further step begins: every variable,
      optimizer's slots too, begins at numbers other than zero, so that what a step does shows in
      the first.
    seed: of the examples.
    started: since when the time counts, of the monotonic clock; by default since now.

  Returns:
    What was compared. `checked` is False, with the reason, if it cannot be run here.

  Raises:
    ReplicaMismatchError: a variable or a fetch differs by more than rounding.
  """
  started = time.monotonic() if started is None else started
  graph = graph if isinstance(graph, ComputationGraph) else load_graph(graph)
  try:
    if replicated.replicas == 1:
      raise NotRunnable("one replica is the unchanged graph")
    found = _compare(graph, replicated, steps, started, time_limit_s, seed)
  except NotRunnable as problem:
    found = TrainingComparison(False, str(problem))
  return dataclasses.replace(found, seconds=time.monotonic() - started)


def _compare(
    graph: ComputationGraph, replicated: ReplicatedGraph, steps: int, started: float,
    time_limit_s: float, seed: int) -> TrainingComparison:
  """`compare_training`, which raises NotRunnable where it cannot be run."""
  import tensorflow as tf

  own = replicated if replicated.own_statistics else None
  try:
    if own is not None:
      replicated = with_order(replicate(
          replicated.original, replicated.replicas, whole=graph, mirrored=replicated.mirrored,
          single=replicated.single, batch_norm=SYNCHRONIZED,
          micro_batches=replicated.micro_batches), replicated.order)
    comparison = _Comparison(graph, replicated, seed, norms=own is not None)
  except ReplicaMismatchError:
    raise
  except GraphError as problem:
    raise NotRunnable(
        f"with synchronized statistics: {problem}" if own is not None else str(problem)) from None
  deadline = started + time_limit_s
  try:
    largest, done = comparison.run(steps, started, deadline)
    if own is not None:
      comparison.run_alone(own, deadline)
      comparison.run_repeated(own, started, deadline)
  except tf.errors.DeadlineExceededError:
    raise NotRunnable(f"it takes more than {time_limit_s:g} s on this machine") from None
  except (tf.errors.OpError, MemoryError) as problem:
    said = _first_sentence(problem)
    if comparison.in_replicas:
      raise ReplicaMismatchError(
          f"the graph trains but its replicas do not ({said}); train with one replica") from None
    raise NotRunnable(f"the graph does not run on this machine ({said})") from None
  if comparison.variables and comparison.untold.issuperset(
      comparison.updated or comparison.variables):
    raise NotRunnable(
        "all variables overflow in the first step" if comparison.overflow_step == 0 else
        "no step changes a variable by more than other roundings alone would")
  return TrainingComparison(
      True, "", done, len(comparison.variables), comparison.num_fetches, largest,
      len(comparison.untold))


def _first_sentence(problem: Exception) -> str:
  """What TensorFlow says of an error, without where in the program its op was made."""
  lines = [line.strip() for line in str(getattr(problem, "message", problem)).splitlines()]
  told = [line for line in lines if line and not line.startswith(
      ("Graph execution error", "Detected at node", "Node:", "File ", "[[", "Original stack"))]
  return told[0] if told else repr(problem)


class _Seen(NamedTuple):
  """A difference that was seen."""

  name: str
  difference: float
  tolerance: float
  is_finite: bool
  change: float = 1.0  # by the steps, relative to its largest element

  @property
  def is_wrong(self) -> bool:
    """Whether it is more than rounding."""
    return self.difference > self.tolerance

  @property
  def tells(self) -> bool:
    """Whether another value would have been noticed."""
    return self.is_finite and self.tolerance <= _UNTOLD

  @property
  def moves(self) -> bool:
    """Whether steps change it by much more than rounding."""
    return self.is_finite and self.tolerance <= _UNTOLD * self.change


class _Comparison:
  """The graph, once more with other roundings, and the replicas."""

  def __init__(
      self, graph: ComputationGraph, replicated: ReplicatedGraph, seed: int,
      whole: Optional[TrainableGraph] = None, norms: bool = False, double: bool = False,
      repeated: bool = False):
    """Args:
      whole: the graph, if it was made runnable before; else None.
      norms: whether batch normalizations are written out among the replicas.
      double: whether both are in double precision, with written out batch normalizations.
      repeated: whether all replicas have the same examples, of which their own statistics are those
        of the whole batch (but for corrections by how many there are, which are left out).
    """
    if any(kind in op_roles.PIPELINES for kind in graph.op_types):
      raise NotRunnable("it reads an input pipeline, which gives each graph other examples")
    self._graph, self._double, self._repeated = graph, double, repeated
    self._doubled: Optional[Tuple[float, int]] = None  # what `_in_double` gives, once it has run
    if whole is None:
      _check_memory(graph, replicated, 2.0 if double else 1.0)
    self._whole = whole.again() if whole is not None else TrainableGraph(
        self._written(graph), double)
    try:
      self._parts = TrainableGraph(self._written(replicated.graph), double)
    except GraphError as problem:
      raise ReplicaMismatchError(
          f"the graph can be imported but its replicas cannot: {problem}; train with one replica"
      ) from None
    self._replicated = replicated
    self._seed, self._norms = seed, norms
    self._others: List[TrainableGraph] = []  # both with other roundings; made when needed
    self._other_steps = 0
    self._other_fetches: List[List[np.ndarray]] = []
    self._noise: Dict[str, float] = {}  # how far other roundings alone take each variable
    self.in_replicas = False
    self.overflow_step: Optional[int] = None  # the first in which numbers overflow
    self._small, self._alternates = False, True
    self._blurred: Set[str] = set()  # variables that hold little but rounding, or overflow
    self._moved: Set[str] = set()  # variables that steps changed by more than rounding
    self._first: Dict[str, np.ndarray] = {}  # variables as they were first
    self.num_fetches = sum(":" in name for name in graph.fetches)
    self._tensors = [name for name in graph.fetches if ":" in name]
    self.variables = [name for name, kind in zip(graph.op_names, graph.op_types)
                      if kind in _VARIABLES and not _is_generator(graph, name)]
    self._copies = self._find_copies(graph)
    changed = _updated(replicated.graph, self._parts.tf_graph)  # where functions are expanded
    self.updated = {name for name, copies in self._copies.items() if not changed.isdisjoint(copies)}
    if whole is None:
      self._whole.add(self.variables)
    self._parts.add(each for name in self.variables for each in self._copies[name])
    self._chunks = self._in_chunks()
    self._batch_feeds = [name for name in replicated.feeds if self._holds_examples(graph, name)]
    # Into how many parts a batch is divided in the end.
    self._divisions = replicated.replicas * _parts_of_feeds(replicated.original)
    self._examples = self._number_of_examples(graph)

  def _written(self, graph: ComputationGraph) -> ComputationGraph:
    """As it is run."""
    if not (self._double or self._repeated):
      return graph
    return with_plain_batch_norm(graph, corrected=not self._repeated)

  @property
  def untold(self) -> Set[str]:
    """Variables that tell nothing: that hold little but rounding, overflow, or are not changed."""
    return self._blurred | (self.updated - self._moved)

  def _in_chunks(self) -> List[List[str]]:
    """The variables, in groups that are read and written together."""
    found: List[List[str]] = [[]]
    filled = 0.0
    for name in self.variables:
      size = len(self._copies[name]) * _variable_bytes(
          self._whole.tf_graph.get_operation_by_name(name).node_def)
      if found[-1] and filled + size > _CHUNK_BYTES:
        found.append([])
        filled = 0.0
      found[-1].append(name)
      filled += size
    return found

  def _find_copies(self, graph: ComputationGraph) -> Dict[str, List[str]]:
    """Variable -> its names among the replicas."""
    replicated = self._replicated
    names, original = replicated.graph.op_names, replicated.original.op_names
    found: Dict[str, List[str]] = {name: [] for name in self.variables}
    handles = [i for i, kind in enumerate(replicated.graph.op_types) if kind in _VARIABLES]
    by_original: Dict[str, List[str]] = {}
    for i in handles:
      at = int(replicated.original_of_op[i])
      if at >= 0:
        by_original.setdefault(original[at], []).append(names[i])
    if graph.origin.format == "concrete_function":
      theirs = {id(each.variable): each.op for each in resource_captures(
          replicated.graph.origin.tf_graph)}
      ours = {each.op: id(each.variable) for each in resource_captures(graph.origin.tf_graph)}
      by_original = {name: [theirs[ours[name]]] for name in self.variables
                     if ours.get(name) in theirs}
    for name in list(found):
      if name not in by_original:
        raise NotRunnable(f"variable {name!r} is not found among the replicas")
      found[name] = by_original[name]
    return found

  def _holds_examples(self, graph: ComputationGraph, name: str) -> bool:
    shape = graph.origin.feed_shapes.get(name)
    return shape is not None and shape[:1] == (self._replicated.global_batch,)

  def _number_of_examples(self, graph: ComputationGraph) -> int:
    """A few, if the batch is free."""
    if self._batch_feeds and all(has_free_batch(graph, name) for name in self._batch_feeds):
      return min(self._replicated.global_batch, _EXAMPLES_PER_REPLICA * self._divisions)
    return self._replicated.global_batch

  def _feed(self, step: int) -> Dict[str, np.ndarray]:
    seed = 1000 * self._seed + step
    found = with_masks(
        make_feeds(self._whole.graph, self._whole.tf_graph, seed=seed),
        np.random.default_rng(seed), signed=self._is_other(step))
    for name in self._batch_feeds:
      found[name] = found[name][:self._examples]
      if self._repeated:
        each = found[name][:self._examples // self._divisions]
        found[name] = np.concatenate(self._divisions * [each])
    return found

  def _is_other(self, step: int) -> bool:
    """Whether the step has negative numbers, and draws the other ones."""
    return self._alternates and step % 2 == 1

  def run(self, steps: int, started: float, deadline: float) -> Tuple[float, int]:
    """(largest difference, steps compared); see `compare_training`."""
    found = self._run(steps, started, deadline)
    if self.overflow_step == 0:
      self._small = True
      found = self._run(steps, started, deadline)
    if self.overflow_step == 1 and time.monotonic() < (started + deadline) / 2:
      self._alternates = False
      found = self._run(steps, started, deadline)
    return found

  def _run(self, steps: int, started: float, deadline: float) -> Tuple[float, int]:
    """`run` with values as `_small` and `_alternates` say; ends early where numbers overflow."""
    import tensorflow as tf

    self.overflow_step, self._others, self._other_steps = None, [], 0
    try:
      self._begin()
      largest, done = 0.0, 0
      for step in range(steps):
        feed = self._feed(step)
        try:
          expected = self._whole.step(feed, deadline, self._is_other(step))
        except tf.errors.InvalidArgumentError:
          if not self._is_other(step):
            raise
          self.overflow_step = step  # of which an op of the graph makes an error
          break
        self.in_replicas = True
        found = self._parts.step(
            self._replicated.feed(feed), deadline, self._is_other(step))
        self.in_replicas = False
        seen = [_Seen(name, difference(one, part), tolerance(one), is_finite(one))
                for name, one, part in zip(self._tensors, expected, found)]
        for names in self._chunks:
          seen += self._compared(names)
        if not all(each.is_finite for each in seen):
          self.overflow_step = step if self.overflow_step is None else self.overflow_step
          if step or not self._small:
            break
        if any(each.is_wrong for each in seen):
          largest_in_double, agreeing = self._in_double(steps, started, deadline)
          if 0 < agreeing <= step:
            break  # there was time for fewer steps in double precision
          if agreeing:
            seen = [each._replace(difference=largest_in_double) if each.is_wrong else each
                    for each in seen]
        if any(each.is_wrong for each in seen):
          self._measure_noise(
              {each.name for each in seen if each.is_wrong}, (expected, found), step, deadline)
          seen = [each._replace(tolerance=max(
              each.tolerance, _NOISE_FACTOR * self._noise.get(each.name, 0.0))) for each in seen]
        wrong = [each for each in seen if each.is_wrong]
        if wrong:
          raise self._mismatch(wrong, step, feed)
        self._blurred.update(
            each.name for each in seen if each.name in self._copies and not each.tells)
        self._moved.update(each.name for each in seen if each.moves)
        if step == 0 and self.updated - self._moved - self._blurred:
          self._look_closer(steps, started, (started + deadline) / 2)
        largest = max([largest, *(each.difference for each in seen if each.tells)])
        done += 1
        if time.monotonic() > (started + deadline) / 2:
          break
      return largest, done
    finally:
      self._close()

  def _in_double(self, steps: int, started: float, deadline: float) -> Tuple[float, int]:
    """`run` in double precision, made once; no steps where that cannot be run.

    Raises:
      ReplicaMismatchError: the replicas train something else there, too.
    """
    import tensorflow as tf

    if self._doubled is None:
      self._doubled = 0.0, 0
      if self._double:
        return self._doubled
      with contextlib.suppress(NotRunnable, MemoryError, tf.errors.UnimplementedError,
                               tf.errors.InvalidArgumentError, tf.errors.ResourceExhaustedError):
        again = _Comparison(
            self._graph, self._replicated, self._seed, norms=self._norms, double=True,
            repeated=self._repeated)
        self._doubled = again.run(steps, started, deadline)
        self._blurred |= again._blurred
        self._moved |= again._moved
    return self._doubled

  def _look_closer(self, steps: int, started: float, deadline: float) -> None:
    """Tries double precision, where small changes show, if there is time."""
    import tensorflow as tf

    if time.monotonic() > deadline:
      return
    try:
      self._in_double(steps, started, deadline)
    except tf.errors.DeadlineExceededError:
      self._doubled = None

  def run_repeated(self, replicated: ReplicatedGraph, started: float, deadline: float) -> None:
    """A step of replicas with their own statistics, of the same examples, if there is time."""
    import tensorflow as tf

    try:
      again = _Comparison(self._graph, replicated, self._seed, repeated=True)
      again.run(1, started, deadline)
    except ReplicaMismatchError:
      raise
    except (NotRunnable, GraphError, MemoryError, tf.errors.OpError):
      return

  def run_alone(self, replicated: ReplicatedGraph, deadline: float) -> None:
    """A step of replicas with their own statistics, of any examples: whether they can do it."""
    self.in_replicas = True
    alone = _Comparison(self._whole.graph, replicated, self._seed, self._whole)
    try:
      alone._begin()
      alone._parts.step(replicated.feed(alone._feed(0)), deadline)
    finally:
      alone._close()
    self.in_replicas = False

  def _close(self) -> None:
    for each in (self._whole, self._parts, *self._others):
      each.close()

  def _compared(self, names: Sequence[str]) -> List[_Seen]:
    """Some variables of the graph beside their copies."""
    found = iter(self._parts.read([each for name in names for each in self._copies[name]]))
    seen = []
    for name, value in zip(names, self._whole.read(names)):
      change = difference(value, self._first[name]) if name in self.updated else 1.0
      seen += [_Seen(name, difference(part, next(found)), tolerance(part, change), is_finite(part),
                     change) for part in self._by_copy(name, value).values()]
    return seen

  def _measure_noise(
      self, wanted: Set[str], fetched: Sequence[Sequence[np.ndarray]], step: int, deadline: float
  ) -> None:
    """How far other roundings alone take some fetches and variables in the steps so far.

    Args:
      wanted: their names.
      fetched: what the graph and its replicas gave in this step.
    """
    if not self._others:
      self._begin_others()
    whole, parts = self._others
    while self._other_steps <= step:
      feed, is_other = self._feed(self._other_steps), self._is_other(self._other_steps)
      self._other_fetches = [
          whole.step(feed, deadline, is_other),
          parts.step(self._replicated.feed(feed), deadline, is_other)]
      self._other_steps += 1
    pairs = [each for one, again in zip(fetched, self._other_fetches)
             for each in zip(self._tensors, one, again) if each[0] in wanted]
    for chunk in self._chunks:
      names = [name for name in chunk if name in wanted]
      copies = [(name, each) for name in names for each in self._copies[name]]
      if names:
        pairs += zip(names, self._whole.read(names), whole.read(names))
        pairs += zip((name for name, _ in copies), *(
            each.read([copy_ for _, copy_ in copies]) for each in (self._parts, parts)))
    for name, one, again in pairs:
      self._noise[name] = max(self._noise.get(name, 0.0), difference(one, again))

  def _begin_others(self) -> None:
    """Both once more, with variables that differ by some roundings."""
    plain = self._norms and not self._double
    whole = TrainableGraph(with_plain_batch_norm(self._graph)) if plain else self._whole.again()
    if plain:
      whole.add(self.variables)
    parts = self._parts.again()
    self._others = [whole, parts]
    parts.open()
    rng = np.random.default_rng(self._seed + 1)
    for values in self._first_values(whole):
      values = {name: rounded(value, rng) for name, value in values.items()}
      whole.write(values)
      self._set_parts(values, parts)

  def _begin(self) -> None:
    """Initialises the graph, and its replicas alike."""
    self._parts.open()
    for values in self._first_values(self._whole):
      self._first.update(values)
      self._whole.write(values)
      self._set_parts(values)

  def _first_values(self, graph: TrainableGraph) -> Iterator[Dict[str, np.ndarray]]:
    """Initialises the graph; gives its variables with elements that differ, a chunk at a time."""
    graph.open(*(([], {}) if graph.values else initializers(graph.graph, graph.tf_graph)))
    rng = np.random.default_rng(self._seed)
    for names in self._chunks:
      given = [graph.values[name] for name in names] if graph.values else graph.read(names)
      yield {name: varied(value, rng, self._small) for name, value in zip(names, given)}

  def _set_parts(
      self, values: Mapping[str, np.ndarray], parts: Optional[TrainableGraph] = None) -> None:
    (parts or self._parts).write({copy_: part for name, value in values.items()
                                  for copy_, part in self._by_copy(name, value).items()})

  def _by_copy(self, name: str, value: np.ndarray) -> Dict[str, np.ndarray]:
    """The replicas' copies of a variable -> what they should hold."""
    copies = self._copies[name]
    return dict(zip(copies, self._rows(name, value) or [value] * len(copies)))

  def _rows(self, name: str, value: np.ndarray) -> Optional[List[np.ndarray]]:
    """The rows of each replica, of a variable that keeps examples."""
    op = self._parts.tf_graph.get_operation_by_name(self._copies[name][0])
    shape = [dim.size for dim in op.node_def.attr["shape"].shape.dim]
    if len(shape) != value.ndim:
      return None
    axes = [axis for axis, size in enumerate(shape) if 0 <= size != value.shape[axis]]
    return np.split(value, self._replicated.replicas, axis=axes[0]) if axes else None

  def _mismatch(
      self, wrong: Sequence[_Seen], step: int, feed: Mapping[str, np.ndarray]
  ) -> ReplicaMismatchError:
    shown = listed([f"{each.name!r} by {each.difference:.0e}" for each in wrong])
    joins = self._wrong_joins(feed)
    where = f"; of what is joined, {', '.join(map(repr, joins))} differ first" if joins else ""
    return ReplicaMismatchError(
        f"{self._replicated.form} replicas train something else than the graph: after step "
        f"{step + 1} {shown} (relative to its largest element){where}; train with one "
        "replica, or take the op out of the training step")

  def _wrong_joins(self, feed: Mapping[str, np.ndarray]) -> List[str]:
    """The first tensors that are joined to another value than the graph's, from equal variables."""
    for names in self._chunks:
      self._set_parts(dict(zip(names, self._whole.read(names))))
    joins: Dict[str, str] = {}  # the end of the name of an op that joins -> its name
    for op in self._parts.tf_graph.get_operations():
      if op.name.startswith("joined") and op.outputs:
        parts = op.name.split("/")
        for start in range(1, len(parts)):
          joins.setdefault("/".join(parts[start:]), op.name)
    found: List[str] = []
    for name in self._whole.graph.op_names:
      for port in range(2):
        joined = joins.get(f"{name}_{port}")
        if joined is None or len(found) >= _LISTED:
          continue
        try:
          one = self._whole.session.run(f"{name}:{port}", feed)
          other = self._parts.session.run(
              f"{joined}:0", self._replicated.feed(feed))
        except Exception:  # pylint: disable=broad-except  in a branch that is not taken
          continue
        if difference(one, other) > tolerance(one):
          found.append(name)
    return found


def _parts_of_feeds(graph: ComputationGraph) -> int:
  """Into how many parts a graph divides its batch itself: more than 1 if replicas are inside."""
  feeds = {name.partition(":")[0] for name in graph.feeds}
  return max([1, *(
      node.attr["num_split"].i for node in graph.origin.graph_def.node
      if node.op == "Split" and feeds & {text.partition(":")[0] for text in node.input})])


def _check_memory(graph: ComputationGraph, replicated: ReplicatedGraph, size: float) -> None:
  """Raises NotRunnable where variables and a step's tensors, of `size`, do not fit into memory."""
  variables = sum(_variable_bytes(node) for node in graph.origin.graph_def.node
                  if node.op in _VARIABLES)
  held = _CHUNK_BYTES + variables * (3 + (replicated.replicas if replicated.mirrored else 1))
  free = _free_bytes()
  if size * (held + _bytes_of_tensors(graph)) <= free:
    return
  cluster = Cluster.parse("cpu:1")
  costs = estimate_costs(graph, cluster)
  step = Simulator(graph, costs, cluster).simulate(np.zeros(graph.num_ops, np.int32))
  needed = size * (held + _PARALLEL_OPS * float(
      step.peak_memory_bytes.max() - costs.persistent_bytes.sum()))
  if needed > free:
    raise NotRunnable(f"it takes {needed / 1e9:.1f} GB of memory, of which this machine has "
                       f"{free / 1e9:.1f} left")


def _bytes_of_tensors(graph: ComputationGraph) -> float:
  """Of all tensors of a step, as if none were freed; infinite where a shape is not known.

  Much sooner known than what is alive at a time.
  """
  import tensorflow as tf

  flow = analyse_dataflow(graph)
  total = 0.0
  for op, executions in enumerate(graph.executions.tolist()):
    for port in range(int(graph.output_offsets[op + 1] - graph.output_offsets[op])):
      shape, dtype = flow.shape((op, port)), tf.dtypes.as_dtype(flow.dtype((op, port)))
      if dtype.base_dtype in (tf.resource, tf.variant):
        continue
      try:
        total += executions * math.prod(known_dims(shape)) * dtype.size
      except ValueError:
        return math.inf
  return total


def _variable_bytes(node: Any) -> float:
  import tensorflow as tf

  dims = [max(1, dim.size) for dim in node.attr["shape"].shape.dim]
  return float(math.prod(dims)) * tf.dtypes.as_dtype(node.attr["dtype"].type).size


def _free_bytes() -> float:
  """Memory that other programs leave, where the system tells; else any amount."""
  try:
    with open("/proc/meminfo", encoding="ascii") as file:
      found = dict(line.split(":", 1) for line in file)
    return 1024.0 * int(found["MemAvailable"].split()[0])
  except (OSError, KeyError, ValueError):
    return math.inf


def _is_generator(graph: ComputationGraph, name: str) -> bool:
  """Whether the variable is the state of a random generator, which each replica advances."""
  op = graph.op_index[name]
  readers = graph.edge_consumers[graph.edge_producers == op].tolist()
  return any(graph.op_types[reader] in op_roles.VARIABLE_NOISE for reader in readers)


def _updated(graph: ComputationGraph, tf_graph: Any) -> Set[str]:
  """Variables that an op of the step changes, in branches and loops, too."""
  import tensorflow as tf

  found = set()
  for name, kind in zip(graph.op_names, graph.op_types):
    if not op_roles.is_update(kind):
      continue
    op = tf_graph.get_operation_by_name(name)
    for arg, tensor in zip(op.op_def.input_arg, op.inputs):
      if arg.is_ref or arg.type == tf.resource.as_datatype_enum:
        while tensor.op.type in PASSING:
          tensor = tensor.op.inputs[0]
        found.add(tensor.op.name)
  return found
