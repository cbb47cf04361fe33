"""The position of the batch in the outputs of an op: one rule for each type of op.

A rule is called for an op that reads rows of the batch (`specs.Sharded`), and returns the sharding
specs of the op's outputs. A sum over the examples gives a `Partial`; a comparison of examples
gives an `Unknown`.
"""

from __future__ import annotations

import dataclasses
import math
from typing import AbstractSet, Any, Callable, Dict, List, Optional, Sequence, Set, Tuple, Union

import numpy as np

from placeto_tf.graphs.loops import SWITCH
from placeto_tf.graphs.shapes import FEEDABLE
from placeto_tf.ops import members, registered, rule_of
from placeto_tf.replication.dataflow import Dataflow, Tensor, closure
from placeto_tf.replication.exponents import Inputs, NotFollowed, result_exponent
from placeto_tf.replication.op_roles import PIPELINES
from placeto_tf.replication.scaling import Scaling
from placeto_tf.replication.specs import (
  MIXES_ROWS,
  REPLICATED,
  LocalStatistic,
  Partial,
  Positions,
  Replicated,
  Sharded,
  Spec,
  meets_all_examples,
)

_UNKNOWN = "is of a type for which it is not known where the batch is in its result"
_NO_SHAPE = "has a shape that is not known, so that the batch cannot be followed through it"
_NOT_LINEAR = "reduces the batch in a way that replicas cannot combine"
_SOME = "takes some of the examples of the batch"
_SUM = Partial("sum")

REDUCTIONS = {"Sum": "sum", "Mean": "sum", "Max": "max", "Min": "min", "All": "all", "Any": "any"}
_ALONG_AXIS = ("TopK", "TopKV2", "ArgMax", "ArgMin")
_OF_DIAGONALS = ("MatrixDiag", "MatrixDiagV2", "MatrixDiagV3")


class AxisRules:
  """The rules for one graph and its batch."""

  def __init__(
      self, flow: Dataflow, batch: int, scaling: Scaling, depending: AbstractSet[int]):
    self._flow, self._batch, self._scaling = flow, batch, scaling
    self._depending = depending  # ops that depend on the batch
    # Whether rows are checked against tensors that hold all examples; not before loops have
    # settled.
    self.compared = False
    self.assumed: Set[int] = set()  # feeds that are taken for indices into the slots of an example

  def outputs(self, view: Inputs) -> List[Spec]:
    """Returns the sharding specs of the outputs of an op that reads rows.

    Args:
      view: its inputs; the fixes that the op needs are noted there.

    Raises:
      NotFollowed: no rule gives them.
    """
    flow, op = self._flow, view.op
    width = len(self._flow.outputs(op))
    op_type = flow.types[op]
    # An op that also reads rows needs the combined value of a partial tensor. A replica's own
    # statistics are not combined.
    for i, each in enumerate(view.specs):
      if isinstance(each, Partial):
        # A sum of all examples, such as gradients of all pairs, is no partner of a replica's rows.
        if self._scaling.axes(flow.inputs[op][i]) not in (None, []):
          raise NotFollowed(MIXES_ROWS)
        view.make_global(i)
      elif isinstance(each, LocalStatistic):
        view.specs[i] = Replicated(each.exponent - 1)
    local = self._positions(view, op_type)
    if op_type in SWITCH:
      return [view.specs[0]] * width
    if op_type in ("IdentityN", "ReadVariableOp"):
      return list(view.specs)
    # The exponent and the positions are followed apart from the axis.
    exponent = result_exponent(flow, view)
    bare = [Sharded(each.axis, each.outer) if isinstance(each, Sharded) else each
            for each in view.specs]
    if rule_of(op_type).axes == "elementwise" and self.compared and (
        op_type == "BroadcastTo" and bare[1] == REPLICATED  # to as many as all examples are
        or op_type != "Select" and meets_all_examples([
            (each, flow.shape(tensor)) for each, given, tensor in zip(
                bare, view.given, flow.inputs[op]) if not isinstance(given, LocalStatistic)])):
      raise NotFollowed(MIXES_ROWS)
    rule = _RULES.get(op_type)
    if rule is None:
      raise NotFollowed(_UNKNOWN)
    # Most rules take an axis alone. Rules that handle positions take the whole spec.
    found = rule(self, op, view.specs if rule_of(op_type).positions == "tells" else bare)
    # A single spec stands for every output.
    found = list(found) if isinstance(found, (list, tuple)) else [found] * width
    self._check_growth(op, found)
    tagged = rule_of(op_type).positions == "keeps" and any(
        isinstance(each, Sharded) and each.tagged for each in view.specs)
    return [_scaled(each, 0.0 if port and op_type.startswith("TopK") else exponent, local, tagged)
            for port, each in enumerate(found)]

  def _check_growth(self, op: int, found: Sequence[Spec]) -> None:
    """Raises NotFollowed where a result contradicts the shapes at the global batch."""
    for port, spec in enumerate(found):
      # An axis grows at the global batch exactly where the rule puts the examples.
      axes = self._scaling.axes((op, port))
      if spec == _SUM and self._flow.types[op] == "UnsortedSegmentSum":
        continue  # the shape gives only an upper limit of the number of segments
      if axes is not None and axes != ([spec.axis] if isinstance(spec, Sharded) else []):
        raise NotFollowed(MIXES_ROWS)

  def _positions(self, view: Inputs, op_type: str) -> Optional[Positions]:
    """Returns the positions that a result holds, or None.

    Inputs become positions in the global batch where the op needs global positions.
    """
    rows = [each for each in view.specs if isinstance(each, Sharded)]
    effect = rule_of(op_type).positions
    kept = effect == "keeps" and rule_of(op_type).axes == "elementwise"
    if any(each.tagged for each in rows) and effect != "tells" and not kept:
      raise NotFollowed("computes with positions of examples in the batch")
    local = [i for i, each in enumerate(view.specs) if isinstance(each, Sharded) and each.local]
    if not local or effect == "tells":
      return None
    if effect == "keeps" and self._flow.is_integer((view.op, 0)):
      return rows[0].local
    # A sum or product of positions is still an index if all its readers use it as an index.
    if effect == "moves" and len(local) == 1 and self._flow.is_integer((view.op, 0)) and (
        self._is_index(view.op)):
      moved = self._moved_positions(view, local[0], op_type)
      if moved is not None:
        return moved
    # Other ops need global positions: add the number of slots of the replicas before.
    for i in local:
      view.offset(i, self._batch)
    return None

  def _moved_positions(self, view: Inputs, i: int, op_type: str) -> Optional[Positions]:
    """Returns the positions after a product or a sum, or None if examples would share slots.

    A summand must be an index into the slots of one example; that a feed is one is assumed.
    """
    positions: Positions = view.specs[i].local  # type: ignore[union-attr,assignment]
    other = self._flow.inputs[view.op][1 - i]
    number = self._flow.value(other)
    # A number that differs at the global batch, such as a width that counts examples, is no number
    # of slots of one example.
    if number is not None and self._scaling.number(other) != REPLICATED:
      return None
    if op_type == "Mul":
      if number is None or np.size(number) != 1 or int(np.ravel(number)[0]) < 1:
        return None
      # Each of an example's slots becomes `times` slots. The limit of summands grows alike.
      times = int(np.ravel(number)[0])
      return Positions(positions.span * times, positions.slack * times)
    # The sum would be no index within the example's slots.
    feeds: Set[int] = set()
    least, most = self._bounds(other, feeds)
    if positions.slack == 1 or not 0 <= least <= most < positions.slack:
      return None
    self.assumed |= feeds
    # One summand is allowed; after it, nothing more may be added.
    return dataclasses.replace(positions, slack=1)

  def _bounds(self, tensor: Tensor, feeds: Set[int]) -> Tuple[float, float]:
    """Returns the least and the greatest whole number that a tensor may hold.

    Args:
      tensor: of whole numbers.
      feeds: feeds that the tensor depends on are added; their numbers count as 0.
    """
    flow, op = self._flow, tensor[0]
    op_type, data, known = flow.types[op], flow.inputs[op], flow.value(tensor)
    if known is not None and known.size:
      return known.min(), known.max()
    if op_type in FEEDABLE or op_type in PIPELINES:
      feeds.add(op)
      return 0, 0
    if op_type in _ALONG_AXIS:  # indices along an axis that does not count examples
      axis = -1 if op_type.startswith("TopK") else int(self._value(op, 1))
      size, grown = self._shape(op, 0)[axis], self._scaling.axes(data[0])
      return 0, size - 1 if size and grown is not None and (
          axis % len(self._shape(op, 0)) not in grown) else math.inf
    if op_type == "FloorMod":
      least, most = self._bounds(data[1], feeds)
      return (0, most - 1) if least > 0 else (-math.inf, math.inf)
    if op_type in ("Minimum", "Maximum"):
      choose = min if op_type == "Minimum" else max
      (a, b), (c, d) = (self._bounds(each, feeds) for each in data)
      return choose(a, c), choose(b, d)
    moved = [data[i] for i in members(rule_of(op_type).moves, len(data))]
    numbers = rule_of(op_type).any_number or ()  # the outputs of a Unique that number its elements
    if not moved or tensor[1] in numbers or not all(map(flow.is_integer, moved)):
      return -math.inf, math.inf
    bounds = [self._bounds(each, feeds) for each in moved]
    return min(least for least, _ in bounds), max(most for _, most in bounds)

  def _is_index(self, op: int) -> bool:
    """Returns whether a sum of positions and other whole numbers is used as indices alone."""
    flow = self._flow

    def moves(at: int) -> bool:
      return rule_of(flow.types[at]).positions in ("keeps", "moves") or (
          flow.types[at] in ("ConcatV2", "Pack"))

    return all(moves(at) or rule_of(flow.types[at]).positions == "tells" or flow.types[at] in (
        "Shape", "Size") for at in closure({op}, flow.consumers, moves) - {op})

  # Helpers.

  def _shape(self, op: int, i: int) -> Tuple[Optional[int], ...]:
    """Returns the shape of an op's i-th data input."""
    return self._known(self._flow.shape(self._flow.inputs[op][i]))

  def _result(self, op: int, port: int = 0) -> Tuple[Optional[int], ...]:
    return self._known(self._flow.shape((op, port)))

  def _known(self, shape: Optional[Tuple[Optional[int], ...]]) -> Tuple[Optional[int], ...]:
    if shape is None:
      raise NotFollowed(_NO_SHAPE)
    return shape

  def _value(self, op: int, i: int) -> np.ndarray:
    found = self._flow.value(self._flow.inputs[op][i])
    if found is None:
      raise NotFollowed("takes an argument that is only known when it runs, so that the batch "
                         "cannot be followed through it")
    return found

  def _rows(self, spec: Spec) -> Sharded:
    """Returns the spec if it is `Sharded`, the only one that the rules can follow.

    Raises:
      NotFollowed: the tensor is not sharded.
    """
    if not isinstance(spec, Sharded):
      raise NotFollowed(_UNKNOWN)
    return spec

  def _outer(self, specs: Sequence[Spec]) -> int:
    """Returns the `outer` of all rows; rows whose slices are all equal (0) agree with any."""
    found = {each.outer for each in specs if isinstance(each, Sharded) and each.outer}
    if len(found) > 1:
      raise NotFollowed(MIXES_ROWS)
    return found.pop() if found else 0

  # Rules.

  def _elementwise(self, op: int, specs: Sequence[Spec]) -> List[Sharded]:
    return [self._moved(op, specs, port) for port, _ in enumerate(self._flow.outputs(op))]

  def _moved(self, op: int, specs: Sequence[Spec], port: int = 0) -> Sharded:
    """Returns rows after an op that keeps their order: the axis that grows holds the examples."""
    i, rows = next((i, spec) for i, spec in enumerate(specs) if isinstance(spec, Sharded))
    axes = self._scaling.axes((op, port))
    if axes is None:
      # A size that is not known, such as the rows of a branch: elements keep their axis.
      axes = sorted(self._aligned(op, specs, port))
    elif len(axes) == 1 and self._result(op, port)[axes[0]] != self._shape(op, i)[rows.axis]:
      raise NotFollowed(_SOME)
    if len(axes) != 1:
      raise NotFollowed(MIXES_ROWS)
    return Sharded(axes[0], self._outer(specs))

  def _aligned(self, op: int, specs: Sequence[Spec], port: int) -> Set[int]:
    """Returns the axes of a result at which an elementwise op reads examples."""
    if rule_of(self._flow.types[op]).axes != "elementwise":
      raise NotFollowed(_NO_SHAPE)
    # Axes are counted from the last one, as broadcasting aligns them.
    return {len(self._result(op, port)) - len(self._shape(op, i)) + spec.axis
            for i, spec in enumerate(specs) if isinstance(spec, Sharded)}

  def _first_axis(self, op: int, specs: Sequence[Spec]) -> Spec:
    for spec in specs:
      if isinstance(spec, Sharded):
        self._at_front(spec)
    numbers = self._flow.attr(op, "include_batch_in_index")
    if numbers is not None and numbers.b:
      raise NotFollowed("numbers the examples of the batch")
    return Sharded(0, self._outer(specs))

  def _at_front(self, spec: Sharded) -> Sharded:
    if spec.axis:
      raise NotFollowed("has the batch elsewhere than in the first axis")
    return spec

  def _matrices(self, op: int, specs: Sequence[Spec]) -> Spec:
    """Returns the spec of the result of an op on matrices; each example has its own matrices."""
    op_type = self._flow.types[op]
    for i, each in enumerate(specs):
      # A diagonal is a vector; all other inputs are matrices, in the last two axes.
      rank = 1 if op_type in _OF_DIAGONALS or i and op_type.startswith("MatrixSetDiag") else 2
      if isinstance(each, Sharded) and each.axis >= len(self._shape(op, i)) - rank:
        raise NotFollowed(MIXES_ROWS)
    return self._first_axis(op, specs)

  def _reverse_sequence(self, op: int, specs: Sequence[Spec]) -> Spec:
    """Returns the spec of the result of an op that reverses each example up to its length."""
    if self._flow.integer(op, "batch_dim") or not all(isinstance(each, Sharded) for each in specs):
      raise NotFollowed(MIXES_ROWS)
    return self._first_axis(op, specs)

  def _last_axis(self, op: int, specs: Sequence[Spec]) -> Spec:
    # The op mixes elements of the last axis, so the last axis must not hold the examples.
    if self._rows(specs[0]).axis == len(self._shape(op, 0)) - 1:
      raise NotFollowed(MIXES_ROWS)
    return specs[0]

  def _filter(self, op: int, specs: Sequence[Spec]) -> Spec:
    self._first_axis(op, specs)
    return _SUM

  def _batch_norm(self, op: int, specs: Sequence[Spec]) -> List[Spec]:
    flow, width = self._flow, len(self._flow.outputs(op))
    gradient = "Grad" in flow.types[op]
    # In the gradient: dy and x; else x alone.
    rows = next(spec for spec in specs[:2 if gradient else 1] if isinstance(spec, Sharded))
    layout = flow.attr(op, "data_format")
    # The channels' axis; the statistics are of all other axes.
    channels = 1 if layout is not None and layout.s == b"NCHW" else len(self._shape(op, 0)) - 1
    training = flow.attr(op, "is_training")
    is_training = training is None or training.b
    if rows.axis == channels:  # each example has channels of its own, as in layer normalization
      return [rows, *[Sharded(0, rows.outer)] * (width - 1)]
    self._at_front(rows)
    if gradient:
      # dx in rows; dscale and doffset as sums over the examples; the rest is unused.
      return [rows, _SUM, _SUM, *[REPLICATED] * (width - 3)]
    # In training the statistics are of the replica's own batch.
    statistic: Spec = LocalStatistic() if is_training else REPLICATED
    return [rows, *[statistic] * (width - 1)]

  def _reduce(self, op: int, specs: Sequence[Spec]) -> Spec:
    self._rows(specs[0])
    if self._scaling.axes((op, 0)) != []:
      return self._moved(op, specs)
    # A reduction over the examples combines replicas: sums add up, maxima compare, ...
    how = REDUCTIONS.get(self._flow.types[op])
    if how is None:
      raise NotFollowed(_NOT_LINEAR)
    # A mean of one replica is R times its part of the global mean: exponent 1.
    return Partial(how, 1.0 if self._flow.types[op] == "Mean" else 0.0)

  def _reshape(self, op: int, specs: Sequence[Spec]) -> Spec:
    if not isinstance(specs[0], Sharded):
      return REPLICATED
    rows = specs[0]
    if self._flow.types[op] == "Reshape":
      self._check_own(op, specs, 1)
      if self.compared and specs[1] == REPLICATED and (
          not self._leaves_open(self._flow.inputs[op][1])):
        raise NotFollowed(MIXES_ROWS)  # to as many as all examples are
    axes, result = self._scaling.axes((op, 0)), self._result(op)
    # Nothing comes before the first axis, so the input's shape need not be known.
    given = self._shape(op, 0) if rows.axis else ()
    if axes is None or None in given[:rows.axis]:
      raise NotFollowed(_NO_SHAPE)
    # A reshape of [before * b * inner] elements changes neither `before` nor b.
    outer, rest = divmod(
        math.prod(given[:rows.axis]) * max(1, rows.outer),  # type: ignore
        math.prod(result[:axes[0]])) if len(axes) == 1 else (0, 1)  # type: ignore
    if rest or not outer or (result[axes[0]] or 0) % (outer * self._batch):
      raise NotFollowed("reshapes the batch so that its examples no longer lie along one axis")
    return Sharded(axes[0], outer if rows.outer or outer > 1 else 0)

  def _leaves_open(self, shape: Tensor) -> bool:
    """Returns whether a shape that is equal in all replicas leaves a size open, with -1."""
    flow = self._flow
    known, op = flow.value(shape), flow.origin(shape)[0]
    if known is not None:
      return -1 in np.ravel(known) or flow.types[op] == "Const"
    # A shape that is packed or concatenated from sizes may have a -1 among them.
    sizes = [(each[0], flow.value(each)) for each in flow.inputs[op]]
    return flow.types[op] in ("Pack", "ConcatV2", "Concat") and any(
        -1 in np.ravel(size) for _, size in sizes if size is not None) and not any(
            size is None and at in self._depending for at, size in sizes)

  def _check_own(self, op: int, specs: Sequence[Spec], i: int, entry: Optional[int] = None) -> None:
    """Raises NotFollowed if an input counts the examples of all replicas, or may.

    Args:
      op: which reads rows of one replica.
      specs: of its inputs.
      i: number of the input, a size or a shape.
      entry: the entry that matters, where the input is packed; its value must be known.
    """
    tensor = self._flow.origin(self._flow.inputs[op][i])
    if specs[i] != REPLICATED or not self.compared:
      return
    if entry is not None and self._flow.types[tensor[0]] == "Pack":
      tensor = self._flow.inputs[tensor[0]][entry]
    number = self._scaling.number(tensor)
    if number != REPLICATED and (number or entry is not None and tensor[0] in self._depending):
      raise NotFollowed(MIXES_ROWS)

  def _contract(self, op: int, specs: Sequence[Spec]) -> Spec:
    """Returns the spec of a product, which is summed over the examples if no axis grows."""
    if self._scaling.axes((op, 0)) != []:
      return self._moved(op, specs)
    self._outer(specs)
    return _SUM

  def _einsum(self, op: int, specs: Sequence[Spec]) -> Spec:
    equation = self._flow.attr(op, "equation").s.decode().replace(" ", "")
    terms = equation.partition("->")[0].split(",")
    if "." in equation:
      raise NotFollowed(_UNKNOWN)
    # All sharded inputs must have the same letter for the batch.
    if len({term[spec.axis] for term, spec in zip(terms, specs) if isinstance(spec, Sharded)}) > 1:
      raise NotFollowed(MIXES_ROWS)
    return self._contract(op, specs)

  def _concat(self, op: int, specs: Sequence[Spec]) -> Spec:
    last = self._flow.types[op] == "ConcatV2"
    parts = specs[:-1] if last else specs[1:]
    first = 0 if last else 1
    rank = len(self._result(op))
    axis = int(self._value(op, len(specs) - 1 if last else 0)) % rank
    tagged = self._tag(parts, axis == rank - 1)
    rows = [Sharded(spec.axis, spec.outer) for spec in parts if isinstance(spec, Sharded)]
    if all(spec.axis != axis for spec in rows):
      return dataclasses.replace(self._moved(op, specs), tagged=tagged)
    if any(isinstance(spec, Sharded) and spec.local for spec in parts):
      raise NotFollowed("joins positions of examples in the batch")
    # Concatenated along the axis of the examples: each part must hold a whole number of batches. A
    # part whose slices are all equal counts as one batch.
    inner = set()
    for i, spec in enumerate(parts):
      size = self._shape(op, first + i)[axis]
      if not isinstance(spec, Sharded) or spec.axis != axis or size is None:
        raise NotFollowed(MIXES_ROWS)
      inner.add(size // (max(1, spec.outer) * self._batch))
    if len(inner) > 1:
      raise NotFollowed(MIXES_ROWS)
    return Sharded(axis, sum(max(1, spec.outer) for spec in rows))

  def _split(self, op: int, specs: Sequence[Spec]) -> Union[Spec, List[Sharded]]:
    sized = self._flow.types[op] == "SplitV"
    i = 0 if sized else 1
    rows, rank = self._rows(specs[i]), len(self._shape(op, i))
    axis = int(self._value(op, 2 if sized else 0)) % rank
    if axis != rows.axis:
      return rows
    # Split along the axis of the examples: each part must hold whole batches.
    return [self._resized(rows, self._shape(op, i), self._result(op, port))
            for port in range(self._flow.integer(op, "num_split"))]

  def _resized(
      self, rows: Sharded, given: Sequence[Optional[int]], result: Sequence[Optional[int]]
  ) -> Sharded:
    """Returns rows of more or fewer whole batches, as many as the size of their axis tells.

    Args:
      rows: the rows before.
      given: dimensions before.
      result: dimensions of the result, which has the batches along the same axis.
    """
    before, after = given[rows.axis], result[rows.axis]
    if before is None or after is None:
      raise NotFollowed(_NO_SHAPE)
    # [outer * b * inner] -> [outer' * b * inner]
    outer, rest = divmod(rows.outer * after, before)
    if rest or not outer:
      raise NotFollowed(_SOME)
    return Sharded(rows.axis, outer)

  def _pack(self, op: int, specs: Sequence[Spec]) -> Spec:
    last = self._flow.integer(op, "axis") in (-1, len(self._result(op)) - 1)
    return dataclasses.replace(self._moved(op, specs), tagged=self._tag(specs, last))

  def _tag(self, specs: Sequence[Spec], last: bool) -> bool:
    """Returns whether positions of examples are the first column of several."""
    local = [isinstance(spec, Sharded) and bool(spec.local) for spec in specs]
    if not any(local):
      return False
    first = specs[0]
    # Only plain positions may be tagged, as the first column along the last axis.
    if not last or sum(local) > 1 or not isinstance(first, Sharded) or first.local != Positions():
      raise NotFollowed("computes with positions of examples in the batch")
    return True

  def _slice(self, op: int, specs: Sequence[Spec]) -> Spec:
    rows = self._rows(specs[0])
    for i in (1, 2):
      self._check_own(op, specs, i, rows.axis)
    given, result = self._shape(op, 0), self._result(op)
    if None is not given[rows.axis] == result[rows.axis]:
      return rows
    # The slice takes whole batches out of several concatenated ones, as gradients of concats do.
    found = self._resized(rows, given, result)
    begin = int(self._value(op, 1)[rows.axis])
    # A constant is the same number of examples at the global batch.
    if begin * found.outer % int(result[rows.axis] or 1) or begin and (
        self._scaling.number(self._flow.inputs[op][1]) == REPLICATED):
      raise NotFollowed(_SOME)
    return found

  def _strided_slice(self, op: int, specs: Sequence[Spec]) -> Spec:
    # The gradient leads from the slice, its input 4, back to the tensor that was sliced.
    back = self._flow.types[op] == "StridedSliceGrad"
    rows = specs[4 if back else 0]
    if not isinstance(rows, Sharded):
      return REPLICATED
    for i in (0,) if back else (1, 2):
      self._check_own(op, specs, i)
    whole, part = (self._result(op), self._shape(op, 4)) if back else (
        self._shape(op, 0), self._result(op))
    # A probe with axes of size 2, each of another step in memory, shows where each axis goes.
    probe, steps = np.empty([2] * len(whole)), self._value(op, 3)
    taken = probe[self._flow.slice_index(op, np.zeros_like(steps), np.full_like(steps, 2), steps)]
    for axis, step in enumerate(probe.strides):
      for at, size in enumerate(taken.shape):
        # A kept axis has its size and step; that of every second element has size 1.
        if size == 2 and taken.strides[at] == step and rows.axis == (at if back else axis) and (
            None is not whole[axis] == part[at]):
          return Sharded(axis if back else at, rows.outer)
    raise NotFollowed(_SOME)

  def _tile(self, op: int, specs: Sequence[Spec]) -> Spec:
    rows = self._rows(specs[0])
    return Sharded(rows.axis, rows.outer * int(self._value(op, 1)[rows.axis]))

  def _gather(self, op: int, specs: Sequence[Spec]) -> Spec:
    # [..., axis, ...] gathered at [B', ids]: the ids' axes take the place of `axis`.
    table, indices = specs[0], specs[1]
    if isinstance(table, Sharded) and isinstance(indices, Sharded):
      # Within batch dimensions each example reads its own rows.
      batch_dims, rank = self._flow.integer(op, "batch_dims"), len(self._shape(op, 0))
      own = table.axis < batch_dims and (table.axis, table.outer) == (indices.axis, indices.outer)
      # Positions of examples choose among the examples' own slots.
      axis = int(self._value(op, 2)) % rank if self._flow.types[op] == "GatherV2" else 0
      slots = indices.local and not batch_dims and table.axis == axis and (
          self._has_slots(op, 0, table, indices.local))
      if not own and not slots:
        raise NotFollowed(MIXES_ROWS)
      table = REPLICATED
    elif any(isinstance(each, Sharded) and (each.local or each.tagged) for each in specs):
      raise NotFollowed("takes rows by the positions of examples in the batch")
    return self._moved(op, [table, indices])

  def _has_slots(self, op: int, i: int, rows: Sharded, positions: Positions) -> bool:
    """Returns whether the axis holds `span` slots for each example, example after example."""
    return rows.outer <= 1 and self._shape(op, i)[rows.axis] == self._batch * positions.span

  def _segments(self, op: int, specs: Sequence[Spec]) -> Spec:
    # data [ids..., rest...], ids [ids...] -> [segments, rest...]
    # The ids say to which segment each row of the data is added.
    data, ids = specs[0], specs[1]
    if isinstance(ids, Sharded):
      if isinstance(data, Sharded) and (data.axis, data.outer) != (ids.axis, ids.outer) and (
          data.outer and ids.outer):
        raise NotFollowed(MIXES_ROWS)
      # Segments by positions of examples: each example has segments of its own.
      if ids.local:
        self._check_own(op, specs, 2)
        if self._result(op)[0] == self._batch * ids.local.span and (
            self._scaling.axes((op, 0)) in ([0], None)):
          return Sharded(0)
        raise NotFollowed("adds up by the positions of examples in the batch")
      if specs[2] == REPLICATED:
        return _SUM
      raise NotFollowed("adds up rows by indices that cannot be assigned to examples")
    rank, data = len(self._shape(op, 1)), self._rows(data)
    # All replicas add up rows by the same ids, so the global result is the sum over replicas.
    return _SUM if data.axis < rank else Sharded(data.axis - rank + 1, data.outer)

  def _gather_nd(self, op: int, specs: Sequence[Spec]) -> Spec:
    table, indices = specs[0], specs[1]
    if isinstance(table, Sharded) and isinstance(indices, Sharded) and indices.tagged and (
        not table.axis and self._has_slots(op, 0, table, Positions())):
      return Sharded(indices.axis, indices.outer)
    if isinstance(table, Sharded) or not isinstance(indices, Sharded) or (
        indices.local or indices.tagged):
      raise NotFollowed(MIXES_ROWS)
    return Sharded(indices.axis, indices.outer)

  def _scatter_nd(self, op: int, specs: Sequence[Spec]) -> Spec:
    indices, updates = specs[0], specs[1]
    if isinstance(indices, Sharded) and indices.tagged and isinstance(updates, Sharded):
      self._check_own(op, specs, 2)
      return Sharded(0)
    if isinstance(indices, Sharded) and isinstance(updates, Sharded) and not indices.local and (
        self._scaling.axes((op, 0)) == []):
      self._outer(specs)
      return _SUM
    raise NotFollowed(MIXES_ROWS)

  def _along(self, op: int, specs: Sequence[Spec]) -> Spec:
    """Returns the spec of the result of an op that works along the axes in its second input."""
    rank = len(self._shape(op, 0))
    axes = [axis % rank for axis in np.atleast_1d(self._value(op, 1)).tolist()]
    if self._rows(specs[0]).axis in axes:
      raise NotFollowed(MIXES_ROWS)
    return specs[0]

  def _to_batch(self, op: int, specs: Sequence[Spec]) -> Spec:
    # SpaceToBatch makes several examples of each one, BatchToSpace makes one of several.
    rows = self._at_front(self._rows(specs[0]))
    return self._resized(rows, self._shape(op, 0), self._result(op)) if rows.outer else rows


def _scaled(
    spec: Spec, exponent: float, local: Optional[Positions], tagged: bool) -> Spec:
  """Returns the spec of a result with the exponent and positions that follow from the inputs.

  Args:
    spec: the spec by the axis rule, which leaves out exponent and positions.
    exponent: to add.
    local: positions that the result holds, or None.
    tagged: whether the op keeps positions in the first column.

  Returns:
    The complete spec.
  """
  if isinstance(spec, Sharded):
    return Sharded(spec.axis, spec.outer, exponent, spec.local or local, spec.tagged or tagged)
  if isinstance(spec, (Partial, LocalStatistic)):
    return dataclasses.replace(spec, exponent=spec.exponent + exponent)
  return spec


# Op type -> its rule, which the registry names.
_RULES: Dict[str, Callable[[AxisRules, int, Sequence[Spec]], Any]] = {
    op_type: getattr(AxisRules, f"_{rule.axes}") for op_type, rule in registered().items()
    if rule.axes}
