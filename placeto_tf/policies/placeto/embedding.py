"""Placeto's graph embedding and poolings on TensorFlow GNN.

Placeto section 3.2. A batch holds P graphs and S placements of each. The GraphTensor holds each
graph once, P G groups one graph after the other, and its features carry placements and candidate
devices as further axes, [P G, S, C, F]: a gather along an edge then moves one contiguous row for
all of them, which is several times faster than a copy of the graph for each.

Legend: P graphs, S placements of each, G groups, E edges, C candidate devices (1 where the network
does not score candidates one by one), F features, W width, K groups placed now.
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
HAS_PARENTS, HAS_CHILDREN = graph_tables.HAS_PARENTS, graph_tables.HAS_CHILDREN


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


def two_layers(width: int, seeds: Seeds, *, last: Optional[str] = "relu") -> tf.keras.Sequential:
  """The two-layer function used for each f and g of the paper; `last` is its last activation."""
  return tf.keras.Sequential([dense(width, seeds, "relu"), dense(width, seeds, last)])


def group_graph(of_graphs: graph_tables.Tables, state: tf.Tensor) -> tfgnn.GraphTensor:
  """The groups and the dataflow between them as a GraphTensor.

  Args:
    of_graphs: P graphs of a `GraphTables`.
    state: [P, G, S, C, F] raw features, which become `STATE`.

  Returns:
    A scalar GraphTensor of P G groups, with `STATE` [P G, S, C, F]. Groups carry `HAS_PARENTS` and
    `HAS_CHILDREN` [P G, 1, 1, 1]; edges carry `WEIGHT`, bytes over the largest edge's, and `REAL`,
    0 for padding, [P E, 1, 1, 1].
  """
  p, g = tf.shape(state)[0], state.shape[1]
  first = tf.range(p)[:, None] * g  # of each graph

  def flat(name):
    return tf.reshape(of_graphs[name], [-1, 1, 1, 1])

  def ends(name):
    return tf.reshape(of_graphs[name] + first, [-1])

  return tfgnn.GraphTensor.from_pieces(
      node_sets={
          schema.GROUP: tfgnn.NodeSet.from_fields(
              sizes=tf.reshape(p * g, [1]), features={
                  STATE: tf.reshape(state, tf.concat([[p * g], tf.shape(state)[2:]], axis=0)),
                  **{name: flat(name) for name in (HAS_PARENTS, HAS_CHILDREN)}})},
      edge_sets={
          schema.DATAFLOW: tfgnn.EdgeSet.from_fields(
              sizes=tf.reshape(tf.size(of_graphs[graph_tables.SOURCES]), [1]),
              features={name: flat(name) for name in (WEIGHT, REAL)},
              adjacency=tfgnn.Adjacency.from_indices(
                  (schema.GROUP, ends(graph_tables.SOURCES)),
                  (schema.GROUP, ends(graph_tables.TARGETS))))})


class MessagePassing(tf.keras.layers.Layer):
  """`rounds` times x_v <- g(sum of f(x_u)) + transform(raw_v), along the dataflow or against it.

  The same f, g and transform serve all rounds, as in the paper; a ReLU ends f and g, and a group
  that receives no message gets transform(raw_v) alone, as in its authors' code. `weigh_edges`
  scales messages by 1 + w * bytes with a learned w [W] that starts at 0; in the paper all edges
  count alike.
  """

  def __init__(
      self, width: int, rounds: int, seeds: Seeds, *, forward: bool, weigh_edges: bool,
      squash: bool, padded: bool = False, **kwargs):
    """Args: forward: from producers to consumers; squash: tanh after every round; padded: whether
    there may be edges that are not `REAL`."""
    super().__init__(**kwargs)
    self._rounds, self._padded = rounds, padded
    self._squash = tf.tanh if squash else tf.identity
    self._from, self._to, self._hears = (
        (tfgnn.SOURCE, tfgnn.TARGET, HAS_PARENTS) if forward
        else (tfgnn.TARGET, tfgnn.SOURCE, HAS_CHILDREN))
    self._f = two_layers(width, seeds)
    self._g = two_layers(width, seeds)
    self._transform = two_layers(width, seeds, last=None)
    self._edge_gain = self.add_weight(
        name="edge_gain", shape=(width,), initializer="zeros") if weigh_edges else None

  def call(self, graph: tfgnn.GraphTensor) -> tf.Tensor:
    """[P G, S, C, W] from raw features `STATE` [P G, S, C, F]."""
    groups, edges = graph.node_sets[schema.GROUP], graph.edge_sets[schema.DATAFLOW]
    raw, hears = self._transform(groups[STATE]), groups[self._hears]
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
      x = self._squash(raw + hears * self._g(tfgnn.pool_edges_to_node(
          graph, schema.DATAFLOW, self._to, reduce_type="sum", feature_value=messages)))
    return x


class Poolings(tf.keras.layers.Layer):
  """For each current group: its own embedding beside sums over ancestors, descendants, parallels.

  The graph's tables hold the weight of each group in the sums: 1, or 1 over the number of groups.
  """

  def __init__(self, width: int, seeds: Seeds, **kwargs):
    super().__init__(**kwargs)
    self._f = [two_layers(width, seeds) for _ in range(3)]
    self._g = [two_layers(width, seeds) for _ in range(3)]

  def call(
      self, embedding: tf.Tensor, current: tf.Tensor, of_graphs: graph_tables.Tables) -> tf.Tensor:
    """[P, S, K, C, 4 W] from embedding [P, G, S, C, W] and current groups [P, S, K]."""
    by_placement = tf.transpose(embedding, [0, 2, 1, 3, 4])  # [P, S, G, C, W]
    parts = [tf.gather(by_placement, current, batch_dims=2)]
    masks = tf.gather(of_graphs[graph_tables.RELATIVES], current, axis=2, batch_dims=1)
    for i, (f, g) in enumerate(zip(self._f, self._g)):  # masks [P, 3, S, K, G]
      parts.append(g(_pool(masks[:, i], f(by_placement))))
    return tf.concat(parts, axis=-1)


class SumOfAll(tf.keras.layers.Layer):
  """One sum over all groups, whichever is current: the paper's simple aggregator.

  Only the flag of the current group among the raw features distinguishes decisions.
  """

  def __init__(self, width: int, seeds: Seeds, **kwargs):
    super().__init__(**kwargs)
    self._f, self._g = two_layers(width, seeds), two_layers(width, seeds)

  def call(
      self, embedding: tf.Tensor, current: tf.Tensor, of_graphs: graph_tables.Tables) -> tf.Tensor:
    """[P, S, K, C, W] from embedding [P, G, S, C, W]."""
    everyone = of_graphs[graph_tables.EVERYONE][:, None, None]  # [P, 1, 1, G]
    everyone = tf.tile(everyone, [1, tf.shape(embedding)[2], 1, 1])
    total = self._g(_pool(everyone, self._f(tf.transpose(embedding, [0, 2, 1, 3, 4]))))
    return tf.repeat(total, tf.shape(current)[2], axis=2)  # [P, S, 1, C, W] for each group


def _pool(mask: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
  """[P, S, K, C, W] sums of values [P, S, G, C, W] by mask [P, S, K, G]."""
  c, w = values.shape[3:]
  shape = tf.shape(values)
  flat = tf.reshape(values, tf.concat([shape[:3], [c * w]], axis=0))
  pooled = tf.matmul(mask, flat)
  return tf.reshape(pooled, tf.concat([tf.shape(pooled)[:3], [c, w]], axis=0))
