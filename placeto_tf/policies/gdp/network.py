"""GDP's network: node inputs -> a logit for every (node, device), in one pass.

arXiv 1910.01578, section 3: embedding, placer and a softmax over devices are trained together.
Devices are identified by their position in the cluster, as in the paper. Several graphs are
components of one GraphTensor; no information passes between them.

Dimensions: P graphs, M nodes of all graphs, D devices (padded), W width.
"""

from __future__ import annotations

import dataclasses
from typing import Dict

from placeto_tf.encoding import schema  # checks for the legacy Keras, so before TensorFlow
from placeto_tf.errors import PlacementError, check_at_least
from placeto_tf.policies.gdp import node_inputs as inputs_lib
from placeto_tf.policies.gdp.graph_embedding import GraphEmbedding, node_graph
from placeto_tf.policies.gdp.node_inputs import NodeTable
from placeto_tf.policies.gdp.placer import Placer
from placeto_tf.policies.layers import Seeds, dense

import tensorflow as tf  # isort: skip
import tensorflow_gnn as tfgnn  # isort: skip


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
    """Makes the network.

    Args:
      config: its sizes.
      seed: of the weights.
    """
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
    self(NodeTable([inputs_lib.one_node(config.max_devices)])([0]))  # makes the variables

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
    """Multiplies all logits by a factor; the likeliest devices do not change.

    Args:
      factor: above 0.
    """
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
