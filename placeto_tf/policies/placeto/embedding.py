"""Placeto's graph embedding and poolings on TensorFlow GNN.

Placeto section 3.2. A batch holds P graphs and S placements of each. The GraphTensor holds each
graph once, as a component of G groups, and its features carry placements and candidate devices as
further axes, [P G, S, C, F]: a gather along an edge then moves one contiguous row for all of them,
which is several times faster than a copy of the graph for each.

Legend: P graphs, S placements of each, G groups, E edges, C candidate devices (1 where the network
does not score candidates one by one), F features, W width, K groups placed now.
"""

from __future__ import annotations

from placeto_tf.encoding import (
  derived,
  schema,  # checks for the legacy Keras, so before TensorFlow
)
from placeto_tf.policies.layers import Seeds, perceptron

import tensorflow as tf  # isort: skip
import tensorflow_gnn as tfgnn  # isort: skip

RAW, HEARS, EDGE = "raw", "hears", "edge"  # features of groups and of edges
_OWN = "own"


def group_graph(arrays: derived.Derived, raw: tf.Tensor) -> tfgnn.GraphTensor:
  """P graphs as components of one GraphTensor, with the schema's groups and dataflow.

  Args:
    arrays: of P graphs, see `derived.GraphTable`.
    raw: [P, G, S, C, F] raw features.

  Returns:
    A scalar GraphTensor. Groups carry `RAW` [P G, S, C, F] and `HEARS` [P G, 1, 1, 2]; edges carry
    `EDGE` [P E, 1, 1, 2].
  """
  p, g = tf.shape(raw)[0], tf.shape(raw)[1]
  edges = tf.shape(arrays[derived.SOURCES])[1]
  first = tf.range(p)[:, None] * g  # of each graph

  def ends(name):
    return schema.GROUP, tf.reshape(arrays[name] + first, [-1])

  return tfgnn.GraphTensor.from_pieces(
      node_sets={schema.GROUP: tfgnn.NodeSet.from_fields(
          sizes=tf.fill([p], g), features={
              RAW: tf.reshape(raw, tf.concat([[p * g], tf.shape(raw)[2:]], axis=0)),
              HEARS: tf.reshape(arrays[derived.HEARS], [-1, 1, 1, 2])})},
      edge_sets={schema.DATAFLOW: tfgnn.EdgeSet.from_fields(
          sizes=tf.fill([p], edges),
          features={EDGE: tf.reshape(arrays[derived.EDGES], [-1, 1, 1, 2])},
          adjacency=tfgnn.Adjacency.from_indices(ends(derived.SOURCES), ends(derived.TARGETS)))})


class Messages(tfgnn.keras.layers.AnyToAnyConvolutionBase):
  """The sum of f(x_u) over the groups u at the other ends of a group's edges.

  `weigh_edges` scales messages by 1 + w * bytes with a learned w [W] that starts at 0; in the paper
  all edges count alike.
  """

  def __init__(self, width: int, seeds: Seeds, *, receiver_tag, weigh_edges: bool, padded: bool):
    super().__init__(
        receiver_tag=receiver_tag, sender_node_feature=tfgnn.HIDDEN_STATE,
        sender_edge_feature=EDGE, receiver_feature=None)
    self._f, self._padded = perceptron(width, seeds), padded
    self._gain = self.add_weight(
        name="edge_gain", shape=(width,), initializer="zeros") if weigh_edges else None

  def convolve(
      self, *, sender_node_input, sender_edge_input, broadcast_from_sender_node, pool_to_receiver,
      **_):
    """[P G, S, C, W]; see the base class."""
    # f comes before the gather: there are fewer groups than edges.
    messages = broadcast_from_sender_node(self._f(sender_node_input))
    real, share = sender_edge_input[..., :1], sender_edge_input[..., 1:]
    if self._gain is not None:
      messages *= real * (1.0 + share * self._gain)
    elif self._padded:
      messages *= real
    return pool_to_receiver(messages, reduce_type="sum")


class NextState(tf.keras.layers.Layer):
  """x_v <- g(sum of messages) + transform(raw_v); the second alone where v hears of none."""

  def __init__(self, width: int, seeds: Seeds, *, forward: bool, squash: bool):
    """Args: squash: tanh of the result."""
    super().__init__()
    self._g, self._hears = perceptron(width, seeds), 0 if forward else 1
    self._squash = tf.tanh if squash else tf.identity

  def call(self, inputs):
    """See `tfgnn.keras.layers.NodeSetUpdate`."""
    node, edges, _ = inputs
    hears = node[HEARS][..., self._hears:self._hears + 1]
    return self._squash(node[_OWN] + hears * self._g(edges[schema.DATAFLOW]))


class MessagePassing(tf.keras.layers.Layer):
  """Rounds of one `GraphUpdate`, along the dataflow or against it.

  The same f, g and transform serve all rounds, as in the paper.
  """

  def __init__(
      self, width: int, rounds: int, seeds: Seeds, *, forward: bool, weigh_edges: bool,
      squash: bool, transform_layers: int = 2, padded: bool = False):
    """Args: forward: from producers to consumers; padded: whether there may be padding edges."""
    super().__init__()
    self._rounds, self._squash = rounds, tf.tanh if squash else tf.identity
    messages = Messages(
        width, seeds, receiver_tag=tfgnn.TARGET if forward else tfgnn.SOURCE,
        weigh_edges=weigh_edges, padded=padded)
    next_state = NextState(width, seeds, forward=forward, squash=squash)
    self._update = tfgnn.keras.layers.GraphUpdate(node_sets={
        schema.GROUP: tfgnn.keras.layers.NodeSetUpdate(
            {schema.DATAFLOW: messages}, next_state, node_input_feature=[_OWN, HEARS])})
    self._transform = perceptron(width, seeds, layers=transform_layers, last=None)

  def call(self, graph: tfgnn.GraphTensor) -> tf.Tensor:
    """[P G, S, C, W] from raw features `RAW` [P G, S, C, F]."""
    features = dict(graph.node_sets[schema.GROUP].features)
    own = self._transform(features[RAW])
    features[tfgnn.HIDDEN_STATE] = self._squash(own)
    # A copy for each round: the gradient of copies is stacked and summed in their order. That of
    # one tensor would be summed by AddN, which begins with whichever summand's memory is free to
    # be reused at that moment, so that runs would differ in the last bit.
    copies = tf.unstack(tf.broadcast_to(
        own[None], tf.concat([[self._rounds], tf.shape(own)], axis=0)), num=self._rounds)
    for each in copies:
      features[_OWN] = each
      graph = self._update(graph.replace_features(node_sets={schema.GROUP: features}))
      features = dict(graph.node_sets[schema.GROUP].features)
    return features[tfgnn.HIDDEN_STATE]


class Poolings(tf.keras.layers.Layer):
  """For each current group: its own embedding beside sums over ancestors, descendants, parallels.

  `mean` divides sums by the number of groups of the graph.
  """

  def __init__(self, width: int, seeds: Seeds, *, mean: bool):
    super().__init__()
    self._f, self._g = ([perceptron(width, seeds) for _ in range(3)] for _ in range(2))
    self._mean = mean

  def call(self, embedding: tf.Tensor, current: tf.Tensor, arrays: derived.Derived) -> tf.Tensor:
    """[P, S, K, C, 4 W] from embedding [P, G, S, C, W] and current groups [P, S, K]."""
    by_placement = tf.transpose(embedding, [0, 2, 1, 3, 4])  # [P, S, G, C, W]
    parts = [tf.gather(by_placement, current, batch_dims=2)]
    masks = tf.gather(arrays[derived.RELATIVES], current, axis=2, batch_dims=1)  # [P, 3, S, K, G]
    if self._mean:
      masks /= _num_groups(arrays)[:, None, None, None, None]
    for i, (f, g) in enumerate(zip(self._f, self._g)):
      parts.append(g(_pool(masks[:, i], f(by_placement))))
    return tf.concat(parts, axis=-1)


class SumOfAll(tf.keras.layers.Layer):
  """One sum over all groups, whichever is current: the paper's simple aggregator.

  Only the flag of the current group among the raw features distinguishes decisions.
  """

  def __init__(self, width: int, seeds: Seeds, *, mean: bool):
    super().__init__()
    self._f, self._g, self._mean = perceptron(width, seeds), perceptron(width, seeds), mean

  def call(self, embedding: tf.Tensor, current: tf.Tensor, arrays: derived.Derived) -> tf.Tensor:
    """[P, S, K, C, W] from embedding [P, G, S, C, W]."""
    everyone = arrays[derived.EVERYONE]
    if self._mean:
      everyone /= _num_groups(arrays)[:, None]
    masks = tf.tile(everyone[:, None, None], [1, tf.shape(embedding)[2], 1, 1])  # [P, S, 1, G]
    total = self._g(_pool(masks, self._f(tf.transpose(embedding, [0, 2, 1, 3, 4]))))
    return tf.repeat(total, tf.shape(current)[2], axis=2)  # [P, S, 1, C, W] for each group


def _num_groups(arrays: derived.Derived) -> tf.Tensor:
  """[P], without padding."""
  return tf.reduce_sum(arrays[derived.EVERYONE], axis=1)


def _pool(mask: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
  """[P, S, K, C, W] sums of values [P, S, G, C, W] by mask [P, S, K, G]."""
  shape, w = tf.shape(values), values.shape[-1]
  flat = tf.reshape(values, tf.concat([shape[:3], [shape[3] * w]], axis=0))
  pooled = tf.matmul(mask, flat)
  return tf.reshape(pooled, tf.concat([tf.shape(pooled)[:3], [shape[3], w]], axis=0))
