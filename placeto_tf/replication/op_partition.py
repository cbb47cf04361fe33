"""The cut: which ops each replica has, which exist once, and which tensors cross between them.

The search goes backwards from the ops that change variables and from the fetches. What is computed
from joined values alone exists once. Where a replica or such an op needs the global value of a
tensor of which the replicas have parts, the tensor is joined.

Dimensions: N needed ops.
"""

from __future__ import annotations

import dataclasses
from typing import Dict, FrozenSet, List, Optional, Sequence, Set, Tuple

from placeto_tf.errors import GraphError
from placeto_tf.graphs.op_defs import REF
from placeto_tf.replication import exponents, op_roles
from placeto_tf.replication.dataflow import Dataflow, Tensor
from placeto_tf.replication.propagation import Propagated
from placeto_tf.replication.specs import (
  FREE,
  REPLICATED,
  Dimensions,
  LocalStatistic,
  Partial,
  Replicated,
  Sharded,
  SparseRows,
  Spec,
  Unknown,
  with_exponent,
)

# How tensors of the replicas become one: combined (`Collective.how` says how), the rows or examples
# of all in their order, the first one's (all are equal).
ROWS, FIRST = "rows", "first"

_HANDLES = (exponents.RESOURCE, 21)  # and variant
_PASSING = ("Identity", "StopGradient", "Snapshot", "PreventGradient")
# The sum is taken before these, if an optimizer or moving average does them with its numbers.
_QUOTIENTS = ("RealDiv", "Div", "DivNoNan")
_SCALING = ("Mul", *_QUOTIENTS, "Add", "AddV2", "Sub")


@dataclasses.dataclass(frozen=True)
class Collective:
  """The way in which the replicas' tensors become the global one.

  Attributes:
    how: "sum", "max", "min", "all" or "any", or `ROWS` or `FIRST`.
    exponent: the replicas hold `R^exponent` times the global value.
    axis: of `ROWS`.
    positions: if the rows are positions, counted in each replica from 0: how many numbers there
      are for each example, and how many slots it has.
    rows_of_gradient: whether each replica can have them of its own, next to its optimizer.
  """

  how: str
  exponent: float = 0.0
  axis: int = 0
  positions: Optional[Tuple[int, int]] = None
  rows_of_gradient: bool = False


@dataclasses.dataclass(frozen=True)
class OpPartition:
  """The role of each op that the batch reaches.

  Attributes:
    copies: ops of which every replica has its own.
    shared: ops that the batch reaches and that exist once, after the joins.
    joined: tensor of `copies` of which one value is needed -> how it is joined.
  """

  copies: FrozenSet[int]
  shared: FrozenSet[int]
  combined: Dict[Tensor, Collective]


def partition_ops(
    flow: Dataflow, propagated: Propagated, fetched: List[Tensor], run: List[int]
) -> OpPartition:
  """Finds the cut.

  Args:
    flow: the graph.
    spread: the ops that the batch reaches.
    fetched: tensors that are fetched.
    run: ops that are fetched as such, without a result.

  Returns:
    The role of each op behind the batch, and the tensors that are combined.

  Raises:
    GraphError: nothing is learned from the batch, or an update or a fetch cannot be computed from
      those of the replicas.
  """
  return _Partitioner(flow, propagated).run(fetched, run)


def outputs_of_fetched_ops(
    flow: Dataflow, propagated: Propagated, run: Sequence[int]) -> List[Tensor]:
  """Returns the outputs of ops fetched by name that replicas can have as one value.

  Whoever fetches `loss` may go on to fetch `loss:0` of the replicated graph.

  Args:
    flow: the graph.
    spread: the ops that the batch reaches.
    run: ops that are fetched as such.

  Returns:
    Tensors as (op, port).
  """
  return [tensor for op in run if op in propagated.copied for tensor in flow.outputs(op)
          if flow.dtype(tensor) % REF not in _HANDLES and _has_one_value(flow, propagated, tensor)]


def _has_one_value(flow: Dataflow, propagated: Propagated, tensor: Tensor) -> bool:
  """Returns whether the global value of a tensor can be computed from those of the replicas."""
  try:
    _Partitioner(flow, propagated).how(tensor, tensor[0])
    return True
  except GraphError:
    return tensor[0] in propagated.once


class _Partitioner:

  def __init__(self, flow: Dataflow, propagated: Propagated):
    self._flow, self._propagated = flow, propagated
    self._copies: Set[int] = set()
    self._shared: Set[int] = set()
    self._combined: Dict[Tensor, Collective] = {}
    self._pending: List[Tuple[bool, int]] = []  # (shared, op) whose inputs are not yet looked at
    self._awaited: Set[int] = set()

  def run(self, fetched: List[Tensor], run: List[int]) -> OpPartition:
    """Finds the role of each op behind the batch.

    Args:
      fetched: tensors that are fetched.
      run: ops that are fetched as such, without a result.

    Returns:
      The cut.

    Raises:
      GraphError: see `partition_ops`.
    """
    flow, copied = self._flow, self._propagated.copied
    # Ops that write values of the batch to variables.
    updates = [op for op in sorted(copied) if op_roles.is_update(flow.types[op])]
    # Updates that read the batch, or values computed once from it.
    learning = [op for op in updates if op in self._propagated.specs and any(
        self._propagated.spec(tensor) != REPLICATED for tensor in flow.inputs[op])]
    learning += [op for op in updates if any(
        tensor[0] in self._propagated.once for tensor in flow.inputs[op])]
    collecting = [op for op in sorted(copied) if "AccumulatorApply" in flow.types[op]]
    if not learning and collecting:
      raise GraphError(
          f"op {flow.graph.op_names[collecting[0]]!r} ({flow.types[collecting[0]]}) collects the "
          "gradients of several workers, as SyncReplicasOptimizer does, so that the step updates "
          "no variable itself; build the graph with the optimizer inside it (its minimize), of "
          "which replicas are made here, or place one replica")
    if not learning:
      raise GraphError(
          "no variable is updated from what is fed, so there is no training to replicate; hand "
          "over the graph of a training step and fetch its train op")
    # Backwards from effects, fetches and ops outside of the batch that wait for copies.
    for op in updates:
      self._need(op)
    for tensor in fetched:
      if tensor[0] in copied:
        self._use(tensor, tensor[0])
    self._awaited.update(op for op in run if op in copied)
    for op in range(len(flow.types)):
      if op not in copied:
        self._awaited.update(c for c in flow.controls[op] if c in copied)
    self._settle()
    # A tensor that exists once after all needs no all-reduce.
    combined = {tensor: how for tensor, how in self._combined.items()
                if tensor[0] not in self._shared}
    return OpPartition(
        frozenset(self._copies | self._constants_and_barriers()), frozenset(self._shared), combined)

  def _constants_and_barriers(self) -> Set[int]:
    """Returns ops without a batch that each replica has of its own, where it is.

    These are constants that copies read, with the ops that compute from constants alone; one of
    each would be sent to all replicas. What such a constant waits for, only to be in the branch or
    loop that it is read in, is each replica's own. And NoOps between copies, such as `group_deps`
    of a gradient, at which every replica would wait for the slowest.
    """
    flow, copies = self._flow, self._copies
    constant: Set[int] = set()
    barriers: Set[int] = set()
    # In the order of depth an op comes after all that it reads.
    for op in flow.order:
      kind, waits = flow.types[op], flow.controls[op]
      read = [producer for producer, _ in flow.inputs[op]]
      if kind == "NoOp" and not read:
        if any(awaited in copies or awaited in barriers for awaited in waits):
          barriers.add(op)
      elif op in self._propagated.copied or flow.frames[op]:
        continue
      elif kind == "Const" and all(p in constant or p in copies for p in waits) or (
          read and op_roles.is_stateless(kind) and all(p in constant for p in read + waits)):
        constant.add(op)
    # From the copies backwards, through such ops alone.
    needed = {p for op in copies for p in (
        *(producer for producer, _ in flow.inputs[op]), *flow.controls[op])}
    own: Set[int] = set()
    for op in reversed(flow.order):
      if op in needed and (op in constant or op in barriers):
        own.add(op)
        needed.update(producer for producer, _ in flow.inputs[op])
        needed.update(flow.controls[op])
    return own

  def _settle(self) -> None:
    # Inputs first, because they may make more ops needed; then ops that are only waited for.
    while self._pending or self._awaited:
      while self._pending:
        shared, op = self._pending.pop()
        (self._look_at_shared if shared else self._look_at_copy)(op)
      for op in sorted(self._awaited):
        if op not in self._shared and op not in self._copies:
          self._need(op)
      self._awaited.clear()

  def _need(self, op: int) -> None:
    """Makes an op that the batch reaches exist, once or in each replica."""
    if op in self._propagated.once:
      self._share(op)
    elif op not in self._copies:
      self._check_clear(op)
      self._copies.add(op)
      self._pending.append((False, op))

  def _check_clear(self, op: int) -> None:
    """Raises GraphError where the op cannot be had from replicas."""
    if op in self._propagated.refused:
      raise self._unknown(self._propagated.refused[op], op)

  def _share(self, op: int) -> None:
    if op in self._shared:
      return
    self._check_clear(op)
    self._shared.add(op)
    self._pending.append((True, op))

  def _look_at_shared(self, op: int) -> None:
    # A shared op reads global values.
    for tensor in self._flow.inputs[op]:
      if tensor[0] in self._propagated.copied or tensor in self._propagated.sparse:
        self._use(tensor, op)
    self._awaited.update(c for c in self._flow.controls[op] if c in self._propagated.copied)

  def _look_at_copy(self, op: int) -> None:
    copied = self._propagated.copied
    # A copy reads its own replica's values, unless the batch rules asked for the global one.
    for i, tensor in enumerate(self._flow.inputs[op]):
      fix = self._propagated.fixes.get((op, i))
      if fix is not None and fix[0] == exponents.GLOBAL:
        self._combine(tensor, self.how(tensor, op))
      elif tensor[0] in copied:
        self._need(tensor[0])
    self._awaited.update(c for c in self._flow.controls[op] if c in copied)

  def _use(self, tensor: Tensor, consumer: int) -> None:
    """Makes the global value of a tensor available."""
    op = tensor[0]
    if op in self._propagated.once:
      self._share(op)
    # A linear op may come after the sum, which is taken once.
    elif isinstance(self._propagated.spec(tensor), (Partial, LocalStatistic)) and (
        self._is_linear_in_one(op)):
      self._share(op)
    else:
      self._combine(tensor, self.how(tensor, consumer))

  def _combine(self, tensor: Tensor, how: Collective) -> None:
    self._combined[tensor] = how
    if tensor[0] in self._propagated.copied:
      self._need(tensor[0])

  def how(self, tensor: Tensor, consumer: int) -> Collective:
    """Returns how a tensor is combined across replicas.

    Args:
      tensor: (op, output port).
      consumer: the op that needs the tensor, for messages.

    Returns:
      The way in which the copies become one value.
    """
    kind: Spec = self._propagated.spec(tensor)
    # Zeros have any exponent: 0 is as good.
    if getattr(kind, "exponent", 0.0) == FREE:
      kind = with_exponent(kind, 0.0)
    if tensor in self._propagated.sparse:
      return Collective(ROWS, getattr(kind, "exponent", 0.0), rows_of_gradient=True)
    if isinstance(kind, Unknown):
      raise self._unknown(kind, consumer)
    if isinstance(kind, (Replicated, Dimensions)):
      return Collective(FIRST, getattr(kind, "exponent", 0.0))
    # The replicas' own statistics are combined by their sum, as `LocalStatistic` says.
    if isinstance(kind, (Partial, LocalStatistic)):
      how = kind.how if isinstance(kind, Partial) else "sum"
      if kind.exponent and self._flow.is_integer(tensor):
        raise self._cannot_combine(tensor, consumer, "averages whole numbers over the batch")
      return Collective(how, kind.exponent)
    # Positions are rows that count from the first example of the replica.
    if isinstance(kind, Sharded) and kind.outer <= 1 and not kind.tagged:
      if kind.local is None:
        return Collective(ROWS, kind.exponent, kind.axis)
      numbers = exponents.numbers_of_an_example(self._flow, tensor, self._propagated.batch)
      if numbers is not None:
        return Collective(ROWS, kind.exponent, kind.axis, (numbers, kind.local.span))
    if isinstance(kind, SparseRows):
      return Collective(ROWS, kind.exponent)
    raise self._cannot_combine(
        tensor, consumer, "gives examples of the batch in an order that replicas do not keep")

  def _is_linear_in_one(self, op: int) -> bool:
    """Returns whether an op that is linear in partial tensors exists once, after the sum."""
    flow, copied = self._flow, self._propagated.copied
    if flow.frames[op]:
      return False
    if flow.types[op] in _PASSING:
      return True
    # Inputs that exist once, and so are the same for all replicas.
    single = [producer not in copied or producer in self._propagated.once
              for producer, _ in flow.inputs[op]]
    # sum_r(a_r) * b: linear in the one input that replicas have parts of.
    return flow.types[op] in _SCALING and any(
        single[1:] if flow.types[op] in _QUOTIENTS else single)

  def _unknown(self, kind: Unknown, consumer: int) -> GraphError:
    flow = self._flow
    names = flow.graph.op_names
    needs = "" if kind.op == consumer else (
        f", so that {names[consumer]!r} ({flow.types[consumer]}) cannot be had from replicas")
    return GraphError(
        f"op {names[kind.op]!r} ({flow.types[kind.op]}) {kind.reason}{needs}; take it out of the "
        "training step, or train with one replica")

  def _cannot_combine(self, tensor: Tensor, consumer: int, why: str) -> GraphError:
    flow = self._flow
    names = flow.graph.op_names
    return GraphError(
        f"op {names[tensor[0]]!r} ({flow.types[tensor[0]]}) {why}, of which "
        f"{names[consumer]!r} ({flow.types[consumer]}) needs one value; take it out of the "
        "training step, or train with one replica")
