"""The position of the batch in the outputs of an op: one rule for each type of op.

A rule is called for an op that reads rows of the batch (`specs.Sharded`), and returns the sharding
specs of the op's outputs. A sum over the examples gives a `Partial`; a comparison of examples
gives an `Unknown`.
"""

from __future__ import annotations

import dataclasses
import math
import string
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

import numpy as np

from placeto_tf.ops import registered, rule_of
from placeto_tf.replication.dataflow import Dataflow, Tensor, broadcast_reduction
from placeto_tf.replication.exponents import Inputs, NotFollowed, result_exponent
from placeto_tf.replication.scaling import Scaling
from placeto_tf.replication.specs import (
  MIXES_ROWS,
  REPLICATED,
  Dimensions,
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
_SUM = Partial("sum")

_REDUCTIONS = {"Sum": "sum", "Mean": "sum", "Max": "max", "Min": "min", "All": "all", "Any": "any"}
_MANY = -1  # examples: more than one
_OF_DIAGONALS = ("MatrixDiag", "MatrixDiagV2", "MatrixDiagV3")


class AxisRules:
  """The rules for one graph and its batch."""

  def __init__(
      self, flow: Dataflow, batch: int, scaling: Scaling, spec_of: Callable[[Tensor], Spec]):
    self._flow = flow
    self._batch = batch
    self._scaling = scaling
    self._spec_of = spec_of
    # Whether rows are checked against tensors that hold all examples; not before loops have
    # settled.
    self.compared = False

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
        view.make_global(i)
      elif isinstance(each, LocalStatistic):
        view.specs[i] = Replicated(each.exponent - 1)
    local = self._positions(view, op_type)
    if op_type in ("Switch", "RefSwitch"):
      return [view.specs[0]] * width
    if op_type in ("IdentityN", "ReadVariableOp"):
      return list(view.specs)
    # The exponent and the positions are followed apart from the axis.
    exponent = result_exponent(flow, view)
    bare = [Sharded(each.axis, each.outer) if isinstance(each, Sharded) else each
            for each in view.specs]
    if rule_of(op_type).axes == "elementwise":
      if self.compared and op_type != "Select" and meets_all_examples([
          (each, flow.shape(tensor)) for each, given, tensor in zip(
              bare, view.given, flow.inputs[op]) if not isinstance(given, LocalStatistic)]):
        raise NotFollowed(MIXES_ROWS)
      found: Any = [self._elementwise(op, bare, port) for port in range(width)]
    else:
      rule = _RULES.get(op_type)
      if rule is None:
        raise NotFollowed(_UNKNOWN)
      # Most rules take an axis alone. Rules that handle positions take the whole spec.
      found = rule(self, op, view.specs if rule_of(op_type).positions == "tells" else bare)
    # A single spec stands for every output.
    found = list(found) if isinstance(found, (list, tuple)) else [found] * width
    self._check_growth(op, found)
    return [_scaled(each, exponent, local) for each in found]

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
    if any(each.tagged for each in rows) and effect not in ("tells", "keeps"):
      raise NotFollowed("computes with positions of examples in the batch")
    local = [i for i, each in enumerate(view.specs) if isinstance(each, Sharded) and each.local]
    if not local or effect == "tells":
      return None
    if effect == "keeps" and self._flow.is_integer((view.op, 0)):
      return rows[0].local
    # A sum or product of positions is still an index if all its readers use it as an index.
    if effect == "moves" and len(local) == 1 and self._flow.is_integer((view.op, 0)) and (
        self._is_index(view.op)):
      moved = self._moved(view, local[0], op_type)
      if moved is not None:
        return moved
    # Other ops need global positions: add the number of slots of the replicas before.
    for i in local:
      view.offset(i, self._batch)
    return None

  def _moved(self, view: Inputs, i: int, op_type: str) -> Optional[Positions]:
    """Returns the positions after a product or a sum, or None if examples would share slots.

    An unknown summand is assumed to be an index into the slots of one example, if an example has
    more than one slot. A known summand must be such an index.
    """
    positions: Positions = view.specs[i].local  # type: ignore[union-attr,assignment]
    number = self._flow.value(self._flow.inputs[view.op][1 - i])
    if op_type == "Mul":
      if number is None or np.size(number) != 1 or int(np.ravel(number)[0]) < 1:
        return None
      # Each of an example's slots becomes `times` slots. The limit of summands grows alike.
      times = int(np.ravel(number)[0])
      return Positions(positions.span * times, positions.slack * times)
    # The sum would be no index within the example's slots.
    if positions.slack == 1 or number is not None and (
        np.size(number) and not 0 <= np.min(number) <= np.max(number) < positions.slack):
      return None
    # One summand is allowed; after it, nothing more may be added.
    return dataclasses.replace(positions, slack=1)

  def _is_index(self, op: int) -> bool:
    """Returns whether a sum of positions and other whole numbers is used as indices alone."""
    flow, seen, stack = self._flow, {op}, [op]
    while stack:
      for consumer in flow.consumers[stack.pop()]:
        op_type = flow.types[consumer]
        effect = rule_of(op_type).positions
        if effect in ("keeps", "moves") or op_type in ("ConcatV2", "Pack"):
          if consumer not in seen:
            seen.add(consumer)
            stack.append(consumer)
        elif effect != "tells" and op_type not in ("Shape", "Size"):
          return False
    return True

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
    tensor = self._flow.inputs[op][i]
    found = self._flow.value(tensor)
    if found is None and self._flow.types[tensor[0]] == "BroadcastGradientArgs":
      found = self._summed_axes(tensor)
    if found is None:
      raise NotFollowed("takes an argument that is only known when it runs, so that the batch "
                         "cannot be followed through it")
    return found

  def _summed_axes(self, tensor: Tensor) -> Optional[np.ndarray]:
    """Returns the result of BroadcastGradientArgs where only the batch size is unknown."""
    sides = [sizes for sizes in map(self._sizes, self._flow.inputs[tensor[0]])
             if sizes is not None]
    if self._batch < 2 or len(sides) < 2:
      return None
    # Pad both shapes with ones in front, as broadcasting does.
    rank = max(map(len, sides))
    if any(None in side for side in sides):
      return None
    # Any number but 1 can stand for the number of examples, if both sides have the same number.
    padded = np.array([[1] * (rank - len(side)) + [size or 0 for size in side] for side in sides])
    many = np.maximum(padded.max(axis=0), 2)
    filled = [np.where(row == _MANY, many, row)[rank - len(side):]
              for row, side in zip(padded, sides)]
    return broadcast_reduction(*filled)[tensor[1]]

  def _sizes(self, tensor: Tensor) -> Optional[List[Optional[int]]]:
    """Returns the dimensions that a tensor holds; `_MANY` for examples, None for unknown ones."""
    flow = self._flow
    known = flow.value(tensor)
    if known is not None:
      return np.ravel(known).tolist()
    tensor = flow.pushed(tensor) or tensor
    if flow.types[tensor[0]] not in ("Shape", "ShapeN"):
      return None
    measured = flow.inputs[tensor[0]][tensor[1]]
    shape, spec = flow.shape(measured), self._spec_of(measured)
    if shape is None:
      return None
    # The size of the axis of the examples is the number of examples.
    return [_MANY if size is None and isinstance(spec, Sharded) and spec.axis == axis else size
            for axis, size in enumerate(shape)]

  def _int(self, op: int, name: str, default: int = 0) -> int:
    attr = self._flow.attr(op, name)
    return attr.i if attr is not None else default

  def _flag(self, op: int, name: str) -> bool:
    attr = self._flow.attr(op, name)
    return attr is not None and attr.b

  def _rows(self, spec: Spec) -> Sharded:
    """Returns the spec if it is `Sharded`, the only one that the rules can follow.

    Raises:
      NotFollowed: the tensor is not sharded.
    """
    if not isinstance(spec, Sharded):
      raise NotFollowed(_UNKNOWN)
    return spec

  def _agree(self, found: Sequence[Sharded]) -> Sharded:
    # Rows whose slices are all equal (outer 0) agree with any others along the axis.
    varied = [each for each in found if each.outer]
    if len(set(varied)) > 1 or len({each.axis for each in found}) > 1:
      raise NotFollowed(MIXES_ROWS)
    return varied[0] if varied else found[0]

  # Rules.

  def _elementwise(self, op: int, specs: Sequence[Spec], port: int) -> Spec:
    flow = self._flow
    if self.compared and flow.types[op] == "BroadcastTo" and specs[1] == REPLICATED:
      raise NotFollowed(MIXES_ROWS)  # to as many as all examples are
    shape = flow.shape((op, port))
    found = []
    for i, spec in enumerate(specs):
      if not isinstance(spec, Sharded):
        continue
      given = flow.shape(flow.inputs[op][i])
      # Axes are counted from the last one, as broadcasting aligns them.
      if shape is None or given is None or len(shape) == len(given):
        found.append(spec)
      elif flow.types[op] == "Select" and i == 0:
        found.append(spec)  # a vector that chooses rows
      else:
        found.append(Sharded(spec.axis + len(shape) - len(given), spec.outer))
    return self._agree(found) if found else REPLICATED

  def _first_axis(self, op: int, specs: Sequence[Spec]) -> Spec:
    return self._agree([self._at_front(spec) for spec in specs if isinstance(spec, Sharded)])

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
    if self._int(op, "batch_dim") or not all(isinstance(each, Sharded) for each in specs):
      raise NotFollowed(MIXES_ROWS)
    return self._first_axis(op, specs)

  def _last_axis(self, op: int, specs: Sequence[Spec]) -> Spec:
    # The op mixes elements of the last axis, so the last axis must not hold the examples.
    if self._rows(specs[0]).axis == len(self._shape(op, 0)) - 1:
      raise NotFollowed(MIXES_ROWS)
    return specs[0]

  def _filter(self, op: int, specs: Sequence[Spec]) -> Spec:
    for spec in specs:
      if isinstance(spec, Sharded):
        self._at_front(spec)
    return _SUM

  def _batch_norm(self, op: int, specs: Sequence[Spec]) -> List[Spec]:
    flow, width = self._flow, len(self._flow.outputs(op))
    gradient = "Grad" in flow.types[op]
    # In the gradient: dy and x; else x alone.
    data = specs[:2] if gradient else specs[:1]
    rows = self._agree([spec for spec in data if isinstance(spec, Sharded)])
    layout = flow.attr(op, "data_format")
    # The channels' axis; the statistics are of all other axes.
    channels = 1 if layout is not None and layout.s == b"NCHW" else len(self._shape(op, 0)) - 1
    training = flow.attr(op, "is_training")
    is_training = training is None or training.b
    if rows.axis == channels:  # each example has channels of its own, as in layer normalization
      return [rows, *[Sharded(0, rows.outer)] * (width - 1)]
    if rows.axis:
      raise NotFollowed("has the batch elsewhere than in the first axis")
    if gradient:
      # dx in rows; dscale and doffset as sums over the examples; the rest is unused.
      return [rows, _SUM, _SUM, *[REPLICATED] * (width - 3)]
    # In training the statistics are of the replica's own batch.
    statistic: Spec = LocalStatistic() if is_training else REPLICATED
    return [rows, *[statistic] * (width - 1)]

  def _l2_loss(self, op: int, specs: Sequence[Spec]) -> Spec:
    return _SUM

  def _reduce(self, op: int, specs: Sequence[Spec]) -> Spec:
    # [..., axis, ...] -> the axis moves to the front by as many as are reduced before it.
    rows, axes = self._rows(specs[0]), np.atleast_1d(self._value(op, 1)).tolist()
    if not axes:
      return rows
    shape = self._shape(op, 0)
    axes = sorted({axis % len(shape) for axis in axes}) if shape else []
    # A reduction over the examples combines replicas: sums add up, maxima compare, ...
    if rows.axis in axes:
      how = _REDUCTIONS.get(self._flow.types[op])
      if how is None:
        raise NotFollowed(_NOT_LINEAR)
      # A mean of one replica is R times its part of the global mean: exponent 1.
      return Partial(how, 1.0 if self._flow.types[op] == "Mean" else 0.0)
    if self._flag(op, "keep_dims"):
      return rows
    return Sharded(rows.axis - sum(axis < rows.axis for axis in axes), rows.outer)

  def _arg_reduce(self, op: int, specs: Sequence[Spec]) -> Spec:
    # An index of the largest element along another axis; the axis itself is removed.
    rows, rank = self._rows(specs[0]), len(self._shape(op, 0))
    axis = int(self._value(op, 1)) % rank
    if axis == rows.axis:
      raise NotFollowed(_NOT_LINEAR)
    return Sharded(rows.axis - (axis < rows.axis), rows.outer)

  def _reshape(self, op: int, specs: Sequence[Spec]) -> Spec:
    if not isinstance(specs[0], Sharded):
      return REPLICATED
    rows = specs[0]
    if self.compared and self._flow.types[op] == "Reshape" and specs[1] == REPLICATED and (
        not self._leaves_open(self._flow.inputs[op][1])):
      raise NotFollowed(MIXES_ROWS)  # to as many as all examples are
    grown = self._scaling.axes((op, 0))
    # The shape of another tensor of examples tells their axis where no shape is known.
    stated = specs[1] if len(specs) > 1 else None
    if grown is None and isinstance(stated, Dimensions) and stated.axis is not None and (
        not rows.outer or rows.outer == 1 and rows.axis == stated.axis == 0):
      return Sharded(stated.axis, rows.outer)
    # All slices are equal: the axis of the result that grows with the batch holds the examples.
    if not rows.outer:
      if grown is None or len(grown) != 1:
        raise NotFollowed(_NO_SHAPE)
      return Sharded(grown[0], 0)
    # Nothing comes before the first axis, so the input's shape need not be known.
    given = self._shape(op, 0) if rows.axis else ()
    return self.reshaped(rows, given, self._result(op), grown)

  def _leaves_open(self, shape: Tensor) -> bool:
    """Returns whether a shape that is equal in all replicas leaves a size open, with -1."""
    flow = self._flow
    known = flow.value(shape)
    if known is not None:
      return -1 in np.ravel(known) or flow.types[flow.origin(shape)[0]] == "Const"
    # A shape that is packed or concatenated from sizes may have a -1 among them.
    op = flow.origin(shape)[0]
    return flow.types[op] in ("Pack", "ConcatV2", "Concat") and any(
        map(self._leaves_open, flow.inputs[op]))

  def reshaped(
      self, rows: Sharded, given: Sequence[Any], shape: Sequence[Any], grown: Optional[List[int]]
  ) -> Sharded:
    """Returns rows after a reshape, which keeps the number of elements before an example.

    Args:
      rows: the spec of the input.
      given: dimensions of the input, None for unknown ones.
      shape: dimensions of the result, None for unknown ones.
      grown: axes of the result that are longer at the global batch; None if not known.

    Returns:
      The spec of the result.
    """
    if None in given[:rows.axis]:
      raise NotFollowed(_NO_SHAPE)
    # A reshape of [before * b * inner] elements changes neither `before` nor b.
    before = math.prod(given[:rows.axis]) * rows.outer
    if grown is not None and len(grown) == 1:
      axis = grown[0]
      if None not in shape[:axis]:
        outer, rest = divmod(before, math.prod(shape[:axis]))
        if outer and not rest:
          return Sharded(axis, outer)
      raise NotFollowed("reshapes the batch so that its examples no longer lie along one axis")
    # Without a graph at the global batch, choose the first axis that is a multiple of b.
    passed = 1
    for axis, size in enumerate(shape):
      if before == 1 and (size is None or size % self._batch == 0):
        return Sharded(axis)
      if size is None:
        raise NotFollowed(_NO_SHAPE)
      outer, rest = divmod(before, passed)
      if outer and not rest and size % (outer * self._batch) == 0 and size:
        return Sharded(axis, outer)
      passed *= size
    raise NotFollowed("reshapes the batch so that its examples no longer lie along one axis")

  def _transpose(self, op: int, specs: Sequence[Spec]) -> Spec:
    # Axis `order[i]` of the input is axis i of the result.
    order, rows = self._value(op, 1).tolist(), self._rows(specs[0])
    return Sharded(order.index(rows.axis), rows.outer)

  def _matmul(self, op: int, specs: Sequence[Spec]) -> Spec:
    turned = [self._flag(op, name) for name in (
        ("transpose_a", "transpose_b") if self._flow.types[op] == "MatMul" else
        ("adj_x", "adj_y"))]
    # [..., m, k] x [..., k, n] -> [..., m, n], batch axes aligned at the end
    ranks = [len(self._shape(op, i)) for i in range(2)]
    batch = string.ascii_uppercase[:max(ranks) - 2]
    terms = [batch[max(ranks) - rank:] + (pair[::-1] if turn else pair)
             for rank, pair, turn in zip(ranks, ("mk", "kn"), turned)]
    return self._contracted(terms, batch + "mn", specs[:2])

  def _einsum(self, op: int, specs: Sequence[Spec]) -> Spec:
    equation = self._flow.attr(op, "equation").s.decode().replace(" ", "")
    terms, arrow, result = equation.partition("->")
    if "." in equation or not arrow:
      raise NotFollowed(_UNKNOWN)
    return self._contracted(terms.split(","), result, specs)

  def _contracted(self, terms: Sequence[str], result: str, specs: Sequence[Spec]) -> Spec:
    """Returns the spec of an einsum; letters that the result lacks are summed over.

    Args:
      terms: letters of the axes of each input.
      result: letters of the axes of the result.
      specs: of the inputs.

    Returns:
      `Sharded` where the result has the letter of the batch, a sum where it lacks the letter.
    """
    # All sharded inputs must have the same letter for the batch.
    rows = [(term[spec.axis], Sharded(0, spec.outer))
            for term, spec in zip(terms, specs) if isinstance(spec, Sharded)]
    letter = rows[0][0]
    if any(other != letter for other, _ in rows):
      raise NotFollowed(MIXES_ROWS)
    outer = self._agree([each for _, each in rows]).outer
    return Sharded(result.index(letter), outer) if letter in result else _SUM

  def _concat(self, op: int, specs: Sequence[Spec]) -> Spec:
    last = self._flow.types[op] == "ConcatV2"
    parts = specs[:-1] if last else specs[1:]
    first = 0 if last else 1
    rank = len(self._result(op))
    axis = int(self._value(op, len(specs) - 1 if last else 0)) % rank
    tagged = self._tag(parts, axis == rank - 1)
    rows = [Sharded(spec.axis, spec.outer) for spec in parts if isinstance(spec, Sharded)]
    if all(spec.axis != axis for spec in rows):
      return dataclasses.replace(self._agree(rows), tagged=tagged)
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
    # Split along the axis of the examples: each part must hold whole batches of b * inner.
    size = self._shape(op, i)[axis]
    inner = size // (rows.outer * self._batch) if size is not None else 0
    parts = []
    for port in range(self._int(op, "num_split")):
      part = self._result(op, port)[axis]
      if not inner or part is None or part % (inner * self._batch):
        raise NotFollowed(MIXES_ROWS)
      parts.append(Sharded(axis, part // (inner * self._batch)))
    return parts

  def _pack(self, op: int, specs: Sequence[Spec]) -> Spec:
    rank = len(self._result(op))
    # A new axis in front of the batch axis increases the number of the batch axis by one.
    axis = self._int(op, "axis") % rank
    rows = self._agree([
        Sharded(spec.axis, spec.outer) for spec in specs if isinstance(spec, Sharded)])
    tagged = self._tag(specs, axis == rank - 1)
    return Sharded(rows.axis + (axis <= rows.axis), rows.outer, tagged=tagged)

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

  def _unpack(self, op: int, specs: Sequence[Spec]) -> Spec:
    axis = self._int(op, "axis") % len(self._shape(op, 0))
    rows = self._rows(specs[0])
    if axis == rows.axis:
      raise NotFollowed("takes the examples of the batch apart")
    return Sharded(rows.axis - (axis < rows.axis), rows.outer)

  def _slice(self, op: int, specs: Sequence[Spec]) -> Spec:
    rows = self._rows(specs[0])
    # The gradient of a concat along another axis than the axis of the examples.
    begin = self._flow.inputs[op][1][0]
    if self._flow.types[begin] == "ConcatOffset":
      combined = self._flow.value(self._flow.inputs[begin][0])
      if combined is not None and int(combined) % len(self._shape(op, 0)) != rows.axis:
        return rows
    given, result = self._shape(op, 0), self._result(op)
    size, part = given[rows.axis], result[rows.axis]
    if size is None or part is None:
      raise NotFollowed(_NO_SHAPE)
    if size == part:
      return rows
    if not rows.outer:
      raise NotFollowed("takes some of the examples of the batch")
    # The slice takes whole batches out of several concatenated ones, as gradients of concats do.
    step = size // rows.outer
    if part % step or int(self._value(op, 1)[rows.axis]) % step:
      raise NotFollowed("takes some of the examples of the batch")
    return Sharded(rows.axis, part // step)

  def _kept_axes(
      self, op: int, whole: Sequence[Any], part: Sequence[Any]) -> Dict[int, int]:
    """Returns the axes that a strided slice takes as a whole, in their order.

    Args:
      op: a StridedSlice or its gradient.
      whole: dimensions of the tensor that is sliced, None for unknown ones.
      part: dimensions of the slice.

    Returns:
      Axis of the tensor -> axis of the slice.
    """
    starts = self._flow.shape(self._flow.inputs[op][1])
    if starts is None or starts[0] is None:
      raise NotFollowed(_NO_SHAPE)
    strides = self._flow.value(self._flow.inputs[op][3])
    # The index that a probe with axes of size 2 is sliced by. Whole axes keep both elements, a
    # part with stride 1 keeps one, and any other stride keeps none.
    index: List[Any] = []
    for i in range(starts[0]):
      # Bit i of a mask is about entry i.
      masked = {name: self._int(op, f"{name}_mask") >> i & 1 for name in (
          "ellipsis", "new_axis", "shrink_axis", "begin", "end")}
      if masked["ellipsis"]:
        index.append(Ellipsis)
      elif masked["new_axis"]:
        index.append(None)
      elif masked["shrink_axis"]:
        index.append(0)
      elif strides is None or strides[i] != 1:
        index.append(slice(0, 0))
      else:
        index.append(slice(None) if masked["begin"] and masked["end"] else slice(0, 1))
    found: Dict[int, int] = {}
    for axis, size in enumerate(whole):
      # The probe has a nonzero stride on this axis alone, so the stride shows where the axis goes.
      probe = np.broadcast_to(np.arange(2).reshape(
          [2 if i == axis else 1 for i in range(len(whole))]), [2] * len(whole))[tuple(index)]
      for at in np.flatnonzero(probe.strides).tolist():
        if probe.shape[at] == 2 or probe.shape[at] and size is not None and size == part[at]:
          found[axis] = at
    return found

  def _strided_slice(self, op: int, specs: Sequence[Spec]) -> Spec:
    rows = self._rows(specs[0])
    axis = self._kept_axes(op, self._shape(op, 0), self._result(op)).get(rows.axis)
    # A slice of unchanged size may still hold all examples in another order.
    if axis is None:
      raise NotFollowed("takes some of the examples of the batch")
    return Sharded(axis, rows.outer)

  def _strided_slice_grad(self, op: int, specs: Sequence[Spec]) -> Spec:
    rows = specs[4]
    if not isinstance(rows, Sharded):
      return REPLICATED
    # The gradient maps the axes of the slice back to the axes of the sliced tensor.
    kept = self._kept_axes(op, self._result(op), self._shape(op, 4))
    for axis, at in kept.items():
      if at == rows.axis:
        return Sharded(axis, rows.outer)
    raise NotFollowed("takes some of the examples of the batch")

  def _pad(self, op: int, specs: Sequence[Spec]) -> Spec:
    given, result = self._shape(op, 0), self._result(op)
    axis = self._rows(specs[0]).axis
    if given[axis] is None or given[axis] != result[axis]:
      raise NotFollowed("pads the batch")
    return specs[0]

  def _tile(self, op: int, specs: Sequence[Spec]) -> Spec:
    rows = self._rows(specs[0])
    return Sharded(rows.axis, rows.outer * int(self._value(op, 1)[rows.axis]))

  def _gather(self, op: int, specs: Sequence[Spec]) -> Spec:
    batch_dims = self._int(op, "batch_dims")
    resource = self._flow.types[op] == "ResourceGather"
    table, indices = specs[0], specs[1]
    axis = 0
    if self._flow.types[op] == "GatherV2":
      # A negative axis counts from the last one.
      axis = int(self._value(op, 2))
      if axis < 0:
        axis += len(self._shape(op, 0))
    # [..., axis, ...] gathered at [B', ids]: the ids' axes take the place of `axis`.
    if isinstance(table, Sharded) and isinstance(indices, Sharded):
      # Within batch dimensions each example reads its own rows.
      if table.axis < batch_dims and (table.axis, table.outer) == (indices.axis, indices.outer):
        return Sharded(table.axis, table.outer)
      # Positions of examples choose among the examples' own slots.
      if indices.local and table.axis == axis and not batch_dims and (
          self._has_slots(op, 0, table, indices.local)):
        return Sharded(axis + indices.axis, indices.outer)
      raise NotFollowed(MIXES_ROWS)
    if isinstance(indices, Sharded) and indices.local:
      raise NotFollowed("takes rows by the positions of examples in the batch")
    if isinstance(indices, Sharded):
      if resource and batch_dims:
        raise NotFollowed(_UNKNOWN)
      # The axes of the table before `axis` come first, then the axes of the ids.
      return Sharded(indices.axis if indices.axis < batch_dims else
                  axis + indices.axis - batch_dims, indices.outer)
    table = self._rows(table)
    if table.local or table.tagged:
      raise NotFollowed("computes with positions of examples in the batch")
    if table.axis == axis:
      raise NotFollowed("takes some of the examples of the batch")
    # The ids' axes replace one axis of the table.
    rank = len(self._shape(op, 1)) - batch_dims
    return Sharded(table.axis + (rank - 1 if table.axis > axis else 0), table.outer)

  def _has_slots(self, op: int, i: int, rows: Sharded, positions: Positions) -> bool:
    """Returns whether the axis holds `span` slots for each example, example after example."""
    size = self._shape(op, i)[rows.axis]
    return rows.outer <= 1 and size == self._batch * positions.span

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
        if self._result(op)[0] == self._batch * ids.local.span and (
            self._scaling.axes((op, 0)) in ([0], None)):
          return Sharded(0)
        raise NotFollowed("adds up by the positions of examples in the batch")
      if specs[2] == REPLICATED:
        return _SUM
      raise NotFollowed("adds up rows by indices that cannot be assigned to examples")
    rank, data = len(self._shape(op, 1)), self._rows(data)
    # All replicas add up rows by the same ids, so the global result is the sum over replicas.
    if data.axis < rank:
      return _SUM
    return Sharded(data.axis - rank + 1, data.outer)

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
      return Sharded(0)
    if isinstance(indices, Sharded) and isinstance(updates, Sharded) and not indices.local and (
        self._scaling.axes((op, 0)) == []):
      return _SUM
    raise NotFollowed(MIXES_ROWS)

  def _one_hot(self, op: int, specs: Sequence[Spec]) -> Spec:
    rank = len(self._result(op))
    axis = self._int(op, "axis", -1) % rank
    rows = self._rows(specs[0])
    return Sharded(rows.axis + (axis <= rows.axis), rows.outer)

  def _along(self, op: int, specs: Sequence[Spec]) -> Spec:
    """Returns the spec of the result of an op that works along the axes in its second input."""
    rank = len(self._shape(op, 0))
    axes = [axis % rank for axis in np.atleast_1d(self._value(op, 1)).tolist()]
    if self._rows(specs[0]).axis in axes:
      raise NotFollowed(MIXES_ROWS)
    return specs[0]

  def _to_batch(self, op: int, specs: Sequence[Spec]) -> Spec:
    # SpaceToBatch makes `size` examples of each one, BatchToSpace makes one of `size` examples.
    block = self._value(op, 1) if "ND" in self._flow.types[op] else None
    # `size` is the number of elements of a block.
    size = int(np.prod(block)) if block is not None else self._int(op, "block_size") ** 2
    rows = self._at_front(self._rows(specs[0]))
    if self._flow.types[op].startswith("SpaceToBatch"):
      return Sharded(0, rows.outer * size)
    if rows.outer % size:
      raise NotFollowed(MIXES_ROWS)
    return Sharded(0, rows.outer // size)


def _scaled(spec: Spec, exponent: float, local: Optional[Positions]) -> Spec:
  """Returns the spec of a result with the exponent and positions that follow from the inputs.

  Args:
    spec: the spec by the axis rule, which leaves out exponent and positions.
    exponent: to add.
    local: positions that the result holds, or None.

  Returns:
    The complete spec.
  """
  if isinstance(spec, Sharded):
    return Sharded(spec.axis, spec.outer, exponent, spec.local or local, spec.tagged)
  if isinstance(spec, (Partial, LocalStatistic)):
    return dataclasses.replace(spec, exponent=spec.exponent + exponent)
  return spec


# Op type -> its rule, which the registry names.
_RULES: Dict[str, Callable[[AxisRules, int, Sequence[Spec]], Any]] = {
    op_type: getattr(AxisRules, f"_{rule.axes}") for op_type, rule in registered().items()
    if rule.axes and rule.axes != "elementwise"}
