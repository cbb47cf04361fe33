"""The ops that every replica has, the sharding spec of each of their tensors, and all-reduces.

The batch is followed forwards, from the feeds. Where an op needs the global value of a tensor of
which the replicas hold parts, the tensor is joined before it: `Spread.fixes`.

Dimensions: N needed ops.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import AbstractSet, Dict, FrozenSet, List, Mapping, Optional, Sequence, Set, Tuple

import numpy as np

from placeto_tf.ops import rule_of
from placeto_tf.replication import op_roles, powers
from placeto_tf.replication.axis_rules import AxisRules
from placeto_tf.replication.dataflow import Dataflow, Tensor, closure
from placeto_tf.replication.kinds import (
  FREE,
  MIXES_ROWS,
  SAME,
  Box,
  Either,
  Kind,
  Own,
  Partial,
  Positions,
  Rows,
  Same,
  Sizes,
  Sparse,
  Unclear,
  Whole,
  is_unclear,
  join,
  meets_all_examples,
  with_power,
)
from placeto_tf.replication.powers import Fix, Inputs, NotFollowed
from placeto_tf.replication.scaling import ODD, Scaling
from placeto_tf.replication.sparse_updates import SparseUpdate

_MERGES = ("Merge", "RefMerge")
_SWITCHES = ("Switch", "RefSwitch")
_CONTAINER_SHAPES = (
    "TensorListElementShape", "TensorListLength", "TensorArraySizeV3", "OptionalHasValue")
_HANDLES = (powers.RESOURCE, 21)  # and variant
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_EMPTY_LISTS = ("TensorListReserve", "EmptyTensorList")
_PUSHES, _POPS = ("StackPushV2", "StackPush"), ("StackPopV2", "StackPop")
_SHAPES = ("Shape", "ShapeN", "Size", "Rank")
_OF_TWO_SHAPES = ("BroadcastGradientArgs", "Equal", "NotEqual", "Less")
_SHUFFLES = ("RandomShuffle", "RandomShuffleQueue")
_MAX_ROUNDS = 4
_MAX_PASSES = 10  # nested loops settle in as many rounds as their depth, plus some


class JoinInLoop(Exception):
  """A loop that each replica was to run for itself needs a global value; `frame` names it."""

  def __init__(self, frame: str):
    super().__init__(frame)
    self.frame = frame


@dataclasses.dataclass(frozen=True)
class Spread:
  """The ops and tensors that the batch reaches.

  Attributes:
    batch: examples of one replica.
    sources: ops that are fed, or read an input pipeline.
    noise: ops that draw random numbers, for each replica its own.
    copied: ops that each replica has, unless they turn out to come after the joins.
    kinds: op of `copied` -> kinds of its outputs.
    fixes: (op of `copied`, number of a data input) -> the fix of that input before.
    once: ops of `copied` that compute the same everywhere, from combined values.
    sparse: tensors that hold rows of the gradient of a variable.
    statistics: ops that normalize by each replica's own statistics.
    slices: constant of one row for each example -> the global value.
    owned: variables that keep examples, of which each replica has its own.
    merged: loops that all replicas go round together, because they need values of all.
    refused: op -> why its effect cannot be had from replicas.
  """

  batch: int
  sources: FrozenSet[int]
  noise: FrozenSet[int]
  copied: FrozenSet[int]
  kinds: Dict[int, List[Kind]]
  fixes: Dict[Tuple[int, int], Fix]
  once: FrozenSet[int]
  sparse: FrozenSet[Tensor]
  statistics: FrozenSet[int]
  slices: Mapping[int, np.ndarray]
  owned: FrozenSet[int]
  merged: FrozenSet[str]
  refused: Dict[int, Unclear]

  def kind(self, tensor: Tensor) -> Kind:
    """Returns the spec of any tensor of the graph."""
    found = self.kinds.get(tensor[0])
    return SAME if found is None else found[tensor[1]]


def spread(
    flow: Dataflow, sparse: Sequence[SparseUpdate], scaling: Scaling,
    own_statistics: AbstractSet[int] = frozenset()) -> Spread:
  """Follows the batch through the graph.

  Args:
    flow: the graph of one replica.
    sparse: updates of some rows of variables.
    scaling: the parts of it that grow with the batch.
    own_statistics: ops whose results are statistics that each replica keeps to itself.

  Returns:
    The ops and tensors behind the batch, with their specs.

  Raises:
    GraphError: there is no batch, or an op holds state that replicas cannot share.
  """
  batch, sources = op_roles.batch_feeds(flow, scaling)
  merged: Set[str] = set()
  while True:
    copied, noise = _copied(flow, set(sources), scaling, merged)
    found = _Propagation(
        flow, batch, frozenset(sources), noise, copied, sparse, scaling, own_statistics, merged)
    try:
      return found.run()
    except JoinInLoop as needs:
      # The loop needs values of all replicas: they go round it together, and the batch is followed
      # anew.
      merged |= _with_inner(flow, needs.frame)


def _with_inner(flow: Dataflow, frame: str) -> Set[str]:
  """Returns a loop, the loops around it, and those inside of any of them."""
  parents = flow.frame_parents
  outer = frame
  while parents.get(outer):
    outer = parents[outer]
  found = {outer}
  # Until no loop inside of one of these is missing.
  size = 0
  while size != len(found):
    size = len(found)
    found |= {inner for inner, parent in parents.items() if parent in found}
  return found


def _copied(
    flow: Dataflow, sources: Set[int], scaling: Scaling, merged: Set[str]
) -> Tuple[Set[int], Set[int]]:
  """Returns the ops of each replica, and those of them that are random for examples."""
  containers = [op for op, kind in enumerate(flow.types) if kind in op_roles.STEP_CONTAINERS]
  drawn = _drawn_by_examples(flow, sources, scaling)
  producers = [[producer for producer, _ in data] for data in flow.inputs]
  by_frame = collections.defaultdict(list)
  for op, frame in enumerate(flow.frames):
    if frame and frame not in merged:
      by_frame[frame].append(op)
  seeds, waiting = set(sources) | set(scaling.sources) | set(drawn), set(containers)
  copied: Set[int] = set()
  while not seeds <= copied:
    copied = closure(copied | seeds, flow.consumers)
    # A loop goes round for each replica as a whole.
    for frame in {flow.frames[op] for op in copied if flow.frames[op]}:
      seeds.update(by_frame.get(frame, ()))
    # Containers that a copied op depends on are copied with it.
    found = waiting & closure(copied, producers) if waiting else set()
    waiting -= found
    seeds |= found
  return copied, drawn


def _drawn_by_examples(flow: Dataflow, sources: Set[int], scaling: Scaling) -> Set[int]:
  """Returns random ops for examples, with the ops that make keys for them alone."""
  noise = op_roles.NOISE
  found: Set[int] = set()
  reached = closure(sources | set(scaling.sources), flow.consumers)
  for op, kind in enumerate(flow.types):
    # Random ops whose results grow with the batch, or may.
    if kind in noise and kind not in op_roles.KEYS and kind not in _SHUFFLES:
      axes = scaling.axes((op, 0))
      if axes or axes is None and op in reached:
        found.add(op)
  for op, kind in enumerate(flow.types):
    if kind in op_roles.KEYS:
      # A key is for examples if a random op for examples reads it.
      readers, stack = set(), [op]
      while stack:
        for consumer in flow.consumers[stack.pop()]:
          if flow.types[consumer] in noise:
            readers.add(consumer)
          elif consumer not in readers and flow.types[consumer] in (
              "Identity", "StridedSlice", "Slice", "Reshape", "Cast", "Bitcast", "Unpack"):
            stack.append(consumer)
      if readers & found:
        found.add(op)
  return found


class _Propagation:
  """Kinds, op by op, until loops have settled."""

  def __init__(
      self, flow: Dataflow, batch: int, sources: FrozenSet[int], noise: Set[int],
      copied: Set[int], sparse: Sequence[SparseUpdate], scaling: Scaling,
      own_statistics: AbstractSet[int], merged: Set[str]):
    self._flow, self._batch, self._scaling = flow, batch, scaling
    self._sources, self._noise, self._copied = sources, frozenset(noise), copied
    self._own_statistics, self._merged = own_statistics, merged
    self._values = {update.values: update.indices for update in sparse}
    # Indices of a gradient's rows -> the values that they belong to.
    self._indices: Dict[Tensor, List[Tensor]] = collections.defaultdict(list)
    self._readers: Dict[Tensor, Set[int]] = collections.defaultdict(set)
    for update in sparse:
      self._indices[update.indices].append(update.values)
      self._readers[update.indices] |= update.readers
    self._rules = AxisRules(flow, batch, scaling)
    self._kinds: Dict[int, Optional[List[Kind]]] = {}
    self._fixes: Dict[Tuple[int, int], Fix] = {}
    self._once: Set[int] = set()
    self._pushed: Dict[int, Kind] = {}  # stack op -> spec of its elements
    self._statistics: Set[int] = set()
    self._refused: Dict[int, Unclear] = {}

  def run(self) -> Spread:
    flow = self._flow
    # By depth: most inputs are known before an op is reached.
    order = [op for op in flow.order if op in self._copied]
    self._settle(order)
    self._check_loops()
    kinds = {op: found or [SAME] * len(self._flow.outputs(op)) for op, found in self._kinds.items()}
    owned = frozenset(
        op for op in self._scaling.sources if flow.types[op] in op_roles.VARIABLES)
    return Spread(
        self._batch, self._sources, self._noise, frozenset(self._copied), kinds, self._fixes,
        frozenset(self._once), frozenset(
            tensor for tensor in (*self._values, *self._indices)
            if isinstance(self._kind(tensor), Sparse)),
        frozenset(self._statistics), self._scaling.slices, owned, frozenset(self._merged),
        self._refused)

  def _settle(self, order: Sequence[int]) -> None:
    """Follows the batch until all kinds agree with one another.

    What comes round a loop is not known at first, and taken to be the same everywhere. So rows are
    not compared with that before all is known.
    """
    self._kinds = {op: None for op in order}
    loops = any(self._flow.frames[op] for op in order)
    for compared in (False, True) if loops else (True,):
      self._rules.compared = compared and self._scaling.compares
      self._rounds(order, loops)

  def _rounds(self, order: Sequence[int], loops: bool) -> None:
    """Follows the batch until specs have settled, with comparisons or without them.

    While kinds come round a loop for the first time, what depends on them can look unclear, and
    would then stay so, because it goes round itself. So it is followed once more when the rest is
    known.
    """
    unclear: Set[int] = set()
    for _ in range(_MAX_ROUNDS if loops else 1):
      self._pass(order, _MAX_PASSES if loops else 1)
      before, unclear = unclear, {op for op in order if any(map(is_unclear, self._kinds[op] or ()))}
      if not unclear or unclear == before or not loops:
        return
      for op in unclear:
        self._kinds[op] = None
      self._pushed = {
          stack: kind for stack, kind in self._pushed.items() if not is_unclear(kind)}
    self._pass(order, _MAX_PASSES)

  def _pass(self, order: Sequence[int], most: int) -> None:
    for _ in range(most):
      changed = False
      # Fixes and statistics are those of the last pass alone.
      self._statistics.clear()
      self._fixes.clear()
      self._once.clear()
      for op in order:
        found = self._outputs(op) if self._is_ready(op) else None
        if found != self._kinds[op]:
          self._kinds[op], changed = found, True
      if not changed:
        break

  def _is_ready(self, op: int) -> bool:
    """Returns whether enough of an op's inputs is known; the others come round a loop."""
    kind = self._flow.types[op]
    known = [tensor[0] not in self._kinds or self._kinds[tensor[0]] is not None
             for tensor in self._flow.inputs[op]]
    if kind in _POPS:
      stack = self._flow.origin(self._flow.inputs[op][0])[0]
      return all(known) and stack in self._pushed
    # A Merge is followed as soon as one of its inputs is known.
    return any(known) or not known if kind in _MERGES else all(known)

  def _check_loops(self) -> None:
    """Raises JoinInLoop if a loop of one replica needs values of all."""
    for (op, _), fix in self._fixes.items():
      frame = self._flow.frames[op]
      if frame and frame not in self._merged and fix[0] in (powers.JOIN, powers.SLICE):
        # The fix of an Enter is made before the loop, which stays each replica's own.
        outside = self._flow.types[op] in ("Enter", "RefEnter")
        if not outside:
          raise JoinInLoop(frame)
    for op in self._copied:
      frame = self._flow.frames[op]
      if frame and frame not in self._merged and op_roles.is_update(self._flow.types[op]):
        raise JoinInLoop(frame)

  def _kind(self, tensor: Tensor) -> Kind:
    own = self._own_kind(tensor)
    # Values and indices are rows of a gradient together, if either of them holds rows.
    if tensor in self._values or tensor in self._indices:
      if any(isinstance(self._own_kind(each), (Rows, Sparse))
             for each in (tensor, *self._indices.get(tensor, ()))):
        return Sparse(getattr(own, "power", 0.0))
    return own

  def _own_kind(self, tensor: Tensor) -> Kind:
    if tensor[0] not in self._kinds:
      return SAME
    found = self._kinds[tensor[0]]
    return SAME if found is None else found[tensor[1]]

  def _outputs(self, op: int) -> List[Kind]:
    width = len(self._flow.outputs(op))
    self._refused.pop(op, None)
    try:
      return self._followed(op, width)
    except NotFollowed as problem:
      return self._refuse(op, Unclear(op, str(problem)), width)

  def _refuse(self, op: int, why: Unclear, width: int) -> List[Kind]:
    self._refused[op] = why
    return [why] * width

  def _followed(self, op: int, width: int) -> List[Kind]:
    flow = self._flow
    kind = flow.types[op]
    # Where examples come from: feeds and pipelines, numbers that grow with the batch.
    if op in self._sources:
      return [Rows(0)] * width
    if op in self._scaling.sources:
      return [self._of_examples(self._scaling.sources[op], op)] * width
    # Readers of a sparse update see rows of a gradient; other ops see the tensor itself.
    given = [self._kind(tensor) if op in self._readers.get(tensor, (op,)) else
             self._own_kind(tensor) for tensor in flow.inputs[op]]
    if op in self._noise:
      return [self._drawn(tensor) for tensor in flow.outputs(op)]
    if kind in _MERGES:
      return self._merge(op, given, width)
    if kind in _CONTAINER_SHAPES:
      return [SAME] * width
    rule = rule_of(kind)
    if rule.puts or rule.takes or kind in _PUSHES or kind in _POPS:
      return self._container(op, given, width)
    unclear = next((each for each in given if isinstance(each, Unclear)), None)
    # The shape of an unclear tensor may be known all the same.
    if unclear is not None and (kind not in _SHAPES or kind != "Rank" and any(
        self._scaling.number((op, port)) != SAME for port in range(width))):
      return self._refuse(op, unclear, width)
    # By its rule on the replica's tensors; else once, on those of all replicas.
    view = Inputs(flow, op, given)
    try:
      found = self._by_rule(view, width)
    except NotFollowed as problem:
      view = Inputs(flow, op, given)
      try:
        found = self._globally(view, width)
      except NotFollowed:
        raise problem from None
    self._note(view, found)
    return found

  def _note(self, view: Inputs, found: Sequence[Kind]) -> None:
    for i, fix in view.fixes.items():
      self._fixes[view.op, i] = fix
    # Ops of containers, and of a replica's own loops, exist in each replica.
    frame = self._flow.frames[view.op]
    if frame and frame not in self._merged or self._flow.types[view.op].startswith(
        ("Stack", "TensorArray", "TensorList", "EmptyTensorList", "Optional")):
      return
    if any(self._flow.types[self._flow.origin(tensor)[0]] in op_roles.STEP_CONTAINERS
           for tensor in self._flow.inputs[view.op]):
      return
    # An op on global values with global results exists once.
    if all(_is_global(kind) for kind in found) and all(_is_global(kind) for kind in view.kinds):
      self._once.add(view.op)

  def _by_rule(self, view: Inputs, width: int) -> List[Kind]:
    flow, op, kinds = self._flow, view.op, view.kinds
    kind = flow.types[op]
    # Nothing of the batch.
    if all(each == SAME for each in kinds):
      # Of all examples where parts of them, in whatever numbers, come together.
      together = self._rules.compared and not any(map(self._grows, flow.inputs[op]))
      return [Whole() if together and self._grows((op, port)) else SAME for port in range(width)]
    if kind in _EMPTY_LISTS:
      for i, each in enumerate(kinds):
        if isinstance(each, (Partial, Own)):  # as long as a number of steps found over the batch
          view.join(i)
      return [SAME] * width
    # Effects, predicates and containers.
    if op_roles.is_update(kind):
      return self._update(view, width)
    if kind in _SWITCHES and not isinstance(kinds[1], Same):
      view.join(1)
      kinds[1] = SAME
    if any(isinstance(each, Box) for each in kinds):
      return self._of_boxes(view, width)
    if kind == "LoopCond" or kind in ("Switch", "If", "StatelessIf") and len(kinds) == 1:
      view.join(0)
      return [SAME] * width
    if kind in _SHUFFLES and isinstance(kinds[0], (Rows, Sparse)):
      raise NotFollowed("shuffles the examples of the batch")
    # Sizes of tensors, statistics, rows of gradients.
    if kind in _SHAPES:
      # The size of all examples is asked for: each replica measures its own rows instead.
      if isinstance(kinds[0], Whole) and len(self._scaling.axes(flow.inputs[op][0]) or ()) == 1:
        self._cut_rows(view)
      return [self._sizes(op, kinds[port if kind == "ShapeN" else 0], port)
              for port in range(width)]
    if op in self._own_statistics:
      return [Own(1.0)] * width
    if any(isinstance(each, Sparse) for each in kinds):
      return self._of_sparse(view, width)
    if not op_roles.may_be_copied(kind):
      return self._globally(view, width)
    # Examples: the rule of the op type says where they are in the result.
    self._cut_rows(view)
    if any(isinstance(each, Rows) for each in kinds):
      if any(isinstance(each, Own) for each in kinds):
        self._statistics.add(op)
      found = self._rules.outputs(view)
      if any(isinstance(each, Own) for each in found):
        self._statistics.add(op)
      return found
    # Shapes that are compared: one of rows, the other of all examples, would mix replicas.
    if kind in _OF_TWO_SHAPES and self._rules.compared:
      measured = [self._measured(tensor) for tensor in flow.inputs[op]]
      if meets_all_examples([(self._kind(each), flow.shape(each)) for each in measured if each]):
        raise NotFollowed(MIXES_ROWS)
    if self._bends_counts(view):
      return [Same(powers.result_power(flow, view))] * width
    # Numbers and shapes that depend on how many examples there are.
    numbers = [self._scaling.number((op, port)) for port in range(width)]
    shaped = rule_of(kind).shaped
    # Nothing is partial: numbers, shapes, and values that are the same everywhere.
    if not any(isinstance(each, (Partial, Own)) for each in kinds):
      if any(isinstance(each, Unclear) for each in numbers) and all(
          isinstance(each, Same) for each in kinds) and not shaped:
        return [Same(powers.result_power(flow, view))] * width
      if all(each is not None for each in numbers):
        return [self._of_examples(each, op) for each in numbers if each is not None]
      if not shaped and any(self._scaling.axes((op, port)) for port in range(width)):
        return self._globally(view, width)
      if any(isinstance(each, Sizes) for each in kinds) or shaped:
        return self._shaped(view, width)
      counted = [i for i, each in enumerate(kinds) if each == Same(-1.0)]
      if kind == "Pack" and flow.is_integer((op, 0)) and len(counted) == 1 and all(
          flow.shape(each) == () for each in flow.inputs[op]):
        return [Sizes(counted[0])]  # a shape of which one size is the number of examples
      power = powers.result_power(flow, view)
      return [Same(power)] * width
    # Parts of a value: they go on through linear ops.
    if any(isinstance(each, Own) for each in kinds):
      return self._own(view, width)
    if shaped and self._scaling.axes((op, 0)) and any(
        isinstance(each, Sizes) or isinstance(each, Same) and each.power for each in kinds):
      return self._shaped(view, width)
    return self._of_partial(view, width)

  def _bends_counts(self, view: Inputs) -> bool:
    """Returns whether a number computed from the batch size may be no multiple of it.

    At two batches it can look like one, as a quarter of 4 and of 16 does, and yet be none at the
    smaller last batch of an epoch.
    """
    flow, kinds = self._flow, view.kinds
    if not rule_of(flow.types[view.op]).bends or len(set(view.powers())) < 2 or not all(
        isinstance(each, Same) for each in kinds):
      return False
    if flow.types[view.op] == "FloorDiv" and kinds[0] == Same(-1.0):
      # A count that batch * divisor divides stays a multiple of the batch.
      count, by = (flow.value(tensor) for tensor in flow.inputs[view.op])
      return count is None or by is None or bool(np.any(count % (self._batch * by)))
    return True

  def _of_examples(self, kind: Kind, op: int) -> Kind:
    """Returns rows of counted numbers; their shape tells how many slots an example has."""
    if not isinstance(kind, Rows) or kind.local is None:
      return kind
    numbers = powers.numbers_of_an_example(self._flow, (op, 0), self._batch)
    if numbers is None:
      raise NotFollowed("counts another number than that of the examples")
    return dataclasses.replace(kind, local=Positions(kind.local.span * numbers, kind.local.room))

  def _of_boxes(self, view: Inputs, width: int) -> List[Kind]:
    """Returns the specs of containers that are made of others."""
    boxes = [each for each in view.kinds if isinstance(each, Box)]
    if self._flow.types[view.op] == "ZerosLike":
      content = boxes[0].content
      return [Box(with_power(content, FREE))] * width
    content = view.kinds[0].content if isinstance(view.kinds[0], Box) else SAME
    # Behind a Switch of the same predicate each branch takes the tensors that it kept itself.
    if isinstance(content, Either) and self._flow.types[view.op] in _SWITCHES:
      if self._flow.origin(self._flow.inputs[view.op][1]) != content.predicate:
        raise NotFollowed("takes what another branch has kept")
      return [Box(content.false), Box(content.true)]
    return [join(boxes, view.op)] * width

  def _cut_rows(self, view: Inputs) -> None:
    """Takes the replica's rows of values of all replicas, so that it goes on with its own."""
    rows = any(isinstance(each, Rows) for each in view.kinds)
    for i, each in enumerate(view.kinds):
      # Values of all examples are always cut, values that grow with the batch only beside rows.
      if isinstance(each, Whole) or rows and each == SAME and self._grows(
          self._flow.inputs[view.op][i]):
        axes = self._scaling.axes(self._flow.inputs[view.op][i])
        if axes is None or len(axes) != 1:
          raise NotFollowed(MIXES_ROWS)
        view.slice(i, axes[0])

  def _grows(self, tensor: Tensor) -> bool:
    """Returns whether a tensor that all replicas share has more elements for more examples."""
    return self._scaling.axes(tensor) not in (None, [], ODD)

  def _update(self, view: Inputs, width: int) -> List[Kind]:
    """Follows an op that writes: it reads global values, but for a variable in rows."""
    flow, op = self._flow, view.op
    if flow.origin(flow.inputs[op][0])[0] in self._scaling.sources:
      return [Rows(0)] * width
    for i in range(len(view.kinds)):
      if isinstance(view.kinds[i], Sizes):
        raise NotFollowed("writes dimensions of the batch")
      view.join(i)
      view.kinds[i] = SAME
    return [SAME] * width

  def _drawn(self, tensor: Tensor) -> Kind:
    """Returns the spec of a result of a random op that each replica has for its examples."""
    # The axis that grows with the batch is where the examples are.
    axes = self._scaling.axes(tensor)
    if axes and len(axes) == 1:
      return Rows(axes[0])
    return SAME if self._flow.types[tensor[0]] in op_roles.KEYS else Unclear(
        tensor[0], "draws for examples in a shape that is not known")

  def _merge(self, op: int, given: Sequence[Kind], width: int) -> List[Kind]:
    flow = self._flow
    # Inputs that come round a loop may not be known yet.
    known = [i for i, tensor in enumerate(flow.inputs[op])
             if tensor[0] not in self._kinds or self._kinds[tensor[0]] is not None]
    view = Inputs(flow, op, given)
    unclear = next((given[i] for i in known if isinstance(given[i], Unclear)), None)
    if unclear is not None:
      return self._refuse(op, unclear, width)  # type: ignore[arg-type]
    # Zeros are whatever the others are.
    varied = [i for i in known if not self._is_zero(flow.inputs[op][i])] or known
    known = [i for i in known if i in varied or not isinstance(given[i], (Same, Rows))]
    if varied == known and all(isinstance(given[i], (Same, Rows)) and self._is_zero(
        flow.inputs[op][i]) for i in known) and len(known) < len(given):
      return [with_power(given[known[0]], FREE), SAME][:width]
    partial = next((given[i] for i in known if isinstance(given[i], Partial)), None)
    # Shares of a sum beside a value that is the same everywhere: each replica takes its share.
    if isinstance(partial, Partial) and partial.how == "sum":
      for i in known:
        if isinstance(given[i], Same):
          view.as_partial(i, partial.power)
    if flow.frames[op] and view.fixes:
      raise NotFollowed("adds up in a loop, from a start that is not zero,")
    found = join([view.kinds[i] for i in known], op)
    # Branches that keep different specs: the gradient of each branch takes its own.
    if isinstance(found, Box) and isinstance(found.content, Unclear):
      found = self._either(op, given) or found
    if isinstance(found, Unclear) and not any(isinstance(each, (Box, Rows)) for each in given):
      for i in known:  # each of them as the global value
        view.fixes.pop(i, None)
        view.kinds[i] = given[i]
        view.join(i)
      found = SAME
    result = [found, SAME][:width]
    self._note(view, result)
    return result

  def _either(self, op: int, given: Sequence[Kind]) -> Optional[Box]:
    """Returns a container that both branches of a cond fill, each for its own gradient."""
    flow = self._flow
    predicate = self._predicate(op)
    if predicate is None or len(given) != 2 or flow.frames[op]:
      return None
    true, false = (each.content if isinstance(each, Box) else SAME for each in given)
    return Box(Either(predicate, true, false))

  def _predicate(self, op: int) -> Optional[Tensor]:
    """Returns the predicate of the Merge of a cond; None where its inputs disagree.

    The first input is that of the true branch (as TensorFlow lowers an `If`).
    """
    flow = self._flow
    found = []
    # The true branch is at port 1 of a Switch and at input 0 of a Merge.
    for port, tensor in zip((1, 0), flow.inputs[op]):
      stack, seen = [tensor], {tensor}
      # Backwards through data and control inputs, up to the Switches of the branch.
      while stack:
        at = stack.pop()
        if flow.types[at[0]] in _SWITCHES:
          found.append((flow.origin(flow.inputs[at[0]][1]), at[1] == port))
          continue
        for before in [*flow.inputs[at[0]], *((control, 0) for control in flow.controls[at[0]])]:
          if before not in seen:
            seen.add(before)
            stack.append(before)
    if len({predicate for predicate, _ in found}) != 1 or not all(fits for _, fits in found):
      return None
    return found[0][0]

  def _is_zero(self, tensor: Tensor) -> bool:
    flow = self._flow
    op = flow.origin(tensor)[0]
    if flow.types[op] == "ZerosLike":
      return True
    # Zeros in another shape are zeros.
    if flow.types[op] in ("Fill", "BroadcastTo", "Tile", "Reshape"):
      return self._is_zero(flow.inputs[op][1 if flow.types[op] == "Fill" else 0])
    constant = flow.constant(op)
    return constant is not None and not constant.any()

  def _sizes(self, op: int, kind: Kind, port: int) -> Kind:
    """Returns the spec of a tensor's shape or size."""
    what = self._flow.types[op]
    if what == "Rank" or not isinstance(kind, (Rows, Sparse)):
      return SAME
    known = None if isinstance(kind, Sparse) else self._scaling.number((op, port))
    if known is not None:
      return known
    return Same(-1.0) if what == "Size" else Sizes(
        kind.axis if isinstance(kind, Rows) and kind.outer <= 1 else None)

  def _shaped(self, view: Inputs, width: int) -> List[Kind]:
    """Follows an op on dimensions: its results are dimensions, or tensors of such a shape."""
    flow, op, kinds = self._flow, view.op, view.kinds
    kind = flow.types[op]
    # range(0, count, 1): a number for each example, counted from 0 in each replica.
    if kind == "Range" and kinds == [SAME, Same(-1.0), SAME] and (
        flow.value(flow.inputs[op][0]) == 0 and flow.value(flow.inputs[op][2]) == 1):
      examples, rest = divmod(int(flow.value(flow.inputs[op][1]) or 0), self._batch)
      if rest or not examples:
        raise NotFollowed("counts another number than that of the examples")
      return [Rows(0, local=Positions(examples))]
    if rule_of(kind).shaped:
      data = 1 if kind == "Fill" else 0
      axes, shape = self._scaling.axes((op, 0)), flow.shape((op, 0))
      if axes == []:
        return [kinds[data]]
      if axes is None and kind in ("ZerosLike", "OnesLike") and isinstance(kinds[0], Same):
        return [Same(FREE) if kind == "ZerosLike" else SAME]
      # The input that states the shape of the result.
      stated = kinds[0 if kind == "Fill" else 1] if len(kinds) > 1 else None
      if axes is None and isinstance(stated, Sizes) and stated.axis is not None:
        return self._of_stated_axis(view, data, stated.axis)
      if axes is None or len(axes) != 1 or kind == "Range" or shape is None:
        raise NotFollowed("makes a tensor whose examples cannot be found")
      if isinstance(kinds[data], (Partial, Own)):
        view.join(data)
      before = flow.shape(flow.inputs[op][0]) if kind in ("Tile", "BroadcastTo") else ()
      # The axis of the examples in the input, aligned from the last axis.
      axis = axes[0] - len(shape) + len(before or ())
      equal = before is not None and (axis < 0 or before[axis] == 1)
      if not equal and kind != "Tile":
        raise NotFollowed("makes a tensor whose examples cannot be found")
      return [Rows(axes[0], 0 if equal else 1, getattr(kinds[data], "power", 0.0))]
    if kind in _OF_TWO_SHAPES:
      return [SAME] * width
    entry = self._entries(view)
    if entry is not None:
      return [entry]
    sizes = rule_of(kind).sizes
    if sizes and flow.is_integer((op, 0)) and flow.shape((op, 0)) != ():
      # Entries in their order: the one that counts examples can still be told.
      counting = {each.axis for each in kinds if isinstance(each, Sizes)}
      keeps = sizes == "entries" and len(counting) == 1
      return [Sizes(counting.pop() if keeps else None)] * width
    raise NotFollowed("computes with dimensions of the batch that are not known")

  def _measured(self, tensor: Tensor) -> Optional[Tensor]:
    """Returns the tensor of which this one holds the shape, or None."""
    tensor = self._flow.origin(self._flow.pushed(tensor) or tensor)
    if self._flow.types[tensor[0]] not in ("Shape", "ShapeN"):
      return None
    return self._flow.inputs[tensor[0]][tensor[1]]

  def _entries(self, view: Inputs) -> Optional[Kind]:
    """Follows some dimensions of which one is known to count examples, or their product."""
    flow, sizes = self._flow, view.kinds[0]
    if not isinstance(sizes, Sizes) or sizes.axis is None:
      return None
    kind, data = flow.types[view.op], flow.inputs[view.op]
    # The product of the sizes is a multiple of the number of examples.
    if kind == "Prod":
      return Same(-1.0) if flow.shape((view.op, 0)) == () else None
    index = flow.value(data[1]) if len(data) > 1 else None
    if kind in ("Gather", "GatherV2") and index is not None:
      chosen = np.ravel(index).tolist()
      # The entry that counts examples was not chosen.
      if sizes.axis not in chosen:
        return SAME
      return Sizes(chosen.index(sizes.axis)) if np.ndim(index) else Same(-1.0)
    shrink = flow.attr(view.op, "shrink_axis_mask")
    # A single entry, taken by its index.
    if kind == "StridedSlice" and index is not None and shrink is not None and shrink.i == 1:
      return Same(-1.0) if int(index[0]) == sizes.axis else SAME
    return None

  def _of_stated_axis(self, view: Inputs, data: int, axis: int) -> List[Kind]:
    """Follows a tensor whose shape is only known to hold examples along one axis."""
    kind, shape = self._flow.types[view.op], self._flow.shape(
        self._flow.inputs[view.op][data])
    if isinstance(view.kinds[data], (Partial, Own)):
      view.join(data)
    if kind == "Fill" or shape == () or (
        kind in ("Tile", "BroadcastTo") and shape is not None and axis < len(shape)
        and shape[axis] == 1):
      return [Rows(axis, 0, getattr(view.kinds[data], "power", 0.0))]
    raise NotFollowed("makes a tensor whose examples cannot be found")

  def _of_sparse(self, view: Inputs, width: int) -> List[Kind]:
    """Follows an op behind rows of a gradient: it exists once, for those of all replicas."""
    for i, each in enumerate(view.kinds):
      if isinstance(each, Sizes):
        raise NotFollowed("combines rows of a gradient with dimensions of the batch")
      view.join(i)
      view.kinds[i] = SAME
    return [SAME] * width

  def _globally(self, view: Inputs, width: int) -> List[Kind]:
    """Follows an op that is run once, on the global values of its inputs."""
    flow, op = self._flow, view.op
    kind = flow.types[op]
    if kind in _SHUFFLES or flow.types[op] in op_roles.STEP_CONTAINERS:
      raise NotFollowed("shuffles the examples of the batch")
    for i in range(len(view.kinds)):
      if isinstance(view.kinds[i], Sizes) and (
          self._scaling.factors(flow.inputs[op][i]) is None):
        raise NotFollowed("needs dimensions of the whole batch that are not known")
      view.join(i)
    found: List[Kind] = []
    for port in range(width):
      as_long = rule_of(kind).any_number
      if as_long is not None and port not in as_long or kind == "BroadcastGradientArgs":
        found.append(SAME)
        continue
      if flow.dtype((op, port)) % 100 in _HANDLES:
        raise NotFollowed("gives a container or a handle of examples of the batch")
      if kind in _CALLS and self._scaling.axes((op, port)) is None:
        raise NotFollowed("calls a function, compiled by XLA, in which the batch is not followed")
      # Of a shape that is not known it may hold examples.
      found.append(SAME if self._scaling.axes((op, port)) in ([], ODD) else Whole())
    return found

  def _own(self, view: Inputs, width: int) -> List[Kind]:
    """Follows an op that a replica runs on its own statistics."""
    for i, each in enumerate(view.kinds):
      if isinstance(each, Own) or isinstance(each, Partial) and each.how == "sum":
        view.kinds[i] = Same(each.power - 1)
      elif isinstance(each, Partial):
        view.join(i)
    return [Own(powers.result_power(self._flow, view) + 1)] * width

  def _of_partial(self, view: Inputs, width: int) -> List[Kind]:
    """Follows parts of global values: they go on where the op is linear."""
    flow, kinds = self._flow, view.kinds
    kind = flow.types[view.op]
    hows = {each.how for each in kinds if isinstance(each, Partial)}
    found = None
    if kind in ("ZerosLike", "OnesLike"):
      return [SAME] * width
    if hows == {"sum"}:
      found = self._of_sums(view, kind)
    # Maxima and the like go on through ops that only pass elements on.
    elif len(hows) == 1 and "weighted" not in hows and rule_of(kind).passes:
      rest = [each for each in kinds[1:] if each != SAME]
      if not rest and isinstance(kinds[0], Partial):
        found = kinds[0]
      elif kind == "Pack" and len(set(kinds)) == 1:
        found = kinds[0]
    elif kind in _SWITCHES and isinstance(kinds[0], Partial):
      found = kinds[0]
    if found is not None:
      return [found] * width
    for i, each in enumerate(kinds):
      if isinstance(each, Sizes):
        raise NotFollowed("combines what was found over the batch with its dimensions")
      view.join(i)
    return [SAME] * width

  def _of_sums(self, view: Inputs, kind: str) -> Optional[Kind]:
    flow, kinds = self._flow, view.kinds
    sums = [i for i, each in enumerate(kinds) if isinstance(each, Partial)]
    if kind in _SWITCHES:
      return kinds[0]
    # A sum of roundings is not the rounded sum.
    if kind == "Cast" and flow.is_integer((view.op, 0)) and not view.is_whole(0):
      return None
    rule = rule_of(kind)
    quotient = rule.scale is not None and rule.scale.kind == "quotient"
    # sum_r(a_r) * b = sum_r(a_r * b), where b is the same in all replicas.
    if rule.linear == powers.BILINEAR or quotient:
      if len(sums) != 1 or quotient and sums != [0]:
        return None
      others = [view.powers()[i] for i in range(len(kinds)) if i != sums[0]]
      sign = -1 if quotient else 1
      return Partial("sum", view.powers()[sums[0]] + sign * sum(others))
    linear = powers.linear_inputs(kind, len(kinds))
    if linear is None or not set(sums) <= set(linear):
      return None
    # sum_r(a_r) + b = sum_r(a_r + b / R): all summands at one power.
    rows = [kinds[i].power for i in sums]  # type: ignore[union-attr]
    # All summands at the power of the first part.
    power = rows[0]
    if len(linear) > 1:
      if any(view.is_whole(i) for i in linear) and (
          len(set(rows)) > 1 or len(sums) < len(linear)):
        return None
      for i in linear:
        if i in sums:
          view.to_power(i, power)
        elif isinstance(kinds[i], Same):
          view.as_partial(i, power)
        else:
          return None
    return Partial("sum", power)

  def _container(self, op: int, inputs: List[Kind], width: int) -> List[Kind]:
    flow, kind = self._flow, self._flow.types[op]
    if kind in _PUSHES:
      stack = flow.origin(flow.inputs[op][0])[0]
      before = self._pushed.get(stack)
      # A stack has one spec for all tensors that are pushed to it.
      self._pushed[stack] = inputs[1] if before is None else join((before, inputs[1]), op)
      return [inputs[1]]
    if kind in _POPS:
      return [self._pushed.get(flow.origin(flow.inputs[op][0])[0], SAME)]
    rule = rule_of(kind)
    if rule.puts is not None:
      # Number of the container's input, of the element's input, and axes that an element gains
      # inside.
      container, tensor, growth = rule.puts
      before = inputs[container] if container is not None else SAME
      content = _moved(inputs[tensor], growth, op)
      if self._is_zero(flow.inputs[op][tensor]):
        content = with_power(content, FREE)
      old = [before.content] if isinstance(before, Box) else []
      return [Box(join((*old, content), op))] * width
    assert rule.takes is not None
    # Number of the container's input, axes that an element gains outside, and its output port.
    container, growth, port = rule.takes
    box = inputs[container]
    content = _moved(box.content if isinstance(box, Box) else SAME, growth, op)
    return [content if i == port else box for i in range(width)]


def _moved(kind: Kind, growth: int, op: int) -> Kind:
  """Returns the spec of an element put into a container, or taken out, by its axes."""
  if isinstance(kind, Either):
    return Unclear(op, "takes what one branch or another has kept")
  if not isinstance(kind, Rows) or not growth:
    return kind
  if kind.axis + growth < 0:
    return Unclear(op, "takes the examples of the batch apart")
  return dataclasses.replace(kind, axis=kind.axis + growth)


def _is_global(kind: Kind) -> bool:
  return kind == SAME or isinstance(kind, Whole)
