"""Finds the ops that launch a kernel; all other ops cost exactly 0 and have no per-op overhead.

An op launches no kernel for one of two reasons:
  - the op only passes a tensor, a handle or a shape on, on any device (`_NEVER`): constants and
    variables exist before the step begins, reads of variables alias them, and ops that change no
    element (Reshape, Identity, control flow, lists of tensors) move no bytes;
  - on a GPU, TensorFlow registers the kernel with all outputs in host memory: shape arithmetic in
    int32 runs on the host's thread while the GPU computes on.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, FrozenSet, Tuple

if TYPE_CHECKING:
  from tensorflow.core.framework.node_def_pb2 import NodeDef

_NEVER = frozenset("""
    Const HostConst ImmutableConst Placeholder PlaceholderV2 PlaceholderWithDefault _Arg _Retval
    Identity IdentityN RefIdentity StopGradient PreventGradient DebugGradientIdentity
    DebugGradientRefIdentity Snapshot NoOp ControlTrigger EnsureShape
    VarHandleOp VarIsInitializedOp VariableShape ReadVariableOp DestroyResourceOp
    Variable VariableV2 AutoReloadVariable TemporaryVariable IsVariableInitialized
    Shape ShapeN Size Rank Reshape Squeeze ExpandDims Bitcast
    Switch RefSwitch _SwitchN Merge RefMerge _XlaMerge Enter RefEnter Exit RefExit NextIteration
    RefNextIteration LoopCond
    Stack StackV2 StackPush StackPushV2 StackPop StackPopV2 StackClose StackCloseV2
    TensorArrayV2 TensorArrayV3 TensorArrayGradV2 TensorArrayGradV3 TensorArrayGradWithShape
    TensorArrayReadV2 TensorArrayReadV3 TensorArrayWriteV2 TensorArrayWriteV3 TensorArraySizeV2
    TensorArraySizeV3 TensorArrayCloseV2 TensorArrayCloseV3
    EmptyTensorList TensorListReserve TensorListPushBack TensorListPopBack TensorListLength
    TensorListSetItem TensorListGetItem TensorListElementShape TensorListResize
    OptionalNone OptionalFromValue OptionalGetValue OptionalHasValue
    DummyMemoryCache MutexV2 AnonymousSeedGenerator DeleteSeedGenerator Timestamp
    """.split())


def launches_kernel(node: NodeDef, device_type: str) -> bool:
  """Returns whether the op of a NodeDef launches a kernel on a device of a type.

  Args:
    node: the NodeDef.
    device_type: such as "CPU" or "GPU".

  Returns:
    True if a kernel runs; an op without one costs exactly 0.
  """
  if node.op in _NEVER:
    return False
  return device_type != "GPU" or not _outputs_in_host_memory(node)


def _outputs_in_host_memory(node: NodeDef) -> bool:
  """Returns whether the op has outputs, all of which its GPU kernel puts on the host."""
  outputs, kernels = _gpu_kernels(node.op)
  # A kernel applies to the node if each of its type constraints allows the node's attribute.
  return bool(outputs) and any(
      outputs <= host_arguments and all(
          name in node.attr and node.attr[name].type in types for name, types in constraints)
      for constraints, host_arguments in kernels)


@functools.cache
def _gpu_kernels(op: str) -> Tuple[FrozenSet[str], tuple]:
  """Returns the op's output names, and (type constraints, host arguments) of its GPU kernels."""
  from tensorflow.python.framework import kernels, op_def_registry

  op_def = op_def_registry.get(op)
  if op_def is None:
    return frozenset(), ()
  registered = kernels.get_registered_kernels_for_op(op).kernel
  # A kernel for DEFAULT serves every device, unless the device has its own; int32 ones of this
  # kind are the only ones for their types.
  found = tuple(
      (tuple((constraint.name, frozenset(constraint.allowed_values.list.type))
             for constraint in kernel.constraint), frozenset(kernel.host_memory_arg))
      for kernel in registered if kernel.device_type in ("GPU", "DEFAULT"))
  return frozenset(argument.name for argument in op_def.output_arg), found
