"""The device pointer's networks: a perceptron shared by all (group, device) pairs, and a value.

Legend: P devices, padded; F features; H width.
"""

from __future__ import annotations

from typing import Sequence

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from tf_agents.networks import network
from tf_agents.specs import distribution_spec, tensor_spec

from placeto_tf.encoding.pair_features import NAMES
from placeto_tf.environments.moves_environment import FEATURES, MASK
from placeto_tf.policies.device_pointer.scorer import CAP, WIDTH, ScorerWeights

NEVER = -1e9  # the logit of a device that may not be used; finite, or entropies become NaN


def _layers(width: int, seed: int):
  def init(k):
    return tf.keras.initializers.GlorotUniform(seed=seed * 10 + k)
  return [
      tf.keras.layers.Dense(width, "relu", kernel_initializer=init(1), name="hidden_1"),
      tf.keras.layers.Dense(width, "relu", kernel_initializer=init(2), name="hidden_2"),
      tf.keras.layers.Dense(1, use_bias=False, kernel_initializer=init(3), name="output")]


def _kept(without: Sequence[str]) -> np.ndarray:
  """[F] float32: 0 for features of these names, else 1."""
  return np.array([name not in without for name in NAMES], np.float32)


class PairNetwork(network.DistributionNetwork):
  """Observation (see `environments.moves_environment`) -> Categorical over devices.

  `without` names features that it does not see, for ablations.
  """

  def __init__(
      self, input_tensor_spec, action_spec, *, width: int = WIDTH, seed: int = 0,
      without: Sequence[str] = (), name: str = "PairNetwork"):
    devices = input_tensor_spec[FEATURES].shape[0]
    super().__init__(
        input_tensor_spec, state_spec=(),
        output_spec=distribution_spec.DistributionSpec(
            tfp.distributions.Categorical,
            {"logits": tensor_spec.TensorSpec((devices,), tf.float32, name="logits")},
            sample_spec=action_spec, dtype=action_spec.dtype),
        name=name)
    self._pair_layers = _layers(width, seed)
    self._kept = _kept(without)

  def call(self, observation, step_type=None, network_state=(), training=False):
    """Returns (Categorical with the outer dims as batch shape, network_state)."""
    del step_type, training
    x = observation[FEATURES] * self._kept  # [..., P, F]
    for layer in self._pair_layers:
      x = layer(x)
    scores = x[..., 0] / (1 + tf.abs(x[..., 0]) / CAP)
    logits = tf.where(observation[MASK] > 0, scores, NEVER)
    return self.output_spec.build_distribution(logits=logits), network_state

  def weights_for_scoring(self) -> ScorerWeights:
    """What compiled inference needs; once variables are created."""
    first, second, output = self._pair_layers
    return ScorerWeights(
        first.kernel.numpy() * self._kept[:, None], first.bias.numpy(), second.kernel.numpy(),
        second.bias.numpy(), output.kernel.numpy()[:, 0])

  def set_weights_for_scoring(self, weights: ScorerWeights) -> None:
    """The other way round, for warm starts."""
    first, second, output = self._pair_layers
    first.set_weights([weights.hidden_1, weights.bias_1])
    second.set_weights([weights.hidden_2, weights.bias_2])
    output.set_weights([weights.output[:, None]])


class PairValueNetwork(network.Network):
  """Observation -> what the group at hand is expected to gain, from its pairs' mean and best."""

  def __init__(
      self, input_tensor_spec, *, width: int = WIDTH, seed: int = 1,
      without: Sequence[str] = (), name: str = "PairValueNetwork"):
    super().__init__(input_tensor_spec, state_spec=(), name=name)
    *self._pair_layers, self._last = _layers(width, seed)
    self._kept = _kept(without)

  def call(self, observation, step_type=None, network_state=(), training=False):
    """Returns (values with the outer dims as shape, network_state)."""
    del step_type, training
    x, mask = observation[FEATURES] * self._kept, observation[MASK][..., None]
    for layer in self._pair_layers:
      x = layer(x)
    mean = tf.reduce_sum(x * mask, axis=-2) / tf.maximum(tf.reduce_sum(mask, axis=-2), 1.0)
    best = tf.reduce_max(x * mask, axis=-2)  # ReLU: not below 0
    return self._last(tf.concat([mean, best], axis=-1))[..., 0], network_state
