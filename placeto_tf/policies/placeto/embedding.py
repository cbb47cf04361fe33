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
from placeto_tf.policies.placeto import graph_tables

import tensorflow as tf  # isort: skip
import tensorflow_gnn as tfgnn  # isort: skip

STATE = "state"
WEIGHT, REAL = graph_tables.WEIGHT, graph_tables.REAL


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


def group_graph(of_graph: graph_tables.Tables, state: tf.Tensor) -> tfgnn.GraphTensor:
  """The groups and the dataflow between them as a GraphTensor.

  Args:
    of_graph: one graph of a `GraphTables`.
    state: [G, B, F] raw features, which become `STATE`.

  Returns:
    A scalar GraphTensor; edges carry `WEIGHT` [E, 1, 1], bytes over the largest edge's, and `REAL`
    [E, 1, 1], 0 for padding.
  """
  edges = of_graph[graph_tables.SOURCES].shape[0]
  return tfgnn.GraphTensor.from_pieces(
      node_sets={
          schema.GROUP: tfgnn.NodeSet.from_fields(
              sizes=tf.constant([state.shape[0]], tf.int32), features={STATE: state})},
      edge_sets={
          schema.DATAFLOW: tfgnn.EdgeSet.from_fields(
              sizes=tf.constant([edges], tf.int32),
              features={
                  name: tf.reshape(of_graph[name], [edges, 1, 1]) for name in (WEIGHT, REAL)},
              adjacency=tfgnn.Adjacency.from_indices(
                  (schema.GROUP, of_graph[graph_tables.SOURCES]),
                  (schema.GROUP, of_graph[graph_tables.TARGETS])))})


class MessagePassing(tf.keras.layers.Layer):
  """`rounds` times x_v <- g(sum of f(x_u)) + transform(raw_v), along the dataflow or against it.

  The same f, g and transform serve all rounds, as in the paper. `weigh_edges` scales messages by
  1 + w * bytes with a learned w [W] that starts at 0, where the paper lets all edges count alike.
  """

  def __init__(
      self, width: int, rounds: int, seeds: Seeds, *, forward: bool, weigh_edges: bool,
      squash: bool, padded: bool = False, **kwargs):
    """Args: forward: from producers to consumers; squash: tanh after every round; padded: whether
    there may be edges that are not `REAL`."""
    super().__init__(**kwargs)
    self._rounds, self._padded = rounds, padded
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
    edges = graph.edge_sets[schema.DATAFLOW]
    factor = edges[REAL] if self._padded else None
    if self._edge_gain is not None:
      factor = (1.0 if factor is None else factor) * (1.0 + edges[WEIGHT] * self._edge_gain)
    x = self._squash(raw)
    # A copy for each round: the gradient of copies is stacked and summed in their order. That of
    # one tensor would be summed by AddN, which begins with whichever summand's memory is free to
    # be reused at that moment, so that runs would differ in the last bit.
    copies = tf.unstack(tf.broadcast_to(
        raw[None], tf.concat([[self._rounds], tf.shape(raw)], axis=0)), num=self._rounds)
    for raw in copies:
      messages = tfgnn.broadcast_node_to_edges(
          graph, schema.DATAFLOW, self._from, feature_value=self._f(x))
      if factor is not None:
        messages *= factor
      x = self._squash(raw + self._g(tfgnn.pool_edges_to_node(
          graph, schema.DATAFLOW, self._to, reduce_type="sum", feature_value=messages)))
    return x


class Poolings(tf.keras.layers.Layer):
  """For each current group: its own embedding beside sums over ancestors, descendants, parallels.

  What each counts for in the sums is what the graph's tables say: 1, or 1 over the groups.
  """

  def __init__(self, width: int, seeds: Seeds, **kwargs):
    super().__init__(**kwargs)
    self._f = [two_layers(width, seeds) for _ in range(3)]
    self._g = [two_layers(width, seeds) for _ in range(3)]

  def call(
      self, embedding: tf.Tensor, current: tf.Tensor, of_graph: graph_tables.Tables) -> tf.Tensor:
    """[B, K, 4 W] from embedding [B, G, W] and current groups [B, K]."""
    parts = [tf.gather(embedding, current, batch_dims=1)]
    masks = tf.unstack(of_graph[graph_tables.RELATIVES])
    for mask, f, g in zip(masks, self._f, self._g):
      parts.append(g(tf.matmul(tf.gather(mask, current), f(embedding))))
    return tf.concat(parts, axis=-1)


class SumOfAll(tf.keras.layers.Layer):
  """One sum over all groups, the same whichever is at hand: the paper's simple aggregator.

  The flag of the current group among the raw features is all that tells decisions apart.
  """

  def __init__(self, width: int, seeds: Seeds, **kwargs):
    super().__init__(**kwargs)
    self._f, self._g = two_layers(width, seeds), two_layers(width, seeds)

  def call(
      self, embedding: tf.Tensor, current: tf.Tensor, of_graph: graph_tables.Tables) -> tf.Tensor:
    """[B, K, W] from embedding [B, G, W]."""
    everyone = of_graph[graph_tables.EVERYONE][None, None]  # [1, 1, G]
    total = self._g(tf.matmul(everyone, self._f(embedding)))  # [B, 1, W]
    return tf.repeat(total, tf.shape(current)[1], axis=1)
