"""Finds the parts of a graph that grow with the batch, by comparing the graph at two batches.

The graph of one replica (batch b) and the graph at the global batch (R b) have the same ops. So the
two values of a constant, a dimension, or a number computed from dimensions show whether and how it
depends on the number of examples.

Dimensions: R replicas.
"""

from __future__ import annotations

import functools
import math
from typing import Dict, List, Optional, Sequence, Tuple

import numpy as np

from placeto_tf.on_use import tf
from placeto_tf.replication import specs
from placeto_tf.replication.dataflow import Dataflow, Tensor, known_dims

# The axes of a tensor that grows otherwise than R times, such as all examples but one. It differs
# from no axis and from one axis, so no rule accepts the tensor as rows.
ODD = [-1, -1]
_ODD = "holds a number that depends on the size of the batch in a way that is not known"


class Scaling:
  """A comparison of a replica's graph with the graph at the global batch.

  Attributes:
    replicas: R; the global batch is R times as large.
    sources: constant or variable that differs between the graphs -> sharding spec of its output.
    slices: constant with one row for each example -> the global value.
  """

  def __init__(self, part: Dataflow, whole: Dataflow, replicas: int):
    """Compares the two graphs."""
    self.replicas = replicas
    self._part, self._whole = part, whole
    self._there = whole.graph.op_index
    # A model that is built again may have other names for the same ops, in the same order.
    if part.types == whole.types and not part.graph.op_index.keys() <= self._there.keys():
      self._there = part.graph.op_index
    self._names = part.graph.op_names
    self.slices: Dict[int, np.ndarray] = {}
    self.sources: Dict[int, specs.Spec] = {}
    # Without a second batch nothing is known to grow.
    if part is whole or replicas == 1:
      return
    for op, op_type in enumerate(part.types):
      found: specs.Spec = specs.REPLICATED
      if op_type == "Const":
        found = self._constant(op)
      elif op_type in ("VarHandleOp", "VariableV2", "Variable"):
        found = self._variable(op)
      if found != specs.REPLICATED:
        self.sources[op] = found

  @functools.cached_property
  def compares(self) -> bool:
    """Returns whether a size that is equal in both graphs does not depend on the batch."""
    # The graph at the global batch has all ops of the replica's graph.
    return self.replicas > 1 and all(name in self._there for name in self._names)

  def other(self, tensor: Tensor) -> Optional[Tensor]:
    """Returns the same tensor in the graph at the global batch, or None."""
    # Ops correspond by name, or by place, and by type.
    op = self._there.get(self._names[tensor[0]])
    if op is None or self._whole.types[op] != self._part.types[tensor[0]] and not (
        self._is_constant_and_fill(tensor[0], op)):
      return None
    return op, tensor[1]

  def _is_constant_and_fill(self, one: int, other: int) -> bool:
    """Returns whether an op is a constant in one graph and a Fill of constants in the other.

    `tf.zeros` and `tf.ones` with fewer than 1,000 elements become constants in TensorFlow.
    """
    whole = self._whole
    return self._part.types[one] == "Const" and whole.types[other] == "Fill" and (
        whole.types[whole.inputs[other][1][0]] == "Const"
        and whole.value(whole.inputs[other][0]) is not None)

  def axes(self, tensor: Tensor) -> Optional[List[int]]:
    """Returns the axes that are R times as long at the global batch.

    None where shapes are unknown; `ODD` where an axis differs, but is not R times as long.
    """
    other = None if self.replicas == 1 else self.other(tensor)
    if other is None:
      return None
    one, all_ = self._part.shape(tensor), self._whole.shape(other)
    if one is None or all_ is None or len(one) != len(all_) or None in (*one, *all_):
      return None
    return self._grown(known_dims(one), known_dims(all_))

  def _grown(self, one: Sequence[int], all_: Sequence[int]) -> List[int]:
    """Returns the axes that differ between two shapes, or `ODD`."""
    found = [axis for axis, (a, b) in enumerate(zip(one, all_)) if a != b]
    # Each axis that differs must be R times as long.
    return found if len(one) == len(all_) and all(
        one[axis] * self.replicas == all_[axis] for axis in found) else ODD

  def _values(self, tensor: Tensor) -> Optional[Tuple[np.ndarray, np.ndarray]]:
    """Returns the whole numbers of a tensor in a replica and at the global batch, or None."""
    other = self.other(tensor)
    one, all_ = self._part.value(tensor), None if other is None else self._whole.value(other)
    return None if one is None or all_ is None else (np.asarray(one), np.asarray(all_))

  def number(self, tensor: Tensor) -> Optional[specs.Spec]:
    """Returns the spec of a tensor if all elements are known whole numbers, otherwise None."""
    values = self._values(tensor)
    return None if values is None else self._of_numbers(tensor[0], *values)

  def factors(self, tensor: Tensor) -> Optional[np.ndarray]:
    """Returns the ratios of known whole numbers at the global batch to a replica's, or None."""
    values = self._values(tensor)
    if values is None or values[0].shape != values[1].shape:
      return None
    one, all_ = values
    # Elementwise whole factors; 0 stays 0.
    found = np.where(one == all_, 1, all_ // np.maximum(one, 1))
    return found if np.array_equal(one * found, all_) else None

  def _of_numbers(self, op: int, one: np.ndarray, all_: np.ndarray) -> specs.Spec:
    if one.shape == all_.shape:
      if np.array_equal(one, all_):
        return specs.REPLICATED
      # A number of examples is R times as large at the global batch: exponent -1.
      if np.array_equal(one * self.replicas, all_):
        return specs.Replicated(-1.0)
      # Some entries of a vector grow: dimensions.
      return specs.Dimensions() if one.ndim else specs.Unknown(op, _ODD)
    return self._of_rows(op, one, all_)

  def _of_rows(self, op: int, one: np.ndarray, all_: np.ndarray) -> specs.Spec:
    """Returns the spec of a constant array with an axis that grows."""
    axes = self._grown(one.shape, all_.shape)
    if len(axes) != 1:
      return specs.Unknown(op, _ODD)
    axis = axes[0]
    # All slices along the axis are equal.
    first = np.take(one, [0], axis=axis) if one.shape[axis] else one
    if np.array_equal(np.broadcast_to(first, one.shape), one) and (
        np.array_equal(np.broadcast_to(first, all_.shape), all_)):
      return specs.Sharded(axis, 0)
    # [R, ...] parts of the global value. The first part may be positions, counted from 0.
    parts = np.split(all_, self.replicas, axis=axis)
    if one.dtype.kind in "iu" and one.size == one.shape[axis] and np.array_equal(parts[0], one):
      # 0, step, 2 step, ...: the positions of the examples' slots.
      step = int(one.reshape(-1)[-1]) // max(1, one.size - 1)
      if np.array_equal(all_.reshape(-1), step * np.arange(all_.size)):
        # `step` slots for each example.
        return specs.Sharded(axis, local=specs.Positions(step, step))
    # The rows of other constants differ: each replica gets its own rows.
    if self._part.types[op] == "Const":
      self.slices[op] = all_
      return specs.Sharded(axis)
    return specs.Unknown(op, _ODD)

  def _constant(self, op: int) -> specs.Spec:
    other = self.other((op, 0))
    if other is None:
      return specs.REPLICATED
    whole, filled = self._whole, self._whole.types[other[0]] == "Fill"
    one = self._part.nodes[op].attr["value"].tensor
    all_ = whole.nodes[whole.inputs[other[0]][1][0] if filled else other[0]].attr["value"].tensor
    if one == all_:
      return specs.REPLICATED
    if one.dtype == 7:  # text
      return specs.Unknown(op, _ODD)
    values = [tf.make_ndarray(each) for each in (one, all_)]
    if filled:
      shape = whole.value(whole.inputs[other[0]][0])
      assert shape is not None  # as `_is_constant_and_fill` has seen
      values[1] = np.broadcast_to(values[1], shape.tolist())
    if values[0].shape == values[1].shape and values[0].dtype.kind == "f":
      # The median of the ratios is robust to zeros and rounding.
      ratio = math.inf if not values[0].size else float(np.median(
          values[1].astype(float) / np.where(values[0] == 0, np.nan, values[0].astype(float))))
      # value(R b) = value(b) * R^-exponent
      for exponent in (-1.0, 1.0, -2.0, 2.0, -0.5, 0.5):
        if math.isclose(ratio, self.replicas ** -exponent, rel_tol=1e-5) and np.allclose(
            values[0].astype(float) * ratio, values[1].astype(float), rtol=1e-5):
          return specs.Replicated(exponent)
      return specs.Unknown(op, _ODD)
    return self._of_numbers(op, *values)

  def _variable(self, op: int) -> specs.Spec:
    """Returns the spec of a variable, which holds examples along an axis that grows."""
    other = self.other((op, 0))
    if other is None:
      return specs.REPLICATED
    axes = self._grown(*(
        [dim.size for dim in node.attr["shape"].shape.dim]
        for node in (self._part.nodes[op], self._whole.nodes[other[0]])))
    return specs.Sharded(axes[0]) if len(axes) == 1 else (
        specs.Unknown(op, _ODD) if axes else specs.REPLICATED)
