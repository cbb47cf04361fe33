"""GDP's placer: a Transformer-XL over nodes in topological order, gated by the graph.

arXiv 1910.01578, sections 3.2 and 3.3. The nodes are divided into segments. A node attends to its
own segment and to a memory: the hidden states of the previous segment at the layer below, through
which no gradient flows (Dai et al. 2019). There are no position embeddings and no causal mask,
since all nodes are placed at once. The memory is as long as a segment, so the memory of a layer is
known as soon as the layer below is done. So all segments are computed side by side, with the same
values as one after the other.

Superposition: a vector that describes graph and cluster gates the inputs of every layer, element by
element, so that the network can behave differently for each graph.

The nodes of several graphs are concatenated; each graph begins a new segment, without a memory.

Dimensions: P graphs, M nodes of all graphs, S segments, L nodes per segment, W width, H heads,
C width of the condition.
"""

from __future__ import annotations

from typing import Tuple

import numpy as np
import tensorflow as tf

from placeto_tf.policies.layers import Seeds, dense

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
    """Makes the layers.

    Args:
      width: W.
      layers: number of layers.
      heads: H, a divisor of W.
      segment: L.
      seeds: of the weights.
      **kwargs: of Keras.
    """
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
