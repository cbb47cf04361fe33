"""`Collectives`: writes the ops that combine the replicas' values into one; see `rewriting`.

Dimensions: R replicas.
"""

from __future__ import annotations

import math
from typing import Any, FrozenSet, Iterator, List, Sequence, Set, Tuple

import numpy as np

from placeto_tf.replication import op_partition
from placeto_tf.replication.dataflow import Tensor, known_dims
from placeto_tf.replication.mirroring import Plan
from placeto_tf.replication.naming import Names
from placeto_tf.replication.nodes import NodeWriter
from placeto_tf.replication.packing import Pack, find_packs
from placeto_tf.replication.specs import Dimensions, LocalStatistic


class Collectives:
  """The all-reduces and all-gathers of one graph.

  Attributes:
    read: tensor -> [R] names of its combined (all-reduced or gathered) value, one per replica.
    packs: writer of the ops of packs; these ops come last in the graph, after their inputs.
  """

  def __init__(self, plan: Plan, names: Names, writer: NodeWriter):
    """Writes packs; tensors in no pack are combined when `write` is called.

    Args:
      plan: of the replicas; tensors that are fetched keep an all-reduce of their own.
      names: of the replicated graph.
      writer: of it.
    """
    self._flow, self._propagated, self._partition = plan.flow, plan.propagated, plan.partition
    self._scaling, self._fetched, self._micro_batches = (
        plan.scaling, plan.fetched, plan.micro_batches)
    self._names, self._writer = names, writer
    self._replicas, self._mirrored = plan.scaling.replicas, bool(plan.mirrors.needed)
    # Two replicas: each computes all means itself. That moves as many bytes as if each computed
    # half of the means, and takes one transfer less. More replicas would move more bytes so.
    self._own_means = self._mirrored and self._replicas == 2
    self.read = {tensor: self._read_as(tensor) for tensor in sorted(plan.partition.combined)}
    self._sums = {tensor: [f"{name}/sum" for name in found] for tensor, found in self.read.items()}
    self._packed: Set[Tensor] = set()
    self.packs = writer.beside()
    # No packs with micro-batches: the first stage of the pipeline would wait for gradients of the
    # last stage.
    for k, pack in enumerate([] if plan.micro_batches > 1 else find_packs(
        plan, in_pieces=self._mirrored and not self._own_means)):
      self._write_pack(f"{names.all_reduce}/pack_{k}", pack)

  def own(self) -> FrozenSet[str]:
    """Returns the sums that only statistics and fetches read, which no replica needs to train."""
    own: Set[str] = set()
    others: Set[str] = set()
    for tensor, collective in self._partition.combined.items():
      if collective.how == "sum":
        dispensable = tensor in self._fetched or isinstance(
            self._propagated.spec(tensor), LocalStatistic)
        (own if dispensable else others).update(self._sums[tensor])
    return frozenset(own - others)

  def _read_as(self, tensor: Tensor) -> List[str]:
    """Returns the names of the global value of a tensor in no pack, one for each replica, [R]."""
    collective = self._partition.combined[tensor]
    name = self._names.collective(tensor)
    # All replicas hold the same value: read it directly, unless it needs a factor.
    if collective.how == op_partition.FIRST:
      if self._factor(tensor) is None:
        return [self._names.of_replica(tensor, r if self._mirrored else 0)
                for r in range(self._replicas)]
      return self._names.for_each(name)
    # A feed is whole before it is divided.
    if tensor[0] in self._propagated.fed:
      return [self._flow.graph.op_names[tensor[0]]] * self._replicas
    # Rows of gradients and means of two replicas are computed by each replica itself.
    own = collective.rows_of_gradient or (
        collective.how == "sum" and self._own_means and tensor not in self._fetched)
    return self._names.for_each(name) if own else [name] * self._replicas

  def _factor(self, tensor: Tensor) -> Any:
    """Returns the factor between a combined tensor and the global value; None if they are equal."""
    collective = self._partition.combined[tensor]
    if collective.how == op_partition.FIRST and not collective.exponent:
      # Dimensions of a replica's tensor; other numbers at this exponent are global already.
      factors = self._scaling.factors(tensor) if isinstance(
          self._propagated.spec(tensor), Dimensions) else None
      return None if factors is None or (factors == 1).all() else factors
    if not collective.exponent:
      return None
    # The tensor is R^exponent times the global value: divide by R^exponent.
    factor = self._replicas ** -collective.exponent
    return int(factor) if self._flow.is_integer(tensor) else factor

  def _each(self, writer: NodeWriter, names: Sequence[str]) -> Iterator[Tuple[int, str]]:
    """Yields (replica, name of the op to write); (0, name) where all replicas share one op."""
    found = list(dict.fromkeys(names))
    for r, name in enumerate(found):
      with writer.owned(r if len(found) > 1 else None):
        yield r, name

  def write(self, op: int) -> None:
    """Combines an op's tensors that are in no pack."""
    for tensor in self._flow.outputs(op):
      if tensor in self.read and tensor not in self._packed:
        self._write(tensor)

  def _write(self, tensor: Tensor) -> None:
    collective, factor = self._partition.combined[tensor], self._factor(tensor)
    if tensor[0] in self._propagated.fed or collective.how == op_partition.FIRST and factor is None:
      return
    dtype = self._flow.dtype(tensor) % 100
    parts = [self._names.of_replica(tensor, r) for r in range(self._replicas)]
    anchor = parts[0] if self._flow.frames[tensor[0]] else None
    writer = self._writer
    # One op for each replica, or one op that all replicas read.
    for r, name in self._each(writer, self.read[tensor]):
      if collective.how == op_partition.FIRST:
        writer.scale(name, parts[r], factor, dtype, anchor)
      elif collective.how == op_partition.ROWS:
        # Positions of replica q follow those of the replicas before it.
        if collective.positions:
          parts = [writer.offset(f"{name}/part_{q}", part, q, *collective.positions, dtype, anchor)
                   for q, part in enumerate(parts)]
        rows = writer.concat(
            name if factor is None else f"{name}/rows", parts, dtype, collective.axis, anchor)
        if factor is not None:
          writer.scale(name, rows, factor, dtype, anchor)
      else:
        if collective.how == "sum" and self._micro_batches > 1:
          parts = self._running_sums(name, parts, dtype)
        writer.reduce(name, parts, dtype, collective.how, factor, anchor)

  def _running_sums(self, name: str, parts: Sequence[str], dtype: int) -> List[str]:
    """Adds up the micro-batches of each group, one after the other.

    Args:
      name: of the op that combines the groups.
      parts: [R] names of the replicas' tensors.
      dtype: number of the DataType.

    Returns:
      Names of the tensors that are still to be added.
    """
    left = []
    # With a single group, the final sum adds the last part, so that it has something to add.
    for first in range(0, len(parts), self._micro_batches):
      end = first + self._micro_batches - (len(parts) == self._micro_batches)
      total = parts[first]
      for r in range(first + 1, end):
        # Sums grow by one micro-batch at a time, on the device of that micro-batch.
        with self._writer.owned(r):
          total = self._writer.combine(
              f"{name}/{self._names.prefixes[r]}", [total, parts[r]], dtype, "sum")
      left += [total, *parts[end:first + self._micro_batches]]
    return left

  def _write_pack(self, name: str, pack: Pack) -> None:
    """Writes the sum of concatenated tensors, or of one tensor that is divided into pieces."""
    writer, tensors = self.packs, pack.tensors
    dtype = self._flow.dtype(tensors[0]) % 100
    factor = self._factor(tensors[0])
    shapes = [known_dims(self._flow.shape(tensor)) for tensor in tensors]
    sizes = [math.prod(shape) for shape in shapes]
    # [pieces + 1] cumulative ends of equal pieces of the laid-out tensors.
    ends = np.arange(pack.pieces + 1) * sum(sizes) // pack.pieces
    parts = []  # [R][pieces]
    for r, prefix in enumerate(self._names.prefixes):
      with writer.owned(r):
        flat = writer.laid_out(
            f"{name}/{prefix}", [self._names.of_replica(tensor, r) for tensor in tensors], shapes,
            dtype)
        parts.append(
            writer.split_up(f"{name}/{prefix}/pieces", flat, np.diff(ends).tolist(), dtype))
    means = [name if pack.pieces == 1 else f"{name}/piece_{i}" for i in range(pack.pieces)]
    # [R][pieces] names if each replica computes the means itself, else [1][pieces].
    of_replicas = [[f"{mean}/{prefix}/mean" for mean in means] for prefix in self._names.prefixes
                   ] if self._own_means else [means]
    sums = []
    for r, each in enumerate(of_replicas):
      with writer.owned(r if self._own_means else None):
        sums += [writer.reduce(mean, piece, dtype, "sum", factor)
                 for mean, piece in zip(each, zip(*parts))]
    # [tensors][R] names of the results.
    combined = [list(self.read[tensor]) if self._own_means else self._names.for_each(
        self.read[tensor][0]) for tensor in tensors]
    for r, own in self._each(writer, self._names.for_each(f"{name}/split")):
      means = of_replicas[r % len(of_replicas)]
      mean = means[0]
      if len(means) > 1:
        mean = writer.concat(f"{own}/whole", means, dtype)
      # Back to the shapes of the tensors, in their order.
      for i, piece in enumerate(writer.split_up(own, mean, sizes, dtype)):
        if len(shapes[i]) == 1:
          combined[i][r] = piece
        else:
          writer.reshape(combined[i][r], piece, shapes[i], dtype)
    for tensor, found in zip(tensors, combined):
      # One split serves all replicas unless each has its own.
      self.read[tensor] = found if self._mirrored else [found[0]] * self._replicas
      self._sums[tensor] = sums
    self._packed.update(tensors)
