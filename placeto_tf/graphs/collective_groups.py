"""Finds the members of collective groups: Collective* and Nccl* ops, which must be on own devices.

A device joins a group once, and each member of a group waits for all others. So TensorFlow waits
for ever for two members on one device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, Hashable, List, NamedTuple, Optional, Sequence, Tuple

from placeto_tf.graphs.op_defs import registered_op_def
from placeto_tf.graphs.tensor_names import data_inputs, parse
from placeto_tf.on_use import NodeDef, tf

if TYPE_CHECKING:
  from placeto_tf.graphs.computation_graph import ComputationGraph

_KEYS = ("group_key", "instance_key")


class CollectiveGroup(NamedTuple):
  """The members of a group in one graph; other processes may have more of them.

  Attributes:
    calls: indices of the members of each exchange of the group.
    known: whether the exchange of each member is known before the graph runs.
  """

  calls: List[List[int]]
  known: bool


def collective_groups(nodes: Sequence[NodeDef]) -> List[CollectiveGroup]:
  """Returns the groups of a graph; ops whose group is not known are a group together."""
  found: Dict[Hashable, Dict[Hashable, List[int]]] = {}
  index: Dict[str, int] = {}
  for i, node in enumerate(nodes):
    if not is_member(getattr(node, "op", "")):  # nodes of a CostGraphDef have no type
      continue
    index = index or {each.name: at for at, each in enumerate(nodes)}
    if node.op == "NcclReduce":  # sums the tensors of several devices, on one of the devices
      found[node.name] = {
          None: [index[op] for op, _ in map(parse, data_inputs(node)) if op in index]}
    elif "shared_name" in node.attr:
      found.setdefault(node.attr["shared_name"].s, {}).setdefault("", []).append(i)
    else:
      op_def = registered_op_def(node.op)
      arguments = [arg.name for arg in op_def.input_arg] if op_def is not None else []
      if "group_key" in arguments or "group_key" in node.attr:
        group, call = (_number(nodes, index, node, arguments, key) for key in _KEYS)
        # A member whose exchange is not known is an exchange of its own.
        known = group is not None and (call is not None or "instance_key" not in arguments)
        found.setdefault(group, {}).setdefault(call if known else (None, i), []).append(i)
  return [CollectiveGroup(list(calls.values()), not any(
      call is None or isinstance(call, tuple) for call in calls)) for calls in found.values()]


def members_together(
    nodes: Sequence[NodeDef], devices: Sequence[Hashable]) -> Optional[Tuple[int, int]]:
  """Returns the first two members of a group that are on one device, or None.

  Args:
    nodes: [M] NodeDefs.
    devices: [M] the device of each.
  """
  for group in collective_groups(nodes):
    for call in group.calls:
      first: Dict[Hashable, int] = {}
      for op in call:
        if first.setdefault(devices[op], op) != op:
          return first[devices[op]], op
  return None


def nodes_with_members(graph: ComputationGraph) -> List[NodeDef]:
  """Returns the [N] nodes of a graph that has members of collective groups; [] for another one."""
  return graph.nodes if any(map(is_member, graph.op_types)) else []


def is_member(op_type: str) -> bool:
  """Returns whether ops of a type may be members of collective groups."""
  return op_type.startswith(("Collective", "Nccl", "_Nccl"))


def _number(
    nodes: Sequence[NodeDef], index: Dict[str, int], node: NodeDef, arguments: Sequence[str],
    key: str) -> Optional[int]:
  """Returns the number in an attribute or a constant input; 0 without either, None if unknown."""
  if key not in arguments:
    return node.attr[key].i if key in node.attr else 0
  while node.op != "Const":
    data = data_inputs(node)
    at = arguments.index(key) if key in arguments else 0
    source = index.get(parse(data[at])[0]) if len(data) > at else None
    if source is None or nodes[source].op not in ("Const", "Identity", "Enter"):
      return None
    node, arguments = nodes[source], ()
  return int(tf.make_ndarray(node.attr["value"].tensor))
