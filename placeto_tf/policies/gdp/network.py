"""GDP's network: node inputs -> a logit for every (node, device), in one pass.

arXiv 1910.01578, section 3. Embedding, placer and a softmax over devices, trained together. Devices
are identified by their place in the cluster, as in the paper; devices that are missing, or that a
node may not use, are masked.

Legend: M nodes, P devices, padded; W width.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Dict

import numpy as np
import tensorflow as tf

from placeto_tf.errors import PlacementError, check_at_least
from placeto_tf.policies.gdp import node_inputs as inputs_lib
from placeto_tf.policies.gdp.graph_embedding import GraphEmbedding
from placeto_tf.policies.gdp.placer import Placer
from placeto_tf.policies.placeto.embedding import Seeds, dense
from placeto_tf.training.one_shot_policy import NEVER


@dataclasses.dataclass(frozen=True)
class GdpConfig:
  """Sizes; the paper does not state all of them.

  Attributes:
    max_devices: P, hosts included.
    width: W, of embedding and placer.
    rounds: of GraphSAGE.
    layers, heads: of the placer.
    segment: nodes per segment, and per memory.
    superposition: whether graph and cluster gate the placer's layers.
    initial_spread: about how far the logits of an untrained network lie apart.
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

  def to_json(self) -> Dict[str, Any]:
    """The configuration from the JSON file beside the weights."""
    return dataclasses.asdict(self)


class GdpNetwork(tf.keras.Model):
  """See the module; the constructor makes all variables."""

  def __init__(self, config: GdpConfig, seed: int = 0):
    super().__init__(name="gdp")
    self.config = config
    seeds = Seeds(seed)
    self._embedding = GraphEmbedding(config.width, config.rounds, seeds)
    self._cluster = dense(config.width, seeds, "relu")
    self._condition = dense(config.width, seeds, "tanh")
    self._placer = Placer(config.width, config.layers, config.heads, config.segment, seeds)
    self._head = dense(config.max_devices, seeds, scale=config.initial_spread**2)
    self(self._example())

  def call(self, inputs: Dict[str, tf.Tensor]) -> tf.Tensor:
    """[M, P] logits from `NodeInputs.arrays()`."""
    x = self._embedding(*(
        inputs[name] for name in (
            inputs_lib.OP_TYPES, inputs_lib.FEATURES, inputs_lib.SOURCES, inputs_lib.TARGETS)))
    condition = self._condition(tf.concat([
        tf.reduce_mean(x, axis=0), tf.reduce_max(x, axis=0),
        self._cluster(tf.reshape(inputs[inputs_lib.DEVICES], [1, -1]))[0]], axis=0)[None])[0]
    if not self.config.superposition:
      condition = tf.zeros_like(condition)
    logits = self._head(_spread(self._placer(_spread(x), condition)))
    return tf.where(inputs[inputs_lib.MASK] > 0, logits, NEVER)

  def scale_logits(self, factor: float) -> None:
    """Multiplies all logits; which device is the likeliest does not change."""
    for variable in self._head.variables:
      variable.assign(factor * variable)

  def signature(self) -> Dict[str, tf.TensorSpec]:
    """The signature of `call`: one trace serves graphs of all sizes."""
    return {name: tf.TensorSpec(shape, value.dtype) for name, value, shape in (
        (name, value, [None, *value.shape[1:]]) for name, value in self._example().items())}

  def _example(self) -> Dict[str, tf.Tensor]:
    p = self.config.max_devices
    return {name: tf.constant(value) for name, value in inputs_lib.NodeInputs(
        np.zeros(1, np.int32), np.zeros((1, inputs_lib.NODE_FEATURES), np.float32),
        np.zeros(0, np.int32), np.zeros(0, np.int32), np.ones((1, p), np.float32),
        np.zeros((p, inputs_lib.DEVICE_FEATURES), np.float32)).arrays().items()}


def _spread(x: tf.Tensor) -> tf.Tensor:
  """[M, W] minus the mean over the nodes, and scaled to a mean square of 1.

  The mean is most of an untrained embedding, and would put all nodes on one device.
  """
  centred = x - tf.reduce_mean(x, axis=0)
  return centred * tf.math.rsqrt(tf.reduce_mean(tf.square(centred)) + 1e-6)
