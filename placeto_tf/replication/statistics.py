"""Finds the statistics of batch normalizations that are written out in plain ops."""

from __future__ import annotations

from typing import FrozenSet, Optional, Set

from placeto_tf.ops import rule_of
from placeto_tf.ops.op_rule import UPDATE
from placeto_tf.replication import op_roles
from placeto_tf.replication.dataflow import Dataflow, Tensor, closure

_PASSING = frozenset(
    "Identity Squeeze Reshape ExpandDims Cast StopGradient Snapshot Switch".split())


def kept_statistics(flow: Dataflow) -> FrozenSet[int]:
  """Returns the means and variances of batch normalizations, whose moving averages are kept.

  Mean and variance are over the same axes. The variance is the mean of squared differences from the
  mean. The normalized tensor depends on variables: it is a layer's input, not the targets. Other
  means are no statistics: they are combined over the replicas.
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
  # (x - mean)^2, as one op or as the square of a difference.
  difference, op_type = _passed(flow, flow.inputs[op][0])[0], "SquaredDifference"
  if flow.types[difference] == "Square":
    difference, op_type = _passed(flow, flow.inputs[difference][0])[0], "Sub"
  if flow.types[difference] != op_type:
    return None
  x, (mean, _) = (_passed(flow, tensor) for tensor in flow.inputs[difference])
  # The mean of the same x over the same axes.
  return mean if flow.types[mean] == "Mean" and _passed(flow, flow.inputs[mean][0]) == x and (
      _axes(flow, mean) == _axes(flow, op) is not None) else None


def _axes(flow: Dataflow, op: int) -> Optional[list]:
  """Returns the axes of a mean, if they are known and leave an axis of channels."""
  axes = flow.value(flow.inputs[op][1])
  shape = flow.shape(flow.inputs[op][0])
  if axes is None or shape is None or axes.size >= len(shape):
    return None
  return sorted(int(axis) % len(shape) for axis in axes.reshape(-1))


def _passed(flow: Dataflow, tensor: Tensor) -> Tensor:
  while flow.types[tensor[0]] in _PASSING:
    tensor = flow.inputs[tensor[0]][0]
  return tensor


def _is_kept(flow: Dataflow, op: int) -> bool:
  """Returns whether an assignment stores a moving average of the op's result."""
  # Forwards through ops of averages, up to an assignment.
  reached = closure({op}, flow.consumers, lambda at: rule_of(flow.types[at]).averages)
  return any(rule_of(flow.types[at]).role == UPDATE for at in reached)
