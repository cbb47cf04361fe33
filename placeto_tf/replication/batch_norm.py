"""Fused batch normalization written out, so that its statistics can be joined."""

from __future__ import annotations

from placeto_tf.graphs.computation_graph import ComputationGraph


def with_plain_batch_norm(graph: ComputationGraph) -> ComputationGraph:
  raise NotImplementedError
