"""`Names`: the names of ops and tensors of the replicated graph; see `rewriting`.

Dimensions: R replicas.
"""

from __future__ import annotations

from typing import List, Sequence, Set

from placeto_tf.replication.dataflow import Tensor
from placeto_tf.replication.mirroring import Plan
from placeto_tf.replication.nodes import tensor_name


class Names:
  """Names of copies, of single and mirrored ops, and of all-reduces.

  Attributes:
    prefixes: [R] "replica_r", with which the names of a replica's ops begin.
    joined: "joined", with which the names of ops that join replicas begin.
  """

  def __init__(self, plan: Plan):
    self._flow, self._partition, self._mirrors = plan.flow, plan.partition, plan.mirrors
    # The first part of each name, so that "replica_0" is one that nothing uses.
    taken = {node.name.partition("/")[0] for node in self._flow.graph.origin.graph_def.node}
    self.prefixes = [_fresh(f"replica_{r}", taken) for r in range(plan.scaling.replicas)]
    self.combined = _fresh("joined", taken)

  def is_copy(self, name: str) -> bool:
    """Returns whether an op of the graph exists as copies alone."""
    op = self._flow.graph.op_index.get(name)
    return op in self._partition.copies and op not in self._partition.shared

  def owners(self, name: str) -> Sequence[int]:
    """Returns the replicas that have an op which is no copy; 0 alone if there is one of it."""
    return range(len(self.prefixes)) if name in self._mirrors else (0,)

  def once(self, name: str, r: int) -> str:
    """Returns the name of an op that is no copy, as replica r reads it.

    Args:
      name: name of the op in the original graph.
      r: number of the replica.

    Returns:
      The name.
    """
    if not r or name not in self._mirrors:
      return name
    copied = self._flow.graph.op_index.get(name) in self._partition.copies
    return f"{self.prefixes[r]}/" + (f"{self.combined}/{name}" if copied else name)

  def in_replica(self, name: str, r: int) -> str:
    """Returns the name of an op as the copies of replica r read it.

    Args:
      name: name of the op in the original graph.
      r: number of the replica.

    Returns:
      The name.
    """
    op = self._flow.graph.op_index.get(name)
    return f"{self.prefixes[r]}/{name}" if op in self._partition.copies else self.once(name, r)

  def of_replica(self, tensor: Tensor, r: int) -> str:
    """Returns the name of a tensor as the copies of replica r read it.

    Args:
      tensor: (op, output port).
      r: number of the replica.

    Returns:
      The name of the tensor.
    """
    op, port = tensor
    return tensor_name(self.in_replica(self._flow.graph.op_names[op], r), port)

  def collective(self, tensor: Tensor) -> str:
    """Returns the name of the op that combines a tensor across replicas."""
    return f"{self.combined}/{self._flow.graph.op_names[tensor[0]]}_{tensor[1]}"

  def for_each(self, name: str) -> List[str]:
    """Returns the name of a combining op as each replica reads it, [R]."""
    return [f"{name}/{prefix}" if self._mirrors.needed else name for prefix in self.prefixes]


def _fresh(name: str, taken: Set[str]) -> str:
  found, count = name, 0
  while found in taken:
    count += 1
    found = f"{name}_{count}"
  taken.add(found)
  return found
