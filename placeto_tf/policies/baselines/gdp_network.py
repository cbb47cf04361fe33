"""GDP's network: node inputs -> a logit for every (node, device), in one pass.

arXiv 1910.01578, section 3: embedding, placer and a softmax over devices are trained together.
Devices are identified by their position in the cluster, as in the paper. Several graphs are
components of one GraphTensor; no information passes between them.

The embedding (section 3.1) is GraphSAGE with max pooling over neighbours (Hamilton et al. 2017,
section 3.3), on TensorFlow GNN. Producers and consumers are pooled separately, because inputs and
outputs of an op affect a placement in different ways.

The placer (sections 3.2 and 3.3) is a Transformer-XL over nodes in topological order, gated by the
graph. The nodes are divided into segments. A node attends to its own segment and to a memory: the
hidden states of the previous segment at the layer below, through which no gradient flows (Dai et
al. 2019). There are no position embeddings and no causal mask, since all nodes are placed at once.
The memory is as long as a segment, so the memory of a layer is known as soon as the layer below is
done. So all segments are computed side by side, with the same values as one after the other. Each
graph begins a new segment, without a memory.

Superposition: a vector that describes graph and cluster gates the inputs of every layer, element by
element, so that the network can behave differently for each graph.

Dimensions: P graphs, M nodes and E edges of all graphs, F features, S segments, L nodes per
segment, W width, H heads, C width of the condition, D devices (padded).
"""

from __future__ import annotations

import dataclasses
from typing import Dict, Tuple

import numpy as np

from placeto_tf.encoding import schema  # checks for the legacy Keras, so before TensorFlow
from placeto_tf.encoding.grouped_graph import OP_TYPE_BUCKETS
from placeto_tf.errors import PlacementError, check_at_least
from placeto_tf.policies.baselines import gdp_inputs as inputs_lib
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
    # Types [M, 16] beside the features.
    x = self._first(tf.concat([tf.gather(1.0 * self._types, op_types), features], axis=-1))
    for layer in self._rounds:
      x = layer(graph, x)
    return x


# Scale of the weights of residual branches. An untrained branch adds nearly the same vector to all
# nodes of a segment; at full scale, whole segments would be placed alike.
_QUIET = 0.1


class Gate(tf.keras.layers.Layer):
  """Multiplies x by 1 + a linear layer of the condition; it starts near the identity."""

  def __init__(self, width: int, seeds: Seeds, **kwargs):
    super().__init__(**kwargs)
    self._gate = dense(width, seeds, scale=0.1)  # [S, C] -> [S, W]

  def call(self, x: tf.Tensor, condition: tf.Tensor) -> tf.Tensor:
    """Gates vectors by the condition of their segment.

    Args:
      x: [S, L, W].
      condition: [S, C].

    Returns:
      [S, L, W].
    """
    return x * (1.0 + self._gate(condition)[:, None])


class SegmentAttention(tf.keras.layers.Layer):
  """Multi-head attention of each segment to itself and to the previous segment."""

  def __init__(self, width: int, heads: int, seeds: Seeds, **kwargs):
    super().__init__(**kwargs)
    self._heads, self._size = heads, width // heads  # H, W / H
    # [..., W] -> [..., W] each.
    self._query, self._key, self._value = (dense(width, seeds) for _ in range(3))
    self._output = dense(width, seeds, scale=_QUIET)  # [S, L, W] -> [S, L, W]

  def call(self, here: tf.Tensor, around: tf.Tensor, visible: tf.Tensor) -> tf.Tensor:
    """Lets each node attend to its own segment and to the previous segment.

    Args:
      here: [S, L, W] nodes that attend.
      around: [S, 2L, W] nodes of the previous segment, then of this one.
      visible: [S, 2L] bool, False for padding and for a missing previous segment.

    Returns:
      [S, L, W].
    """
    # [S, L, H, W / H], and [S, 2L, H, W / H] for keys and values.
    query, key, value = (
        self._split(layer(x)) for layer, x in (
            (self._query, here), (self._key, around), (self._value, around)))
    scores = tf.einsum("slhw,skhw->shlk", query, key) * self._size**-0.5  # [S, H, L, 2L]
    scores = tf.where(visible[:, None, None, :], scores, -np.inf)  # each segment sees itself
    mixed = tf.einsum("shlk,skhw->slhw", tf.nn.softmax(scores), value)  # [S, L, H, W / H]
    return self._output(tf.reshape(mixed, tf.shape(here)))

  def _split(self, x: tf.Tensor) -> tf.Tensor:
    """Returns [S, any, H, W / H] from [S, any, W]."""
    shape = tf.shape(x)
    return tf.reshape(x, [shape[0], shape[1], self._heads, self._size])


class PlacerLayer(tf.keras.layers.Layer):
  """Two residual blocks, attention and two dense layers; their inputs are normalized and gated."""

  def __init__(self, width: int, heads: int, seeds: Seeds, **kwargs):
    super().__init__(**kwargs)
    # Before attention, before the dense layers.
    self._norms = [tf.keras.layers.LayerNormalization() for _ in range(2)]
    self._gates = [Gate(width, seeds, name=f"gate_{i}") for i in range(2)]
    self._attention = SegmentAttention(width, heads, seeds)
    # [S, L, W] -> [S, L, 2 W], ReLU -> [S, L, W].
    self._dense = [dense(2 * width, seeds, "relu"), dense(width, seeds, scale=_QUIET)]

  def call(
      self, x: tf.Tensor, valid: tf.Tensor, begins: tf.Tensor, condition: tf.Tensor) -> tf.Tensor:
    """Applies attention, then the dense layers.

    Args:
      x: [S, L, W] hidden states.
      valid: [S, L] bool, False for padding.
      begins: [S] bool, True for the first segment of a graph.
      condition: [S, C].

    Returns:
      [S, L, W].
    """
    around, visible = with_memory(x, valid, begins)  # [S, 2L, W], [S, 2L]
    around = self._gates[0](self._norms[0](around), condition)
    # The queries are the second half, the segment itself.
    x += self._attention(around[:, tf.shape(x)[1]:], around, visible)
    # Residual: two dense layers over the normalized and gated states.
    y = self._gates[1](self._norms[1](x), condition)
    for layer in self._dense:
      y = layer(y)
    return x + y


def with_memory(
    x: tf.Tensor, valid: tf.Tensor, begins: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
  """Puts the previous segment, through which no gradient flows, before each segment.

  Args:
    x: [S, L, W] hidden states.
    valid: [S, L] bool, False for padding.
    begins: [S] bool, True for the first segment of a graph, which has no previous segment.

  Returns:
    [S, 2L, W] the previous segment, then the segment; and [S, 2L] bool, the visible nodes.
  """
  # Before segment s is s - 1; before the first segment there are zeros, which `begins` hides.
  memory = tf.concat([tf.zeros_like(x[:1]), tf.stop_gradient(x[:-1])], axis=0)
  remembered = tf.concat([valid[:1], valid[:-1]], axis=0) & ~begins[:, None]
  return tf.concat([memory, x], axis=1), tf.concat([remembered, valid], axis=1)


class Placer(tf.keras.layers.Layer):
  """The layers of the placer; it divides nodes into segments, and concatenates them again."""

  def __init__(
      self, width: int, layers: int, heads: int, segment: int, seeds: Seeds, **kwargs):
    """Makes the layers."""
    super().__init__(**kwargs)
    self._segment = segment
    self._layers = [PlacerLayer(width, heads, seeds, name=f"layer_{i}") for i in range(layers)]
    self._norm = tf.keras.layers.LayerNormalization()  # after the last layer

  def call(self, nodes: tf.Tensor, condition: tf.Tensor, sizes: tf.Tensor) -> tf.Tensor:
    """Refines the vectors of nodes by attention to nodes near them in topological order.

    Args:
      nodes: [M, W] of all graphs, each graph's in topological order.
      condition: [P, C] of each graph.
      sizes: [P] int32, nodes of each graph.

    Returns:
      [M, W].
    """
    length, width = self._segment, nodes.shape[-1]
    count = -(-sizes // length)  # [P] segments
    total, first = tf.reduce_sum(count), tf.cumsum(count, exclusive=True)
    # Slots: nodes keep their order, and each graph begins at a multiple of L.
    shift = first * length - tf.cumsum(sizes, exclusive=True)
    slots = (tf.range(tf.shape(nodes)[0]) + tf.repeat(shift, sizes))[:, None]  # [M, 1]
    # [S, L, W]
    x = tf.reshape(tf.scatter_nd(slots, nodes, [total * length, width]), [total, length, width])
    # [S, L] a slot is valid if it holds a node.
    valid = tf.reshape(tf.scatter_nd(slots, tf.ones_like(slots)[:, 0], [total * length]) > 0,
                       [total, length])
    begins = tf.scatter_nd(first[:, None], tf.ones_like(first), [total]) > 0  # [S]
    condition = tf.repeat(condition, count, axis=0)  # [S, C]
    for layer in self._layers:
      x = layer(x, valid, begins, condition)
    # Back from slots to nodes: [M, W].
    return self._norm(tf.gather_nd(tf.reshape(x, [-1, width]), slots))


@dataclasses.dataclass(frozen=True)
class GdpConfig:
  """Sizes; the paper does not state all of them.

  Attributes:
    max_devices: D, hosts included.
    width: W, of embedding and placer.
    rounds: number of GraphSAGE rounds.
    layers, heads: of the placer.
    segment: nodes per segment, and per memory.
    superposition: whether graph and cluster gate the placer's layers.
    initial_spread: approximate spread of the logits of an untrained network.
  """

  max_devices: int = 9
  width: int = 64
  rounds: int = 3
  layers: int = 2
  heads: int = 4
  segment: int = 128
  superposition: bool = True
  initial_spread: float = 1.0

  def __post_init__(self) -> None:
    check_at_least(1, self, "max_devices", "width", "rounds", "layers", "heads", "segment")
    if self.width % self.heads:
      raise PlacementError(
          f"width is {self.width}; expected a multiple of the {self.heads} heads")


class GdpNetwork(tf.keras.Model):
  """Embedding, placer and head; see the module. The constructor makes all variables."""

  def __init__(self, config: GdpConfig, seed: int = 0):
    """Makes the network."""
    super().__init__(name="gdp")
    self.config = config
    seeds = Seeds(seed)
    self._embedding = GraphEmbedding(config.width, config.rounds, seeds)  # -> [M, W]
    self._cluster = dense(config.width, seeds, "relu")  # [P, D C] -> [P, W]
    self._condition = dense(config.width, seeds, "tanh")  # [P, 3 W] -> [P, W]
    # [M, W], conditions [P, W] -> [M, W].
    self._placer = Placer(config.width, config.layers, config.heads, config.segment, seeds)
    # [M, W] -> [M, D]
    self._head = dense(config.max_devices, seeds, scale=config.initial_spread**2)
    # Makes the variables.
    self(inputs_lib.NodeTable([inputs_lib.one_node(config.max_devices)])([0]))

  def call(self, inputs: Dict[str, tf.Tensor]) -> tf.Tensor:
    """Computes the logits of graphs, before devices are masked.

    Args:
      inputs: as `NodeTable` looks them up.

    Returns:
      [M, D].
    """
    sizes = inputs[inputs_lib.NUM_NODES]
    graph = node_graph(sizes, *(inputs[name] for name in (
        inputs_lib.NUM_EDGES, inputs_lib.SOURCES, inputs_lib.TARGETS)))
    x = self._embedding(graph, inputs[inputs_lib.OP_TYPES], inputs[inputs_lib.FEATURES])  # [M, W]
    # Mean and maximum over nodes describe the graph, device features describe the cluster.
    condition = self._condition(tf.concat([
        _of_each(graph, x, "mean"), _of_each(graph, x, "max"),
        self._cluster(inputs[inputs_lib.DEVICES])], axis=1))
    if not self.config.superposition:
      condition = tf.zeros_like(condition)  # gates near 1, the same for all graphs
    # Centred before the placer and before the head.
    return self._head(_spread(graph, self._placer(_spread(graph, x), condition, sizes)))

  def scale_logits(self, factor: float) -> None:
    """Multiplies all logits by a factor; the likeliest devices do not change."""
    for variable in self._head.variables:
      variable.assign(factor * variable)


def _of_each(graph: tfgnn.GraphTensor, x: tf.Tensor, how: str) -> tf.Tensor:
  """Reduces x [M, W] over the nodes of each graph, to [P, W]."""
  return tfgnn.pool_nodes_to_context(graph, schema.GROUP, reduce_type=how, feature_value=x)


def _spread(graph: tfgnn.GraphTensor, x: tf.Tensor) -> tf.Tensor:
  """Subtracts the mean over a graph's nodes from x [M, W], and scales to a mean square of 1.

  The mean dominates an untrained embedding, and would put all nodes on one device.
  """
  def spread_out(of_graph):
    """Returns [M, any] from [P, any]: each graph's row for all its nodes."""
    return tfgnn.broadcast_context_to_nodes(graph, schema.GROUP, feature_value=of_graph)

  centred = x - spread_out(_of_each(graph, x, "mean"))  # [M, W]
  # [P, 1]
  square = tf.reduce_mean(_of_each(graph, tf.square(centred), "mean"), axis=1, keepdims=True)
  return centred * spread_out(tf.math.rsqrt(square + 1e-6))
