"""`Names`: the names of ops and tensors of the replicated graph; see `rewriting`.

Dimensions: R replicas.
"""

from __future__ import annotations

from typing import List, Sequence

from placeto_tf.graphs.tensor_names import fresh
from placeto_tf.replication.dataflow import Tensor
from placeto_tf.replication.mirroring import Plan
from placeto_tf.replication.nodes import tensor_name
from placeto_tf.replication.op_partition import FIRST, ROWS


class Names:
  """Names of copies, of single and mirrored ops, and of all-reduces.

  Attributes:
    prefixes: [R] "replica_r", the first part of the names of replica r's ops.
    all_reduce, all_gather: "all_reduce" and "all_gather", the first parts of the names of ops that
      sum or concatenate replicas' tensors.
    whole_batch: "whole_batch", the first part of the names of other ops that compute or read values
      of the global batch.
  """

  def __init__(self, plan: Plan):
    self._flow, self._partition, self._mirrors = plan.flow, plan.partition, plan.mirrors
    # First parts of names in the graph: a prefix must differ from all of them.
    taken = {node.name.partition("/")[0] for node in self._flow.graph.origin.graph_def.node}
    self.prefixes = [fresh(f"{plan.part}_{r}", taken) for r in range(plan.scaling.replicas)]
    self.all_reduce, self.all_gather, self.whole_batch = (
        fresh(name, taken) for name in ("all_reduce", "all_gather", "whole_batch"))

  def is_copy(self, name: str) -> bool:
    """Returns whether an op of the original graph exists only as replicas' copies."""
    op = self._flow.graph.op_index.get(name)
    return op in self._partition.copies and op not in self._partition.shared

  def owners(self, name: str) -> Sequence[int]:
    """Returns the replicas that repeat an op which is no copy; replica 0 if the op exists once."""
    return range(len(self.prefixes)) if name in self._mirrors else (0,)

  def once(self, name: str, r: int) -> str:
    """Returns the name of the op that replica r reads for an op that is no copy.

    Args:
      name: name of the op in the original graph.
      r: number of the replica.

    Returns:
      The name.
    """
    if not r or name not in self._mirrors:
      return name
    copied = self._flow.graph.op_index.get(name) in self._partition.copies
    return f"{self.prefixes[r]}/" + (f"{self.whole_batch}/{name}" if copied else name)

  def in_replica(self, name: str, r: int) -> str:
    """Returns the name of the op that copies of replica r read for an op.

    Args:
      name: name of the op in the original graph.
      r: number of the replica.

    Returns:
      The name.
    """
    op = self._flow.graph.op_index.get(name)
    return f"{self.prefixes[r]}/{name}" if op in self._partition.copies else self.once(name, r)

  def of_replica(self, tensor: Tensor, r: int) -> str:
    """Returns the name of the tensor that copies of replica r read for a tensor.

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
    how = self._partition.combined[tensor].how
    first = {ROWS: self.all_gather, FIRST: self.whole_batch}.get(how, self.all_reduce)
    return f"{first}/{self._flow.graph.op_names[tensor[0]]}_{tensor[1]}"

  def for_each(self, name: str) -> List[str]:
    """Returns the names of the combining op that each replica reads, [R]; equal if shared."""
    return [f"{name}/{prefix}" if self._mirrors.needed else name for prefix in self.prefixes]
