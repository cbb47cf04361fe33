"""Finds the ops that depend on the batch, and the sharding spec of each of their tensors.

The batch is followed forwards, from the feeds. Where an op needs the global value of a tensor, and
the replicas hold parts of the value, the tensor is combined before the op: `Propagated.fixes`.

Dimensions: N needed ops.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import AbstractSet, Dict, List, Mapping, Optional, Sequence, Set, Tuple

import numpy as np

from placeto_tf.graphs.computation_graph import CONTROL
from placeto_tf.graphs.loops import ENTER, MERGE, SWITCH
from placeto_tf.graphs.traversal import reachable
from placeto_tf.ops import members, rule_of
from placeto_tf.replication import exponents, op_roles
from placeto_tf.replication.axis_rules import AxisRules
from placeto_tf.replication.dataflow import Dataflow, Tensor, closure
from placeto_tf.replication.exponents import SCALE, Fix, Inputs, NotFollowed
from placeto_tf.replication.scaling import ODD, Scaling
from placeto_tf.replication.sparse_updates import SparseUpdate
from placeto_tf.replication.specs import (
  FREE,
  MIXES_ROWS,
  REPLICATED,
  Container,
  Dimensions,
  Either,
  Gathered,
  LocalStatistic,
  Partial,
  Positions,
  Replicated,
  Sharded,
  SparseRows,
  Spec,
  Unknown,
  is_unknown,
  meets_all_examples,
  merged_spec,
  with_exponent,
)

_CONTAINER_SHAPES = (
    "TensorListElementShape", "TensorListLength", "TensorArraySizeV3", "OptionalHasValue")
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_EMPTY_LISTS = ("TensorListReserve", "EmptyTensorList")
_HANDLES = ("Stack", "TensorArray")  # types of ops on containers that have a handle
_PUSHES = ("StackPushV2", "StackPush")  # output the tensor that they put into the stack
_FLOW = Container(REPLICATED)  # of an array: the order of its writes and reads
_SHAPES = ("Shape", "ShapeN", "Size", "Rank")
_OF_TWO_SHAPES = ("BroadcastGradientArgs", "Equal", "NotEqual", "Less")
# Ops through which the keys of random ops pass.
_PASS_KEYS = ("Identity", "StridedSlice", "Slice", "Reshape", "Cast", "Bitcast", "Unpack")
_SHUFFLES = ("RandomShuffle", "RandomShuffleQueue")
# Ops that may follow a look-up for the whole batch, so that sums of rows are sent, and no rows.
_AFTER_LOOKUPS = ("Identity", "Reshape", "Sum", "Mean", "Max", "Min")
_MAX_ROUNDS = 4
_MAX_PASSES = 10  # nested loops settle in as many rounds as their depth, plus some


class GlobalValueInLoop(Exception):
  """A loop, the argument, that each replica would run for itself needs a global value."""


@dataclasses.dataclass(frozen=True)
class Propagated:
  """The ops and tensors that depend on the batch.

  Attributes:
    batch: examples of one replica.
    copied: ops that depend on the batch. Each replica copies them, except those that exist once.
    specs: op of `copied` -> sharding specs of its outputs.
    fixes: (op of `copied`, number of a data input) -> the fix of that input before the op reads it.
    once: ops of `copied` that can exist once, because all their inputs and outputs are global.
    fed: ops that are fed with the batch, which is divided among the replicas.
    random_ops: random ops that sample for examples, so that each replica needs other numbers.
    sparse: tensors that hold rows of the gradient of a variable.
    statistics: ops that normalize by each replica's own statistics.
    owned: variables that hold examples; each replica has its own.
    merged: frames of loops that run once for all replicas, because they need global values.
    refused: op -> the reason why replicas cannot compute its effect.
    assumed: feeds that are taken for indices into the slots of an example.
  """

  batch: int
  copied: AbstractSet[int]
  specs: Dict[int, List[Spec]]
  fixes: Dict[Tuple[int, int], Fix]
  once: AbstractSet[int]
  fed: AbstractSet[int] = frozenset()
  random_ops: AbstractSet[int] = frozenset()
  sparse: AbstractSet[Tensor] = frozenset()
  statistics: AbstractSet[int] = frozenset()
  owned: AbstractSet[int] = frozenset()
  merged: AbstractSet[str] = frozenset()
  refused: Mapping[int, Unknown] = dataclasses.field(default_factory=dict)
  assumed: AbstractSet[int] = frozenset()

  def spec(self, tensor: Tensor) -> Spec:
    """Returns the spec of any tensor of the graph."""
    found = self.specs.get(tensor[0])
    return REPLICATED if found is None else found[tensor[1]]


def propagate(
    flow: Dataflow, sparse: Sequence[SparseUpdate], scaling: Scaling,
    own_statistics: AbstractSet[int] = frozenset(), lookups_once: bool = False) -> Propagated:
  """Follows the batch through the graph.

  Args:
    flow: the graph of one replica.
    sparse: updates of some rows of variables.
    scaling: the parts of the graph that grow with the batch.
    own_statistics: ops whose results are statistics that are not combined over replicas.
    lookups_once: whether rows of variables are looked up for all replicas at once.

  Returns:
    The ops and tensors that depend on the batch, with their specs.

  Raises:
    GraphError: there is no batch, or an op holds state that replicas cannot share.
  """
  batch, sources = op_roles.batch_feeds(flow, scaling)
  merged: Set[str] = set()
  while True:
    copied, random_ops = _copied(flow, set(sources), scaling, merged)
    try:
      return _Propagation(
          flow, batch, sources, random_ops, copied, sparse, scaling, own_statistics, merged,
          lookups_once).run()
    except GlobalValueInLoop as needs:
      # The loop needs global values: it runs once for all replicas. Follow the batch again.
      merged |= _with_linked(flow, *needs.args)


def _with_linked(flow: Dataflow, frame: str) -> Set[str]:
  """Returns a loop, the loops around it and inside, and those that use the same stacks or arrays.

  A stack or array holds a value for each round, so all its loops have the same replicas.
  """

  def outermost(each: str) -> str:
    while flow.frame_parents.get(each):
      each = flow.frame_parents[each]
    return each

  users: Dict[int, Set[str]] = collections.defaultdict(set)  # op that made it -> loops
  for op, op_type in enumerate(flow.types):
    if op_type.startswith(_HANDLES) and flow.inputs[op] and flow.frames[op]:
      users[flow.list_of(flow.inputs[op][0])].add(outermost(flow.frames[op]))
  linked = reachable([outermost(frame)], lambda each: [
      other for loops in users.values() if each in loops for other in loops])
  return {each for each in flow.frame_parents if outermost(each) in linked}


def _copied(
    flow: Dataflow, sources: Set[int], scaling: Scaling, merged: Set[str]
) -> Tuple[Set[int], Set[int]]:
  """Returns the ops that each replica copies, and the random ops among them."""
  containers = [op for op, op_type in enumerate(flow.types) if op_type in op_roles.STEP_CONTAINERS]
  sampled = _sampled_by_examples(flow, sources, scaling)
  producers = [[producer for producer, _ in data] for data in flow.inputs]
  by_frame = collections.defaultdict(list)
  for op, frame in enumerate(flow.frames):
    if frame and frame not in merged:
      by_frame[frame].append(op)
  seeds, waiting = set(sources) | set(scaling.sources) | set(sampled), set(containers)
  copied: Set[int] = set()
  while not seeds <= copied:
    copied = closure(copied | seeds, flow.consumers)
    # If a replica copies one op of a loop, it copies the whole loop.
    for frame in {flow.frames[op] for op in copied if flow.frames[op]}:
      seeds.update(by_frame.get(frame, ()))
    # Containers that a copied op depends on are copied with it.
    found = waiting & closure(copied, producers) if waiting else set()
    waiting -= found
    seeds |= found
  return copied, sampled


def _sampled_by_examples(flow: Dataflow, sources: Set[int], scaling: Scaling) -> Set[int]:
  """Returns random ops that sample for examples, with the ops that make keys only for these."""
  random_ops = op_roles.RANDOM_OPS
  found: Set[int] = set()
  reached = closure(sources | set(scaling.sources), flow.consumers)
  for op, op_type in enumerate(flow.types):
    # Random ops whose results grow with the batch, or may.
    if op_type in random_ops and op_type not in op_roles.KEYS and op_type not in _SHUFFLES:
      axes = scaling.axes((op, 0))
      if axes or axes is None and op in reached:
        found.add(op)
  for op, op_type in enumerate(flow.types):
    if op_type in op_roles.KEYS:
      # A key is for examples if a random op for examples reads it.
      if found & closure({op}, flow.consumers, lambda at: flow.types[at] in _PASS_KEYS):
        found.add(op)
  return found


class _Propagation:
  """Computes sharding specs op by op, and repeats until the specs of loops do not change."""

  def __init__(
      self, flow: Dataflow, batch: int, sources: Sequence[int], random_ops: Set[int],
      copied: Set[int], sparse: Sequence[SparseUpdate], scaling: Scaling,
      own_statistics: AbstractSet[int], merged: Set[str], lookups_once: bool):
    self._flow, self._batch, self._scaling = flow, batch, scaling
    self._sources, self._random_ops, self._copied = set(sources), random_ops, copied
    self._own_statistics, self._merged = own_statistics, merged
    self._lookups_once = lookups_once
    self._values = {update.values: update.indices for update in sparse}
    # Indices of a gradient's rows -> the values that they belong to.
    self._indices: Dict[Tensor, List[Tensor]] = collections.defaultdict(list)
    self._readers: Dict[Tensor, Set[int]] = collections.defaultdict(set)
    for update in sparse:
      self._indices[update.indices].append(update.values)
      self._readers[update.indices] |= update.readers
    # All that is computed of the indices is the update's own.
    self._of_update = closure(
        {op for update in sparse for op in update.readers}, flow.consumers)
    self._rules = AxisRules(flow, batch, scaling, copied)
    self._specs: Dict[int, Optional[List[Spec]]] = {}
    self._fixes: Dict[Tuple[int, int], Fix] = {}
    self._once: Set[int] = set()
    self._contents: Dict[Tuple[str, int], Spec] = {}  # handle -> spec of its elements
    self._complete = False  # whether all specs have been computed once
    self._statistics: Set[int] = set()
    self._refused: Dict[int, Unknown] = {}

  def run(self) -> Propagated:
    flow = self._flow
    # By depth: most inputs are known before an op is reached.
    self._settle([op for op in flow.order if op in self._copied])
    self._check_loops()
    specs = {op: found or [REPLICATED] * len(self._flow.outputs(op))
             for op, found in self._specs.items()}
    return Propagated(
        self._batch, self._copied, specs, self._fixes, self._once, random_ops=self._random_ops,
        fed={op for op in self._sources if flow.types[op] not in op_roles.PIPELINES},
        sparse={tensor for tensor in (*self._values, *self._indices)
                if isinstance(self._spec(tensor), SparseRows)},
        owned={op for op in self._scaling.sources if flow.types[op] in op_roles.VARIABLES},
        statistics=self._statistics, merged=self._merged, refused=self._refused,
        assumed=self._rules.assumed)

  def _settle(self, order: Sequence[int]) -> None:
    """Computes specs until all of them agree with one another.

    The spec of a back edge is unknown at first and assumed to be replicated. So rows are compared
    with other tensors only in a second run, when the specs of all back edges are known.
    """
    self._specs = {op: None for op in order}
    loops = any(self._flow.frames[op] for op in order)
    for compared in (False, True) if loops else (True,):
      self._rules.compared = compared and self._scaling.compares
      self._complete = compared
      self._rounds(order, loops)

  def _rounds(self, order: Sequence[int], loops: bool) -> None:
    """Computes specs until they do not change, with or without comparisons.

    In the first pass through a loop, a spec can be `Unknown` because the back edges are not known
    yet. It would be `Unknown` for ever, because it returns to itself on the back edge. So `Unknown`
    specs are reset and computed again when the other specs are known.
    """
    unknown: Set[int] = set()
    for done in range(_MAX_ROUNDS + 1):
      self._pass(order, _MAX_PASSES if loops else 1)
      before, unknown = unknown, {op for op in order if any(map(is_unknown, self._specs[op] or ()))}
      if not unknown or unknown == before or not loops or done == _MAX_ROUNDS:
        return
      for op in unknown:
        self._specs[op] = None
      self._contents = {
          handle: spec for handle, spec in self._contents.items() if not is_unknown(spec)}

  def _pass(self, order: Sequence[int], most: int) -> None:
    for _ in range(most):
      changed = False
      # Keep only the fixes and statistics of the last pass.
      self._statistics.clear()
      self._fixes.clear()
      self._once.clear()
      for op in order:
        found = self._outputs(op) if self._is_ready(op) else None
        if found != self._specs[op]:
          self._specs[op], changed = found, True
      if not changed:
        break

  def _is_ready(self, op: int) -> bool:
    """Returns whether enough specs of an op's inputs are known; the others are back edges."""
    op_type = self._flow.types[op]
    known = [tensor[0] not in self._specs or self._specs[tensor[0]] is not None
             for tensor in self._flow.inputs[op]]
    if rule_of(op_type).takes and (handle := self._handle(op)) is not None:
      # An array of gradients that nothing writes holds zeros.
      return all(known) and (handle in self._contents or self._complete)
    # A Merge is followed as soon as one of its inputs is known.
    return any(known) or not known if op_type in MERGE else all(known)

  def _check_loops(self) -> None:
    """Raises GlobalValueInLoop if a loop that each replica runs for itself needs a global value."""
    # The fix of an Enter is made before the loop, so each replica can still run its own loop.
    needs = [op for (op, _), fix in self._fixes.items() if fix[0] in (
        exponents.GLOBAL, exponents.SLICE) and self._flow.types[op] not in ENTER]
    for op in (*needs, *filter(lambda op: op_roles.is_update(self._flow.types[op]), self._copied)):
      frame = self._flow.frames[op]
      if frame and frame not in self._merged:
        raise GlobalValueInLoop(frame)

  def _spec(self, tensor: Tensor) -> Spec:
    own = self._own_spec(tensor)
    # If the values or the indices of a sparse gradient are sharded, both are sparse rows.
    if tensor in self._values or tensor in self._indices:
      if getattr(own, "local", None) or getattr(own, "tagged", False):
        return Unknown(tensor[0], "tells the positions of rows by those of examples in the batch")
      if any(isinstance(self._own_spec(each), (Sharded, SparseRows))
             for each in (tensor, *self._indices.get(tensor, ()))):
        return SparseRows(getattr(own, "exponent", 0.0))
      # Rows that were joined after they were gathered are global: the ops on them exist once.
      return REPLICATED if isinstance(own, Gathered) else own
    return own

  def _own_spec(self, tensor: Tensor) -> Spec:
    if tensor[0] not in self._specs:
      return REPLICATED
    found = self._specs[tensor[0]]
    return REPLICATED if found is None else found[tensor[1]]

  def _outputs(self, op: int) -> List[Spec]:
    width = len(self._flow.outputs(op))
    self._refused.pop(op, None)
    try:
      return self._followed(op, width)
    except NotFollowed as problem:
      return self._refuse(op, Unknown(op, str(problem)), width)

  def _refuse(self, op: int, why: Unknown, width: int) -> List[Spec]:
    self._refused[op] = why
    return [why] * width

  def _followed(self, op: int, width: int) -> List[Spec]:
    flow = self._flow
    op_type = flow.types[op]
    # Sources of examples: feeds, pipelines, and constants that grow with the batch.
    if op in self._sources:
      return [Sharded(0)] * width
    if op in self._scaling.sources:
      return [self._of_examples(self._scaling.sources[op], op)] * width
    # Readers of a sparse update see rows of a gradient; other ops see the tensor itself.
    given = [self._spec(tensor) if op in self._readers.get(tensor, (op,)) else
             self._own_spec(tensor) for tensor in flow.inputs[op]]
    if op in self._random_ops:
      self._fixes.update(self._of_all_examples(op, given))
      return [self._sampled(tensor) for tensor in flow.outputs(op)]
    if op_type in MERGE:
      return self._merge(op, given, width)
    if op_type in _CONTAINER_SHAPES:
      return [REPLICATED] * width
    rule = rule_of(op_type)
    if rule.puts or rule.takes or op_type.startswith("TensorArrayGrad"):
      view = Inputs(flow, self._scaling, op, given)
      self._take_own_rows(view)
      found = self._container(op, view.specs, width)
      self._note(view, found)
      return found
    unknown = next((each for each in given if isinstance(each, Unknown)), None)
    # The shape of a tensor can be known even if its spec is `Unknown`.
    if unknown is not None and (op_type not in _SHAPES or op_type != "Rank" and any(
        self._scaling.number((op, port)) != REPLICATED for port in range(width))):
      return self._refuse(op, unknown, width)
    # First try the op's rule, on the replica's tensors. If that fails, run the op on global values.
    view = Inputs(flow, self._scaling, op, given)
    try:
      found = self._by_rule(view, width)
    except NotFollowed as problem:
      view = Inputs(flow, self._scaling, op, given)
      try:
        found = self._globally(view, width)
      except NotFollowed:
        raise problem from None
    self._note(view, found)
    return found

  def _note(self, view: Inputs, found: Sequence[Spec]) -> None:
    for i, fix in view.fixes.items():
      self._fixes[view.op, i] = fix
    # Ops on containers, and ops in loops that each replica runs for itself, never exist once.
    frame = self._flow.frames[view.op]
    if frame and frame not in self._merged or self._flow.types[view.op].startswith(
        ("Stack", "TensorArray", "TensorList", "EmptyTensorList", "Optional")) or any(
            self._flow.types[self._flow.origin(tensor)[0]] in op_roles.STEP_CONTAINERS
            for tensor in self._flow.inputs[view.op]):
      return
    # An op whose inputs and outputs are all global can exist once.
    if all(spec == REPLICATED or isinstance(spec, Gathered) for spec in (*found, *view.specs)):
      self._once.add(view.op)

  def _by_rule(self, view: Inputs, width: int) -> List[Spec]:
    flow, op, specs = self._flow, view.op, view.specs
    op_type = flow.types[op]
    # No input depends on the batch.
    if all(each == REPLICATED for each in specs):
      # If no input grows with the batch and an output does, the output holds all examples.
      together = self._rules.compared and not any(map(self._grows, flow.inputs[op]))
      return [Gathered() if together and self._grows((op, port)) else REPLICATED
              for port in range(width)]
    if op_type in _EMPTY_LISTS:
      for i, each in enumerate(specs):
        # The length of the list is a value that was reduced over the batch.
        if isinstance(each, (Partial, LocalStatistic)):
          view.make_global(i)
      return [REPLICATED] * width
    # Effects, predicates and containers.
    if op_roles.is_update(op_type) and (
        flow.origin(flow.inputs[op][0])[0] in self._scaling.sources):
      return [Sharded(0)] * width  # of a variable that holds examples
    if op_roles.is_update(op_type) or op in self._of_update:
      return view.run_once() * width
    if op_type in SWITCH and not isinstance(specs[1], Replicated):
      view.make_global(1)
      specs[1] = REPLICATED
    if any(isinstance(each, Container) for each in specs):
      return self._of_containers(view, width)
    if op_type == "LoopCond":
      return view.run_once() * width
    if op_type in _SHUFFLES and isinstance(specs[0], (Sharded, SparseRows)):
      raise NotFollowed("shuffles the examples of the batch")
    # Sizes of tensors, statistics, rows of gradients.
    if op_type in _SHAPES:
      # Instead of the size of the global tensor, each replica takes the size of its own rows.
      if isinstance(specs[0], Gathered) and len(self._scaling.axes(flow.inputs[op][0]) or ()) == 1:
        self._take_own_rows(view)
      return [self._sizes(op, specs[port if op_type == "ShapeN" else 0], port)
              for port in range(width)]
    if op in self._own_statistics:
      return [LocalStatistic(1.0)] * width
    # An op on sparse rows exists once and reads gathered rows.
    if any(isinstance(each, SparseRows) for each in specs):
      return view.run_once() * width
    if not op_roles.may_be_copied(op_type):
      return self._globally(view, width)
    if self._lookups_once and self._serves_all(view):
      return self._globally(view, width)
    # The axis rule of the op type gives the axis of the examples in the result.
    self._take_own_rows(view)
    if any(isinstance(each, Sharded) for each in specs):
      given = tuple(specs)
      found = self._rules.outputs(view)
      if any(isinstance(each, LocalStatistic) for each in (*given, *found)):
        self._statistics.add(op)
      return found
    # If one of two compared shapes is of rows and the other of all examples, replicas would mix.
    if op_type in _OF_TWO_SHAPES and self._rules.compared:
      measured = [self._measured(tensor) for tensor in flow.inputs[op]]
      # The shape of rows, or of the slice of gathered ones, beside the shape of all examples.
      gathered = [spec == REPLICATED and each is not None and isinstance(self._spec(each), Gathered)
                  for spec, each in zip(specs, measured)]
      if any(gathered) and any(isinstance(each, Dimensions) for each in specs) or (
          meets_all_examples([(self._spec(each), flow.shape(each)) for each in measured if each])):
        raise NotFollowed(MIXES_ROWS)
    # Numbers and shapes that depend on the number of examples.
    numbers = [self._scaling.number((op, port)) for port in range(width)]
    shaped = rule_of(op_type).shaped
    alike = all(isinstance(each, Replicated) for each in specs)
    if alike and self._bends_counts(view):
      return [Replicated(exponents.result_exponent(flow, view))] * width
    # No input is partial: all are numbers, shapes, and values that are equal in all replicas.
    if not any(isinstance(each, (Partial, LocalStatistic)) for each in specs):
      # Among numbers of a replica, one that is computed of the global batch makes all global.
      if not shaped and any(
          each == REPLICATED and self._scaling.number(tensor) not in (None, REPLICATED)
          for each, tensor in zip(specs, flow.inputs[op])):
        return self._globally(view, width)
      if alike and not shaped and any(isinstance(each, Unknown) for each in numbers):
        return [Replicated(exponents.result_exponent(flow, view))] * width
      if all(each is not None for each in numbers):
        return [self._of_examples(each, op) for each in numbers if each is not None]
      if not shaped and any(self._scaling.axes((op, port)) for port in range(width)):
        return self._globally(view, width)
      if any(isinstance(each, Dimensions) for each in specs) or shaped:
        return self._shaped(view, width)
      return [Replicated(exponents.result_exponent(flow, view))] * width
    # Partial tensors pass through linear ops.
    if any(isinstance(each, LocalStatistic) for each in specs):
      return self._own(view, width)
    if shaped and self._scaling.axes((op, 0)) and any(
        isinstance(each, Dimensions) or isinstance(each, Replicated) and each.exponent
        for each in specs):
      return self._shaped(view, width)
    return self._of_partial(view, width)

  def _serves_all(self, view: Inputs) -> bool:
    """Returns whether an op looks up rows of a variable, or follows such an op, outside of loops.

    The variable has one device: one look-up for the whole batch sends the same rows as R look-ups.
    """
    flow, op, specs = self._flow, view.op, view.specs
    if flow.frames[op] or self._scaling.axes((op, 0)) != [0]:
      return False
    before = flow.inputs[op][0][0]
    if flow.types[op] == "ResourceGather" or flow.types[op] in ("Gather", "GatherV2") and (
        flow.types[before] == "ReadVariableOp"):
      return specs[1] == Sharded(0) and not flow.integer(op, "batch_dims")
    return flow.types[op] in _AFTER_LOOKUPS and isinstance(specs[0], Gathered) and (
        before in self._once) and all(each == REPLICATED for each in specs[1:])

  def _bends_counts(self, view: Inputs) -> bool:
    """Returns whether a number computed from the batch size may be no multiple of it.

    The number can be a multiple at the two batches that are compared, as a quarter of 4 and of 16
    is, and still be no multiple at the smaller last batch of an epoch.
    """
    flow, specs = self._flow, view.specs
    if not rule_of(flow.types[view.op]).bends or len(set(view.exponents())) < 2:
      return False
    if flow.types[view.op] == "FloorDiv" and specs[0] == Replicated(-1.0):
      # If batch * divisor divides the count, the quotient is a multiple of the batch.
      count, by = (flow.value(tensor) for tensor in flow.inputs[view.op])
      return count is None or by is None or bool(np.any(count % (self._batch * by)))
    return True

  def _of_examples(self, spec: Spec, op: int) -> Spec:
    """Returns the spec of counted numbers; the shape gives the number of slots per example."""
    if not isinstance(spec, Sharded) or spec.local is None:
      return spec
    numbers = exponents.numbers_of_an_example(self._flow, (op, 0), self._batch)
    if numbers is None:
      raise NotFollowed("counts another number than that of the examples")
    return dataclasses.replace(spec, local=Positions(spec.local.span * numbers, spec.local.slack))

  def _of_containers(self, view: Inputs, width: int) -> List[Spec]:
    """Returns the specs of an op's output containers, derived from its input containers."""
    containers = [each for each in view.specs if isinstance(each, Container)]
    if self._flow.types[view.op] == "ZerosLike":
      return [Container(with_exponent(containers[0].content, FREE))] * width
    content = view.specs[0].content if isinstance(view.specs[0], Container) else REPLICATED
    # After a Switch with the same predicate, each branch takes the tensors that it put in.
    if isinstance(content, Either) and self._flow.types[view.op] in SWITCH:
      if self._flow.origin(self._flow.inputs[view.op][1]) != content.predicate:
        raise NotFollowed("takes a tensor that another branch has kept")
      return [Container(content.false), Container(content.true)]
    return [merged_spec(containers, view.op)] * width

  def _take_own_rows(self, view: Inputs) -> None:
    """Slices the replica's rows out of inputs that hold the examples of all replicas."""
    rows = any(isinstance(each, Sharded) for each in view.specs)
    for i, each in enumerate(view.specs):
      # Gathered inputs are always sliced; replicated ones that grow with the batch are sliced only
      # if another input is sharded.
      if isinstance(each, Gathered) or rows and each == REPLICATED and self._grows(
          self._flow.inputs[view.op][i]):
        axes = self._scaling.axes(self._flow.inputs[view.op][i])
        if axes is None or len(axes) != 1:
          raise NotFollowed(MIXES_ROWS)
        view.slice(i, axes[0])

  def _grows(self, tensor: Tensor) -> bool:
    """Returns whether a tensor has more elements if the batch is larger."""
    return self._scaling.axes(tensor) not in (None, [], ODD)

  def _of_all_examples(self, op: int, given: Sequence[Spec]) -> Dict[Tuple[int, int], Fix]:
    """Returns the fixes that give a random op the ranges and rates of the whole batch."""
    op_type, view = self._flow.types[op], Inputs(self._flow, self._scaling, op, given)
    size = 1 if "Multinomial" in op_type else 2 if op_type.startswith("Stateful") else 0
    for i, each in enumerate(given if op_type not in op_roles.KEYS else ()):
      if i != size and isinstance(each, (Replicated, Partial, LocalStatistic)):
        view.make_global(i)
      elif size == 1 and isinstance(each, Sharded) and each.axis:
        raise NotFollowed("draws one of the examples of the batch")
      elif i == size == 0 and each == REPLICATED:
        raise NotFollowed("draws for as many as all examples are")
    return {(op, i): fix for i, fix in view.fixes.items()}

  def _sampled(self, tensor: Tensor) -> Spec:
    """Returns the spec of a result of a random op that samples for examples."""
    # The axis that grows with the batch is the axis of the examples.
    axes = self._scaling.axes(tensor)
    if axes and len(axes) == 1:
      return Sharded(axes[0])
    return REPLICATED if self._flow.types[tensor[0]] in op_roles.KEYS else Unknown(
        tensor[0], "draws for examples in a shape that is not known")

  def _merge(self, op: int, given: Sequence[Spec], width: int) -> List[Spec]:
    flow = self._flow
    # Specs of back edges may not be known yet.
    known = [i for i, tensor in enumerate(flow.inputs[op])
             if tensor[0] not in self._specs or self._specs[tensor[0]] is not None]
    view = Inputs(flow, self._scaling, op, given)
    unknown = next((given[i] for i in known if isinstance(given[i], Unknown)), None)
    if unknown is not None:
      return self._refuse(op, unknown, width)  # type: ignore[arg-type]
    # Zeros take the spec of the other inputs, unless those number examples.
    varied = [i for i in known if not self._is_zero(flow.inputs[op][i])] or known
    if any(getattr(given[i], "local", None) for i in varied):
      varied = known
    known = [i for i in known if i in varied or not isinstance(given[i], (Replicated, Sharded))]
    if varied == known and all(isinstance(given[i], (Replicated, Sharded)) and self._is_zero(
        flow.inputs[op][i]) for i in known) and len(known) < len(given):
      return [with_exponent(given[known[0]], FREE), REPLICATED][:width]
    partial = next((given[i] for i in known if isinstance(given[i], Partial)), None)
    # One input is a partial sum, another is replicated: each replica takes 1/R of the latter.
    if isinstance(partial, Partial) and partial.how == "sum":
      for i in known:
        if isinstance(given[i], Replicated):
          view.as_partial(i, partial.exponent)
    if flow.frames[op] and view.fixes:
      raise NotFollowed("adds up in a loop, from a start that is not zero,")
    found = merged_spec([view.specs[i] for i in known], op)
    # Both branches of a cond fill a container, each for its own gradient: remember both specs.
    if isinstance(found, Container) and isinstance(found.content, Unknown) and len(given) == 2 and (
        not flow.frames[op] and (predicate := self._predicate(op))):
      found = Container(Either(predicate, *(
          each.content if isinstance(each, Container) else REPLICATED for each in given)))
    if isinstance(found, Unknown) and not any(
        isinstance(each, (Container, Sharded)) for each in given):
      for i in known:  # make each input global instead
        view.fixes.pop(i, None)
        view.specs[i] = given[i]
        view.make_global(i)
      if flow.frames[op] and any(fix[0] == SCALE for fix in view.fixes.values()):
        raise NotFollowed("multiplies in a loop by what counts examples")
      found = REPLICATED
    result = [found, REPLICATED][:width]
    self._note(view, result)
    return result

  def _predicate(self, op: int) -> Optional[Tensor]:
    """Returns the predicate of the Merge of a cond; None where its inputs disagree.

    The first input of the Merge is from the true branch (as TensorFlow lowers an `If`).
    """
    flow = self._flow

    def before(tensor: Tensor) -> Sequence[Tensor]:
      # Backwards up to the Switches of the branch.
      return () if flow.types[tensor[0]] in SWITCH else [
          *flow.inputs[tensor[0]], *((each, CONTROL) for each in flow.controls[tensor[0]])]

    found: Set[Tuple[Tensor, bool]] = set()
    # The true branch is at port 1 of a Switch and at input 0 of a Merge.
    for port, tensor in zip((1, 0), flow.inputs[op]):
      found |= {(flow.origin(flow.inputs[at][1]), end == port)
                for at, end in reachable([tensor], before)
                if flow.types[at] in SWITCH and end != CONTROL}
    predicates = {predicate if fits else None for predicate, fits in found}
    return predicates.pop() if len(predicates) == 1 else None

  def _is_zero(self, tensor: Tensor) -> bool:
    flow = self._flow
    op = flow.origin(tensor)[0]
    if flow.types[op] == "ZerosLike":
      return True
    # Fills with zeros are zeros, and so are zeros in another shape.
    if flow.types[op] in ("Fill", "BroadcastTo", "Tile", "Reshape"):
      return self._is_zero(flow.inputs[op][1 if flow.types[op] == "Fill" else 0])
    constant = flow.constant(op)
    return constant is not None and not constant.any()

  def _sizes(self, op: int, spec: Spec, port: int) -> Spec:
    """Returns the spec of a tensor's shape or size."""
    what = self._flow.types[op]
    if what == "Rank" or not isinstance(spec, (Sharded, SparseRows)):
      return REPLICATED
    known = self._scaling.number((op, port)) if isinstance(spec, Sharded) else None
    return known or (Replicated(-1.0) if what == "Size" else Dimensions())

  def _shaped(self, view: Inputs, width: int) -> List[Spec]:
    """Returns the specs of an op on dimensions, whose results are dimensions or shaped by them."""
    flow, op, specs = self._flow, view.op, view.specs
    op_type = flow.types[op]
    # range(0, count, 1) numbers the examples, from 0 in each replica.
    if op_type == "Range" and specs == [REPLICATED, Replicated(-1.0), REPLICATED] and (
        flow.value(flow.inputs[op][0]) == 0 and flow.value(flow.inputs[op][2]) == 1):
      examples, rest = divmod(int(flow.value(flow.inputs[op][1]) or 0), self._batch)
      if rest or not examples:
        raise NotFollowed("counts another number than that of the examples")
      return [Sharded(0, local=Positions(examples))]
    if op_type in ("OneHot", "Reshape"):
      raise NotFollowed("makes a tensor whose examples cannot be found")
    if rule_of(op_type).shaped:
      data = 1 if op_type == "Fill" else 0
      axes, shape = self._scaling.axes((op, 0)), flow.shape((op, 0))
      if axes == []:
        return [specs[data]]
      if axes is None or len(axes) != 1 or op_type == "Range" or shape is None:
        raise NotFollowed("makes a tensor whose examples cannot be found")
      if isinstance(specs[data], (Partial, LocalStatistic)):
        view.make_global(data)
      before = flow.shape(flow.inputs[op][0]) if op_type in ("Tile", "BroadcastTo") else ()
      # The axis of the examples in the input, counted from the last axis.
      axis = axes[0] - len(shape) + len(before or ())
      equal = before is not None and (axis < 0 or before[axis] == 1)
      if not equal and op_type != "Tile":
        raise NotFollowed("makes a tensor whose examples cannot be found")
      return [Sharded(axes[0], 0 if equal else 1, getattr(specs[data], "exponent", 0.0))]
    if op_type in _OF_TWO_SHAPES and (
        op_type == "BroadcastGradientArgs" or all(isinstance(each, Dimensions) for each in specs)):
      return [REPLICATED] * width
    raise NotFollowed("computes with dimensions of the batch that are not known")

  def _measured(self, tensor: Tensor) -> Optional[Tensor]:
    """Returns the tensor whose shape this tensor holds, or None."""
    tensor = self._flow.origin(self._flow.pushed(tensor) or tensor)
    if self._flow.types[tensor[0]] not in ("Shape", "ShapeN"):
      return None
    return self._flow.inputs[tensor[0]][tensor[1]]

  def _globally(self, view: Inputs, width: int) -> List[Spec]:
    """Returns the specs of an op that runs once, on the global values of its inputs."""
    flow, op = self._flow, view.op
    op_type = flow.types[op]
    if op_type in _SHUFFLES or op_type in op_roles.STEP_CONTAINERS:
      raise NotFollowed("shuffles the examples of the batch")
    for i in range(len(view.specs)):
      view.make_global(i)
    found: List[Spec] = []
    for port in range(width):
      as_long = rule_of(op_type).any_number
      if as_long is not None and port not in as_long or op_type == "BroadcastGradientArgs":
        found.append(REPLICATED)
        continue
      if flow.dtype((op, port)) % 100 in exponents.HANDLES:
        raise NotFollowed("gives a container or a handle of examples of the batch")
      if op_type in _CALLS and self._scaling.axes((op, port)) is None:
        raise NotFollowed("calls a function, compiled by XLA, in which the batch is not followed")
      # A result of unknown shape may hold examples.
      found.append(REPLICATED if self._scaling.axes((op, port)) in ([], ODD) else Gathered())
    return found

  def _own(self, view: Inputs, width: int) -> List[Spec]:
    """Returns the specs of an op that a replica runs on its own statistics."""
    for i, each in enumerate(view.specs):
      if isinstance(each, LocalStatistic) or isinstance(each, Partial) and each.how == "sum":
        view.specs[i] = Replicated(each.exponent - 1)
      elif isinstance(each, Partial):
        view.make_global(i)
    return [LocalStatistic(exponents.result_exponent(self._flow, view) + 1)] * width

  def _of_partial(self, view: Inputs, width: int) -> List[Spec]:
    """Returns the specs of an op on partial tensors, which are partial where the op is linear."""
    flow, specs = self._flow, view.specs
    op_type = flow.types[view.op]
    hows = {each.how for each in specs if isinstance(each, Partial)}
    found: Optional[Spec] = None
    if op_type in ("ZerosLike", "OnesLike"):
      return [REPLICATED] * width
    # The predicate of a Switch is global.
    if op_type in SWITCH:
      found = specs[0]
    elif hows == {"sum"}:
      found = self._of_sums(view, op_type)
    # Partial maxima and the like pass only through ops that move elements without computing.
    elif len(hows) == 1 and rule_of(op_type).passes and (
        set(specs[1:]) <= {REPLICATED} or op_type == "Pack" and len(set(specs)) == 1):
      found = specs[0]
    return view.run_once() * width if found is None else [found] * width

  def _of_sums(self, view: Inputs, op_type: str) -> Optional[Spec]:
    flow, specs = self._flow, view.specs
    sums = [i for i, each in enumerate(specs) if isinstance(each, Partial)]
    # A sum of roundings is not the rounded sum.
    if op_type == "Cast" and flow.is_integer((view.op, 0)) and not view.is_whole(0):
      return None
    rule = rule_of(op_type)
    quotient = rule.scale is not None and rule.scale.kind == "quotient"
    # sum_r(a_r) * b = sum_r(a_r * b), where b is equal in all replicas.
    if rule.linear == exponents.BILINEAR or quotient:
      if len(sums) != 1 or quotient and sums != [0]:
        return None
      others = [view.exponents()[i] for i in range(len(specs)) if i != sums[0]]
      return Partial("sum", view.exponents()[sums[0]] + (-1 if quotient else 1) * sum(others))
    # The inputs in which the op is jointly linear.
    linear = () if rule.linear is None else members(rule.linear, len(specs))
    if not set(sums) <= set(linear):
      return None
    if len(linear) == 1:
      view.globalize_indices(linear[0])
    # sum_r(a_r) + b = sum_r(a_r + b / R): all summands at one exponent.
    rows = [specs[i].exponent for i in sums]  # type: ignore[union-attr]
    # All summands at the exponent of the first part that is not zero.
    exponent = next((each for each in rows if abs(each) < FREE / 4), rows[0])
    if len(linear) > 1:
      if any(view.is_whole(i) for i in linear) and (
          len(set(rows)) > 1 or len(sums) < len(linear)):
        return None
      for i in linear:
        if i in sums:
          view.to_exponent(i, exponent)
        elif isinstance(specs[i], Replicated):
          view.as_partial(i, exponent)
        else:
          return None
    return Partial("sum", exponent)

  def _container(self, op: int, inputs: List[Spec], width: int) -> List[Spec]:
    """Returns the specs of the outputs of an op that puts a tensor into a container, or takes one.

    Lists are values, whose spec is that of their content. Stacks and arrays (`TensorArray`) are
    handles: all tensors that are put in through a handle have one spec.
    """
    flow, op_type = self._flow, self._flow.types[op]
    rule, handle = rule_of(op_type), self._handle(op)
    if rule.puts is None and rule.takes is None:
      return [REPLICATED, _FLOW]  # the array of the gradients of an array
    # (container, index, ...): each replica has the same elements at the same indices.
    if len(inputs) > 2 and (rule.puts is None or rule.puts[1] != 1) and not is_unknown(
        inputs[1]) and inputs[1] not in (REPLICATED, Replicated(FREE)):
      raise NotFollowed("takes an element by a number that depends on the batch, as tf.map_fn over "
                        "single examples does and tf.vectorized_map does not")
    if rule.puts is not None:
      # Numbers of the container input and the element input, and the axes that an element gains
      # in the container.
      container, tensor, growth = rule.puts
      before = inputs[container] if container is not None else REPLICATED
      content = _moved(inputs[tensor], growth, op)
      if self._is_zero(flow.inputs[op][tensor]) and op_type not in _PUSHES:
        content = with_exponent(content, FREE)
      old = [before.content] if isinstance(before, Container) else []
      if container is not None and before == REPLICATED and (
          rule_of(flow.types[flow.inputs[op][container][0]]).puts):
        old = [REPLICATED]  # of elements that do not depend on the batch
      if handle is not None:
        old = [self._contents[handle]] if handle in self._contents else []
        self._contents[handle] = merged_spec((*old, content), op)
        return [inputs[tensor] if op_type in _PUSHES else _FLOW]
      return [Container(merged_spec((*old, content), op))] * width
    assert rule.takes is not None
    # Number of the container input, the axes that an element gains outside of the container, and
    # the output port of the element.
    container, growth, port = rule.takes
    box = inputs[container] if handle is None else Container(
        self._contents.get(handle, Replicated(FREE)))
    content = _moved(box.content if isinstance(box, Container) else REPLICATED, growth, op)
    return [content if i == port else box for i in range(width)]

  def _handle(self, op: int) -> Optional[Tuple[str, int]]:
    """Returns the stack or array that an op reads or writes; None for an op on lists."""
    return self._flow.handle_of(self._flow.inputs[op][0]) if (
        self._flow.types[op].startswith(_HANDLES)) else None


def _moved(spec: Spec, growth: int, op: int) -> Spec:
  """Returns the spec of an element that is put into a container or taken out."""
  if isinstance(spec, Either):
    return Unknown(op, "takes a tensor that one branch or another has kept")
  if not isinstance(spec, Sharded) or not growth:
    return spec
  if spec.axis + growth < 0:
    return Unknown(op, "takes the examples of the batch apart, as tf.map_fn over single examples "
                   "does and tf.vectorized_map does not")
  return dataclasses.replace(spec, axis=spec.axis + growth)
