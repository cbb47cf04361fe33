"""Results of a whole batch that go into single examples: normalization, or a reason to refuse."""

from __future__ import annotations

from typing import List

from placeto_tf.errors import GraphError
from placeto_tf.replication import op_roles
from placeto_tf.replication.dataflow import Dataflow, closure
from placeto_tf.replication.kinds import Rows
from placeto_tf.replication.propagation import Spread


def check_statistics(flow: Dataflow, spread: Spread) -> None:
  """Accepts batch normalization: a fused op, or statistics of which moving averages are kept.

  Raises:
    GraphError: an example's result depends on others of its batch in another way, for instance if a
      loss is divided by the number of words in the batch; each replica would divide by its own.
  """
  mixing = [op for op in sorted(spread.statistics) if "BatchNorm" not in flow.types[op]]
  if not mixing:
    return
  averages = {
      op for op in spread.copied
      if op_roles.is_update(flow.types[op]) and flow.types[op].startswith("Assign")}
  producers: List[List[int]] = [
      [producer for producer, _ in data if producer in spread.kinds and not any(
          isinstance(kind, Rows) for kind in spread.kinds[producer])] for data in flow.inputs]
  kept = closure(averages, producers)
  if kept & closure(set(mixing), producers):
    return
  op = mixing[0]
  raise GraphError(
      f"op {flow.graph.op_names[op]!r} ({flow.types[op]}) brings what was found over the whole "
      "batch into single examples, which replicas would find over their own part only; divide by "
      "the batch's size instead, or train with one replica")
