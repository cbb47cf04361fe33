"""The kernels of a node in TensorFlow's registry: their device types, and outputs on the host.

Dimensions: K kernel device types.
"""

from __future__ import annotations

import functools
from typing import Dict, FrozenSet, Hashable, Mapping, NamedTuple, Tuple

from placeto_tf.graphs.computation_graph import KERNEL_TYPES
from placeto_tf.graphs.op_defs import REF, OpDefs, registered_op_def
from placeto_tf.on_use import AttrValue, NodeDef
from placeto_tf.ops import rule_of

_STRING = 7  # DT_STRING
_FIELDS = ("type", "s", "i", "b")  # of AttrValue
# A kernel registered for DEFAULT serves every device type that has no kernel of its own.
_DEFAULT = "DEFAULT"
NO_GPU_NOTE = (
    "this TensorFlow registers no GPU kernels; GPUs are assumed to have one for every op that "
    "handles no strings and does not belong to the host")


class _Kernel(NamedTuple):
  """A registered kernel.

  Attributes:
    device_type: one of `KERNEL_TYPES`, or `_DEFAULT`.
    label: by which a node asks for a kernel other than the usual one.
    constraints: (attribute, its allowed values); a kernel fits if all of them hold.
    host_arguments: names of inputs and outputs that are in the host's memory.
  """

  device_type: str
  label: bytes
  constraints: Tuple[Tuple[str, FrozenSet[Hashable]], ...]
  host_arguments: FrozenSet[str]

  def fits(self, values: Mapping[str, Tuple[Hashable, ...]]) -> bool:
    """Returns whether the constraints allow the values of a node's attributes."""
    return all(name in values and allowed.issuperset(values[name])
               for name, allowed in self.constraints)


# Op type -> its kernels, as `_kernels` has found them.
_REGISTERED: Dict[str, Tuple[_Kernel, ...]] = {}


class KernelSupport:
  """Looks up kernels for nodes of one graph, and caches the results."""

  def __init__(self, op_defs: OpDefs):
    self._op_defs = op_defs
    self._answers: Dict[Tuple[Hashable, ...], Tuple[bool, ...]] = {}
    self.assumes_gpu = not any(kernel.device_type == "GPU" for kernel in _kernels("MatMul"))

  def has_kernel(self, node: NodeDef) -> Tuple[bool, ...]:
    """Returns [K] whether `KERNEL_TYPES` have a kernel for the node with its attributes."""
    if node.op in self._op_defs.functions:
      return (True,) * len(KERNEL_TYPES)  # a call runs on its caller's device
    values = _selecting(node, self._op_defs.schema(node).defaults)
    label = node.attr["_kernel"].s if "_kernel" in node.attr else b""
    # Query the registry once for each op type and values of the attributes that select kernels.
    key = (node.op, label, *values.values())
    if key not in self._answers:
      self._answers[key] = self._look_up(node, values, label)
    return self._answers[key]

  def _look_up(self, node, values, label) -> Tuple[bool, ...]:
    found = {kernel.device_type for kernel in _kernels(node.op)
             if kernel.label == label and kernel.fits(values)}
    if self.assumes_gpu and {"CPU", _DEFAULT} & found and not rule_of(node.op).host:
      signature = self._op_defs.signature(node)
      if not any(dtype % REF == _STRING for dtype in signature.inputs + signature.outputs):
        found.add("GPU")
    # [K]: a kernel of its own, or one for all devices.
    return tuple(kind in found or _DEFAULT in found for kind in KERNEL_TYPES)


def outputs_in_host_memory(node: NodeDef) -> bool:
  """Returns whether the op has outputs, all of which its GPU kernel puts on the host.

  Shape arithmetic in int32 is of this kind: it runs on the host's thread while the GPU computes on.
  """
  op_def = registered_op_def(node.op)
  outputs = {argument.name for argument in op_def.output_arg} if op_def is not None else set()
  # A kernel for DEFAULT serves every device, unless the device has its own.
  return bool(outputs) and not rule_of(node.op).of_gpu and any(
      kernel.device_type in ("GPU", _DEFAULT) and outputs <= kernel.host_arguments
      and kernel.fits(_selecting(node)) for kernel in _kernels(node.op))


def _selecting(
    node: NodeDef, defaults: Mapping[str, AttrValue] = {}) -> Dict[str, Tuple[Hashable, ...]]:
  """Returns the values of the node's attributes that select one of the kernels of its type.

  Args:
    node: the NodeDef.
    defaults: attribute -> its value where the node has none.
  """
  attrs, found = node.attr, {}
  # Selectors are kept as well, but only of types that have kernels by now.
  for name in _selectors(node.op) if _kernels(node.op) else ():
    if name in attrs or name in defaults:
      found[name] = _values(attrs[name] if name in attrs else defaults[name])
  return found


@functools.cache
def _selectors(op_type: str) -> Tuple[str, ...]:
  """Returns the attributes that select one of the kernels of an op type."""
  return tuple(dict.fromkeys(
      name for kernel in _kernels(op_type) for name, _ in kernel.constraints))


def _kernels(op_type: str) -> Tuple[_Kernel, ...]:
  """Returns the kernels of an op type for `KERNEL_TYPES`, and for all types of devices.

  An empty answer is not kept, because `tf.load_op_library` may register kernels later.
  """
  if not _REGISTERED.get(op_type):
    from tensorflow.python.framework import kernels

    _REGISTERED[op_type] = tuple(
        _Kernel(kernel.device_type, kernel.label.encode(),
                tuple((constraint.name, frozenset(_values(constraint.allowed_values)))
                      for constraint in kernel.constraint), frozenset(kernel.host_memory_arg))
        for kernel in kernels.get_registered_kernels_for_op(op_type).kernel
        if kernel.device_type in (*KERNEL_TYPES, _DEFAULT))
  return _REGISTERED[op_type]


def _values(value: AttrValue) -> Tuple[Hashable, ...]:
  """Returns the values in an AttrValue, of the types that kernel constraints use."""
  held = value.WhichOneof("value")
  if held == "list":
    return tuple(each for field in _FIELDS for each in getattr(value.list, field))
  return (getattr(value, held) if held in _FIELDS else None,)
