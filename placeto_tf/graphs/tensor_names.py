"""Parses names of inputs in GraphDefs: "op" for output 0, "op:1", "^op" for a control input."""

from __future__ import annotations

import re
from typing import List, Optional, Set, Tuple

from placeto_tf.graphs.computation_graph import CONTROL
from placeto_tf.on_use import NodeDef

Tensor = Tuple[str, int]  # op name and output port
# As `replication.naming` names copies; numbers follow names that were taken.
_COPY = re.compile(r"replica_(\d+)(?:_\d+)?/(?:whole_batch(?:_\d+)?/)?(.+)")


def parse(text: str) -> Tensor:
  """Returns ("op", port) of an input or a tensor name; the port of a control input is `CONTROL`."""
  if text.startswith("^"):
    return text[1:], CONTROL
  op, colon, port = text.rpartition(":")
  # A port has at most nine digits; other endings are part of the name.
  if colon and port.isdecimal() and len(port) < 10:
    return op, int(port)
  return text, 0


def op_of(text: str) -> str:
  """Returns the name of the op in an input or a tensor name."""
  return parse(text)[0]


def control_of(text: str) -> str:
  """Returns the control input that waits for the op that computes a tensor."""
  return f"^{op_of(text)}"


def fresh(name: str, taken: Set[str]) -> str:
  """Returns a name that is not taken: the name itself, or with a number; it is taken from now.

  Args:
    name: the wanted name.
    taken: all names; changed.
  """
  found, count = name, 0
  while found in taken:
    count += 1
    found = f"{name}_{count}"
  taken.add(found)
  return found


def copy_of(name: str) -> Optional[Tuple[int, str]]:
  """Returns (replica, name in the original graph) of an op that is a replica's copy, else None."""
  found = _COPY.fullmatch(name)
  return found and (int(found[1]), found[2])


def data_inputs(node: NodeDef) -> List[str]:
  """Returns the inputs of a NodeDef that carry tensors."""
  return [text for text in node.input if not text.startswith("^")]


def control_inputs(node: NodeDef) -> List[str]:
  """Returns the control inputs of a NodeDef."""
  return [text for text in node.input if text.startswith("^")]
