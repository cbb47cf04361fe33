"""Finds the statistics of batch normalizations that are written out in plain ops."""

from __future__ import annotations

from typing import FrozenSet, Optional, Set

from placeto_tf.ops import rule_of
from placeto_tf.replication import op_roles
from placeto_tf.replication.dataflow import Dataflow, Tensor, closure

_PASSING = frozenset((
    "Identity Squeeze Reshape ExpandDims Cast StopGradient Snapshot Switch Merge").split())
_KEEPING = frozenset((
    "Assign AssignAdd AssignSub AssignVariableOp AssignAddVariableOp AssignSubVariableOp").split())


def kept_statistics(flow: Dataflow) -> FrozenSet[int]:
  """Returns the means and variances of batch normalizations, whose moving averages are kept.

  Mean and variance are over the same axes. The variance is the mean of squared differences from the
  mean, or the mean of squares minus the square of the mean. The normalized tensor depends on
  variables: it is a layer's input, not the targets. Other means are no statistics.
  """
  found: Set[int] = set()
  # Ops that depend on variables: a layer's input depends on weights, targets do not.
  learned = closure({op for op, op_type in enumerate(flow.types) if op_type in op_roles.VARIABLES},
                    flow.consumers)
  for op, op_type in enumerate(flow.types):
    if op_type != "Mean":
      continue
    # var = E[(x - mean)^2] reads the mean.
    mean = _mean_of_variance(flow, op)
    if mean is not None and op in learned and _is_kept(flow, op) and _is_kept(flow, mean):
      found |= {op, mean}
  return frozenset(found)


def _mean_of_variance(flow: Dataflow, op: int) -> Optional[int]:
  """Returns the mean of the same tensor if the op is a variance; None for any other op."""
  square = _passed(flow, flow.inputs[op][0])[0]
  x: Optional[Tensor] = None
  candidates: Set[int] = set()
  # (x - mean)^2 as one op, or as the square of a difference.
  if flow.types[square] == "SquaredDifference":
    x, mean = flow.inputs[square]
    candidates = {_passed(flow, mean)[0]}
  elif flow.types[square] == "Square":
    inner = _passed(flow, flow.inputs[square][0])
    if flow.types[inner[0]] == "Sub":
      x, mean = flow.inputs[inner[0]]
      candidates = {_passed(flow, mean)[0]}
    # E[x^2] - E[x]^2: both means are of the same x.
    else:
      x = inner
      candidates = {other for other in flow.consumers[inner[0]] if flow.types[other] == "Mean"}
      if not _is_difference(flow, op, candidates):
        return None
  if x is None:
    return None
  # The mean of the same x over the same axes.
  for mean_op in candidates:
    if flow.types[mean_op] == "Mean" and mean_op != op and (
        _passed(flow, flow.inputs[mean_op][0]) == _passed(flow, x)) and _axes(flow, mean_op) == (
            _axes(flow, op)):
      return mean_op
  return None


def _is_difference(flow: Dataflow, squares: int, means: Set[int]) -> bool:
  """Returns whether a mean's square is subtracted from the mean of squares."""
  for consumer in flow.consumers[squares]:
    if flow.types[consumer] == "Sub":
      other = _passed(flow, flow.inputs[consumer][1])[0]
      if flow.types[other] == "Square" and _passed(flow, flow.inputs[other][0])[0] in means:
        return True
  return False


def _axes(flow: Dataflow, op: int) -> Optional[list]:
  axes = flow.value(flow.inputs[op][1])
  shape = flow.shape(flow.inputs[op][0])
  if axes is None or shape is None:
    return None
  return sorted(int(axis) % len(shape) for axis in axes.reshape(-1))


def _passed(flow: Dataflow, tensor: Tensor) -> Tensor:
  while flow.types[tensor[0]] in _PASSING and flow.types[tensor[0]] != "Merge":
    tensor = flow.inputs[tensor[0]][0]
  return tensor


def _is_kept(flow: Dataflow, op: int) -> bool:
  """Returns whether an assignment stores a moving average of the op's result."""
  seen, stack = {op}, [op]
  while stack:
    # Forwards through ops of averages, up to an assignment.
    for consumer in flow.consumers[stack.pop()]:
      if flow.types[consumer] in _KEEPING:
        return True
      if rule_of(flow.types[consumer]).averages and consumer not in seen and (
          not op_roles.is_update(flow.types[consumer])):
        seen.add(consumer)
        stack.append(consumer)
  return False
