"""Tests for placeto_tf.costs.kernel_launches."""

import pytest
from tensorflow.core.framework import node_def_pb2

from placeto_tf.costs.kernel_launches import launches_kernel

_FLOAT, _INT32 = 1, 3


def _node(op, **types):
  node = node_def_pb2.NodeDef(name="op", op=op)
  for name, dtype in types.items():
    node.attr[name].type = dtype
  return node


@pytest.mark.parametrize("op", [
    "Const", "Identity", "Reshape", "NoOp", "VarHandleOp", "ReadVariableOp", "Shape", "Squeeze",
    "Switch", "Merge", "Enter", "NextIteration", "Placeholder", "TensorListPushBack"])
def test_what_passes_a_tensor_on_launches_nothing_anywhere(op):
  assert not launches_kernel(_node(op, T=_FLOAT), "CPU")
  assert not launches_kernel(_node(op, T=_FLOAT), "GPU")


@pytest.mark.parametrize("op", [
    "MatMul", "Conv2D", "ResourceApplyMomentum", "AssignAddVariableOp", "ZerosLike", "ConcatV2",
    "Transpose", "MadeUpOp"])
def test_what_computes_or_copies_launches_a_kernel_everywhere(op):
  assert launches_kernel(_node(op, T=_FLOAT), "CPU")
  assert launches_kernel(_node(op, T=_FLOAT), "GPU")


@pytest.mark.parametrize("op", ["AddV2", "Mul", "FloorMod", "Pack", "ConcatV2"])
def test_int32_runs_on_the_host_of_a_gpu(op):
  node = _node(op, T=_INT32, Tidx=_INT32)
  assert launches_kernel(node, "CPU")
  assert not launches_kernel(node, "GPU")
  assert launches_kernel(_node(op, T=_FLOAT, Tidx=_INT32), "GPU")
