"""GDP's graph embedding: GraphSAGE with max pooling over neighbours, on TensorFlow GNN.

Hamilton et al. 2017, section 3.3; arXiv 1910.01578, section 3.1. Producers and consumers are
pooled separately, because inputs and outputs of an op affect a placement in different ways.

Dimensions: P graphs, components of one GraphTensor; M nodes and E edges of all graphs; F features,
W width.
"""

from __future__ import annotations

from typing import Tuple

from placeto_tf.encoding import schema  # checks for the legacy Keras, so before TensorFlow
from placeto_tf.encoding.grouped_graph import OP_TYPE_BUCKETS
from placeto_tf.policies.layers import Seeds, dense

import tensorflow as tf  # isort: skip
import tensorflow_gnn as tfgnn  # isort: skip

_TYPE_WIDTH = 16  # of an op type's embedding


def node_graph(
    num_nodes: tf.Tensor, num_edges: tf.Tensor, sources: tf.Tensor, targets: tf.Tensor
) -> tfgnn.GraphTensor:
  """Builds the GraphTensor of nodes and the dataflow between them, without features.

  Args:
    num_nodes, num_edges: [P] of each graph.
    sources, targets: [E] nodes, numbered from 0 to M - 1.

  Returns:
    A scalar GraphTensor of P components.
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
    # [M, any] -> [M, W] each.
    self._into, self._out_of = dense(width, seeds, "relu"), dense(width, seeds, "relu")
    self._join = dense(width, seeds, "relu")  # [M, any + 2 W] -> [M, W]

  def call(self, graph: tfgnn.GraphTensor, x: tf.Tensor) -> tf.Tensor:
    """Computes one round.

    Args:
      graph: a `node_graph`.
      x: [M, any] nodes.

    Returns:
      [M, W].
    """
    pooled = [
        pool_neighbours(graph, self._into(x), producers=True),
        pool_neighbours(graph, self._out_of(x), producers=False)]
    return tf.math.l2_normalize(self._join(tf.concat([x, *pooled], axis=-1)), axis=-1)


def pool_neighbours(graph: tfgnn.GraphTensor, x: tf.Tensor, *, producers: bool) -> tf.Tensor:
  """Pools the maximum over each node's neighbours.

  Args:
    graph: a `node_graph`.
    x: [M, W] nodes, at least 0.
    producers: True pools over producers, False over consumers.

  Returns:
    [M, W]; 0 for nodes without such neighbours.
  """
  # Ends of an edge: the neighbour, whose x is read, and the node that pools.
  ends: Tuple = (tfgnn.SOURCE, tfgnn.TARGET) if producers else (tfgnn.TARGET, tfgnn.SOURCE)
  # From nodes to edges, then the maximum at the other end; max_no_inf gives 0 without edges.
  return tfgnn.pool_edges_to_node(
      graph, schema.DATAFLOW, ends[1], reduce_type="max_no_inf",
      feature_value=tfgnn.broadcast_node_to_edges(
          graph, schema.DATAFLOW, ends[0], feature_value=x))


class GraphEmbedding(tf.keras.layers.Layer):
  """Rounds of `MaxPooling` over embedded op types and features."""

  def __init__(self, width: int, rounds: int, seeds: Seeds, **kwargs):
    super().__init__(**kwargs)
    # [buckets, 16] embeddings of op types.
    self._types = self.add_weight(
        name="types", shape=(OP_TYPE_BUCKETS, _TYPE_WIDTH),
        initializer=tf.keras.initializers.RandomUniform(-0.5, 0.5, seed=seeds()))
    self._first = dense(width, seeds, "relu")  # [M, 16 + F] -> [M, W]
    self._rounds = [MaxPooling(width, seeds, name=f"round_{i}") for i in range(rounds)]

  def call(
      self, graph: tfgnn.GraphTensor, op_types: tf.Tensor, features: tf.Tensor) -> tf.Tensor:
    """Embeds nodes.

    Args:
      graph: a `node_graph`.
      op_types: [M] int32 hash buckets.
      features: [M, F].

    Returns:
      [M, W].
    """
    # The product with 1 makes the gradient dense, so that it is clipped as a whole.
    types = tf.gather(1.0 * self._types, op_types)  # [M, 16]
    x = self._first(tf.concat([types, features], axis=-1))
    for layer in self._rounds:
      x = layer(graph, x)
    return x
