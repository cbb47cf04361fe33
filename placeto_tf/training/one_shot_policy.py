"""Policies that place a whole graph in one action (rnn, hierarchical, gdp), as tf-agents networks.

An episode is one step. Its action is a vector of decisions: a device for each group and, if groups
are sampled as well, a group for each op. A decision, its probability and its entropy may depend on
earlier decisions. So the network returns `Decisions`, a distribution of the whole vector that has
the log probability of each decision. tf-agents' agents sum these.

Samples come from NumPy generators, as everywhere (see `driving`): each policy has a compiled pass
that samples a batch, and `act` wraps that pass for a driver.

Dimensions: B placements side by side, A decisions per placement, G groups, D devices.
"""

from __future__ import annotations

from typing import Callable, Optional, Tuple, Union

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from tf_agents.distributions import masked
from tf_agents.networks import network
from tf_agents.specs import array_spec, distribution_spec, tensor_spec

# Actions -> log probability of each decision, of the same shape.
LogProbs = Callable[[tf.Tensor], tf.Tensor]

LOG_PROBS = "log_probs"


class Decisions(tfp.distributions.Distribution):
  """A distribution of decisions whose `log_prob` has the same shape as the given actions."""

  def __init__(
      self, of: Optional[LogProbs] = None, entropies: Optional[tf.Tensor] = None,
      log_probs: Optional[tf.Tensor] = None, name: str = "Decisions"):
    """Makes the distribution from log probabilities of any actions, or of sampled actions.

    Args:
      of: function that computes log probabilities.
      entropies: entropies of the decisions, if they do not depend on one another.
      log_probs: instead of `of`, the log probabilities of the sampled actions, which are then the
        only actions that may be passed to `log_prob`.
      name: of the distribution.
    """
    self._of = (lambda actions: log_probs) if of is None else of
    self._entropies = entropies
    super().__init__(
        dtype=tf.int32, reparameterization_type=tfp.distributions.NOT_REPARAMETERIZED,
        validate_args=False, allow_nan_stats=True, parameters={LOG_PROBS: log_probs}, name=name)

  def _log_prob(self, value):
    return self._of(value)

  def _entropy(self):
    if self._entropies is None:
      raise NotImplementedError("the entropy depends on the decisions")
    return self._entropies


class OneShotPolicy(network.DistributionNetwork):
  """Base class: number of the graph -> `Decisions`; one graph unless a policy says otherwise.

  Attributes:
    decisions: spec of an action of its environment, [A].
  """

  def __init__(self, num_decisions: int, most: Union[int, np.ndarray], name: str):
    """Declares the specs of observations and actions to tf-agents.

    Args:
      num_decisions: A.
      most: largest value of each decision, or of all decisions.
      name: of the network.
    """
    self.decisions = array_spec.BoundedArraySpec((num_decisions,), np.int32, 0, most, name="device")
    spec = tensor_spec.from_spec(self.decisions)
    super().__init__(
        tensor_spec.BoundedTensorSpec([], tf.int32, 0, 0, name="graph"), state_spec=(),
        output_spec=distribution_spec.DistributionSpec(
            Decisions, {LOG_PROBS: tensor_spec.TensorSpec(spec.shape, tf.float32)},
            sample_spec=spec),
        name=name)

  def call(self, observation, step_type=None, network_state=(), training=False):
    """Returns the distribution of decisions, which computes log probabilities of actions.

    Args:
      observation: [B] int32 number of the graph; ignored, because there is one graph.
      step_type, training: ignored.
      network_state: empty.

    Returns:
      (`Decisions`, network_state).
    """
    del observation, step_type, training
    return Decisions(self._log_probs_of), network_state

  def _log_probs_of(self, actions: tf.Tensor) -> tf.Tensor:
    # tf-agents gives [B, T, A]; `log_prob` takes [B T, A].
    flat = tf.reshape(actions, [-1, actions.shape[-1]])
    return tf.reshape(self.log_prob(flat), tf.shape(actions))

  def sample(self, rng: np.random.Generator, count: int) -> np.ndarray:
    """Samples decisions.

    All randomness comes from `rng`; TensorFlow's global seed has no effect and is not changed.
    Devices that a group may not use are never sampled.

    Args:
      rng: the source of randomness.
      count: B, number of placements.

    Returns:
      [count, A] int32 decisions.
    """
    raise NotImplementedError

  def log_prob(self, decisions: tf.Tensor) -> tf.Tensor:
    """Returns [B, A] log p(decision | earlier ones) of decisions [B, A]; 0 without a choice."""
    raise NotImplementedError

  def placements(self, decisions: np.ndarray) -> np.ndarray:
    """Returns [B, G] int32 device of each of the environment's groups."""
    return decisions

  def act(self, rng: np.random.Generator) -> Callable[[np.ndarray], Tuple[np.ndarray, Tuple[()]]]:
    """Returns an `Act` of `driving`: observations [B] -> decisions [B, A], no information."""
    return lambda observation: (self.sample(rng, len(observation)), ())


def log_prob_of(logits: tf.Tensor, allowed: tf.Tensor, actions: tf.Tensor) -> tf.Tensor:
  """Returns the log probabilities of actions under masked logits.

  Args:
    logits: [..., D].
    allowed: [..., D] bool; other devices have probability 0.
    actions: [...] int32 devices.

  Returns:
    [...] float32; exactly 0 if only one device is allowed.
  """
  return masked.MaskedCategorical(logits, allowed).log_prob(actions)
