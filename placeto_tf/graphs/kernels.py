"""The kernels of a node in TensorFlow's registry: their device types, and outputs on the host.

Dimensions: K kernel device types.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Dict, FrozenSet, Hashable, List, Sequence, Tuple

from placeto_tf.graphs.op_defs import REF, OpDefs, registered_op_def

if TYPE_CHECKING:
  from tensorflow.core.framework.attr_value_pb2 import AttrValue
  from tensorflow.core.framework.kernel_def_pb2 import KernelDef
  from tensorflow.core.framework.node_def_pb2 import NodeDef

KERNEL_TYPES = ("CPU", "GPU")

_STRING = 7  # DT_STRING
_FIELDS = ("type", "s", "i", "b")  # of AttrValue
# A kernel registered for DEFAULT serves every device type that has no kernel of its own.
_DEFAULT = "DEFAULT"
# Used only if no GPU kernels are registered: ops without GPU kernels, which their tensors' types do
# not show.
_HOST_ONLY = frozenset((
    "LoopCond", "PyFunc", "PyFuncStateless", "EagerPyFunc", "SaveV2", "RestoreV2", "Save",
    "Restore", "MergeV2Checkpoints", "QueueDequeueV2", "QueueEnqueueV2", "FIFOQueueV2",
    "NonMaxSuppression", "Unique", "UniqueV2", "ListDiff",
))
NO_GPU_NOTE = (
    "this TensorFlow registers no GPU kernels; GPUs are assumed to have one for every op that "
    "handles no strings and does not belong to the host")


class KernelSupport:
  """Looks up kernels for nodes of one graph, and caches the results."""

  def __init__(self, op_defs: OpDefs):
    self._op_defs = op_defs
    self._kernels: Dict[str, Tuple[List[KernelDef], List[str]]] = {}
    self._answers: Dict[Tuple[Hashable, ...], Tuple[bool, ...]] = {}
    self.assumes_gpu = not any(
        kernel.device_type == "GPU" for kernel in _registered_kernels("MatMul"))

  def has_kernel(self, node: NodeDef) -> Tuple[bool, ...]:
    """Returns [K] whether `KERNEL_TYPES` have a kernel for the node with its attributes."""
    if node.op in self._op_defs.functions:
      return (True,) * len(KERNEL_TYPES)  # a call runs on its caller's device
    kernels, names = self._kernels_of(node.op)
    attrs = node.attr
    defaults = self._op_defs.schema(node).defaults
    # Query the registry once for each op type and values of the attributes that select kernels.
    parts = [node.op]
    for name in names:
      value = attrs[name] if name in attrs else defaults.get(name)
      parts.append(() if value is None else _values(value))
    parts.append(attrs["_kernel"].s if "_kernel" in attrs else b"")
    key = tuple(parts)
    answer = self._answers.get(key)
    if answer is None:
      answer = self._answers[key] = self._look_up(node, kernels, dict(zip(names, key[1:])), key[-1])
    return answer

  def _look_up(self, node, kernels, values, label) -> Tuple[bool, ...]:
    found = set()
    for kernel in kernels:
      if kernel.label.encode() == label and all(
          # A kernel fits if each of its constraints allows the node's attribute.
          set(values[constraint.name]) <= set(_values(constraint.allowed_values))
          for constraint in kernel.constraint):
        found.add(kernel.device_type)
    if self.assumes_gpu and ("CPU" in found or _DEFAULT in found) and node.op not in _HOST_ONLY:
      signature = self._op_defs.signature(node)
      if not any(dtype % REF == _STRING for dtype in signature.inputs + signature.outputs):
        found.add("GPU")
    # [K]: a kernel of its own, or one for all devices.
    return tuple(kind in found or _DEFAULT in found for kind in KERNEL_TYPES)

  def _kernels_of(self, op_type: str) -> Tuple[List[KernelDef], List[str]]:
    """Returns the registered kernels, and the attributes that select one of them."""
    found = self._kernels.get(op_type)
    if found is None:
      kernels = [
          kernel for kernel in _registered_kernels(op_type)
          if kernel.device_type in KERNEL_TYPES or kernel.device_type == _DEFAULT]
      names: Dict[str, None] = {}
      for kernel in kernels:
        names.update((constraint.name, None) for constraint in kernel.constraint)
      found = self._kernels[op_type] = (kernels, list(names))
    return found


def _registered_kernels(op_type: str) -> Sequence[KernelDef]:
  from tensorflow.python.framework import kernels

  return kernels.get_registered_kernels_for_op(op_type).kernel


def _values(value: AttrValue) -> Tuple[Hashable, ...]:
  """Returns the values in an AttrValue, of the types that kernel constraints use."""
  held = value.WhichOneof("value")
  if held == "list":
    return tuple(each for field in _FIELDS for each in getattr(value.list, field))
  return (getattr(value, held) if held in _FIELDS else None,)


def outputs_in_host_memory(node: NodeDef) -> bool:
  """Returns whether the op has outputs, all of which its GPU kernel puts on the host.

  Shape arithmetic in int32 is of this kind: it runs on the host's thread while the GPU computes on.
  """
  outputs, kernels = _gpu_kernels(node.op)
  # A kernel applies to the node if each of its type constraints allows the node's attribute.
  return bool(outputs) and any(
      outputs <= host_arguments and all(
          name in node.attr and node.attr[name].type in types for name, types in constraints)
      for constraints, host_arguments in kernels)


@functools.cache
def _gpu_kernels(op: str) -> Tuple[FrozenSet[str], tuple]:
  """Returns the op's output names, and (type constraints, host arguments) of its GPU kernels."""
  op_def = registered_op_def(op)
  if op_def is None:
    return frozenset(), ()
  # A kernel for DEFAULT serves every device, unless the device has its own; int32 ones of this
  # kind are the only ones for their types.
  found = tuple(
      (tuple((constraint.name, frozenset(constraint.allowed_values.list.type))
             for constraint in kernel.constraint), frozenset(kernel.host_memory_arg))
      for kernel in _registered_kernels(op) if kernel.device_type in ("GPU", _DEFAULT))
  return frozenset(argument.name for argument in op_def.output_arg), found
