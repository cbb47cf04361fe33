"""The published graph embedding and poolings on TensorFlow GNN.

Placeto section 3.2. A batch holds P graphs and S placements of each graph. The GraphTensor holds
each graph once, as a component of G groups, and its features have an axis for placements,
[P G, S, F]. A gather along an edge then moves one contiguous row for all placements, which is
several times as fast as with a copy of the graph for each placement.

Dimensions: P graphs, S placements of each graph, G groups, E edges, F features, W width, K current
groups.
"""

from __future__ import annotations

from placeto_tf.encoding import derived, schema  # checks for the legacy Keras before TensorFlow
from placeto_tf.policies.layers import Seeds, perceptron

import tensorflow as tf  # isort: skip
import tensorflow_gnn as tfgnn  # isort: skip

RAW, HEARS, EDGE = "raw", "hears", "edge"  # features of groups and of edges
_OWN = "own"


def group_graph(arrays: derived.Derived, raw: tf.Tensor) -> tfgnn.GraphTensor:
  """Returns P graphs as components of one GraphTensor, with the schema's groups and dataflow.

  Args:
    arrays: of P graphs, see `derived.GraphTable`.
    raw: [P, G, S, F] raw features.

  Returns:
    A scalar GraphTensor. Groups carry `RAW` [P G, S, F] and `HEARS` [P G, 1, 2]; edges carry
    `EDGE` [P E, 1, 1].
  """
  p, g = tf.shape(raw)[0], tf.shape(raw)[1]
  edges = tf.shape(arrays[derived.SOURCES])[1]  # E
  first = tf.range(p)[:, None] * g  # number of the first group of each graph

  def ends(name):
    """Returns the node set and [P E] numbers of nodes of one end of the edges."""
    return schema.GROUP, tf.reshape(arrays[name] + first, [-1])

  return tfgnn.GraphTensor.from_pieces(
      node_sets={schema.GROUP: tfgnn.NodeSet.from_fields(
          sizes=tf.fill([p], g), features={
              RAW: tf.reshape(raw, tf.concat([[p * g], tf.shape(raw)[2:]], axis=0)),
              HEARS: tf.reshape(arrays[derived.HEARS], [-1, 1, 2])})},
      edge_sets={schema.DATAFLOW: tfgnn.EdgeSet.from_fields(
          sizes=tf.fill([p], edges),
          features={EDGE: tf.reshape(arrays[derived.EDGES], [-1, 1, 1])},
          adjacency=tfgnn.Adjacency.from_indices(ends(derived.SOURCES), ends(derived.TARGETS)))})


class Messages(tfgnn.keras.layers.AnyToAnyConvolutionBase):
  """The sum of f(x_u) over the neighbours u of a group, with equal weights."""

  def __init__(self, width: int, seeds: Seeds, *, receiver_tag):
    """Makes f.

    Args:
      width: W.
      seeds: of the weights.
      receiver_tag: the receiving end of an edge: target along the dataflow, source against it.
    """
    super().__init__(
        receiver_tag=receiver_tag, sender_node_feature=tfgnn.HIDDEN_STATE,
        sender_edge_feature=EDGE, receiver_feature=None)
    self._f = perceptron(width, seeds)  # [P G, S, W] -> [P G, S, W]

  def convolve(
      self, *, sender_node_input, sender_edge_input, broadcast_from_sender_node, pool_to_receiver,
      **_):
    """Sums the messages to each group; see the base class.

    Args:
      sender_node_input: [P G, S, W] states of groups.
      sender_edge_input: [P E, 1, 1], 0 for padding edges.
      broadcast_from_sender_node, pool_to_receiver: functions of the base class.
      **_: inputs that are not used.

    Returns:
      [P G, S, W].
    """
    # f comes before the gather: there are fewer groups than edges.
    messages = broadcast_from_sender_node(self._f(sender_node_input))  # [P E, S, W]
    return pool_to_receiver(messages * sender_edge_input[..., :1], reduce_type="sum")


class NextState(tf.keras.layers.Layer):
  """x_v <- g(sum of messages) + transform(raw_v); without the first term if v gets no messages."""

  def __init__(self, width: int, seeds: Seeds, *, forward: bool):
    super().__init__()
    # g: [P G, S, W] -> [P G, S, W]; the column of HEARS that counts in this direction.
    self._g, self._hears = perceptron(width, seeds), 0 if forward else 1

  def call(self, inputs):
    """Computes the next state of groups; see `tfgnn.keras.layers.NodeSetUpdate`.

    Args:
      inputs: (features of groups, sums of messages by edge set, context).

    Returns:
      [P G, S, W].
    """
    node, edges, _ = inputs
    hears = node[HEARS][..., self._hears:self._hears + 1]  # [P G, 1, 1]
    return node[_OWN] + hears * self._g(edges[schema.DATAFLOW])


class MessagePassing(tf.keras.layers.Layer):
  """Rounds of one `GraphUpdate`, along the dataflow or against it.

  The same f, g and transform serve all rounds, as in the paper.
  """

  def __init__(
      self, width: int, rounds: int, seeds: Seeds, *, forward: bool, transform_layers: int = 2):
    """Makes the layers, which all rounds share.

    Args:
      width: W.
      rounds: number of rounds.
      seeds: of the weights.
      forward: True sends messages from producers to consumers, False against the dataflow.
      transform_layers: number of layers of the transform of a group's own features.
    """
    super().__init__()
    self._rounds = rounds
    # A round: f and the sum over edges, then g and the group's own features.
    messages = Messages(width, seeds, receiver_tag=tfgnn.TARGET if forward else tfgnn.SOURCE)
    next_state = NextState(width, seeds, forward=forward)
    self._update = tfgnn.keras.layers.GraphUpdate(node_sets={
        schema.GROUP: tfgnn.keras.layers.NodeSetUpdate(
            {schema.DATAFLOW: messages}, next_state, node_input_feature=[_OWN, HEARS])})
    # [P G, S, F] -> [P G, S, W]
    self._transform = perceptron(width, seeds, layers=transform_layers, last=None)

  def call(self, graph: tfgnn.GraphTensor) -> tf.Tensor:
    """Computes all rounds.

    Args:
      graph: with raw features `RAW` [P G, S, F], see `group_graph`.

    Returns:
      [P G, S, W].
    """
    features = dict(graph.node_sets[schema.GROUP].features)
    own = self._transform(features[RAW])  # [P G, S, W], the state before the first round
    features[tfgnn.HIDDEN_STATE] = own
    # A copy for each round: gradients of copies are stacked and summed in a fixed order. AddN would
    # sum the gradients of a single tensor; it begins with any summand whose memory is free to be
    # reused at that moment, so that runs would differ in the last bit.
    copies = tf.unstack(tf.broadcast_to(
        own[None], tf.concat([[self._rounds], tf.shape(own)], axis=0)), num=self._rounds)
    for each in copies:
      features[_OWN] = each
      graph = self._update(graph.replace_features(node_sets={schema.GROUP: features}))
      features = dict(graph.node_sets[schema.GROUP].features)
    return features[tfgnn.HIDDEN_STATE]


class Poolings(tf.keras.layers.Layer):
  """Embeddings of the current groups, and sums over their ancestors, descendants and parallels."""

  def __init__(self, width: int, seeds: Seeds):
    super().__init__()
    # Per partition: f: W -> W before the sum, g: W -> W after.
    self._f, self._g = ([perceptron(width, seeds) for _ in range(3)] for _ in range(2))

  def call(self, embedding: tf.Tensor, current: tf.Tensor, arrays: derived.Derived) -> tf.Tensor:
    """Pools embeddings over the ancestors, descendants and parallel groups of current groups.

    Args:
      embedding: [P, G, S, W].
      current: [P, S, K] int32 groups.
      arrays: of P graphs, see `derived.GraphTable`.

    Returns:
      [P, S, K, 4 W]: the group's own embedding, then its ancestors', descendants' and parallels'.
    """
    by_placement = tf.transpose(embedding, [0, 2, 1, 3])  # [P, S, G, W]
    parts = [tf.gather(by_placement, current, batch_dims=2)]  # [P, S, K, W]
    masks = tf.gather(arrays[derived.RELATIVES], current, axis=2, batch_dims=1)  # [P, 3, S, K, G]
    for i, (f, g) in enumerate(zip(self._f, self._g)):
      parts.append(g(tf.matmul(masks[:, i], f(by_placement))))  # [P, S, K, G] @ [P, S, G, W]
    return tf.concat(parts, axis=-1)


class SumOfAll(tf.keras.layers.Layer):
  """The paper's simple aggregator: one sum over all groups, the same for any current group.

  Only the flag of the current group among the raw features distinguishes decisions.
  """

  def __init__(self, width: int, seeds: Seeds):
    super().__init__()
    self._f, self._g = perceptron(width, seeds), perceptron(width, seeds)  # W -> W each

  def call(self, embedding: tf.Tensor, current: tf.Tensor, arrays: derived.Derived) -> tf.Tensor:
    """Sums over all groups.

    Args:
      embedding: [P, G, S, W].
      current: [P, S, K] int32 groups; only K is used.
      arrays: of P graphs, see `derived.GraphTable`.

    Returns:
      [P, S, K, W].
    """
    # [P, G]: 1 for groups, which have a device, 0 for padding.
    everyone = tf.reduce_max(arrays[derived.ALLOWED], axis=2)
    masks = tf.tile(everyone[:, None, None], [1, tf.shape(embedding)[2], 1, 1])  # [P, S, 1, G]
    # [P, S, 1, W]
    total = self._g(tf.matmul(masks, self._f(tf.transpose(embedding, [0, 2, 1, 3]))))
    return tf.repeat(total, tf.shape(current)[2], axis=2)  # [P, S, 1, W] for each group
