"""Finds the ops that must share a device: by the rules of TensorFlow's placer, and loops.

Ops are colocated by:

- `_class` attributes ("loc:@other"),
- a consumer of a reference with its producer (reference variables and their assignments),
- a consumer of a resource handle with its producer; so every op that reads or writes a variable is
  with the variable, also through Identity, Enter or Switch, but ops that read the value are not,
- a consumer of a variant with its producer where TensorFlow does not copy the variant between
  devices: datasets, and lists and optionals of strings or handles; and iterators that are made from
  handles with all iterators whose handles are exported,
- stateful ops that have the same container and name, because they share a resource,
- ops that TensorFlow silently moves after placing (`OptimizeControlFlowColocation`): Switch and
  Exit to their producers, Enter and NextIteration to one of their consumers; TensorFlow does not
  define which consumer, so all consumers are colocated,
- the ops of one loop, nested loops included.

Dimensions: M nodes of the file.
"""

from __future__ import annotations

from typing import Callable, Dict, Hashable, List, Optional, Sequence, Tuple

import numpy as np

from placeto_tf.graphs.computation_graph import CONTROL
from placeto_tf.graphs.loops import EXIT, NEXT, SWITCH
from placeto_tf.graphs.node_table import NodeTable
from placeto_tf.graphs.op_defs import REF
from placeto_tf.graphs.traversal import components, reachable
from placeto_tf.on_use import NodeDef

RESOURCE = 20  # DT_RESOURCE
_VARIANT = 21  # DT_VARIANT
# First parts of types whose variants TensorFlow copies if it copies the values in them, and the
# types of values that it does not copy to GPUs: strings and handles.
_COPIED = ("TensorList", "EmptyTensorList", "Optional", "IteratorGetNextAsOptional", "RaggedTensor",
           "SparseMatrix", "SparseTensorToCSRSparseMatrix", "DenseToCSRSparseMatrix")
_NOT_COPIED = frozenset((7, RESOURCE))
ANONYMOUS = b"cd2c89b7-88b7-44c8-ad83-06c2a9158347"  # shared_name of handles that are not shared
COLOCATED = b"loc:@"  # first part of the values of `_class`
_FOLLOWING = (*SWITCH, *EXIT)
_LEADING = ("Enter", *NEXT)
MOVED_WITH_OTHERS = (*_FOLLOWING, *_LEADING)  # TensorFlow moves them from any device
_FROM_HANDLES = ("IteratorFromStringHandle", "IteratorFromStringHandleV2")


def colocate(table: NodeTable, loops: Optional[np.ndarray] = None) -> np.ndarray:
  """Returns sets of ops that must share a device.

  Args:
    table: the ops, back edges of loops included.
    loops: [M] int, the outermost loop that each op belongs to, -1 for none; None if the ops of a
      loop may be on several devices.

  Returns:
    [M] int32, the smallest index of each op's set.
  """
  nodes, producers, consumers = table.nodes, table.producers, table.consumers
  data = np.flatnonzero(table.ports != CONTROL)
  # [data edges] type of the tensor on each.
  given = table.output_types[table.output_offsets[producers[data]] + table.ports[data]]
  variants = data[given == _VARIANT]
  # Edges that colocate both ends: handles, references that are read as references, variants.
  bound = np.concatenate([
      data[(given % REF == RESOURCE) | ((given >= REF) & (table.input_types[data] >= REF))],
      variants[_kept(nodes, producers[variants], consumers[variants])[producers[variants]]]])
  pairs = list(zip(producers[bound].tolist(), consumers[bound].tolist()))
  pairs += _moved(nodes, producers[data], consumers[data])
  # Key of a set -> its first op; other ops with the key are united with this op.
  firsts: Dict[Hashable, int] = {}
  handed_on = any(kind in _FROM_HANDLES for kind in table.types)
  for i, node in enumerate(nodes):
    if handed_on and node.op in (*_FROM_HANDLES, "IteratorToStringHandle"):
      pairs.append((i, firsts.setdefault(_FROM_HANDLES, i)))
    attrs = node.attr
    if "_class" in attrs:
      for value in attrs["_class"].list.s:
        if value.startswith(COLOCATED):
          name = value[len(COLOCATED):].decode("utf-8", "replace")
          # Ops that name the same op belong together, even if the named op is pruned.
          pairs.append((i, firsts.setdefault(name, table.index.get(name, i))))
    if "shared_name" in attrs and "num_devices" not in attrs:  # members of a group of Nccl ops
      shared = attrs["shared_name"].s
      if shared and shared != ANONYMOUS:
        container = attrs["container"].s if "container" in attrs else b""
        pairs.append((i, firsts.setdefault((node.op, container, shared), i)))
  if loops is not None:
    for i in np.flatnonzero(loops >= 0).tolist():
      pairs.append((i, firsts.setdefault(("loop", int(loops[i])), i)))
  return components(len(nodes), pairs)


def rename_colocated(node: NodeDef, renamed: Callable[[str], Optional[str]]) -> None:
  """Renames the ops that a node is colocated with, because TensorFlow refuses unknown names.

  Args:
    node: changed in place.
    renamed: returns the present name of an op, or None if there is no such op any more.
  """
  if "_class" not in node.attr:
    return
  kept = []
  for value in node.attr["_class"].list.s:
    if value.startswith(COLOCATED):
      name = renamed(value[len(COLOCATED):].decode("utf-8", "replace"))
      if name is None:
        continue
      value = COLOCATED + name.encode()
    kept.append(value)
  del node.attr["_class"]
  if kept:
    node.attr["_class"].list.s.extend(kept)


def _kept(nodes: Sequence[NodeDef], producers: np.ndarray, consumers: np.ndarray) -> np.ndarray:
  """Returns [M] whether TensorFlow does not copy an op's variants between devices.

  Args:
    nodes: [M] NodeDefs.
    producers, consumers: of the edges that carry variants.
  """
  readers: Dict[int, List[int]] = {}
  for producer, consumer in zip(producers.tolist(), consumers.tolist()):
    readers.setdefault(producer, []).append(consumer)
  # An op that reads variants keeps what it reads. Another one makes a variant.
  handing_on = set(consumers.tolist())
  sources = [i for i in sorted({*readers, *handing_on}) if (
      _NOT_COPIED.intersection(_types(nodes[i])) if nodes[i].op.startswith(_COPIED) else
      i not in handing_on)]
  found = np.zeros(len(nodes), dtype=bool)
  found[list(reachable(sources, lambda i: readers.get(i, ())))] = True
  return found


def _types(node: NodeDef) -> List[int]:
  """Returns the types in a node's attributes."""
  return [each for value in node.attr.values() for each in (value.type, *value.list.type)]


def _moved(
    nodes: Sequence[NodeDef], producers: np.ndarray, consumers: np.ndarray
) -> List[Tuple[int, int]]:
  """Returns pairs of ops that TensorFlow puts on one device, because of loops and branches.

  Args:
    nodes: [M] NodeDefs.
    producers, consumers: of data edges, in the order of consumers and their inputs.
  """
  pairs: List[Tuple[int, int]] = []
  follows = np.array([node.op in _FOLLOWING for node in nodes], dtype=bool)
  leads = np.array([node.op in _LEADING for node in nodes], dtype=bool)
  first = np.ones(len(consumers), dtype=bool)
  first[1:] = consumers[1:] != consumers[:-1]
  # One row for each: an op that follows its first producer, an op that leads all consumers.
  for edges in (follows[consumers] & first, leads[producers]):
    pairs += zip(producers[edges].tolist(), consumers[edges].tolist())
  return pairs
