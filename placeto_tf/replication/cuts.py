"""The cut: which ops each replica has, which exist once, and which tensors cross between them.

The search goes backwards from the ops that change variables and from the fetches. Ops that are not
linear in the means over replicas (a norm, a square) need the means, so they exist once. The search
ends where a tensor is the sum or mean over the examples of a replica; there the mean is taken.

Legend: N needed ops.
"""

from __future__ import annotations

import dataclasses
from typing import Dict, FrozenSet, List, Set, Tuple

import numpy as np

from placeto_tf.errors import GraphError
from placeto_tf.replication import op_roles
from placeto_tf.replication.dataflow import Dataflow, Tensor
from placeto_tf.replication.kinds import AFTER, MEAN, SAME, SPARSE, Rows, Unclear
from placeto_tf.replication.propagation import Spread

# How tensors of the replicas become one: the mean, the rows of all, the first one's (all are
# equal), the examples of all in their order.
MEANS, SPARSE_ROWS, FIRST, EXAMPLES = "mean", "rows", "first", "examples"

_PASSING = ("Identity", "StopGradient", "Snapshot", "PreventGradient")
# The mean is taken before these, if the optimizer does them with its own numbers.
_SCALING = ("Mul", "RealDiv", "Div", "DivNoNan", "Add", "AddV2", "Sub")


@dataclasses.dataclass(frozen=True)
class Cut:
  """The role of each op that the batch reaches.

  Attributes:
    copies: ops of which every replica has its own.
    shared: ops that the batch reaches and that exist once, after the means.
    joined: tensor of `copies` of which one value is needed -> how it is joined.
  """

  copies: FrozenSet[int]
  shared: FrozenSet[int]
  joined: Dict[Tensor, str]


def find_cut(flow: Dataflow, spread: Spread, fetched: List[Tensor], run: List[int]) -> Cut:
  """Finds the cut.

  Args:
    flow: the graph.
    spread: the ops that the batch reaches.
    fetched: tensors that are fetched.
    run: ops that are fetched as such, without a result.

  Raises:
    GraphError: nothing is learned from the batch, or an update or a fetch cannot be computed from
      those of the replicas.
  """
  return _Cutter(flow, spread).run(fetched, run)


class _Cutter:

  def __init__(self, flow: Dataflow, spread: Spread):
    self._flow, self._spread = flow, spread
    self._copies: Set[int] = set()
    self._shared: Set[int] = set()
    self._joined: Dict[Tensor, str] = {}
    self._pending: List[Tuple[bool, int]] = []  # (shared, op) whose inputs are not yet looked at
    self._awaited: Set[int] = set()

  def run(self, fetched: List[Tensor], run: List[int]) -> Cut:
    flow, copied = self._flow, self._spread.copied
    updates = [op for op in sorted(copied) if op_roles.is_update(flow.types[op])]
    learning = [op for op in updates if any(
        self._spread.kind(tensor) in (MEAN, AFTER, SPARSE) for tensor in flow.inputs[op])]
    unclear = [self._spread.kind(t) for op in updates for t in flow.inputs[op]]
    if not learning and not any(isinstance(kind, (Rows, Unclear)) for kind in unclear):
      raise GraphError(
          "no variable is updated from what is fed, so there is no training to replicate; hand "
          "over the graph of a training step and fetch its train op")
    for op in updates:
      self._share(op)
    for tensor in fetched:
      if tensor[0] in copied:
        self._fetch(tensor)
    self._awaited.update(op for op in run if op in copied)
    for op in range(len(flow.types)):
      if op not in copied:
        self._awaited.update(c for c in flow.controls[op] if c in copied)
    self._settle()
    joined = {tensor: how for tensor, how in self._joined.items() if tensor[0] not in self._shared}
    return Cut(
        frozenset(self._copies | self._own_barriers() | self._own_constants()),
        frozenset(self._shared), joined)

  def _own_constants(self) -> Set[int]:
    """Constants that copies read, and what is computed of constants alone.

    Each replica has them where it is; one of each would be sent to all of them.
    """
    flow, copied = self._flow, self._spread.copied
    order = np.argsort(flow.graph.depths, kind="stable").tolist()
    constant: Set[int] = set()
    for op in order:
      before = [producer for producer, _ in flow.inputs[op]] + flow.controls[op]
      if op not in copied and not flow.frames[op] and all(p in constant for p in before) and (
          flow.types[op] == "Const" or flow.inputs[op] and op_roles.is_stateless(flow.types[op])):
        constant.add(op)
    read = {producer for op in self._copies for producer, _ in flow.inputs[op]}
    read.update(awaited for op in self._copies for awaited in flow.controls[op])
    own: Set[int] = set()
    for op in reversed(order):
      if op in constant and op in read:
        own.add(op)
        read.update(producer for producer, _ in flow.inputs[op])
        read.update(flow.controls[op])
    return own

  def _own_barriers(self) -> Set[int]:
    """NoOps that only order what one replica does, such as the `group_deps` of a gradient.

    Were there one of each, every replica would wait for the slowest at each of them.
    """
    flow = self._flow
    order = [op for op in np.argsort(flow.graph.depths, kind="stable").tolist()
             if flow.types[op] == "NoOp" and not flow.inputs[op]]
    behind: Set[int] = set()
    for op in order:
      if any(awaited in self._copies or awaited in behind for awaited in flow.controls[op]):
        behind.add(op)
    waited_by_copies = {awaited for op in self._copies for awaited in flow.controls[op]}
    own: Set[int] = set()
    for op in reversed(order):
      if op in behind and op in waited_by_copies:
        own.add(op)
        waited_by_copies.update(flow.controls[op])
    return own

  def _settle(self) -> None:
    while self._pending or self._awaited:
      while self._pending:
        shared, op = self._pending.pop()
        (self._look_at_shared if shared else self._look_at_copy)(op)
      for op in sorted(self._awaited):
        if op not in self._shared and op not in self._copies:
          kinds = self._spread.kinds[op]
          (self._share if kinds and all(kind is AFTER for kind in kinds) else self._copy)(op)
      self._awaited.clear()

  def _share(self, op: int) -> None:
    if op in self._shared:
      return
    if self._flow.frames[op]:
      raise GraphError(
          f"op {self._flow.graph.op_names[op]!r} ({self._flow.types[op]}) needs the mean over all "
          "replicas inside of a loop that each of them runs for itself; take it out of the loop")
    self._shared.add(op)
    self._pending.append((True, op))

  def _copy(self, op: int) -> None:
    if op_roles.is_update(self._flow.types[op]):
      self._share(op)
    elif op not in self._copies:
      self._copies.add(op)
      self._pending.append((False, op))

  def _look_at_shared(self, op: int) -> None:
    for tensor in self._flow.inputs[op]:
      if tensor[0] in self._spread.copied or tensor in self._spread.sparse:
        self._use(tensor, op)
    self._awaited.update(c for c in self._flow.controls[op] if c in self._spread.copied)

  def _look_at_copy(self, op: int) -> None:
    copied = self._spread.copied
    for producer, _ in self._flow.inputs[op]:
      if producer in copied:
        self._copy(producer)
    self._awaited.update(c for c in self._flow.controls[op] if c in copied)

  def _use(self, tensor: Tensor, consumer: int) -> None:
    """Makes one value of a tensor available."""
    flow, kind = self._flow, self._spread.kind(tensor)
    if kind is AFTER or op_roles.is_update(flow.types[tensor[0]]):
      self._share(tensor[0])
    elif kind is SPARSE:
      self._join(tensor, SPARSE_ROWS)
    elif kind is SAME:
      self._join(tensor, FIRST)
    elif kind is MEAN and self._optimizer_scales(tensor[0]):
      self._share(tensor[0])
    elif kind is MEAN:
      self._mean(tensor)
    else:
      raise self._cannot_join(tensor, consumer)

  def _fetch(self, tensor: Tensor) -> None:
    kind = self._spread.kind(tensor)
    if isinstance(kind, Rows) and kind == Rows(0):
      self._join(tensor, EXAMPLES)
    else:
      self._use(tensor, tensor[0])

  def _join(self, tensor: Tensor, how: str) -> None:
    self._joined[tensor] = how
    if tensor[0] in self._spread.copied:
      self._copy(tensor[0])

  def _mean(self, tensor: Tensor) -> None:
    flow = self._flow
    if flow.is_integer(tensor):
      raise GraphError(
          f"op {flow.graph.op_names[tensor[0]]!r} ({flow.types[tensor[0]]}) sums whole numbers "
          "over the batch, whose mean over replicas is none; cast them to a float type first")
    self._join(tensor, MEANS)

  def _optimizer_scales(self, op: int) -> bool:
    """Whether an op that is linear in a mean exists once, after the mean."""
    flow, copied = self._flow, self._spread.copied
    if flow.frames[op]:
      return False
    if flow.types[op] in _PASSING:
      return True
    return flow.types[op] in _SCALING and any(
        producer not in copied for producer, _ in flow.inputs[op])

  def _cannot_join(self, tensor: Tensor, consumer: int) -> GraphError:
    flow = self._flow
    names, kind = flow.graph.op_names, self._spread.kind(tensor)
    if isinstance(kind, Unclear):
      return GraphError(
          f"op {names[kind.op]!r} ({flow.types[kind.op]}) {kind.reason}, so that "
          f"{names[consumer]!r} ({flow.types[consumer]}) cannot be had from replicas; take it out "
          "of the training step, or train with one replica")
    return GraphError(
        f"op {names[consumer]!r} ({flow.types[consumer]}) takes single examples of the batch from "
        f"{names[tensor[0]]!r} ({flow.types[tensor[0]]}), of which each replica has others; "
        "reduce them to a mean over the batch")
