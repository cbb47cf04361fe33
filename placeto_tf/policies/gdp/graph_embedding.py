"""GDP's graph embedding: GraphSAGE with max pooling over neighbours, on TensorFlow GNN.

Hamilton et al. 2017, section 3.3; arXiv 1910.01578, section 3.1. Producers and consumers are
pooled apart, because inputs and outputs of an op matter in different ways to a placement.

Dimensions: P graphs, components of one GraphTensor; M nodes and E edges of all; F features, W
width.
"""

from __future__ import annotations

from typing import Tuple

from placeto_tf.encoding import schema  # checks for the legacy Keras, so before TensorFlow
from placeto_tf.encoding.grouped_graph import OP_TYPE_BUCKETS
from placeto_tf.policies.layers import Seeds, dense

import tensorflow as tf  # isort: skip
import tensorflow_gnn as tfgnn  # isort: skip

_TYPE_WIDTH = 16


def node_graph(
    num_nodes: tf.Tensor, num_edges: tf.Tensor, sources: tf.Tensor, targets: tf.Tensor
) -> tfgnn.GraphTensor:
  """Returns the nodes and the dataflow between them, without features.

  Args:
    num_nodes, num_edges: [P] of each graph.
    sources, targets: [E] nodes, numbered from 0 to M.
  """
  return tfgnn.GraphTensor.from_pieces(
      node_sets={schema.GROUP: tfgnn.NodeSet.from_fields(sizes=num_nodes, features={})},
      edge_sets={schema.DATAFLOW: tfgnn.EdgeSet.from_fields(
          sizes=num_edges, features={},
          adjacency=tfgnn.Adjacency.from_indices(
              (schema.GROUP, sources), (schema.GROUP, targets)))})


class MaxPooling(tf.keras.layers.Layer):
  """One round: x_v <- |relu(W [x_v, max relu(P x_u) over producers u, the same over consumers])|.

  |.| is division by the Euclidean norm. A node without neighbours pools zeros.
  """

  def __init__(self, width: int, seeds: Seeds, **kwargs):
    super().__init__(**kwargs)
    self._into, self._out_of = dense(width, seeds, "relu"), dense(width, seeds, "relu")
    self._join = dense(width, seeds, "relu")

  def call(self, graph: tfgnn.GraphTensor, x: tf.Tensor) -> tf.Tensor:
    """Returns [M, W] from [M, any]."""
    pooled = [
        pool_neighbours(graph, self._into(x), producers=True),
        pool_neighbours(graph, self._out_of(x), producers=False)]
    return tf.math.l2_normalize(self._join(tf.concat([x, *pooled], axis=-1)), axis=-1)


def pool_neighbours(graph: tfgnn.GraphTensor, x: tf.Tensor, *, producers: bool) -> tf.Tensor:
  """[M, W] the greatest x [M, W] of each node's producers, or of its consumers; 0 without any."""
  ends: Tuple = (tfgnn.SOURCE, tfgnn.TARGET) if producers else (tfgnn.TARGET, tfgnn.SOURCE)
  return tfgnn.pool_edges_to_node(
      graph, schema.DATAFLOW, ends[1], reduce_type="max_no_inf",
      feature_value=tfgnn.broadcast_node_to_edges(
          graph, schema.DATAFLOW, ends[0], feature_value=x))


class GraphEmbedding(tf.keras.layers.Layer):
  """Rounds of `MaxPooling` over embedded op types and features."""

  def __init__(self, width: int, rounds: int, seeds: Seeds, **kwargs):
    super().__init__(**kwargs)
    self._types = self.add_weight(
        name="types", shape=(OP_TYPE_BUCKETS, _TYPE_WIDTH),
        initializer=tf.keras.initializers.RandomUniform(-0.5, 0.5, seed=seeds()))
    self._first = dense(width, seeds, "relu")
    self._rounds = [MaxPooling(width, seeds, name=f"round_{i}") for i in range(rounds)]

  def call(
      self, graph: tfgnn.GraphTensor, op_types: tf.Tensor, features: tf.Tensor) -> tf.Tensor:
    """Returns [M, W] from a `node_graph`, op types [M] and features [M, F]."""
    # The product has a dense gradient, so that it is clipped as a whole.
    types = tf.gather(1.0 * self._types, op_types)
    x = self._first(tf.concat([types, features], axis=-1))
    for layer in self._rounds:
      x = layer(graph, x)
    return x
