"""Placeto's graph embedding and poolings on TensorFlow GNN.

Placeto section 3.2. All placements of a batch are of one graph, so the GraphTensor holds the graph
once and its features carry the batch as a second axis, [G, B, F]: a gather along an edge then
moves one contiguous row for all placements, which is several times faster than B copies of the
graph side by side.

Legend: G groups, E edges, B placements side by side, F features, W width, K groups placed now.
"""

from __future__ import annotations

from typing import Optional

import numpy as np

from placeto_tf.encoding import schema  # checks for the legacy Keras, so before TensorFlow
from placeto_tf.encoding.grouped_graph import GroupedGraph

import tensorflow as tf  # isort: skip
import tensorflow_gnn as tfgnn  # isort: skip

STATE = "state"
WEIGHT = "weight"


class Seeds:
  """A new seed at each call: two layers with one seed would start out equal."""

  def __init__(self, seed: int):
    self._rng = np.random.default_rng(seed)

  def __call__(self) -> int:
    """The next seed."""
    return int(self._rng.integers(2**31 - 1))


def dense(width: int, seeds: Seeds, activation: Optional[str] = None, *, scale: float = 1.0):
  """A dense layer; `scale` shrinks its starting weights."""
  return tf.keras.layers.Dense(
      width, activation=activation,
      kernel_initializer=tf.keras.initializers.VarianceScaling(
          scale, mode="fan_avg", distribution="uniform", seed=seeds()))


def two_layers(width: int, seeds: Seeds) -> tf.keras.Sequential:
  """The two-layer function that stands for each f, g and transform of the paper."""
  return tf.keras.Sequential([dense(width, seeds, "relu"), dense(width, seeds)])


def group_graph(grouped: GroupedGraph) -> tfgnn.GraphTensor:
  """The groups and the dataflow between them, without node features.

  Edges carry `WEIGHT` [E, 1, 1], bytes over the largest edge's.
  """
  weight = grouped.edge_bytes / max(float(grouped.edge_bytes.max(initial=0.0)), 1.0)
  return tfgnn.GraphTensor.from_pieces(
      node_sets={
          schema.GROUP: tfgnn.NodeSet.from_fields(
              sizes=tf.constant([grouped.num_groups], tf.int32), features={})},
      edge_sets={
          schema.DATAFLOW: tfgnn.EdgeSet.from_fields(
              sizes=tf.constant([grouped.num_edges], tf.int32),
              features={WEIGHT: tf.constant(weight.reshape(-1, 1, 1), tf.float32)},
              adjacency=tfgnn.Adjacency.from_indices(
                  (schema.GROUP, tf.constant(grouped.sources, tf.int32)),
                  (schema.GROUP, tf.constant(grouped.targets, tf.int32))))})


class MessagePassing(tf.keras.layers.Layer):
  """`rounds` times x_v <- g(sum of f(x_u)) + transform(raw_v), along the dataflow or against it.

  The same f, g and transform serve all rounds, as in the paper. `weigh_edges` scales messages by
  1 + w * bytes with a learned w [W] that starts at 0, where the paper lets all edges count alike.
  """

  def __init__(
      self, width: int, rounds: int, seeds: Seeds, *, forward: bool, weigh_edges: bool,
      squash: bool, **kwargs):
    """Args: forward: from producers to consumers; squash: tanh after every round."""
    super().__init__(**kwargs)
    self._rounds = rounds
    self._squash = tf.tanh if squash else tf.identity
    self._from, self._to = (
        (tfgnn.SOURCE, tfgnn.TARGET) if forward else (tfgnn.TARGET, tfgnn.SOURCE))
    self._f = two_layers(width, seeds)
    self._g = two_layers(width, seeds)
    self._transform = two_layers(width, seeds)
    self._edge_gain = self.add_weight(
        name="edge_gain", shape=(width,), initializer="zeros") if weigh_edges else None

  def call(self, graph: tfgnn.GraphTensor) -> tf.Tensor:
    """[G, B, W] from raw features `STATE` [G, B, F]."""
    raw = self._transform(graph.node_sets[schema.GROUP][STATE])
    factor = None
    if self._edge_gain is not None:
      factor = 1.0 + graph.edge_sets[schema.DATAFLOW][WEIGHT] * self._edge_gain
    x = self._squash(raw)
    for _ in range(self._rounds):
      messages = tfgnn.broadcast_node_to_edges(
          graph, schema.DATAFLOW, self._from, feature_value=self._f(x))
      if factor is not None:
        messages *= factor
      x = self._squash(raw + self._g(tfgnn.pool_edges_to_node(
          graph, schema.DATAFLOW, self._to, reduce_type="sum", feature_value=messages)))
    return x


class Poolings(tf.keras.layers.Layer):
  """For each current group: its own embedding beside sums over ancestors, descendants, parallels.

  Sums are divided by G, which the functions behind them could learn, so that they start out of
  one size for graphs of any size.
  """

  def __init__(self, grouped: GroupedGraph, width: int, seeds: Seeds, **kwargs):
    super().__init__(**kwargs)
    self._masks = [
        tf.constant(mask / grouped.num_groups, tf.float32)
        for mask in (grouped.ancestors, grouped.descendants, grouped.parallel)]
    self._f = [two_layers(width, seeds) for _ in self._masks]
    self._g = [two_layers(width, seeds) for _ in self._masks]

  def call(self, embedding: tf.Tensor, current: tf.Tensor) -> tf.Tensor:
    """[B, K, 4 W] from embedding [B, G, W] and current groups [B, K]."""
    parts = [tf.gather(embedding, current, batch_dims=1)]
    for mask, f, g in zip(self._masks, self._f, self._g):
      parts.append(g(tf.matmul(tf.gather(mask, current), f(embedding))))
    return tf.concat(parts, axis=-1)
