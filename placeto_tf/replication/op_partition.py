"""Finds the ops that each replica has, the ops that exist once, and the tensors to combine.

The search goes backwards from the ops that change variables and from the fetches. Ops that read
only global values exist once. Where a replica or a shared op needs the global value of a tensor,
and the replicas hold parts of the value, the tensor is combined: all-reduced or all-gathered.

Dimensions: N needed ops.
"""

from __future__ import annotations

import dataclasses
from typing import Dict, FrozenSet, List, Optional, Sequence, Set, Tuple

from placeto_tf.errors import GraphError
from placeto_tf.graphs.op_defs import REF
from placeto_tf.ops import QUOTIENTS, rule_of
from placeto_tf.replication import exponents, op_roles, specs
from placeto_tf.replication.dataflow import Dataflow, Tensor
from placeto_tf.replication.propagation import Propagated

# Ways to combine besides reductions: concatenate the rows of all replicas in their order, or take
# the first replica's tensor, because all are equal.
ROWS, FIRST = "rows", "first"

_PASSING = ("Identity", "StopGradient", "Snapshot", "PreventGradient")
# First parts of types that pass values on through lists, arrays, loops and branches.
_PASSING_ON = ("TensorList", "TensorArray", "Stack", "Enter", "Exit", "Merge", "Switch",
               "NextIteration", "Identity")
# Op types that may follow the sum, where the other operand is equal in all replicas.
_SCALING = ("Mul", *QUOTIENTS, "Add", "AddV2", "Sub")


@dataclasses.dataclass(frozen=True)
class Collective:
  """The way in which the replicas' tensors become the global one.

  Attributes:
    how: "sum", "max", "min", "all", "any", `ROWS` or `FIRST`.
    exponent: the combined value is `R^exponent` times the global value.
    axis: the axis of concatenation, for `ROWS`.
    positions: (numbers, slots) of each example if the rows are positions, which count from 0 in
      each replica; else None.
    rows_of_gradient: whether the rows are a sparse gradient. Each mirrored replica then gathers
      the rows itself, on the device of its optimizer.
  """

  how: str
  exponent: float = 0.0
  axis: int = 0
  positions: Optional[Tuple[int, int]] = None
  rows_of_gradient: bool = False


@dataclasses.dataclass(frozen=True)
class OpPartition:
  """The role of each op that depends on the batch.

  Attributes:
    copies: ops that every replica copies.
    shared: ops that depend on the batch and exist once, after all-reduces and all-gathers.
    combined: tensor of `copies` whose global value is needed -> the way to combine it.
  """

  copies: FrozenSet[int]
  shared: FrozenSet[int]
  combined: Dict[Tensor, Collective]


def partition_ops(
    flow: Dataflow, propagated: Propagated, fetched: List[Tensor], run: List[int]
) -> OpPartition:
  """Divides the ops that depend on the batch into copies and shared ops.

  Args:
    flow: the graph.
    propagated: the ops that depend on the batch.
    fetched: tensors that are fetched.
    run: ops that are fetched as such, without a result.

  Returns:
    The role of each op behind the batch, and the tensors that are combined.

  Raises:
    GraphError: the step updates no variable from the batch, or an update or a fetch cannot be
      computed from the replicas' tensors.
  """
  return _Partitioner(flow, propagated).run(fetched, run)


def outputs_of_fetched_ops(
    flow: Dataflow, propagated: Propagated, run: Sequence[int]) -> List[Tensor]:
  """Returns the outputs of ops fetched by name whose global value replicas can compute.

  A client that fetches `loss` may also fetch `loss:0` of the replicated graph.

  Args:
    flow: the graph.
    propagated: the ops that depend on the batch.
    run: ops that are fetched as such.
  """
  return [tensor for op in run if op in propagated.copied for tensor in flow.outputs(op)
          if flow.dtype(tensor) % REF not in exponents.HANDLES
          and _has_one_value(flow, propagated, tensor)]


def _has_one_value(flow: Dataflow, propagated: Propagated, tensor: Tensor) -> bool:
  """Returns whether the global value of a tensor can be computed from the replicas' values."""
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
    """Finds the role of each op that depends on the batch.

    Args:
      fetched: tensors that are fetched.
      run: ops that are fetched as such, without a result.

    Returns:
      The role of each op.

    Raises:
      GraphError: see `partition_ops`.
    """
    flow, copied = self._flow, self._propagated.copied
    # Ops that write values of the batch to variables.
    updates = [op for op in sorted(copied) if op_roles.is_update(flow.types[op])]
    # Updates that read the batch, or values computed once from it.
    learning = [op for op in updates if any(
        self._propagated.spec(tensor) != specs.REPLICATED or tensor[0] in self._propagated.once
        for tensor in flow.inputs[op])]
    collecting = [op for op in sorted(copied) if "AccumulatorApply" in flow.types[op]]
    if not learning and collecting:
      raise GraphError(
          f"op {flow.graph.op_names[collecting[0]]!r} ({flow.types[collecting[0]]}) collects the "
          "gradients of several workers, as SyncReplicasOptimizer does, so that the step updates "
          "no variable itself; build the graph with the optimizer inside it (its minimize), "
          "whose replicas are made here, or place one replica")
    if not learning:
      raise GraphError(
          "no variable is updated from the feeds, so there is no training to replicate; hand "
          "over the graph of a training step and fetch its train op")
    # Backwards from updates, fetches, and copies that ops independent of the batch wait for.
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
    # A tensor of an op that turned out to exist once needs no all-reduce.
    combined = {tensor: how for tensor, how in self._combined.items()
                if tensor[0] not in self._shared}
    return OpPartition(
        frozenset(self._copies | self._constants_and_barriers()), frozenset(self._shared), combined)

  def _constants_and_barriers(self) -> Set[int]:
    """Returns ops that do not depend on the batch but are copied for each replica.

    Copied are constants that copies read, and ops that compute from constants alone: a single op
    would be sent to all replicas. A control input that only puts such a constant into a branch or
    loop comes from the replica's own op. NoOps between copies, such as `group_deps` of a gradient,
    are copied, too: at a single NoOp every replica would wait for the slowest one.
    """
    flow, copies = self._flow, self._copies
    constant: Set[int] = set()
    barriers: Set[int] = set()
    # In order of depth: an op comes after its inputs.
    for op in flow.order:
      op_type, waits = flow.types[op], flow.controls[op]
      read = [producer for producer, _ in flow.inputs[op]]
      if op_type == "NoOp" and not read:
        if any(awaited in copies or awaited in barriers for awaited in waits):
          barriers.add(op)
      elif op in self._propagated.copied or flow.frames[op]:
        continue
      elif op_type == "Const" and all(p in constant or p in copies for p in waits) or (
          read and op_roles.is_stateless(op_type) and all(p in constant for p in read + waits)):
        constant.add(op)
    # Backwards from the copies, only through constants and barriers.
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
    # Data inputs first, because they may make more ops shared; then control inputs.
    while self._pending or self._awaited:
      while self._pending:
        shared, op = self._pending.pop()
        (self._look_at_shared if shared else self._look_at_copy)(op)
      for op in sorted(self._awaited):
        if op not in self._shared and op not in self._copies:
          self._need(op)
      self._awaited.clear()

  def _need(self, op: int, shared: bool = False) -> None:
    """Marks an op of the batch as shared or as a copy; raises GraphError if it is refused."""
    shared |= op in self._propagated.once
    marked = self._shared if shared else self._copies
    if op not in marked:
      if op in self._propagated.refused:
        raise self._unknown(self._propagated.refused[op], op)
      marked.add(op)
      self._pending.append((shared, op))

  def _look_at_shared(self, op: int) -> None:
    # A shared op reads global values.
    for tensor in self._flow.inputs[op]:
      if tensor[0] in self._propagated.copied or tensor in self._propagated.sparse:
        self._use(tensor, op)
    self._awaited.update(c for c in self._flow.controls[op] if c in self._propagated.copied)

  def _look_at_copy(self, op: int) -> None:
    copied = self._propagated.copied
    # A copy reads its own replica's values, unless a fix makes the input global.
    for i, tensor in enumerate(self._flow.inputs[op]):
      fix = self._propagated.fixes.get((op, i))
      if fix is not None and fix[0] == exponents.GLOBAL:
        self._combine(tensor, self.how(tensor, op))
      elif tensor[0] in copied:
        self._need(tensor[0])
    self._awaited.update(c for c in self._flow.controls[op] if c in copied)

  def _use(self, tensor: Tensor, consumer: int) -> None:
    """Makes the global value of a tensor available to `consumer`."""
    op = tensor[0]
    # A linear op can follow the sum, and then exists once.
    if op in self._propagated.once or self._is_linear_in_one(op) and isinstance(
        self._propagated.spec(tensor), (specs.Partial, specs.LocalStatistic)):
      self._need(op, shared=True)
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
    spec: specs.Spec = self._propagated.spec(tensor)
    # Zeros have any exponent; take 0.
    if getattr(spec, "exponent", 0.0) == specs.FREE:
      spec = specs.with_exponent(spec, 0.0)
    if tensor in self._propagated.sparse:
      return Collective(ROWS, getattr(spec, "exponent", 0.0), rows_of_gradient=True)
    if isinstance(spec, specs.Unknown):
      raise self._unknown(spec, consumer)
    if isinstance(spec, (specs.Replicated, specs.Dimensions)):
      return Collective(FIRST, getattr(spec, "exponent", 0.0))
    # The replicas' own statistics are combined by their sum, as `LocalStatistic` says.
    if isinstance(spec, (specs.Partial, specs.LocalStatistic)):
      how = spec.how if isinstance(spec, specs.Partial) else "sum"
      if spec.exponent and self._flow.is_integer(tensor):
        raise self._cannot_combine(tensor, consumer, "averages whole numbers over the batch")
      return Collective(how, spec.exponent)
    # Positions are rows that count from the first example of the replica.
    if isinstance(spec, specs.Sharded) and spec.outer <= 1 and not spec.tagged:
      if spec.local is None:
        return Collective(ROWS, spec.exponent, spec.axis)
      numbers = exponents.numbers_of_an_example(self._flow, tensor, self._propagated.batch)
      if numbers is not None:
        return Collective(ROWS, spec.exponent, spec.axis, (numbers, spec.local.span))
    raise self._cannot_combine(
        tensor, consumer, "gives examples of the batch in an order that replicas do not keep")

  def _is_linear_in_one(self, op: int) -> bool:
    """Returns whether an op that is linear in partial tensors exists once, after the sum."""
    flow, copied = self._flow, self._propagated.copied
    if flow.frames[op]:
      return False
    if flow.types[op] in _PASSING:
      return True
    # For each input, whether its op exists once, so that the value is equal for all replicas.
    single = [producer not in copied or producer in self._propagated.once
              for producer, _ in flow.inputs[op]]
    # sum_r(a_r) * b: linear in the one input that is partial.
    return flow.types[op] in _SCALING and any(
        single[1:] if flow.types[op] in QUOTIENTS else single)

  def _unknown(self, spec: specs.Unknown, consumer: int) -> GraphError:
    needs = "" if spec.op == consumer else (
        f", so that {self._named(consumer)} cannot be had from replicas")
    return self._error(spec.op, f"{spec.reason}{needs}")

  def _cannot_combine(self, tensor: Tensor, consumer: int, why: str) -> GraphError:
    return self._error(tensor[0], f"{why}, of which {self._named(consumer)} needs one value")

  def _error(self, op: int, why: str) -> GraphError:
    forward, behind = self._users_op(op)
    remedy = "" if behind else "take it out of the training step, or "
    return GraphError(f"{behind}op {self._named(forward)} {why}; {remedy}train with one replica")

  def _users_op(self, op: int) -> Tuple[int, str]:
    """Returns the op that a user knows, and what is said before it: of a gradient, of a loop."""
    flow = self._flow
    _, gradient, path = flow.graph.op_names[op].rpartition("gradients/")
    parts = path.split("/") if gradient else []
    # "gradients/a/b_grad/c": the op "a/b".
    while parts and "/".join(parts).rpartition("_grad")[0] not in flow.graph.op_index:
      parts.pop()
    at = flow.graph.op_index["/".join(parts).rpartition("_grad")[0]] if parts else op
    # Ops of arrays and loops pass on what other ops compute.
    seen: Set[int] = set()
    while flow.inputs[at] and flow.types[at].startswith(_PASSING_ON) and at not in seen:
      seen.add(at)
      rule = rule_of(flow.types[at])
      added = flow.added(flow.list_of(flow.inputs[at][0])) if rule.takes else ()
      at = (added[0][0] if added else flow.inputs[at][rule.puts[1] if rule.puts else 0])[0]
    return at, "the gradient behind " if parts else "a loop or list behind " if seen else ""

  def _named(self, op: int) -> str:
    return f"{self._flow.graph.op_names[op]!r} ({self._flow.types[op]})"
